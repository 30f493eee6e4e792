"""TIFF directories and ISO boxes, read from bytes that are not trusted."""

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tarshard.imaging.containers import (
    FILE,
    NOTHING,
    Box,
    big,
    box,
    boxes,
    primary_properties,
    tiff_fields,
)
from tarshard.imaging.window import FIRST_READ, Window


def window(data: bytes) -> Window:
    """A window on bytes in memory, opened as the header's reader opens it."""

    def read_at(offset: int, size: int, /) -> bytes:
        assert 0 <= offset < 1 << 48
        assert 0 <= size <= 1 << 16
        return data[offset : offset + size]

    return Window(read_at, data[:FIRST_READ])


def packed(kind: bytes, *content: bytes) -> bytes:
    """A box of an ISO base media file."""
    body = b"".join(content)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def content(data: bytes, part: Box) -> bytes:
    """What lies in a box."""
    return data[part.start : part.end]


# --- TIFF -----------------------------------------------------------------------------------


def tiff(*entries: tuple[int, int, int, int], order: str = "<", at: int = 8) -> bytes:
    """A TIFF whose directory, at that offset, has these tags, types, counts and values."""
    start = struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, at)
    rows = b""
    for tag, kind, count, value in entries:
        layout = {1: "B3x", 3: "H2x"}.get(kind, "I")
        rows += struct.pack(order + "HHI" + layout, tag, kind, count, value)
    return start.ljust(at, b"\0") + struct.pack(order + "H", len(entries)) + rows + bytes(4)


@pytest.mark.parametrize("order", ["<", ">"])
def test_tiff_fields(order: str) -> None:
    """Single integers in place are fields by tag, whatever the byte order and the type."""
    data = tiff((256, 3, 1, 640), (257, 4, 1, 70_000), (262, 1, 1, 2), order=order)
    assert tiff_fields(window(data)) == {256: 640, 257: 70_000, 262: 2}


def test_tiff_fields_far_away() -> None:
    """A directory behind what was read first is read too."""
    assert tiff_fields(window(tiff((256, 3, 1, 640), at=50_000))) == {256: 640}


def test_tiff_other_entries() -> None:
    """Lists, texts, fractions and unknown types are no single integers and are left out."""
    data = tiff(
        (258, 3, 3, 150), (270, 2, 1, 65), (282, 5, 1, 150), (300, 99, 1, 7), (256, 3, 1, 9)
    )
    assert tiff_fields(window(data)) == {256: 9}


def test_tiff_tag_twice() -> None:
    """Of a tag that is there twice the first entry counts."""
    assert tiff_fields(window(tiff((256, 3, 1, 5), (256, 3, 1, 6)))) == {256: 5}


def test_bigtiff_fields() -> None:
    """BigTIFF has wider counts, offsets and one type more."""
    data = struct.pack("<2sHHHQQ", b"II", 43, 8, 0, 16, 2)
    data += struct.pack("<HHQQ", 256, 16, 1, 640) + struct.pack("<HHQH6x", 257, 3, 1, 480)
    assert tiff_fields(window(data)) == {256: 640, 257: 480}


@pytest.mark.parametrize("end", range(8, 36))
def test_tiff_directory_cut_short(end: int) -> None:
    """Of a directory that is cut, the entries that are whole are given."""
    data = tiff((256, 3, 1, 640), (257, 3, 1, 480))
    whole = max(0, (end - 10) // 12)
    assert len(tiff_fields(window(data[:end]))) == min(whole, 2)


@pytest.mark.parametrize("data", [b"", b"II*\0", b"II*\0\0\0\0\0", b"II*\0\7\0\0\0" + bytes(40)])
def test_tiff_without_directory(data: bytes) -> None:
    """Without an offset that lies behind the header there are no fields."""
    assert tiff_fields(window(data)) == {}


# --- boxes ----------------------------------------------------------------------------------


def test_boxes_side_by_side() -> None:
    """Boxes come in order, with their content."""
    data = packed(b"aaaa", b"one") + packed(b"bbbb") + packed(b"cccc", b"three")
    found = [(part.kind, content(data, part)) for part in boxes(window(data), FILE)]
    # The end of a file is not known to the reader; what is beyond it holds no box.
    assert found == [(b"aaaa", b"one"), (b"bbbb", b""), (b"cccc", b"three")]


def test_boxes_inside() -> None:
    """Boxes within a box are found behind the bytes to skip, and none of the outside."""
    inner = packed(b"aaaa", b"1") + packed(b"bbbb", b"2")
    data = packed(b"meta", b"\0\0\0\0", inner) + packed(b"cccc", b"3")
    meta = box(window(data), b"meta", FILE)
    assert [part.kind for part in boxes(window(data), meta, skip=4)] == [b"aaaa", b"bbbb"]
    assert content(data, box(window(data), b"bbbb", meta, skip=4)) == b"2"
    assert box(window(data), b"cccc", meta, skip=4) == NOTHING


def test_box_of_64_bits() -> None:
    """A size of 1 says that the size follows in 64 bits."""
    data = struct.pack(">I4sQ", 1, b"wide", 20) + b"four" + packed(b"next", b"x")
    assert [content(data, part) for part in boxes(window(data), FILE)] == [b"four", b"x"]


def test_last_box_of_unknown_size() -> None:
    """A size of 0 runs to the end of what surrounds it."""
    data = packed(b"outr", packed(b"aaaa", b"1"), b"\0\0\0\0lastrest") + packed(b"next")
    outer = box(window(data), b"outr", FILE)
    assert content(data, box(window(data), b"last", outer)) == b"rest"


@pytest.mark.parametrize("size", [2, 7, 13, 1 << 31])
def test_box_that_does_not_fit(size: int) -> None:
    """A box smaller than its head, or larger than what surrounds it, ends the search."""
    bad = struct.pack(">I4s", size, b"badd") + b"abcd"
    data = packed(b"outr", packed(b"good"), bad, packed(b"lost"))
    outer = box(window(data), b"outr", FILE)
    if size == 13:  # one byte of the next box swallowed: what follows is no box of that name
        assert [part.kind for part in boxes(window(data), outer)][:2] == [b"good", b"badd"]
    else:
        assert [part.kind for part in boxes(window(data), outer)] == [b"good"]
    assert box(window(data), b"lost", outer) == NOTHING


@pytest.mark.parametrize(("number", "value"), [(b"", 0), (b"\1", 1), (b"\1\0", 256)])
def test_big(number: bytes, value: int) -> None:
    """Numbers are read big-endian, at any length."""
    assert big(number) == value


# --- properties of the primary item ---------------------------------------------------------

PITM = packed(b"pitm", bytes(4), b"\0\7")
IPCO = packed(b"ipco", packed(b"ispe", b"1"), packed(b"irot", b"2"), packed(b"imir", b"3"))


def avif(ipma: bytes, pitm: bytes = PITM) -> bytes:
    """A file with properties that are tied to items by that box."""
    return packed(b"meta", bytes(4), pitm, packed(b"iprp", IPCO, ipma))


def own(data: bytes) -> list[bytes]:
    """The kinds of the primary item's properties."""
    return [part.kind for part in primary_properties(window(data))[0]]


def test_properties_in_order() -> None:
    """Those of the primary item come in the order of its association; others are not among them."""
    ipma = packed(b"ipma", bytes(4), b"\0\0\0\2", b"\0\1\1\2", b"\0\7\2\x83\x81")
    data = avif(ipma)
    assert own(data) == [b"imir", b"ispe"]
    every = [part.kind for part in primary_properties(window(data))[1]]
    assert every == [b"ispe", b"irot", b"imir"]


def test_properties_of_wide_numbers() -> None:
    """Items of 32 bits and places of 15 bits are understood."""
    pitm = packed(b"pitm", b"\1\0\0\0", b"\0\1\0\7")
    ipma = packed(b"ipma", b"\1\0\0\1", b"\0\0\0\1", b"\0\1\0\7\2\x80\2\0\1")
    assert own(avif(ipma, pitm)) == [b"irot", b"ispe"]


@pytest.mark.parametrize("place", [b"\0", b"\4", b"\x7f", b"\x80"])
def test_property_that_is_not_there(place: bytes) -> None:
    """A place outside the list stands for no property."""
    ipma = packed(b"ipma", bytes(4), b"\0\0\0\1", b"\0\7\2\1" + place)
    assert own(avif(ipma)) == [b"ispe"]


def test_item_without_properties() -> None:
    """An item that no association names has no properties of its own."""
    ipma = packed(b"ipma", bytes(4), b"\0\0\0\1", b"\0\1\1\2")
    assert own(avif(ipma)) == []


def test_no_meta() -> None:
    """A sequence of images without a still one has no properties."""
    assert primary_properties(window(packed(b"moov", bytes(50)))) == ([], [])


def test_properties_cut_short() -> None:
    """A file that ends within its properties gives none at all, rather than an incomplete list."""
    data = avif(packed(b"ipma", bytes(4), b"\0\0\0\1", b"\0\7\2\2\3"))
    for end in range(len(data)):
        assert primary_properties(window(data[:end])) == ([], [])
    assert own(data) == [b"irot", b"imir"]


# --- any bytes ------------------------------------------------------------------------------

START = st.sampled_from([b"", b"II*\0\x08\0\0\0", b"MM\0+\0\x08\0\0", avif(packed(b"ipma"))])


@settings(deadline=None, database=None, max_examples=400)
@given(start=START, rest=st.binary(max_size=120), cut=st.integers(0, 200))
@example(start=b"II+\0\x08\0\0\0", rest=b"\xff" * 60, cut=200)
@example(start=b"\0\0\0\1wide", rest=b"\xff" * 60, cut=200)
def test_any_bytes(start: bytes, rest: bytes, cut: int) -> None:
    """Whatever the bytes, reads stay bounded and what is found lies inside what surrounds it."""
    data = (start + rest)[:cut]
    assert all(value >= 0 for value in tiff_fields(window(data)).values())
    for part in boxes(window(data), FILE):
        assert 8 <= part.start <= part.end <= FILE.end
    of_item, every = primary_properties(window(data))
    assert set(of_item) <= set(every)
