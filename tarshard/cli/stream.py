"""``tarshard stream``: a packed dataset goes to a pipe, or just shows how fast it comes."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from json import dumps as to_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tarshard.cli.boundary import boundary
from tarshard.errors import PROBLEMS_SHOWN, UsageError

if TYPE_CHECKING:
    from typing import BinaryIO

    from rich.console import RenderableType

    from tarshard.progress import Progress
    from tarshard.streaming.batch import Batch, Problem
    from tarshard.streaming.loader import Loader
    from tarshard.streaming.sinks import Sink

EXAMPLES = """Examples:

tarshard stream packed

tarshard stream packed --shuffle --seed 1 | tar tf - | head

tarshard stream packed --format jsonl | jq -r .key

tarshard stream packed --size 224 --format rgb24 --on-error skip | your-preprocessing

tarshard stream packed --size 224 --format npy --output pixels.npy
"""


class Format(StrEnum):
    """What is written to stdout."""

    TAR = "tar"
    JSONL = "jsonl"
    NPY = "npy"
    RGB24 = "rgb24"
    MJPEG = "mjpeg"


class Fit(StrEnum):
    """How an image comes to lie in a frame of another shape."""

    COVER = "cover"
    CONTAIN = "contain"
    STRETCH = "stretch"


class OnError(StrEnum):
    """What to do with an image that cannot be decoded."""

    FAIL = "fail"
    SKIP = "skip"


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
    undecodable: int = 0
    """Images that could not be decoded, and were left out."""
    complaints: int = 0
    """Images that were decoded although the decoder complained."""
    first_problems: list[str] = field(default_factory=list)
    """The first few of both, a sentence each."""


def default_workers() -> int:
    """Return the number of cores that this process may use, at most 4."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(4, cores or 1)


def stream(
    dataset: Annotated[
        Path,
        typer.Argument(
            metavar="DATASET", readable=False, help="Folder that 'tarshard pack' wrote."
        ),
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
            "width, height, valid; 'npy': batches of pixels; 'rgb24': raw frames; 'mjpeg': JPEG "
            "files. Default: tar to a pipe, nothing to a terminal."
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="S or HxW", help="Decode images and give them this size, in pixels."),
    ] = None,
    fit: Annotated[
        Fit,
        typer.Option(
            help="Fill the size with the middle of the image, show all of it on black, "
            "or change its shape."
        ),
    ] = Fit.COVER,
    max_pixels: Annotated[
        int, typer.Option(help="Do not decode an image that claims to be larger.")
    ] = 2**27,
    on_error: Annotated[
        OnError, typer.Option(help="'skip' leaves images out that cannot be decoded.")
    ] = OnError.FAIL,
    skip_report: Annotated[
        Path | None,
        typer.Option(help="Write a JSON line for each image with a problem to this file."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write to this file, whole or not at all.")
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
        shown = _shown(format, json=json, output=output, is_terminal=_is_terminal())
        frame = _frame(size, shown)
        if output and skip_report and os.path.realpath(output) == os.path.realpath(skip_report):
            raise UsageError("--output and --skip-report are the same file")
        if limit is not None and limit < 0:
            raise UsageError(f"--limit must be at least 0, got {limit}")
        if epochs < 1:
            raise UsageError(f"--epochs must be at least 1, got {epochs}")

    from tarshard.cli.output import opened
    from tarshard.cli.progress import TerminalProgress
    from tarshard.cli.show import print_for_people, print_json
    from tarshard.streaming.loader import Loader
    from tarshard.streaming.sinks import SINKS

    with boundary():
        kind = SINKS[shown.value] if shown else None
        loader = Loader(
            dataset,
            batch_size=batch_size,
            workers=workers,
            shuffle=shuffle,
            seed=seed,
            size=frame,
            fit=fit.value,
            tail=tail.value if tail else None,
            rank=rank,
            world_size=world_size,
            on_error=on_error.value,
            max_pixels=max_pixels,
            content=kind.takes if kind and kind.takes != "pixels" else "image",
        )
        loader.set_epoch(epoch)
        with opened(output) as file, _report(skip_report) as report:
            result = deliver(
                loader,
                kind(file) if kind else None,
                epochs=epochs,
                limit=limit,
                report=report,
                progress=TerminalProgress(),
            )
        if json:
            print_json(asdict(result))
        else:
            print_for_people(table(result))


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _shown(
    asked: Format | None, *, json: bool, output: Path | None, is_terminal: bool
) -> Format | None:
    """Decide in which format samples are written; None for not at all."""
    if output:
        return asked or Format.TAR
    if json and asked:
        raise UsageError(
            f"--json and --format {asked} both write to stdout; add --output FILE for the samples"
        )
    if asked and asked is not Format.JSONL and is_terminal:
        raise UsageError(f"--format {asked} writes binary data; pipe it, or add --output FILE")
    return asked or (None if json or is_terminal else Format.TAR)


def _frame(size: str | None, shown: Format | None) -> tuple[int, int] | None:
    """Return height and width, as far as the format goes with a size."""
    if size is None:
        if shown in {Format.NPY, Format.RGB24}:
            raise UsageError(f"--format {shown} needs images of one size; add --size 224")
        return None
    if shown in {Format.TAR, Format.JSONL}:
        raise UsageError(
            f"--format {shown} does not decode, so --size has no meaning; "
            "with it goes --format npy, rgb24 or mjpeg"
        )
    sides = size.lower().split("x")
    if len(sides) > 2 or not all(side.isascii() and side.isdigit() for side in sides):
        raise UsageError(f"--size must be a number or HxW, such as 224 or 224x320, got {size!r}")
    return int(sides[0]), int(sides[-1])


@contextmanager
def _report(path: Path | None) -> Iterator["BinaryIO | None"]:
    if path is None:
        yield None
        return
    from tarshard.cli.output import opened

    with opened(path) as file:
        yield file


def deliver(
    loader: "Loader",
    sink: "Sink | None",
    *,
    epochs: int,
    limit: int | None,
    report: "BinaryIO | None",
    progress: "Progress",
) -> StreamResult:
    """Write batches to the sink until the epochs are over or the limit is reached.

    Each problem is a line of the report.
    """
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
            for problem in batch.problems:
                _note(problem, result, report)
            valid = [facts for facts in batch.samples if facts.valid]
            failed = sum(problem.is_fatal for problem in batch.problems)
            size_bytes = sum(facts.size_bytes for facts in valid)
            result.batches += 1
            result.samples += len(valid)
            result.padding += len(batch) - len(valid) - failed
            result.size_bytes += size_bytes
            progress.advance(len(valid) + failed, size_bytes)
        if sink is not None:
            sink.finish()
    except RuntimeError as error:
        raise loader.explained(error) from None
    finally:
        progress.finish()
    result.seconds = time.perf_counter() - started
    return result


def _note(problem: "Problem", result: StreamResult, report: "BinaryIO | None") -> None:
    sample = problem.sample
    result.undecodable += problem.is_fatal
    result.complaints += not problem.is_fatal
    if len(result.first_problems) < PROBLEMS_SHOWN:
        result.first_problems.append(f"{sample.place}: {problem.cause}")
    if report is not None:
        row = {
            "key": sample.key,
            "shard": sample.shard,
            "offset": sample.offset,
            "reason": "undecodable" if problem.is_fatal else "complaint",
            "detail": problem.cause,
        }
        report.write(to_json(row).encode("ascii") + b"\n")


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
            **_problems(result),
        },
    )


def _problems(result: StreamResult) -> dict[str, str]:
    counted = {
        "undecodable": f"{result.undecodable:,} images, left out" if result.undecodable else "",
        "complaints": f"{result.complaints:,} images, delivered" if result.complaints else "",
        "problems": "\n".join(result.first_problems),
    }
    return {name: value for name, value in counted.items() if value}
