"""A window on a file that is read from any place: the part read last is kept."""

from struct import calcsize, unpack
from typing import Protocol

FIRST_READ = 4096
"""Holds nearly every header; a longer copy would cost more than a second read now and then."""
LONGEST_READ = 1 << 16

MOST_STEPS = 4096
"""JPEG segments, or ISO boxes side by side. Real files have a few hundred at the very most."""

FURTHEST = 1 << 48
"""No file is so long, but a 64-bit field can claim it, and `os.pread` then raises."""

NO_SIZE = (0, 0)


class ReadAt(Protocol):
    """Reads a file at any place."""

    def __call__(self, offset: int, size: int, /) -> bytes:
        """Return `size` bytes at `offset`, fewer at the end of the file, b"" beyond it."""


class Window:
    """The part of a file read last, moved when something outside it is asked for."""

    __slots__ = ("_bytes", "_offset", "_read_at")

    def __init__(self, read_at: ReadAt, start: bytes) -> None:
        self._read_at = read_at
        self._bytes = start
        self._offset = 0

    def at(self, offset: int, size: int) -> bytes:
        """`size` bytes at `offset`, fewer at the end of the file."""
        begin = offset - self._offset
        if begin < 0 or begin + size > len(self._bytes):
            if offset >= FURTHEST:
                return b""
            self._bytes = self._read_at(offset, max(size, FIRST_READ))
            self._offset = offset
            begin = 0
        return self._bytes[begin : begin + size]

    def pair(self, layout: str, offset: int) -> tuple[int, int]:
        """Two numbers, as `struct` lays them out; `NO_SIZE` where the file is cut short."""
        packed = self.at(offset, calcsize(layout))
        if len(packed) < calcsize(layout):
            return NO_SIZE
        first, second = unpack(layout, packed)
        return first, second
