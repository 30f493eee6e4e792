"""What an image's bytes say of its kind and size, held against Pillow and against damage."""

import io
import os
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tarshard.imaging.header import (
    IMAGE_EXTENSIONS,
    Header,
    foreign_kind,
    header_of,
    kind_of,
    read_header,
)

WIDTH, HEIGHT = 61, 43
NOISE = bytes(np.random.default_rng(7).integers(0, 256, 200_000, np.uint8))


def picture(mode: str = "RGB", shift: int = 0) -> Image.Image:
    """An image with some structure, one that no codec stores in a handful of bytes."""
    pixels = np.frombuffer(NOISE, np.uint8, WIDTH * HEIGHT * 3, shift).reshape(HEIGHT, WIDTH, 3)
    return Image.fromarray(pixels).convert(mode)


def by_pillow(kind: str, mode: str = "RGB", **options: Any) -> Callable[[], bytes]:
    """A maker of the picture in a format of Pillow's."""

    def make() -> bytes:
        file = io.BytesIO()
        picture(mode).save(file, kind, **options)
        return file.getvalue()

    return make


def animated(kind: str) -> Callable[[], bytes]:
    """A maker of three pictures in one file: frames or pages."""

    def make() -> bytes:
        file = io.BytesIO()
        more = [picture(shift=shift) for shift in (1, 2)]
        picture().save(file, kind, save_all=True, append_images=more)
        return file.getvalue()

    return make


def by_opencv(extension: str, channels: int = 3, dtype: type = np.uint8) -> Callable[[], bytes]:
    """A maker of a picture in a format of OpenCV's."""

    def make() -> bytes:
        pixels = np.frombuffer(NOISE, np.uint8, WIDTH * HEIGHT * channels)
        pixels = pixels.reshape(HEIGHT, WIDTH, channels).astype(dtype)
        done, file = cv2.imencode(extension, pixels)
        assert done
        return file.tobytes()

    return make


def exif(orientation: int, padding: int = 0) -> Image.Exif:
    """EXIF that says how the image is turned, with as long a description as wanted."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    if padding:
        tags[0x010E] = "x" * padding
    return tags


def text(content: bytes) -> Callable[[], bytes]:
    """A maker of just these bytes."""
    return lambda: content


def core_bmp() -> bytes:
    """The bitmap of OS/2 1.x, which neither library writes."""
    row = bytes((WIDTH * 3 + 3) // 4 * 4)
    return (
        struct.pack("<2sIHHI", b"BM", 26 + len(row) * HEIGHT, 0, 0, 26)
        + struct.pack("<IHHHH", 12, WIDTH, HEIGHT, 1, 24)
        + row * HEIGHT
    )


def top_down_bmp() -> bytes:
    """A bitmap whose rows run from the top: its height is negative."""
    upright = by_pillow("BMP")()
    return upright[:22] + struct.pack("<i", -HEIGHT) + upright[26:]


def tiff_directory_last() -> bytes:
    """A TIFF whose directory lies behind 100,000 bytes of something else."""
    entries = [(256, 3, WIDTH), (257, 3, HEIGHT), (258, 3, 8), (259, 3, 1), (262, 3, 1)]
    entries += [(273, 4, 8), (277, 3, 1), (278, 3, HEIGHT), (279, 4, WIDTH * HEIGHT)]
    pixels = NOISE[:100_000]
    packed = b"".join(
        struct.pack(">HHIHH" if kind == 3 else ">HHII", tag, kind, 1, value, *[0] * (kind == 3))
        for tag, kind, value in entries
    )
    directory = struct.pack(">H", len(entries)) + packed + bytes(4)
    return struct.pack(">2sHI", b"MM", 42, 8 + len(pixels)) + pixels + directory


def padded_jpeg() -> bytes:
    """Fill bytes before one marker, stray zeros before the next, as libjpeg puts up with."""
    plain = by_pillow("JPEG")()
    first = 4 + int.from_bytes(plain[4:6])
    return plain[:2] + b"\xff" * 300 + plain[2:first] + bytes(500) + plain[first:]


def commented_pgm(comment: bytes) -> bytes:
    """A greymap with comments wherever they may stand."""
    return b"P5 # %b\r\n#\n 61\t# wide\n43\n255\n%b" % (comment, NOISE[: WIDTH * HEIGHT])


BIG_PROFILE: dict[str, Any] = {"icc_profile": NOISE[:150_000]}

SAMPLES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "jpeg-baseline": ("jpg", by_pillow("JPEG")),
    "jpeg-progressive": ("jpg", by_pillow("JPEG", progressive=True)),
    "jpeg-grey": ("jpg", by_pillow("JPEG", "L")),
    "jpeg-cmyk": ("jpg", by_pillow("JPEG", "CMYK")),
    "jpeg-444-restarts": ("jpg", by_pillow("JPEG", subsampling=0, restart_marker_blocks=1)),
    "jpeg-rotated": ("jpg", by_pillow("JPEG", exif=exif(6))),
    "jpeg-big-exif": ("jpg", by_pillow("JPEG", exif=exif(1, 60_000))),
    "jpeg-big-profile": ("jpg", by_pillow("JPEG", exif=exif(1, 60_000), **BIG_PROFILE)),
    "jpeg-padded": ("jpg", padded_jpeg),
    "jpeg-opencv": ("jpg", by_opencv(".jpg")),
    **{f"png-{mode}": ("png", by_pillow("PNG", mode)) for mode in ("1", "L", "LA", "P", "RGB")},
    "png-RGBA": ("png", by_pillow("PNG", "RGBA")),
    "png-16-bit": ("png", by_opencv(".png", 3, np.uint16)),
    "png-profile": ("png", by_pillow("PNG", **BIG_PROFILE)),
    "png-animated": ("png", animated("PNG")),
    "webp-lossy": ("webp", by_pillow("WEBP")),
    "webp-lossless": ("webp", by_pillow("WEBP", lossless=True)),
    "webp-alpha": ("webp", by_pillow("WEBP", "RGBA")),
    "webp-lossless-alpha": ("webp", by_pillow("WEBP", "RGBA", lossless=True)),
    "webp-exif": ("webp", by_pillow("WEBP", exif=exif(6))),
    "webp-animated": ("webp", animated("WEBP")),
    "gif": ("gif", by_pillow("GIF")),
    "gif-animated": ("gif", animated("GIF")),
    **{f"bmp-{mode}": ("bmp", by_pillow("BMP", mode)) for mode in ("1", "L", "P", "RGB", "RGBA")},
    "bmp-opencv": ("bmp", by_opencv(".bmp")),
    "bmp-opencv-alpha": ("bmp", by_opencv(".bmp", 4)),
    "bmp-core": ("bmp", core_bmp),
    "bmp-top-down": ("bmp", top_down_bmp),
    **{f"tiff-{mode}": ("tif", by_pillow("TIFF", mode)) for mode in ("1", "L", "RGB", "I;16")},
    "tiff-big-endian": ("tif", by_pillow("TIFF", "I;16B")),
    "tiff-lzw": ("tif", by_pillow("TIFF", compression="tiff_lzw")),
    "tiff-bigtiff": ("tif", by_pillow("TIFF", big_tiff=True)),
    "tiff-pages": ("tif", animated("TIFF")),
    "tiff-opencv": ("tif", by_opencv(".tiff")),
    "tiff-directory-last": ("tif", tiff_directory_last),
    "avif": ("avif", by_pillow("AVIF")),
    "avif-alpha": ("avif", by_pillow("AVIF", "RGBA")),
    "avif-turned": ("avif", by_pillow("AVIF", exif=exif(6))),
    "avif-profile": ("avif", by_pillow("AVIF", exif=exif(5), **BIG_PROFILE)),
    "avif-animated": ("avif", animated("AVIF")),
    "avif-opencv": ("avif", by_opencv(".avif")),
    "jp2": ("jp2", by_pillow("JPEG2000")),
    "jp2-alpha": ("jp2", by_pillow("JPEG2000", "RGBA")),
    "jp2-opencv": ("jp2", by_opencv(".jp2")),
    "j2k": ("jp2", by_pillow("JPEG2000", no_jp2=True)),
    "j2k-offset": ("jp2", by_pillow("JPEG2000", no_jp2=True, offset=(5, 3), tile_size=(32, 32))),
    "pbm": ("pbm", by_pillow("PPM", "1")),
    "pbm-ascii": ("pbm", text(b"P1\n61 43\n" + b"01" * 1311 + b"0")),
    "pgm": ("pgm", by_pillow("PPM", "L")),
    "pgm-16-bit": ("pgm", by_opencv(".pgm", 1, np.uint16)),
    "pgm-ascii": ("pgm", text(b"P2 61 43 255 " + b"7 " * WIDTH * HEIGHT)),
    "pgm-comments": ("pgm", text(commented_pgm(b"made by hand"))),
    "pgm-long-comment": ("pgm", text(commented_pgm(b"9 " * 3000))),
    "ppm": ("ppm", by_pillow("PPM")),
    "ppm-16-bit": ("ppm", by_opencv(".ppm", 3, np.uint16)),
    "ppm-ascii": ("ppm", text(b"P3\n61\n43\n255\n" + b"1 2 3\n" * WIDTH * HEIGHT)),
}
SAMPLE_NAMES = sorted(SAMPLES)


@cache
def sample(name: str) -> bytes:
    """The image of that name, made once."""
    return SAMPLES[name][1]()


def true_header(name: str) -> Header:
    """What the image of that name must be found to be."""
    return Header(SAMPLES[name][0], WIDTH, HEIGHT)


class Recorder:
    """Serves bytes as a file does, and keeps what was asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def __call__(self, offset: int, size: int, /) -> bytes:
        """Keep what is asked for, and answer it."""
        self.asked.append((offset, size))
        return self.data[offset : offset + size]


def box(kind: bytes, *content: bytes, large: bool = False) -> bytes:
    """A box of an ISO base media file, its size in 32 bits or in 64."""
    body = b"".join(content)
    if large:
        return struct.pack(">I4sQ", 1, kind, 16 + len(body)) + body
    return struct.pack(">I4s", 8 + len(body), kind) + body


def ispe(width: int, height: int) -> bytes:
    """HEIF's property of how large an item is."""
    return box(b"ispe", bytes(4), struct.pack(">II", width, height))


FTYP = box(b"ftyp", b"avif", bytes(4), b"mif1")
PITM = box(b"pitm", bytes(4), b"\0\x07")
IPCO = box(b"ipco", ispe(800, 600), box(b"irot", b"\1"), ispe(WIDTH, HEIGHT))
IPMA = box(b"ipma", bytes(4), b"\0\0\0\2", b"\0\1\1\x81", b"\0\7\2\x82\x83")


# --- what real images say -------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_agrees_with_pillow(name: str) -> None:
    """Kind and size of every kind of image are those that Pillow finds."""
    with Image.open(io.BytesIO(sample(name))) as image:
        assert image.size == (WIDTH, HEIGHT)
    assert header_of(sample(name)) == true_header(name)


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_kind_by_first_bytes(name: str) -> None:
    """The first 64 bytes suffice for the kind, and an image that we store is not called foreign."""
    assert kind_of(sample(name)[:64]) == SAMPLES[name][0]
    assert foreign_kind(sample(name)) is None


def test_view_of_bytes() -> None:
    """A memoryview gives what the bytes under it give."""
    assert header_of(memoryview(sample("jpeg-big-profile"))) == true_header("jpeg-big-profile")


def test_interlaced_png() -> None:
    """Interlacing changes nothing about the size."""
    plain = sample("png-RGB")
    assert header_of(plain[:28] + b"\1" + plain[29:]) == true_header("png-RGB")


def test_extensions_are_lower_case_without_dot() -> None:
    """Every extension that is stored is one that folders may carry."""
    assert {extension.encode() for extension, _ in SAMPLES.values()} <= IMAGE_EXTENSIONS
    assert all(extension == extension.lower() for extension in IMAGE_EXTENSIONS)
    assert not any(b"." in extension for extension in IMAGE_EXTENSIONS)


# --- what is read --------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_reads_no_more_than_it_needs(name: str) -> None:
    """No header takes more than a few reads of some kilobytes, wherever in the file it lies."""
    reader = Recorder(sample(name))
    assert read_header(reader) == true_header(name)
    assert len(reader.asked) <= 10
    assert all(size <= (65_536 if "long-comment" in name else 12_288) for _, size in reader.asked)


@pytest.mark.parametrize("name", ["jpeg-baseline", "png-RGB", "webp-lossy", "jp2", "avif"])
def test_common_headers_take_one_read(name: str) -> None:
    """The header of an ordinary image is found in its first 4 KB."""
    reader = Recorder(sample(name) + bytes(4096))
    read_header(reader)
    assert reader.asked == [(0, 4096)]


def test_skips_application_segments() -> None:
    """Of 210 KB before a JPEG's frame header, hardly a tenth is read."""
    reader = Recorder(sample("jpeg-big-profile"))
    read_header(reader)
    assert sum(size for _, size in reader.asked) <= 24_576


def test_offset_beyond_any_file(tmp_path: Path) -> None:
    """An offset of 64 bits, at which `os.pread` would raise, is not read at all."""
    path = tmp_path / "far.tif"
    path.write_bytes(b"II+\0\x08\0\0\0" + b"\xff" * 8 + bytes(100))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert read_header(lambda offset, size: os.pread(descriptor, size, offset)) is None
    finally:
        os.close(descriptor)


def test_errors_of_the_reader_come_through() -> None:
    """A read that fails is the caller's to hear of, not an image without header."""

    def fail(_offset: int, _size: int, /) -> bytes:
        message = "disk gone"
        raise OSError(message)

    with pytest.raises(OSError, match="disk gone"):
        read_header(fail)


# --- details of formats --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marker", "is_frame"),
    [(code, code not in (0xC4, 0xC8, 0xCC)) for code in range(0xC0, 0xD0)],
)
def test_jpeg_frame_markers(marker: int, is_frame: bool) -> None:
    """All of SOF0 to SOF15 give the size; DHT, JPG and DAC among them are passed over."""
    segment = struct.pack(">BBHBHHB", 0xFF, marker, 11, 8, HEIGHT, WIDTH, 1) + b"\1\x11\0"
    frame = Header("jpg", WIDTH, HEIGHT) if is_frame else None
    assert header_of(b"\xff\xd8" + segment + b"\xff\xd9" + bytes(16)) == frame


def test_jpeg_markers_without_length() -> None:
    """TEM, RST and a second SOI have no length to skip."""
    plain = sample("jpeg-baseline")
    bare = b"".join(bytes((0xFF, code)) for code in (0x01, *range(0xD0, 0xD9)))
    assert header_of(plain[:2] + bare + plain[2:]) == true_header("jpeg-baseline")


def test_jpeg_whose_height_comes_later() -> None:
    """A height of 0, left to a DNL segment behind the pixels, is no usable size."""
    plain = sample("jpeg-baseline")
    at = plain.index(b"\xff\xc0") + 5
    assert header_of(plain[:at] + bytes(2) + plain[at + 2 :]) is None


@pytest.mark.parametrize("end", [b"\xff\xd9", b"\xff\xda\0\2", b"\xff\xe0\0\1"])
def test_jpeg_without_frame_header(end: bytes) -> None:
    """Nothing is searched behind EOI or SOS, or past a segment of impossible length."""
    assert header_of(b"\xff\xd8" + end + sample("jpeg-baseline")[2:]) is None


@pytest.mark.parametrize("filler", [b"\xff\xe1\0\2", b"\xff", b"\0", b"\xff\0", b"\xff\xd0"])
def test_jpeg_of_endless_filling(filler: bytes) -> None:
    """A file made of empty segments, fill bytes or padding is given up after so many steps."""
    reader = Recorder(b"\xff\xd8\xff" + filler * (20_000_000 // len(filler)))
    assert read_header(reader) is None
    assert len(reader.asked) <= 4097


@pytest.mark.parametrize("first", [b"\0\0\0\x0dIDAT", b"\0\0\0\x0cIHDR"])
def test_png_begins_with_its_header(first: bytes) -> None:
    """A PNG whose first chunk is not a whole IHDR gives no size."""
    plain = sample("png-RGB")
    assert header_of(plain[:8] + first + plain[16:]) is None


def test_png_of_ios() -> None:
    """PNG as Xcode rewrites it, which no decoder of ours reads, is foreign and has a name."""
    plain = sample("png-RGB")
    rewritten = plain[:8] + b"\0\0\0\4CgBI" + bytes(8) + plain[8:]
    assert header_of(rewritten) is None
    assert foreign_kind(rewritten) == "PNG image for Apple devices only"


@pytest.mark.parametrize("size", [0, 11, 13, 41, 1 << 20])
def test_bmp_of_unknown_header(size: int) -> None:
    """`BM` alone makes no bitmap: the size of the next header must be one that exists."""
    plain = sample("bmp-RGB")
    assert header_of(plain[:14] + struct.pack("<I", size) + plain[18:]) is None


def tiff(entries: bytes, count: int, *, order: str = "<") -> bytes:
    """A TIFF of one directory that claims so many entries."""
    start = struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, 8)
    return start + struct.pack(order + "H", count) + entries


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("kind", "layout"), [(1, "B3x"), (3, "H2x"), (4, "I")])
def test_tiff_integers(order: str, kind: int, layout: str) -> None:
    """Sides may be BYTE, SHORT or LONG, in either byte order."""
    entries = b"".join(
        struct.pack(order + "HHI" + layout, tag, kind, 1, side)
        for tag, side in ((256, WIDTH), (257, HEIGHT))
    )
    assert header_of(tiff(entries, 2, order=order)) == Header("tif", WIDTH, HEIGHT)


@pytest.mark.parametrize(("kind", "values"), [(2, 1), (16, 1), (3, 2), (3, 0)])
def test_tiff_sides_of_another_type(kind: int, values: int) -> None:
    """A side that is no single integer stored in place is no size."""
    entries = struct.pack("<HHIIHHII", 256, kind, values, WIDTH, 257, 4, 1, HEIGHT)
    assert header_of(tiff(entries, 2)) is None


def test_tiff_of_long8() -> None:
    """BigTIFF may give its sides in 64 bits, yet none over 32 bits is believed."""

    def big(width: int) -> bytes:
        start = struct.pack(">2sHHHQQ", b"MM", 43, 8, 0, 16, 2)
        return start + struct.pack(">HHQQHHQQ", 256, 16, 1, width, 257, 16, 1, HEIGHT)

    assert header_of(big(WIDTH)) == Header("tif", WIDTH, HEIGHT)
    assert header_of(big(1 << 32)) is None


def test_tiff_counts_only_its_own_entries() -> None:
    """Bytes behind the last entry are not taken for entries."""
    entries = struct.pack("<HHIIHHII", 256, 4, 1, WIDTH, 257, 4, 1, HEIGHT)
    assert header_of(tiff(entries, 1)) is None


def test_avif_of_the_primary_item() -> None:
    """The size is that of the primary item, not that of a larger one, and `irot` turns nothing."""
    meta = box(b"meta", bytes(4), PITM, box(b"iprp", IPCO, IPMA))
    assert header_of(FTYP + meta) == Header("avif", WIDTH, HEIGHT)


def test_avif_of_wide_numbers() -> None:
    """Version 1 boxes with item numbers of 32 bits and places of 15 bits are understood."""
    pitm = box(b"pitm", b"\1\0\0\0", b"\0\1\0\7")
    ipma = box(b"ipma", b"\1\0\0\1", b"\0\0\0\2", b"\0\0\0\7\1\0\1", b"\0\1\0\7\2\x80\2\x80\3")
    meta = box(b"meta", bytes(4), pitm, box(b"iprp", IPCO, ipma))
    assert header_of(FTYP + meta) == Header("avif", WIDTH, HEIGHT)


def test_avif_meta_behind_the_pixels() -> None:
    """`meta` may follow `mdat`, boxes may give 64-bit sizes, and the last may run to the end."""
    pixels = box(b"mdat", NOISE, large=True)
    content = bytes(4) + box(b"iprp", IPCO, IPMA, large=True) + PITM
    for meta in (box(b"meta", content), b"\0\0\0\0meta" + content):
        reader = Recorder(FTYP + pixels + meta)
        assert read_header(reader) == Header("avif", WIDTH, HEIGHT)
        assert sum(size for _, size in reader.asked) <= 32_768


def test_avif_without_association() -> None:
    """Where nothing says which size is the primary item's, it is the largest."""
    for rest in (b"", box(b"ipma", bytes(4), b"\0\0\0\1", b"\0\1\1\x81")):
        meta = box(b"meta", bytes(4), PITM, box(b"iprp", IPCO, rest))
        assert header_of(FTYP + meta) == Header("avif", 800, 600)


def test_avif_cut_short_gives_no_other_size() -> None:
    """However it is cut, an AVIF never gives the size of another of its items."""
    for parts in ((PITM, box(b"iprp", IPCO, IPMA)), (box(b"iprp", IPCO, IPMA), PITM)):
        whole = FTYP + box(b"meta", bytes(4), *parts)
        sizes = {header_of(whole[:end]) for end in range(len(whole))}
        assert sizes <= {None, Header("avif", WIDTH, HEIGHT)}


@pytest.mark.parametrize(
    ("brands", "kind"),
    [
        ((b"avif", b"mif1"), "avif"),
        ((b"avis", b"msf1"), "avif"),
        ((b"mif1", b"miaf", b"avif"), "avif"),
        ((b"avif", b"heic"), "avif"),
        ((b"heic", b"mif1", b"avif"), None),
        ((b"mif1", b"heic", b"avif"), None),
        ((b"mif1", b"heic"), None),
        ((b"isom", b"mp42"), None),
    ],
)
def test_avif_by_brand(brands: tuple[bytes, ...], kind: str | None) -> None:
    """AVIF is what leads with its brand, or is compatible with it and not HEIC."""
    assert kind_of(box(b"ftyp", brands[0], bytes(4), *brands[1:])) == kind


def test_brands_end_with_their_box() -> None:
    """A brand past the end of `ftyp` is not a brand."""
    assert kind_of(box(b"ftyp", b"isom", bytes(4)) + b"avif") is None


def test_jp2_header_may_come_late() -> None:
    """Boxes between the signature and `jp2h` are skipped."""
    plain = sample("jp2")
    at = plain.index(b"jp2h") - 4
    late = plain[:at] + box(b"uuid", NOISE) + plain[at:]
    assert header_of(late) == true_header("jp2")


@pytest.mark.parametrize(
    "content",
    [
        b"P5 is a gene",
        b"P5",
        b"P5 ",
        b"P1 2024-05-01 notes",
        b"P6\n\n",
        b"P412 10 ",
        b"P7\n61 43",
        b"P0 1 1 1 ",
        b"P5 # a comment\nand no number",
    ],
)
def test_text_is_no_pnm(content: bytes) -> None:
    """A letter and a digit alone make no image: two numbers must follow."""
    assert kind_of(content) is None
    assert header_of(content) is None


@pytest.mark.parametrize(
    "content",
    [
        b"P5 61",
        b"P5 61 43",
        b"P5 61 43 255",
        b"P5 0 43 255 ",
        b"P5 61 0 255 ",
        b"P5 -61 43 255 ",
        b"P5 61 43 255255 ",
        b"P5 61 99999999999 255 ",
        b"P5 9999999999 43 255 ",
        b"P5 " + b"3" * 100_000 + b" 43 255 ",
        b"P4 61 43",
        b"P5 #" + b" " * 100_000,
    ],
)
def test_pnm_without_usable_size(content: bytes) -> None:
    """A number that is missing, cut short, 0 or too long to be a size gives none."""
    assert header_of(content) is None


@pytest.mark.parametrize("name", ["png-RGB", "gif", "bmp-RGB", "jpeg-baseline", "jp2", "j2k"])
def test_sides_of_zero(name: str) -> None:
    """A width of 0 is no usable size, whatever the format."""
    places = {"png-RGB": 16, "gif": 6, "bmp-RGB": 18, "j2k": 8}
    data = sample(name)
    at = places.get(name) or (
        data.index(b"ihdr") + 8 if name == "jp2" else data.index(b"\xff\xc0") + 7
    )
    width = 4 if name in ("png-RGB", "bmp-RGB", "jp2", "j2k") else 2
    assert header_of(data[:at] + bytes(width) + data[at + width :]) is None


# --- what is no image -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (box(b"ftyp", b"heic", bytes(4), b"mif1", b"heic"), "HEIC image"),
        (box(b"ftyp", b"mif1", bytes(4), b"heix"), "HEIC image"),
        (box(b"ftyp", b"mif1", bytes(4), b"miaf"), "HEIF image"),
        (box(b"ftyp", b"crx ", bytes(4), b"isom"), "camera raw image"),
        (box(b"ftyp", b"isom", bytes(4), b"mp41"), "MP4 video"),
        (box(b"ftyp", b"qt  ", bytes(4)), "QuickTime video"),
        (b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(52), "JPEG XL image"),
        (b"\xff\x0a" + bytes(62), "JPEG XL image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG image"),
        (b"\xef\xbb\xbf\n<?xml version='1.0'?>\n<!-- x -->\n<svg>", "SVG image"),
        (b"<!DOCTYPE html><p>404</p><svg>", "HTML page"),
        (b"II*\0\x10\0\0\0CR\2\0" + bytes(52), "camera raw image"),
        (b"\0\0\1\0\1\0" + bytes(58), "ICO image"),
        (b"8BPS\0\1" + bytes(58), "PSD image"),
        (b"v/1\x01" + bytes(60), "EXR image"),
        (b"PF\n61 43\n-1.0\n", "PFM image"),
        (b"P7\nWIDTH 61\n", "PAM image"),
        (b"%PDF-1.7\n", "PDF document"),
        (b"PK\3\4" + bytes(60), "ZIP archive"),
        (b"\x1f\x8b\x08" + bytes(61), "gzip archive"),
        (bytes(257) + b"ustar\x0000" + bytes(247), "tar archive"),
        (b"RIFF\0\0\0\0AVI LIST", "AVI video"),
        (b"RIFF\0\0\0\0WAVEfmt ", None),
        (b"<?xml version='1.0'?><note/>", None),
        (b"BM is a bench mark, not a bitmap", None),
        (b"just some words\n", None),
        (b"", None),
    ],
)
def test_names_what_is_not_stored(start: bytes, name: str | None) -> None:
    """A file that is no image that we store gives no header, and its name where it has one."""
    assert kind_of(start) is None
    assert header_of(start) is None
    assert foreign_kind(start) == name


# --- damage ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_cut_anywhere(name: str) -> None:
    """An image cut after any of its first 2,000 bytes gives its true header or none."""
    data = sample(name)
    found = {header_of(data[:end]) for end in range(min(len(data), 2000) + 1)}
    assert found <= {None, true_header(name)}


def check_bounded(data: bytes) -> None:
    """No exception, no wild read, and a header only if it can be true."""
    reader = Recorder(data)
    header = read_header(reader)
    assert all(0 <= offset < 1 << 48 and 0 <= size <= 65_536 for offset, size in reader.asked)
    assert len(reader.asked) <= 2 * 4096
    if header is not None:
        assert header.extension == kind_of(data)
        assert 1 <= header.width < 1 << 32
        assert 1 <= header.height < 1 << 32
    for end in (0, 1, 64, 512):
        foreign_kind(data[:end])


MAGIC = [b"", b"\xff\xd8\xff", b"II*\0", b"MM\0+\0\x08\0\0", b"P5 ", b"P1 #", b"GIF89a"]
MAGIC += [FTYP, FTYP + box(b"meta", bytes(4), PITM), b"\0\0\0\x0cjP  \r\n\x87\n", b"RIFF----WEBP"]


@settings(deadline=None, database=None, max_examples=500)
@given(start=st.sampled_from(MAGIC), rest=st.binary(max_size=300))
def test_any_bytes(start: bytes, rest: bytes) -> None:
    """Arbitrary bytes, behind a magic or not, give a header or none, by bounded reads."""
    check_bounded(start + rest)


@settings(deadline=None, database=None, max_examples=1000)
@given(data=st.data(), name=st.sampled_from(SAMPLE_NAMES))
def test_damaged_images(data: st.DataObject, name: str) -> None:
    """Real images with bytes changed, dropped or put in give a header or none, by bounded reads."""
    image = bytearray(sample(name))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, min(len(image), 700)))
        length = data.draw(st.integers(0, 8))
        image[start : start + length] = data.draw(st.binary(max_size=8))
    check_bounded(bytes(image))
