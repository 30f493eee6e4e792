"""Pure: an image's header, that is its kind and its size, found without decoding the image.

The bytes are not trusted. Whatever they are, the answer is a `Header` or None: no exception, no
read of more than 64 KiB or at an offset that no file has, and no more than some thousand steps.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from struct import Struct, calcsize, unpack
from typing import Literal, Protocol

IMAGE_EXTENSIONS = frozenset(
    b"jpg jpeg jpe jfif png apng webp gif bmp dib tif tiff avif jp2 j2k jpx pgm ppm pbm pnm".split()
)
"""File-name extensions, lower case and without dot, under which people keep the kinds read here."""

_FIRST_READ = 4096
"""Holds nearly every header; a longer copy would cost more than a second read now and then."""
_LONGEST_READ = 1 << 16
_MOST_STEPS = 4096
"""JPEG segments, or ISO boxes side by side. Real files have a few hundred at the very most."""
_FURTHEST = 1 << 48
"""No file is so long, but a 64-bit field can claim it, and `os.pread` then raises."""
_LARGEST_SIDE = (1 << 32) - 1


class ReadAt(Protocol):
    """Reads a file at any place."""

    def __call__(self, offset: int, size: int, /) -> bytes:
        """Return `size` bytes at `offset`, fewer at the end of the file, b"" beyond it."""


@dataclass(frozen=True, slots=True)
class Header:
    """What an image says of itself."""

    extension: str
    """The kind, by content and without dot: jpg png webp gif bmp tif avif jp2 pgm ppm or pbm."""
    width: int
    """Pixels as stored, at least 1: before EXIF orientation or AVIF's irot turns the image."""
    height: int
    """As `width`. Of an animation both are the canvas, of several pages the first page."""


def header_of(data: bytes | memoryview) -> Header | None:
    """The header of an image in memory (a view must be of single bytes). See `read_header`."""
    return read_header(lambda offset, size: bytes(data[offset : offset + size]))


def read_header(read_at: ReadAt) -> Header | None:
    """The header of an image; None when it is of no known kind or gives no usable size.

    Raises nothing of its own; what `read_at` raises comes through.
    """
    start = read_at(0, _FIRST_READ)
    extension = kind_of(start)
    if extension is None:
        return None
    width, height = _SIZE_READERS[extension](_Window(read_at, start))
    if 0 < width <= _LARGEST_SIDE and 0 < height <= _LARGEST_SIDE:
        return Header(extension, width, height)
    return None


def kind_of(start: bytes) -> str | None:
    """The extension for a file that starts so (64 bytes or more); None if we store no such kind.

    Decided by magic alone, so the rest of the file may still be unusable.
    """
    if magic := _MAGIC.match(start, 0, _FIRST_READ):
        return magic.lastgroup
    brands = _brands(start)
    if _AVIF_BRANDS.isdisjoint(brands):
        return None
    # A HEIC file may name avif too, as one of the brands it is compatible with.
    return "avif" if brands[0] in _AVIF_BRANDS or _HEIC_BRANDS.isdisjoint(brands) else None


def foreign_kind(start: bytes) -> str | None:
    """What to call a file of a well-known kind that we do not store; None if its bytes do not tell.

    Takes 512 bytes or more: a tar names itself only at byte 257.
    """
    if kind_of(start):
        return None
    for offset, magic, name in _FOREIGN_MAGIC:
        if start.startswith(magic, offset):
            return name
    brands = _brands(start)
    for brand, name in _FOREIGN_BRANDS:
        if brand in brands:
            return name
    text = start[:_FIRST_READ].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "HTML page"
    return "SVG image" if text.startswith(b"<") and b"<svg" in text else None


class _Window:
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
            if offset >= _FURTHEST:
                return b""
            self._bytes = self._read_at(offset, max(size, _FIRST_READ))
            self._offset = offset
            begin = 0
        return self._bytes[begin : begin + size]

    def pair(self, layout: str, offset: int) -> tuple[int, int]:
        """Two numbers, as `struct` lays them out; `_NO_SIZE` where the file is cut short."""
        packed = self.at(offset, calcsize(layout))
        if len(packed) < calcsize(layout):
            return _NO_SIZE
        first, second = unpack(layout, packed)
        return first, second


_NO_SIZE = (0, 0)


def _jpeg_size(window: _Window) -> tuple[int, int]:
    """ITU T.81, annex B: walks the segments to the frame header, SOF.

    A frame header may leave its height as 0 to a DNL segment after the pixels: no size.
    """
    offset = 2
    for _ in range(_MOST_STEPS):
        segment = window.at(offset, 9)
        if len(segment) < 9:
            break
        code = segment[1]
        if segment[0] != 0xFF or code in (0x00, 0xFF):
            # Fill bytes, or the padding that some cameras leave: libjpeg skips both.
            padding = window.at(offset, _FIRST_READ)
            marker = _JPEG_MARKER.search(padding)
            offset += marker.start() if marker else len(padding) - 1
        elif code in _JPEG_FRAMES:
            return segment[7] << 8 | segment[8], segment[5] << 8 | segment[6]
        elif code in _JPEG_BARE:
            offset += 2
        else:
            length = segment[2] << 8 | segment[3]
            if length < 2 or code in _JPEG_PIXELS:
                break
            offset += 2 + length
    return _NO_SIZE


_JPEG_MARKER = re.compile(rb"\xff[^\x00\xff]")
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""SOF0 to SOF15; DHT, JPG and DAC lie between them."""
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""TEM, RST0 to RST7 and SOI: markers alone, without length."""
_JPEG_PIXELS = frozenset({0xD9, 0xDA})
"""EOI and SOS: no frame header comes after them."""


def _png_size(window: _Window) -> tuple[int, int]:
    """PNG, third edition, 11.2.1: the first chunk is IHDR, of 13 bytes."""
    return window.pair(">II", 16) if window.at(8, 8) == b"\0\0\0\rIHDR" else _NO_SIZE


def _gif_size(window: _Window) -> tuple[int, int]:
    """GIF89a, section 18: the logical screen."""
    return window.pair("<HH", 6)


def _bmp_size(window: _Window) -> tuple[int, int]:
    """Microsoft's BITMAPCOREHEADER (12 bytes), or BITMAPINFOHEADER and its longer successors."""
    width, height = window.pair("<HH" if window.at(14, 1) == b"\x0c" else "<ii", 18)
    return width, abs(height)  # negative when the rows run from the top


def _webp_size(window: _Window) -> tuple[int, int]:
    """RFC 9649: the canvas in VP8X, else the frame in VP8L or VP8 (RFC 6386, 9.1)."""
    chunk, body = window.at(12, 4), window.at(20, 10)
    if chunk == b"VP8X" and len(body) == 10:
        sides = int.from_bytes(body[4:], "little")
        return (sides & 0xFFFFFF) + 1, (sides >> 24) + 1
    if chunk == b"VP8L" and len(body) >= 5 and body[0] == 0x2F:
        sides = int.from_bytes(body[1:5], "little")
        return (sides & 0x3FFF) + 1, (sides >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        width, height = window.pair("<HH", 26)
        return width & 0x3FFF, height & 0x3FFF  # the upper bits are a scale for display
    return _NO_SIZE


def _tiff_size(window: _Window) -> tuple[int, int]:
    """TIFF 6.0, section 2, and BigTIFF: ImageWidth and ImageLength of the first directory."""
    start = window.at(0, 16)
    order: Literal["little", "big"] = "little" if start.startswith(b"II") else "big"
    is_big_tiff = b"+" in start[2:4]
    count_size = 8 if is_big_tiff else 2
    entry = Struct(("<" if order == "little" else ">") + ("HHQ8s" if is_big_tiff else "HHI4s"))
    directory = int.from_bytes(start[8:16] if is_big_tiff else start[4:8], order)
    if directory < 8:
        return _NO_SIZE
    count = int.from_bytes(window.at(directory, count_size), order)
    # Sorted by tag, as they should be, these two are among the first.
    entries = window.at(directory + count_size, entry.size * min(count, _MOST_ENTRIES))
    whole = len(entries) // entry.size * entry.size
    sides: dict[int, int] = {}
    for tag, kind, values, value in entry.iter_unpack(entries[:whole]):
        size = _TIFF_INTEGERS.get(kind, 0)
        if tag in (_TIFF_WIDTH, _TIFF_HEIGHT) and values == 1 and 0 < size <= len(value):
            sides.setdefault(tag, int.from_bytes(value[:size], order))
    return sides.get(_TIFF_WIDTH, 0), sides.get(_TIFF_HEIGHT, 0)


_MOST_ENTRIES = 1024
_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_TIFF_INTEGERS = {1: 1, 3: 2, 4: 4, 16: 8}
"""Sizes of BYTE, SHORT, LONG, and BigTIFF's LONG8."""


def _pnm_size(window: _Window) -> tuple[int, int]:
    """Netpbm's pbm(5), pgm(5) and ppm(5). Numbers have ten digits at most, as in Pillow."""
    numbers = _PNM_NUMBERS.match(window.at(0, _FIRST_READ))
    numbers = numbers or _PNM_NUMBERS.match(window.at(0, _LONGEST_READ))  # a long comment
    return (int(numbers[2]), int(numbers[3])) if numbers else _NO_SIZE


_PNM_GAP = rb"(?:\s|\#[^\r\n]*+[\r\n])++"
"""Between the numbers: white space and comments."""
_PNM_NUMBERS = re.compile(
    rb"""
    P (?: [14] | ([2356]) ) GAP (\d{1,10}) GAP (\d{1,10})
    (?(1) GAP \d{1,5} )  # the maximum, which a bitmap has not
    [\s\#]  # so that the last number is not one cut short
    """.replace(b"GAP", _PNM_GAP),
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class _Box:
    """A box of an ISO base media file, ISO/IEC 14496-12, 4.2."""

    kind: bytes
    start: int
    """Where its content starts, past size and kind."""
    end: int


_FILE = _Box(b"", 0, _FURTHEST)
_NOTHING = _Box(b"", 0, 0)


def _boxes(window: _Window, outer: _Box, *, skip: int = 0) -> Iterator[_Box]:
    """The boxes inside another, past `skip` bytes, up to the first that does not fit."""
    offset = outer.start + skip
    for _ in range(_MOST_STEPS):
        head = window.at(offset, 16) if offset < outer.end else b""
        if len(head) < 8:
            return
        size, start = _big(head[:4]), offset + 8
        if size == 1:
            size, start = _big(head[8:]), offset + 16
        end = offset + size if size else outer.end
        if not start <= end <= outer.end:
            return
        yield _Box(head[4:8], start, end)
        offset = end


def _box(window: _Window, kind: bytes, outer: _Box, *, skip: int = 0) -> _Box:
    inside = _boxes(window, outer, skip=skip)
    return next((box for box in inside if box.kind == kind), _NOTHING)


def _big(number: bytes) -> int:
    return int.from_bytes(number, "big")


def _jp2_size(window: _Window) -> tuple[int, int]:
    """ITU T.800: `ihdr` in `jp2h` (I.5.3.1), or SIZ of a codestream that is bare (A.5.1)."""
    if window.at(0, 4) == b"\xff\x4f\xff\x51":
        (right, bottom), (left, top) = window.pair(">II", 8), window.pair(">II", 16)
        return (right - left, bottom - top) if window.at(23, 1) else _NO_SIZE
    header = _box(window, b"ihdr", _box(window, b"jp2h", _FILE))
    height, width = window.pair(">II", header.start) if header.end else _NO_SIZE
    return width, height


def _avif_size(window: _Window) -> tuple[int, int]:
    """ISO/IEC 23008-12 (HEIF): `ispe` of the primary item; if it has none, the largest `ispe`.

    No size for an image sequence without a still image, that is without `meta`.
    """
    meta = _box(window, b"meta", _FILE)
    primary = _box(window, b"pitm", meta, skip=4)
    properties = _box(window, b"iprp", meta, skip=4)
    if not all(box.end and window.at(box.end - 1, 1) for box in (primary, properties)):
        return _NO_SIZE  # cut short: what is left may be the size of a thumbnail
    pitm = window.at(primary.start, 8)
    item = _big(pitm[4:6] if pitm[0] == 0 else pitm[4:])
    own: set[int] = set()
    associations = (box for box in _boxes(window, properties) if box.kind == b"ipma")
    for box in islice(associations, _MOST_IPMA):
        ipma = window.at(box.start, min(box.end - box.start, _LONGEST_READ))
        own |= _properties_of(item, ipma)
    sizes = {
        number: window.pair(">II", box.start + 4)
        for number, box in enumerate(_boxes(window, _box(window, b"ipco", properties)), 1)
        if box.kind == b"ispe"
    }
    candidates = [size for number, size in sizes.items() if number in own] or list(sizes.values())
    return max(candidates, key=lambda size: size[0] * size[1], default=_NO_SIZE)


_MOST_IPMA = 4
"""One for each pairing of two versions and two flags."""


def _properties_of(item: int, ipma: bytes) -> set[int]:
    """The properties of an item by an `ipma` box: their places in `ipco`, counted from 1."""
    id_size = 2 if ipma[:1] == b"\0" else 4
    place_size, places = (2, 0x7FFF) if _big(ipma[3:4]) & 1 else (1, 0x7F)
    offset = 8
    while offset + id_size < len(ipma):
        start = offset + id_size + 1
        end = start + ipma[start - 1] * place_size
        if _big(ipma[offset : offset + id_size]) == item:
            return {
                _big(ipma[at : at + place_size]) & places for at in range(start, end, place_size)
            }
        offset = end
    return set()


def _brands(start: bytes) -> list[bytes]:
    """The brands of an ISO base media file, the major one first; none for other files."""
    if start[4:8] != b"ftyp":
        return []
    end = min(_big(start[:4]), len(start), _FIRST_READ)
    return [start[8:12], *(start[at : at + 4] for at in range(16, end, 4))]


_MAGIC = re.compile(
    rb"""
      (?P<jpg> \xff\xd8\xff )
    | (?P<png> \x89PNG\r\n\x1a\n (?!.{4}CgBI) )
    | (?P<webp> RIFF.{4}WEBP )
    | (?P<gif> GIF8[79]a )
    | (?P<tif> II\*\0 (?!.{4}CR) | MM\0\* | II\+\0\x08\0\0\0 | MM\0\+\0\x08\0\0 )
    | (?P<jp2> \0\0\0\x0cjP\x20\x20\r\n\x87\n | \xff\x4f\xff\x51 )
    # Two letters are weak: the header's size, which follows, must be one that exists.
    | (?P<bmp> BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0 )
    # Weak too: two numbers must follow, as far as the bytes go.
    | P (?: (?P<pbm>[14]) | (?P<pgm>[25]) | (?P<ppm>[36]) )
        (?: GAP \d{1,10}+ (?: GAP\d | (?:GAP)?+\Z | CUT ) | CUT )
    """.replace(b"CUT", rb"(?:GAP)?+\#[^\r\n]*+\Z").replace(b"GAP", _PNM_GAP),
    re.DOTALL | re.VERBOSE,
)
"""Every kind but AVIF. Not Canon's raw TIFF, nor PNG as Xcode rewrites it: no decoder has them."""

_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})

_SIZE_READERS: dict[str, Callable[[_Window], tuple[int, int]]] = {
    "jpg": _jpeg_size,
    "png": _png_size,
    "webp": _webp_size,
    "gif": _gif_size,
    "bmp": _bmp_size,
    "tif": _tiff_size,
    "avif": _avif_size,
    "jp2": _jp2_size,
    "pgm": _pnm_size,
    "ppm": _pnm_size,
    "pbm": _pnm_size,
}

_FOREIGN_MAGIC = (
    (0, b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL image"),
    (0, b"\xff\x0a", "JPEG XL image"),
    (12, b"CgBI", "PNG image for Apple devices only"),
    (0, b"8BPS", "PSD image"),
    (0, b"v/1\x01", "EXR image"),
    (0, b"PF\n", "PFM image"),
    (0, b"Pf\n", "PFM image"),
    (0, b"P7\n", "PAM image"),
    (0, b"#?RADIANCE", "HDR image"),
    (0, b"\0\0\1\0", "ICO image"),
    (8, b"CR\2\0", "camera raw image"),
    (0, b"FUJIFILMCCD-RAW", "camera raw image"),
    (0, b"IIU\0", "camera raw image"),
    (128, b"DICM", "DICOM image"),
    (0, b"%PDF-", "PDF document"),
    (0, b"PK\3\4", "ZIP archive"),
    (0, b"\x1f\x8b\x08", "gzip archive"),
    (257, b"ustar", "tar archive"),
    (8, b"AVI LIST", "AVI video"),
    (0, b"\x1a\x45\xdf\xa3", "Matroska video"),
    (0, b"\x93NUMPY", "NumPy array"),
)
"""Where, what, and the name."""

_FOREIGN_BRANDS = (
    *((brand, "HEIC image") for brand in sorted(_HEIC_BRANDS)),
    (b"mif1", "HEIF image"),
    (b"crx ", "camera raw image"),
    (b"qt  ", "QuickTime video"),
    *((brand, "MP4 video") for brand in (b"isom", b"iso2", b"mp41", b"mp42", b"avc1", b"M4V ")),
)
"""By a brand of `ftyp`; the earlier wins."""
