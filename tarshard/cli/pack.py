"""``tarshard pack``: an image folder becomes tar shards."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tarshard.cli.boundary import boundary

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tarshard.packing.pack import PackResult

EXAMPLES = """Examples:

tarshard pack photos packed --shards 8

tarshard pack photos packed --shards 8 --on-error skip --overwrite

tarshard pack photos packed --shards 8 --json | jq .samples
"""


class Order(StrEnum):
    """In what order samples are packed."""

    SHUFFLED = "shuffled"
    PATH = "path"


class Balance(StrEnum):
    """What is equal among shards."""

    BYTES = "bytes"
    COUNT = "count"


class Labels(StrEnum):
    """Where classes come from."""

    AUTO = "auto"
    FOLDER = "folder"
    NONE = "none"


class OnError(StrEnum):
    """What to do with a file that cannot be packed."""

    FAIL = "fail"
    SKIP = "skip"


def pack(
    images: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGES", readable=False, help="Folder of images, with folders below."
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", readable=False, help="Folder for the shards; new or empty."),
    ],
    shards: Annotated[int, typer.Option(help="How many tar files to make.")],
    order: Annotated[
        Order, typer.Option(help="'path' keeps neighbours together; then shuffle while streaming.")
    ] = Order.SHUFFLED,
    seed: Annotated[int, typer.Option(help="Of the shuffled order.")] = 0,
    balance: Annotated[
        Balance, typer.Option(help="Shards have equal bytes, or equally many samples.")
    ] = Balance.BYTES,
    labels: Annotated[
        Labels,
        typer.Option(
            help="'folder': the first folder below IMAGES is the class; "
            "'auto': that, if every image has one."
        ),
    ] = Labels.AUTO,
    on_error: Annotated[
        OnError,
        typer.Option(help="'skip' leaves files out that cannot be packed, and reports them."),
    ] = OnError.FAIL,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the dataset that is in OUT.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Pack a folder of images into balanced tar shards with a JSON index.

    The images' bytes are stored as they are. Afterwards either the whole
    dataset stands in OUT, or OUT is as it was. Files that are no images
    are left out and listed in OUT/skipped.jsonl; one that is named like an
    image and is none is an error, unless --on-error skip is given.
    """
    from tarshard.cli.progress import TerminalProgress
    from tarshard.cli.show import print_for_people, print_json
    from tarshard.packing.pack import pack as pack_images

    with boundary():
        result = pack_images(
            images,
            out,
            shards=shards,
            order=order.value,
            seed=seed,
            balance=balance.value,
            labels=labels.value,
            on_error=on_error.value,
            overwrite=overwrite,
            progress=TerminalProgress(),
        )
        if json:
            print_json(facts(result))
        else:
            print_for_people(table(result, asked_labels=labels))


def facts(result: "PackResult") -> dict[str, Any]:
    """Return the result for ``--json``."""
    return asdict(result) | {"out": str(result.out), "imbalance": result.imbalance}


def table(result: "PackResult", *, asked_labels: Labels) -> "RenderableType":
    """Return the result for people."""
    from tarshard.cli.show import rows

    megabytes = result.size_bytes / 1e6
    labels = f"{result.classes:,} classes, by folder" if result.classes else "none"
    if labels == "none" and asked_labels is Labels.AUTO:
        labels = "none, as not every image lies in a folder"
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in result.skipped.items())
    return rows(
        f"Packed into {result.out}",
        {
            "samples": f"{result.samples:,}",
            "shards": f"{result.shards:,}",
            "bytes": f"{megabytes:,.1f} MB",
            "imbalance": (
                f"{result.imbalance:.2%} "
                f"({result.lightest_bytes / 1e6:,.2f} to {result.heaviest_bytes / 1e6:,.2f} MB)"
            ),
            "labels": labels,
            "left out": f"{skipped} (see skipped.jsonl)" if skipped else "nothing",
            "time": f"{result.seconds:,.1f} s, {megabytes / result.seconds:,.0f} MB/s",
        },
    )
