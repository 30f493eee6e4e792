"""Pure: an image's header, that is its kind and its size, found without decoding the image.

The bytes are not trusted. Whatever they are, the answer is a `Header` or None: no exception, no
read of more than 64 KiB or at an offset that no file has, and no more than some thousand steps.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tarshard.imaging.containers import FILE, big, box, primary_properties, tiff_fields
from tarshard.imaging.window import (
    FIRST_READ,
    LONGEST_READ,
    MOST_STEPS,
    NO_SIZE,
    ReadAt,
    Window,
)

IMAGE_EXTENSIONS = frozenset(
    b"jpg jpeg jpe jfif png apng webp gif bmp dib tif tiff avif jp2 j2k jpx pgm ppm pbm pnm".split()
)
"""File-name extensions, lower case and without dot, under which people keep the kinds read here."""

_LARGEST_SIDE = (1 << 32) - 1


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
    start = read_at(0, FIRST_READ)
    extension = kind_of(start)
    if extension is None:
        return None
    width, height = _SIZE_READERS[extension](Window(read_at, start))
    if 0 < width <= _LARGEST_SIDE and 0 < height <= _LARGEST_SIDE:
        return Header(extension, width, height)
    return None


def kind_of(start: bytes) -> str | None:
    """The extension for a file that starts so (64 bytes or more); None if we store no such kind.

    Decided by magic alone, so the rest of the file may still be unusable.
    """
    if magic := _MAGIC.match(start, 0, FIRST_READ):
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
    text = start[:FIRST_READ].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "HTML page"
    return "SVG image" if text.startswith(b"<") and b"<svg" in text else None


def _jpeg_size(window: Window) -> tuple[int, int]:
    """The frame header's; it may leave its height as 0 to a DNL segment after the pixels."""
    frame = _jpeg_frame(window)
    return (frame[7] << 8 | frame[8], frame[5] << 8 | frame[6]) if frame else NO_SIZE


def jpeg_bits(window: Window) -> int:
    """Bits of each number in a JPEG image, 8 but for medical ones."""
    frame = _jpeg_frame(window)
    return frame[4] if frame else 0


def _jpeg_frame(window: Window) -> bytes:
    """ITU T.81, annex B: walks the segments to the frame header, SOF, and returns its start."""
    offset = 2
    for _ in range(MOST_STEPS):
        segment = window.at(offset, 9)
        if len(segment) < 9:
            break
        code = segment[1]
        if segment[0] != 0xFF or code in (0x00, 0xFF):
            # Fill bytes, or the padding that some cameras leave: libjpeg skips both.
            padding = window.at(offset, FIRST_READ)
            marker = _JPEG_MARKER.search(padding)
            offset += marker.start() if marker else len(padding) - 1
        elif code in _JPEG_FRAMES:
            return segment
        elif code in _JPEG_BARE:
            offset += 2
        else:
            length = segment[2] << 8 | segment[3]
            if length < 2 or code in _JPEG_PIXELS:
                break
            offset += 2 + length
    return b""


_JPEG_MARKER = re.compile(rb"\xff[^\x00\xff]")
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""SOF0 to SOF15; DHT, JPG and DAC lie between them."""
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""TEM, RST0 to RST7 and SOI: markers alone, without length."""
_JPEG_PIXELS = frozenset({0xD9, 0xDA})
"""EOI and SOS: no frame header comes after them."""


def _png_size(window: Window) -> tuple[int, int]:
    """PNG, third edition, 11.2.1: the first chunk is IHDR, of 13 bytes."""
    return window.pair(">II", 16) if window.at(8, 8) == b"\0\0\0\rIHDR" else NO_SIZE


def _gif_size(window: Window) -> tuple[int, int]:
    """GIF89a, section 18: the logical screen."""
    return window.pair("<HH", 6)


def _bmp_size(window: Window) -> tuple[int, int]:
    """Microsoft's BITMAPCOREHEADER (12 bytes), or BITMAPINFOHEADER and its longer successors."""
    width, height = window.pair("<HH" if window.at(14, 1) == b"\x0c" else "<ii", 18)
    return width, abs(height)  # negative when the rows run from the top


def _webp_size(window: Window) -> tuple[int, int]:
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
    return NO_SIZE


def _tiff_size(window: Window) -> tuple[int, int]:
    """TIFF 6.0, section 8: ImageWidth and ImageLength."""
    fields = tiff_fields(window)
    return fields.get(256, 0), fields.get(257, 0)


def _pnm_size(window: Window) -> tuple[int, int]:
    """Netpbm's pbm(5), pgm(5) and ppm(5). Numbers have ten digits at most, as in Pillow."""
    numbers = _pnm_numbers(window)
    return (int(numbers[2]), int(numbers[3])) if numbers else NO_SIZE


def pnm_maximum(window: Window) -> int:
    """The value that stands for white in a pgm or ppm file, 1 to 65535."""
    numbers = _pnm_numbers(window)
    return min(max(int(numbers[4]), 1), 65535) if numbers and numbers[4] else 255


def _pnm_numbers(window: Window) -> re.Match[bytes] | None:
    numbers = _PNM_NUMBERS.match(window.at(0, FIRST_READ))
    return numbers or _PNM_NUMBERS.match(window.at(0, LONGEST_READ))  # a long comment


_PNM_GAP = rb"(?:\s|\#[^\r\n]*+[\r\n])++"
"""Between the numbers: white space and comments."""
_PNM_NUMBERS = re.compile(
    rb"""
    P (?: [14] | ([2356]) ) GAP (\d{1,10}) GAP (\d{1,10})
    (?(1) GAP (\d{1,5}) )  # the maximum, which a bitmap has not
    [\s\#]  # so that the last number is not one cut short
    """.replace(b"GAP", _PNM_GAP),
    re.VERBOSE,
)


def _jp2_size(window: Window) -> tuple[int, int]:
    """ITU T.800: SIZ (A.5.1) of the codestream, bare or in the box `jp2c`.

    Decoders go by it, whatever `ihdr` (I.5.3.1) says; if the two differ there is no size.
    """
    start = _jp2_codestream(window)
    if start is None or not window.at(start + 23, 1):
        return NO_SIZE
    (right, bottom), (left, top) = window.pair(">II", start + 8), window.pair(">II", start + 16)
    size = right - left, bottom - top
    header = box(window, b"ihdr", box(window, b"jp2h", FILE))
    return size if not header.end or window.pair(">II", header.start) == size[::-1] else NO_SIZE


def jp2_bits(window: Window) -> int:
    """Bits of each number in a JPEG 2000 image, by SIZ; of its first component."""
    start = _jp2_codestream(window)
    return (big(window.at(start + 42, 1)) & 0x7F) + 1 if start is not None else 0


def _jp2_codestream(window: Window) -> int | None:
    start = 0 if window.at(0, 2) == b"\xff\x4f" else box(window, b"jp2c", FILE).start
    return start if window.at(start, 4) == b"\xff\x4f\xff\x51" else None


def _avif_size(window: Window) -> tuple[int, int]:
    """ISO/IEC 23008-12 (HEIF): `ispe` of the primary item; if it has none, the largest `ispe`."""
    own, every = primary_properties(window)
    sizes = [
        [window.pair(">II", part.start + 4) for part in of if part.kind == b"ispe"]
        for of in (own, every)
    ]
    return max(sizes[0] or sizes[1], key=lambda size: size[0] * size[1], default=NO_SIZE)


def _brands(start: bytes) -> list[bytes]:
    """The brands of an ISO base media file, the major one first; none for other files."""
    if start[4:8] != b"ftyp":
        return []
    end = min(big(start[:4]), len(start), FIRST_READ)
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

_SIZE_READERS: dict[str, Callable[[Window], tuple[int, int]]] = {
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
