"""How results are printed: JSON for programs on stdout, tables for people on stderr."""

import json
from collections.abc import Mapping
from contextlib import suppress

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tarshard.cli.output import stdout


def print_json(facts: Mapping[str, object]) -> None:
    """Print to stdout."""
    with stdout() as file:
        file.write(json.dumps(facts, indent=2).encode("ascii") + b"\n")


def print_for_people(table: RenderableType) -> None:
    """Print to stderr; if that is not possible, the work was done all the same."""
    with suppress(OSError):
        Console(stderr=True, highlight=False).print(table)


def rows(title: str, values: Mapping[str, str]) -> Table:
    """Return a table of names and values."""
    # Text, not str: a path may hold what rich would take for markup.
    table = Table(title=Text(title), title_justify="left", show_header=False, box=None)
    for name, value in values.items():
        table.add_row(Text(name, style="bold"), Text(value))
    return table
