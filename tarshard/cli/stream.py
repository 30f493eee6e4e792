"""``tarshard stream``: a packed dataset goes to a pipe, or just shows how fast it comes."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tarshard.cli.boundary import boundary
from tarshard.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tarshard.progress import Progress
    from tarshard.streaming.batch import Batch
    from tarshard.streaming.loader import Loader
    from tarshard.streaming.sinks import Sink

EXAMPLES = """Examples:

tarshard stream packed

tarshard stream packed --shuffle --seed 1 | tar tf - | head

tarshard stream packed --format jsonl | jq -r .key
"""


class Format(StrEnum):
    """What is written to stdout."""

    TAR = "tar"
    JSONL = "jsonl"


class Tail(StrEnum):
    """What happens when the samples do not divide evenly among ranks."""

    UNEVEN = "uneven"
    PAD = "pad"
    DROP = "drop"


@dataclass
class StreamResult:
    """What was delivered."""

    samples: int = 0
    """Without padding."""
    padding: int = 0
    batches: int = 0
    size_bytes: int = 0
    """Of the samples' images."""
    seconds: float = 0.0
    """From the start of the first epoch, workers included."""
    first_batch_seconds: float | None = None
    """From the same start; None when there was no batch."""


def default_workers() -> int:
    """Return the number of cores that this process may use, at most 4."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(4, cores or 1)


def stream(
    dataset: Annotated[
        Path, typer.Argument(metavar="DATASET", help="Folder that 'tarshard pack' wrote.")
    ],
    workers: Annotated[
        int,
        typer.Option(
            help="Reading processes; 0 reads in this one.", show_default="cores, at most 4"
        ),
    ] = default_workers(),
    batch_size: Annotated[int, typer.Option(help="Samples in a batch.")] = 64,
    shuffle: Annotated[
        bool, typer.Option("--shuffle/--no-shuffle", help="Mix the samples.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the shuffling.")] = 0,
    epoch: Annotated[int, typer.Option(help="The first epoch; each has its own order.")] = 0,
    epochs: Annotated[int, typer.Option(help="How many epochs to deliver.")] = 1,
    format: Annotated[  # noqa: A002
        Format | None,
        typer.Option(
            help="'tar': all members as packed; 'jsonl': key, label, shard, offset, size, "
            "width, height, valid. Default: tar to a pipe, nothing to a terminal."
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="This process among several, from 0.")] = None,
    world_size: Annotated[
        int | None, typer.Option(help="How many processes share the data.")
    ] = None,
    tail: Annotated[
        Tail | None,
        typer.Option(
            help="Ranks get parts of nearly equal size, equal by repeating samples, or equal "
            "whole batches.",
            show_default="uneven for one rank, else pad",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after so many samples.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a summary as JSON, and no samples.")
    ] = False,
) -> None:
    """Stream a packed dataset through worker processes, each sample exactly once.

    Into a pipe go the samples, as a tar by default. To a terminal go no
    samples: it shows how fast they come.
    """
    with boundary():
        output = _output(format, json=json, is_terminal=sys.stdout.isatty())
        if limit is not None and limit < 0:
            raise UsageError(f"--limit must be at least 0, got {limit}")
        if epochs < 1:
            raise UsageError(f"--epochs must be at least 1, got {epochs}")

        from tarshard.cli.progress import TerminalProgress
        from tarshard.cli.show import print_for_people, print_json
        from tarshard.streaming.loader import Loader
        from tarshard.streaming.sinks import SINKS

        sink = SINKS[output.value](sys.stdout.buffer) if output else None
        loader = Loader(
            dataset,
            batch_size=batch_size,
            workers=workers,
            shuffle=shuffle,
            seed=seed,
            tail=tail.value if tail else None,
            rank=rank,
            world_size=world_size,
            content=sink.content if sink else "image",
        )
        loader.set_epoch(epoch)
        result = deliver(loader, sink, epochs=epochs, limit=limit, progress=TerminalProgress())
        if json:
            print_json(asdict(result))
        else:
            print_for_people(table(result))


def _output(asked: Format | None, *, json: bool, is_terminal: bool) -> Format | None:
    """Decide what goes to stdout."""
    if json and asked:
        raise UsageError(f"--json and --format {asked} both write to stdout; give one of them")
    if asked is Format.TAR and is_terminal:
        raise UsageError("--format tar writes binary data; pipe it into a program or a file")
    return asked or (None if json or is_terminal else Format.TAR)


def deliver(
    loader: "Loader",
    sink: "Sink | None",
    *,
    epochs: int,
    limit: int | None,
    progress: "Progress",
) -> StreamResult:
    """Write batches to the sink until the epochs are over or the limit is reached."""
    result = StreamResult()
    total = loader.share.valid_samples * epochs
    progress.phase("Streaming", items=total if limit is None else min(limit, total))
    started = time.perf_counter()
    try:
        for batch in _batches(loader, epochs, limit):
            if result.first_batch_seconds is None:
                result.first_batch_seconds = time.perf_counter() - started
            if sink is not None:
                sink.write(batch)
            valid = [facts for facts in batch.samples if facts.valid]
            size_bytes = sum(facts.size_bytes for facts in valid)
            result.batches += 1
            result.samples += len(valid)
            result.padding += len(batch) - len(valid)
            result.size_bytes += size_bytes
            progress.advance(len(valid), size_bytes)
        if sink is not None:
            sink.finish()
    finally:
        progress.finish()
    result.seconds = time.perf_counter() - started
    return result


def _batches(loader: "Loader", epochs: int, limit: int | None) -> Iterator["Batch"]:
    left = limit
    for _ in range(epochs):
        if left == 0:
            return
        for whole in loader:
            batch = whole if left is None else whole.beginning(left)
            yield batch
            if left is not None:
                left -= sum(facts.valid for facts in batch.samples)
                if left == 0:
                    return


def table(result: StreamResult) -> "RenderableType":
    """Return the result for people."""
    from tarshard.cli.show import rows

    seconds = max(result.seconds, 1e-9)
    megabytes = result.size_bytes / 1e6
    first = result.first_batch_seconds
    padding = f" and {result.padding:,} of padding" if result.padding else ""
    wait = "" if first is None else f", first batch after {first:.2f} s"
    return rows(
        "Streamed",
        {
            "samples": f"{result.samples:,}{padding}",
            "batches": f"{result.batches:,}",
            "bytes": f"{megabytes:,.1f} MB of images",
            "rate": f"{result.samples / seconds:,.0f} images/s, {megabytes / seconds:,.0f} MB/s",
            "time": f"{result.seconds:,.2f} s{wait}",
        },
    )
