"""The command ``tarshard`` with its subcommands."""

from typing import Annotated

import typer

import tarshard
from tarshard.cli import pack, stream

app = typer.Typer(
    name="tarshard",
    help="Pack image folders into tar shards, and stream them into training.",
    epilog=(
        "Examples:\n\n"
        "tarshard pack photos packed --shards 8\n\n"
        "tarshard stream packed --shuffle | tar tf -\n\n"
        "Exit codes: 0 done, 2 usage, 3 input missing or unusable, 4 damaged dataset, "
        "5 cannot write, 6 worker failed, 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("pack", epilog=pack.EXAMPLES)(pack.pack)
app.command("stream", epilog=stream.EXAMPLES)(stream.stream)


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(f"tarshard {tarshard.__version__}")
        raise typer.Exit
