"""Pure: two containers that images come in, TIFF directories and ISO boxes, as far as needed."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from struct import Struct
from typing import Literal

from tarshard.imaging.window import FURTHEST, LONGEST_READ, MOST_STEPS, Window


def tiff_fields(window: Window) -> dict[int, int]:
    """TIFF 6.0, section 2, and BigTIFF: the first directory's fields that are one integer."""
    start = window.at(0, 16)
    order: Literal["little", "big"] = "little" if start.startswith(b"II") else "big"
    is_big_tiff = b"+" in start[2:4]
    count_size = 8 if is_big_tiff else 2
    entry = Struct(("<" if order == "little" else ">") + ("HHQ8s" if is_big_tiff else "HHI4s"))
    directory = int.from_bytes(start[8:16] if is_big_tiff else start[4:8], order)
    fields: dict[int, int] = {}
    if directory < 8:
        return fields
    count = int.from_bytes(window.at(directory, count_size), order)
    entries = window.at(directory + count_size, entry.size * min(count, _MOST_ENTRIES))
    whole = len(entries) // entry.size * entry.size
    for tag, kind, values, value in entry.iter_unpack(entries[:whole]):
        size = _TIFF_INTEGERS.get(kind, 0)
        if values == 1 and 0 < size <= len(value):
            fields.setdefault(tag, int.from_bytes(value[:size], order))
    return fields


_MOST_ENTRIES = 1024
_TIFF_INTEGERS = {1: 1, 3: 2, 4: 4, 16: 8}
"""Sizes of BYTE, SHORT, LONG, and BigTIFF's LONG8."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box of an ISO base media file, ISO/IEC 14496-12, 4.2."""

    kind: bytes
    start: int
    """Where its content starts, past size and kind."""
    end: int


FILE = Box(b"", 0, FURTHEST)
NOTHING = Box(b"", 0, 0)


def boxes(window: Window, outer: Box, *, skip: int = 0) -> Iterator[Box]:
    """The boxes inside another, past `skip` bytes, up to the first that does not fit."""
    offset = outer.start + skip
    for _ in range(MOST_STEPS):
        head = window.at(offset, 16) if offset < outer.end else b""
        if len(head) < 8:
            return
        size, start = big(head[:4]), offset + 8
        if size == 1:
            size, start = big(head[8:]), offset + 16
        end = offset + size if size else outer.end
        if not start <= end <= outer.end:
            return
        yield Box(head[4:8], start, end)
        offset = end


def box(window: Window, kind: bytes, outer: Box, *, skip: int = 0) -> Box:
    """Return the first box of a kind inside another, `NOTHING` if there is none."""
    inside = boxes(window, outer, skip=skip)
    return next((box for box in inside if box.kind == kind), NOTHING)


def big(number: bytes) -> int:
    """Return a big-endian number."""
    return int.from_bytes(number, "big")


def primary_properties(window: Window) -> tuple[list[Box], list[Box]]:
    """ISO/IEC 23008-12 (HEIF): the primary item's properties, in order, and those of all items.

    Nothing for an image sequence without a still image, that is without `meta`, and for a file
    that is cut short: what is left may be of a thumbnail.
    """
    meta = box(window, b"meta", FILE)
    primary = box(window, b"pitm", meta, skip=4)
    properties = box(window, b"iprp", meta, skip=4)
    if not all(part.end and window.at(part.end - 1, 1) for part in (primary, properties)):
        return [], []
    pitm = window.at(primary.start, 8)
    item = big(pitm[4:6] if pitm[0] == 0 else pitm[4:])
    every = list(boxes(window, box(window, b"ipco", properties)))
    own: list[Box] = []
    associations = (part for part in boxes(window, properties) if part.kind == b"ipma")
    for part in islice(associations, _MOST_IPMA):
        ipma = window.at(part.start, min(part.end - part.start, LONGEST_READ))
        own += [every[n - 1] for n in _properties_of(item, ipma) if 0 < n <= len(every)]
    return own, every


_MOST_IPMA = 4
"""One for each pairing of two versions and two flags."""


def _properties_of(item: int, ipma: bytes) -> list[int]:
    """The properties of an item by an `ipma` box: their places in `ipco`, counted from 1."""
    id_size = 2 if ipma[:1] == b"\0" else 4
    place_size, places = (2, 0x7FFF) if big(ipma[3:4]) & 1 else (1, 0x7F)
    offset = 8
    while offset + id_size < len(ipma):
        start = offset + id_size + 1
        end = start + ipma[start - 1] * place_size
        if big(ipma[offset : offset + id_size]) == item:
            return [
                big(ipma[at : at + place_size]) & places for at in range(start, end, place_size)
            ]
        offset = end
    return []
