"""The command as a whole: help, start-up, exit codes."""

import subprocess
import sys

import pytest
from making import run

import tarshard

COMMANDS = ("pack", "stream")


def test_top_help_names_every_command_and_exit_code() -> None:
    """``tarshard --help`` lists the commands and what the exit codes mean."""
    shown = run("--help").stdout.decode()
    assert all(command in shown for command in COMMANDS)
    assert all(
        code in shown for code in ("2 usage", "3 input", "4 damaged", "5 cannot write", "130")
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_shows_examples(command: str) -> None:
    """Each command's help ends with examples that can be typed as they stand."""
    shown = run(command, "--help").stdout.decode()
    examples = shown[shown.index("Examples") :]
    assert examples.count(f"tarshard {command} ") >= 2


def test_without_arguments_shows_help() -> None:
    """Typing ``tarshard`` alone shows the help and is a usage error."""
    assert b"Usage" in run(code=2).stdout + run(code=2).stderr


def test_version() -> None:
    """``--version`` prints the package's version."""
    assert run("--version").stdout.decode() == f"tarshard {tarshard.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["pack", "--help"], ["stream", "--help"]])
def test_help_loads_neither_torch_nor_opencv(arguments: list[str]) -> None:
    """Help loads no library that takes long: torch, cv2, numpy, tqdm."""
    script = (
        "import sys\n"
        f"sys.argv = ['tarshard', *{arguments!r}]\n"
        "from tarshard.cli.entry import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'cv2', 'numpy', 'tqdm') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stderr.decode().strip() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["pack"],
        ["pack", "a", "b"],
        ["pack", "a", "b", "--shards", "x"],
        ["pack", "a", "b", "--shards", "2", "--order", "sideways"],
        ["stream"],
        ["stream", "a", "--tail", "long"],
        ["stream", "a", "--format", "zip"],
        ["stream", "a", "--json", "--format", "tar"],
        ["stream", "a", "--limit", "-1"],
        ["stream", "a", "--epochs", "0"],
    ],
)
def test_usage_errors(arguments: list[str]) -> None:
    """A command line that cannot be meant is exit code 2 with a message on stderr."""
    done = run(*arguments, code=2)
    assert done.stderr
    assert not done.stdout
