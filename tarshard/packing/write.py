"""Writes one shard: copies images into a tar, hashing and checking on the way."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from typing import TYPE_CHECKING, BinaryIO

from tarshard import ustar
from tarshard.imaging.header import Header, kind_of, read_header
from tarshard.index import Member, Sample, ShardTable
from tarshard.packing.labels import cls_content
from tarshard.packing.scan import SNIFF_BYTES, SourceFile, describe
from tarshard.packing.skips import Reason, Skip

if TYPE_CHECKING:
    from hashlib import _Hash

_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PlannedSample:
    """An image that will be a sample."""

    source: SourceFile
    key: str
    label: int | None

    @property
    def weight_bytes(self) -> int:
        """What it takes in the tar."""
        others = [] if self.label is None else [len(cls_content(self.label))]
        return sum(map(ustar.member_bytes, [self.source.size_bytes, *others]))


@dataclass(frozen=True)
class WrittenShard:
    """What came of one shard."""

    stored: tuple[PlannedSample, ...]
    table: ShardTable
    sha256: str
    skips: tuple[Skip, ...]
    """Images that turned out not to be storable; they left no trace in the tar."""


class _Unstorable(Exception):
    """An image cannot be stored."""

    def __init__(self, path: bytes, reason: Reason, detail: str) -> None:
        self.skip = Skip(path, reason, detail, is_fault=True)


def write_shard(
    tar_path: str,
    planned: Sequence[PlannedSample],
    *,
    folder: bytes,
    wrote: Callable[[int, int], None],
) -> WrittenShard:
    """Write a tar of these samples from ``folder`` and force it to disk.

    ``wrote`` is called with 1 and the bytes after each sample. Raises `OSError`
    when the tar cannot be written; trouble with a source file is a skip.
    """
    stored, samples, skips = [], [], []
    with open(tar_path, "wb", buffering=_CHUNK_BYTES) as file:
        tar = _Tar(file)
        for sample in planned:
            before = tar.mark()
            try:
                samples.append(_write_sample(tar, sample, folder))
                stored.append(sample)
            except _Unstorable as error:
                tar.go_back(before)
                skips.append(error.skip)
            wrote(1, sample.weight_bytes)
        tar.write(ustar.end_of_archive(tar.length_bytes))
        file.flush()
        os.fsync(file.fileno())
    table = ShardTable(tar.length_bytes, tuple(samples))
    return WrittenShard(tuple(stored), table, tar.digest.hexdigest(), tuple(skips))


@dataclass(frozen=True, slots=True)
class _Mark:
    length_bytes: int
    digest: "_Hash"


class _Tar:
    """A growing tar with its running checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.length_bytes = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.digest.update(data)
        self.length_bytes += len(data)

    def mark(self) -> _Mark:
        return _Mark(self.length_bytes, self.digest.copy())

    def go_back(self, mark: _Mark) -> None:
        """Forget everything written since the mark."""
        self._file.seek(mark.length_bytes)
        self._file.truncate()
        self.length_bytes, self.digest = mark.length_bytes, mark.digest


def _write_sample(tar: _Tar, planned: PlannedSample, folder: bytes) -> Sample:
    start = tar.length_bytes
    image, header = _copy_image(tar, planned, folder)
    others = {}
    if planned.label is not None:
        others["cls"] = _write_member(tar, f"{planned.key}.cls", cls_content(planned.label))
    return Sample(
        key=planned.key,
        extension=header.extension,
        image=image,
        width=header.width,
        height=header.height,
        label=planned.label,
        path=planned.source.path.decode("utf-8", "surrogateescape"),
        span=(start, tar.length_bytes),
        others=others,
    )


def _write_member(tar: _Tar, name: str, content: bytes) -> Member:
    tar.write(ustar.header(name, len(content)))
    offset = tar.length_bytes
    tar.write(content + ustar.padding(len(content)))
    return Member(offset, len(content), hashlib.sha256(content).hexdigest())


def _copy_image(tar: _Tar, planned: PlannedSample, folder: bytes) -> tuple[Member, Header]:
    source = planned.source
    with _opened(source, folder) as image:
        name = f"{planned.key}.{image.header.extension}"
        tar.write(ustar.header(name, source.size_bytes))
        offset, digest, chunk = tar.length_bytes, hashlib.sha256(), image.start
        while chunk:
            tar.write(chunk)
            digest.update(chunk)
            copied = tar.length_bytes - offset
            with _reading(source):
                chunk = image.file.read(_CHUNK_BYTES) if copied < source.size_bytes else b""
        with _reading(source):
            after = os.fstat(image.file.fileno())
    if copied != source.size_bytes or _version(after) != image.version:
        raise _changed(source, after.st_size)
    tar.write(ustar.padding(copied))
    return Member(offset, copied, digest.hexdigest()), image.header


def check_source(source: SourceFile, folder: bytes) -> Skip | None:
    """Return why an image cannot be stored, as far as its first bytes tell; else None."""
    try:
        with _opened(source, folder):
            return None
    except _Unstorable as error:
        return error.skip


@dataclass(frozen=True, slots=True)
class _OpenImage:
    file: FileIO
    version: tuple[int, int, int]
    start: bytes
    """The first chunk, all of a small file."""
    header: Header


@contextmanager
def _opened(source: SourceFile, folder: bytes) -> Iterator[_OpenImage]:
    """Open an image and look what it is; raises `_Unstorable`."""
    with _reading(source):
        # Without O_NONBLOCK, opening a pipe that took the file's place would wait for ever.
        path = os.path.join(folder, source.path)
        file = FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    with file:
        with _reading(source):
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode) or _version(before)[:2] != (
                source.size_bytes,
                source.mtime_ns,
            ):
                raise _changed(source, before.st_size)
            start = file.read(_CHUNK_BYTES)
            header = _header(source, start, file.fileno())
        yield _OpenImage(file, _version(before), start, header)


@contextmanager
def _reading(source: SourceFile) -> Iterator[None]:
    """Tell trouble with the source file from trouble with the tar."""
    try:
        yield
    except FileNotFoundError as error:
        gone = "was there during the scan and is gone"
        raise _Unstorable(source.path, Reason.VANISHED, gone) from error
    except OSError as error:
        detail = (error.strerror or str(error)).lower()
        raise _Unstorable(source.path, Reason.UNREADABLE, detail) from error


def _header(source: SourceFile, chunk: bytes, descriptor: int) -> Header:
    def read_at(offset: int, size: int) -> bytes:
        if offset + size <= len(chunk) or len(chunk) == source.size_bytes:
            return chunk[offset : offset + size]
        return os.pread(descriptor, size, offset)

    header = read_header(read_at)
    if header is not None:
        return header
    start = chunk[:SNIFF_BYTES]
    detail = (
        "its header gives no size; it is cut short or damaged"
        if kind_of(start)
        else describe(start)
    )
    raise _Unstorable(source.path, Reason.NOT_AN_IMAGE, detail)


def _changed(source: SourceFile, size_bytes: int) -> _Unstorable:
    detail = f"changed while it was packed ({source.size_bytes:,} bytes before, {size_bytes:,} now)"
    return _Unstorable(source.path, Reason.CHANGED, detail)


def _version(status: os.stat_result) -> tuple[int, int, int]:
    # The ctime too: it cannot be set back.
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
