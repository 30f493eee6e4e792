"""Reads pieces of shards in few large reads, and checks what can be seen without hashing."""

import errno
from collections import OrderedDict
from collections.abc import Callable
from itertools import accumulate
from types import TracebackType
from typing import Literal, NamedTuple, Self

import numpy as np

from tarshard import ustar
from tarshard.dataset import Dataset
from tarshard.errors import InputUnusable, ShardCorrupt
from tarshard.index import Member, Sample, Shard, ShardTable
from tarshard.storage.local import LocalFile
from tarshard.streaming.batch import Delivered
from tarshard.streaming.order import Piece

Content = Literal["image", "sample", "facts"]
"""What is delivered of a sample: the image's bytes, all bytes as they lie in the tar, or none."""


class ReadSample(NamedTuple):
    """A sample with the bytes that were asked for."""

    facts: Delivered
    data: memoryview


class ShardReader:
    """Reads samples of a dataset; keeps the last few shards open with their tables."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        content: Content,
        open_shards: int,
        at: Callable[[str], None] = lambda _place: None,
    ) -> None:
        """Open nothing yet; ``at`` is told what is read next, for people."""
        self._dataset = dataset
        self._content = content
        self._open_shards = open_shards
        self._at = at
        self._open: OrderedDict[int, tuple[LocalFile, ShardTable]] = OrderedDict()
        self._first_index = [0, *accumulate(shard.nsamples for shard in dataset.shards)]

    def read(self, piece: Piece) -> list[ReadSample]:
        """Return a piece's samples as views into one buffer; raises `ShardCorrupt`."""
        shard = self._dataset.shards[piece.shard]
        first = self._first_index[piece.shard] + piece.first
        self._at(f"{piece.count:,} samples from the {piece.first:,}th of {shard.url}, reading")
        file, table = self._opened(piece.shard)
        samples = table.samples[piece.first : piece.first + piece.count]
        facts = [
            _facts(sample, shard, first + at, valid=piece.valid)
            for at, sample in enumerate(samples)
        ]
        if self._content == "facts":
            return [ReadSample(fact, memoryview(b"")) for fact in facts]
        start = samples[0].span[0]
        buffer = _read_spans(file, shard, samples)
        return [
            ReadSample(fact, _checked(sample, buffer, start, shard, self._content))
            for fact, sample in zip(facts, samples, strict=True)
        ]

    def close(self) -> None:
        """Close all shards."""
        while self._open:
            self._close_oldest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _opened(self, number: int) -> tuple[LocalFile, ShardTable]:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        while len(self._open) >= self._open_shards:
            self._close_oldest()
        while True:
            try:
                self._open[number] = self._opened_anew(number)
            except InputUnusable as error:
                if not self._open or not _is_out_of_descriptors(error.__cause__):
                    raise
                self._close_oldest()
            else:
                return self._open[number]

    def _opened_anew(self, number: int) -> tuple[LocalFile, ShardTable]:
        shard = self._dataset.shards[number]
        file = self._dataset.open_shard(shard)
        try:
            return file, self._dataset.table(shard)
        except BaseException:
            file.close()
            raise

    def _close_oldest(self) -> None:
        self._open.popitem(last=False)[1][0].close()


def _is_out_of_descriptors(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}


def _facts(sample: Sample, shard: Shard, index: int, *, valid: bool) -> Delivered:
    return Delivered(
        key=sample.key,
        label=-1 if sample.label is None else sample.label,
        shard=shard.url,
        member=sample.image_name,
        offset=sample.image.offset,
        size_bytes=sample.image.size_bytes,
        width=sample.width,
        height=sample.height,
        index=index,
        valid=valid,
    )


def _read_spans(file: LocalFile, shard: Shard, samples: tuple[Sample, ...]) -> memoryview:
    """Return the bytes of consecutive samples, from one read."""
    start, stop = samples[0].span[0], samples[-1].span[1]
    try:
        # Not a bytearray: that would be filled with zeros first.
        buffer = np.empty(stop - start, dtype=np.uint8).data
    except MemoryError as error:
        raise ShardCorrupt(
            f"{shard.url}: {samples[0].image_name} takes {stop - start:,} bytes, more than there "
            "is memory; the dataset is damaged, or the image too large to be streamed",
            shard=shard.url,
            member=samples[0].image_name,
            offset=start,
        ) from error
    try:
        got = file.read_into(buffer, start)
    except OSError as error:
        raise ShardCorrupt(
            f"{shard.url}: reading {len(buffer):,} bytes at {start:,} failed: {error.strerror}",
            shard=shard.url,
            offset=start,
        ) from error
    if got < len(buffer):
        cut = next(sample for sample in samples if sample.span[1] > start + got)
        raise ShardCorrupt(
            f"{shard.url} ends at byte {start + got:,}, inside {cut.image_name}: it was cut short "
            "while it was read; copy it again or pack the dataset again",
            shard=shard.url,
            member=cut.image_name,
            offset=start + got,
        )
    return buffer.toreadonly()


def _checked(
    sample: Sample, buffer: memoryview, start: int, shard: Shard, content: Content
) -> memoryview:
    """Return the sample's part of a buffer that begins at ``start`` of the shard."""
    image = sample.image
    _check_header(buffer, start, shard, sample.image_name, image)
    if content == "image":
        return buffer[image.offset - start : image.offset - start + image.size_bytes]
    for extension, member in sample.others.items():
        _check_header(buffer, start, shard, f"{sample.key}.{extension}", member)
    return buffer[sample.span[0] - start : sample.span[1] - start]


def _check_header(buffer: memoryview, start: int, shard: Shard, name: str, member: Member) -> None:
    offset = member.offset - ustar.BLOCK_BYTES
    header = buffer[offset - start : member.offset - start]
    if not ustar.header_agrees(header, name, member.size_bytes):
        raise ShardCorrupt(
            f"{shard.url}: at byte {offset:,} there is no header of {name} with "
            f"{member.size_bytes:,} bytes; the shard is damaged or does not belong to its table",
            shard=shard.url,
            member=name,
            offset=offset,
        )
