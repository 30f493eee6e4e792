"""Packs an image folder into balanced tar shards: the whole algorithm, from scan to commit."""

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import tarshard
from tarshard.checks import one_of, whole_number
from tarshard.errors import InputUnusable, SourceProblems, UsageError
from tarshard.index import INDEX_NAME, SHARD_LIMIT_BYTES, Index, Shard
from tarshard.packing.destination import (
    Workspace,
    check_apart,
    check_state,
    destination_path,
    sources_digest,
    workspace,
)
from tarshard.packing.keys import assign_keys, pack_order
from tarshard.packing.labels import MODES, Labels, label_images
from tarshard.packing.plan import is_balanced, plan_shards
from tarshard.packing.scan import SourceFile, scan
from tarshard.packing.skips import SKIPS_NAME, Skip, counts, report
from tarshard.packing.write import PlannedSample, WrittenShard, check_source, write_shard
from tarshard.progress import NO_PROGRESS, Progress


@dataclass(frozen=True, slots=True)
class PackOptions:
    """What changes the bytes of a dataset, beside the images."""

    shards: int
    order: Literal["shuffled", "path"] = "shuffled"
    seed: int = 0
    balance: Literal["bytes", "count"] = "bytes"
    labels: str = "auto"
    on_error: Literal["fail", "skip"] = "fail"

    def __post_init__(self) -> None:
        """Raise `UsageError` for a value that cannot be."""
        whole_number("shards", self.shards, at_least=1)
        whole_number("seed", self.seed, at_least=0)
        one_of("order", self.order, ("shuffled", "path"))
        one_of("balance", self.balance, ("bytes", "count"))
        one_of("labels", self.labels, MODES)
        one_of("on_error", self.on_error, ("fail", "skip"))


@dataclass(frozen=True, slots=True)
class PackResult:
    """What came of a pack."""

    out: Path
    shards: int
    samples: int
    size_bytes: int
    """Of all shards."""
    heaviest_bytes: int
    """Of the largest shard file."""
    lightest_bytes: int
    """Of the smallest shard file."""
    classes: int
    labels: str
    """``folder`` or ``none``: what ``auto`` came to."""
    skipped: dict[str, int]
    """How many files were left out, by reason."""
    seconds: float

    @property
    def imbalance(self) -> float:
        """By how much of the mean the largest and the smallest shard differ."""
        return (self.heaviest_bytes - self.lightest_bytes) * self.shards / self.size_bytes


def pack(
    images: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    shards: int,
    order: Literal["shuffled", "path"] = "shuffled",
    seed: int = 0,
    balance: Literal["bytes", "count"] = "bytes",
    labels: str = "auto",
    on_error: Literal["fail", "skip"] = "fail",
    overwrite: bool = False,
    progress: Progress = NO_PROGRESS,
) -> PackResult:
    """Pack the images below a folder into ``shards`` tar files with an index.

    Either the whole dataset stands in ``out`` afterwards, or ``out`` is as it was.

    Raises `UsageError` for a value that cannot be, `InputUnusable` when there is
    nothing to pack or, unless ``on_error="skip"``, a file that cannot be stored
    (`SourceProblems` lists them), `CannotWrite` when ``out`` cannot be written.
    """
    started = time.perf_counter()
    options = PackOptions(shards, order, seed, balance, labels, on_error)
    source, target = Path(images), destination_path(out)
    if not os.fspath(images):
        raise UsageError("the name of the image folder is empty")
    check_apart(source, target)
    check_state(target, overwrite=overwrite)
    try:
        found = scan(os.fsencode(source), progress=progress)
        _refuse_faults(found.skips, options)
        samples, label_facts = _samples(found.images, found.skips, options, source)
        size_bytes = sum(sample.weight_bytes for sample in samples)
        if size_bytes // shards >= SHARD_LIMIT_BYTES // 2:
            raise UsageError(f"{size_bytes:,} bytes need more than {shards} shards")
        asked = {"options": asdict(options), "sources": sources_digest(found.images)}
        with workspace(target, asked=asked, overwrite=overwrite, needed_bytes=size_bytes) as space:
            if not space.is_committed:
                written, late = _write_all(samples, options, source, space, progress)
                _finish(space, written, options, label_facts, found.skips + late)
    finally:
        progress.finish()
    return _result(target, seconds=time.perf_counter() - started)


def _result(out: Path, *, seconds: float) -> PackResult:
    index = Index.from_json((out / INDEX_NAME).read_bytes())
    sizes = [shard.filesize for shard in index.shards]
    return PackResult(
        out=out,
        shards=len(index.shards),
        samples=index.samples,
        size_bytes=sum(sizes),
        heaviest_bytes=max(sizes),
        lightest_bytes=min(sizes),
        classes=len(index.classes),
        labels=str(index.options["labels"]),
        skipped=dict(index.skipped),
        seconds=seconds,
    )


def _refuse_faults(skips: Sequence[Skip], options: PackOptions) -> None:
    by_path = sorted(skips, key=lambda skip: skip.path)
    faults = [str(skip) for skip in by_path if skip.is_fault]
    if faults and options.on_error == "fail":
        raise SourceProblems(
            f"{len(faults):,} of the files cannot be packed; mend or remove them, "
            "or leave them out with --on-error skip:",
            problems=faults,
        )


def _samples(
    images: Sequence[SourceFile], skips: Sequence[Skip], options: PackOptions, folder: Path
) -> tuple[list[PlannedSample], Labels]:
    """Return the samples in pack order."""
    _refuse_too_few(len(images), options, folder, skips)
    paths = [image.path for image in images]
    labels = label_images(paths, options.labels)
    keys = assign_keys(paths)
    numbers = labels.numbers or (None,) * len(images)
    positions = pack_order(paths, order=options.order, seed=options.seed)
    return [PlannedSample(images[at], keys[at], numbers[at]) for at in positions], labels


def _refuse_too_few(
    samples: int, options: PackOptions, folder: Path, skips: Sequence[Skip]
) -> None:
    if samples == 0:
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in counts(skips).items())
        raise InputUnusable(
            f"no images in {folder} (left out: {left_out or 'nothing, it is empty'}); "
            "give the folder that holds the images"
        )
    if samples < options.shards:
        raise UsageError(
            f"{options.shards:,} shards need as many images, {folder} has {samples:,}; "
            f"use --shards {samples} or fewer"
        )


def _write_all(
    samples: list[PlannedSample],
    options: PackOptions,
    folder: Path,
    space: Workspace,
    progress: Progress,
) -> tuple[list[WrittenShard], list[Skip]]:
    """Write all shards; plan again when images that were left out unbalanced them."""
    written: dict[int, WrittenShard] = {}
    skips: list[Skip] = []
    runs = options.order == "path"
    while True:
        plan = plan_shards(
            [_weight(sample, options) for sample in samples], options.shards, runs=runs
        )
        planned = {n: tuple(samples[at] for at in shard) for n, shard in enumerate(plan)}
        todo = {n: shard for n, shard in planned.items() if _stored(written.get(n)) != shard}
        progress.phase("Packing", items=sum(map(len, todo.values())))
        faults: list[Skip] = []
        for n, shard in todo.items():
            written[n] = write_shard(
                space.tar_path(_shard_name(n)),
                shard,
                folder=os.fsencode(folder),
                wrote=progress.advance,
            )
            faults += written[n].skips
            if faults and options.on_error == "fail":
                rest = [sample for later in todo if later > n for sample in todo[later]]
                _refuse_faults(faults + _faults_of(rest, folder, progress), options)
        skips += faults
        lost = {skip.path for skip in faults}
        samples = [sample for sample in samples if sample.source.path not in lost]
        _refuse_too_few(len(samples), options, folder, skips)
        weights = [[_weight(s, options) for s in written[n].stored] for n in range(options.shards)]
        if is_balanced(weights, runs=runs):
            return [written[n] for n in range(options.shards)], skips


def _faults_of(samples: Sequence[PlannedSample], folder: Path, progress: Progress) -> list[Skip]:
    """Look at images that will not be packed any more, so that all problems are named at once."""
    progress.phase("Checking the rest", items=len(samples))
    faults = []
    for sample in samples:
        fault = check_source(sample.source, os.fsencode(folder))
        faults += [fault] if fault else []
        progress.advance(1)
    return faults


def _weight(sample: PlannedSample, options: PackOptions) -> int:
    return sample.weight_bytes if options.balance == "bytes" else 1


def _stored(shard: WrittenShard | None) -> tuple[PlannedSample, ...] | None:
    return None if shard is None else shard.stored


def _finish(
    space: Workspace,
    written: Sequence[WrittenShard],
    options: PackOptions,
    labels: Labels,
    skips: Sequence[Skip],
) -> None:
    """Write the tables, the skip report and the index; put them in place."""
    names, rows = [], []
    for number, shard in enumerate(written):
        content = shard.table.to_json()
        row = Shard(
            url=_shard_name(number),
            nsamples=len(shard.table.samples),
            filesize=shard.table.filesize,
            sha256=shard.sha256,
            table_sha256=hashlib.sha256(content).hexdigest(),
        )
        space.write(row.table_name, content)
        names += [row.url, row.table_name]
        rows.append(row)
    if skips:
        space.write(SKIPS_NAME, report(skips))
        names.append(SKIPS_NAME)
    index = Index(
        shards=tuple(rows),
        classes=tuple(name.decode("utf-8", "surrogateescape") for name in labels.classes),
        seed=options.seed,
        order=options.order,
        skipped=counts(skips),
        options={"balance": options.balance, "labels": labels.mode, "shards": options.shards},
        created_by=f"tarshard {tarshard.__version__}",
    )
    space.write(INDEX_NAME, index.to_json())
    space.commit(names)


def _shard_name(number: int) -> str:
    return f"shard-{number:06d}.tar"
