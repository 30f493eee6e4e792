"""Every kind of image against what `docs/decode.md` promises, and damage of every kind."""

import io
import random
import struct
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageCms, ImageOps

from tarshard.imaging.decode import MAX_PIXELS, Decoder, Frame, Pixels, Undecodable
from tarshard.imaging.header import header_of

Samples = npt.NDArray[np.int64]

WIDTH, HEIGHT = 45, 31
LOSSY = 3
"""Levels by which a lossy kind may differ from Pillow's decoding."""


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    """One decoder for all tests, as a process has."""
    return Decoder()


def refused(decoder: Decoder, data: bytes, frame: Frame | None = None) -> str:
    """Why an image is not decoded."""
    with pytest.raises(Undecodable) as caught:
        decoder.decode(data, frame)
    return str(caught.value)


# --- images made with Pillow and OpenCV -----------------------------------------------------


def scene(width: int = WIDTH, height: int = HEIGHT) -> Pixels:
    """Smooth colours and one hard corner, so that every way of turning it looks different."""
    y, x = np.mgrid[0:height, 0:width]
    red, green = x * 255 // max(width - 1, 1), y * 255 // max(height - 1, 1)
    pixels = np.stack([red, green, (red + green) // 2], axis=-1).astype(np.uint8)
    pixels[: height // 3, : width // 3] = (220, 30, 40)
    return pixels


def samples(bits: int, channels: int, width: int = 23, height: int = 19) -> Samples:
    """Random numbers of so many bits, with both ends of the range among them."""
    made = np.random.default_rng(bits + channels).integers(0, 1 << bits, (height, width, channels))
    made[0, 0], made[-1, -1] = 0, (1 << bits) - 1
    return made


def to_eight(made: Samples, maximum: int) -> Pixels:
    """What the contract makes of numbers up to a maximum: scaled to 255 and rounded, as RGB."""
    rounded = ((made * 255 + maximum // 2) // maximum).astype(np.uint8)
    return rounded[..., :3] if rounded.shape[2] >= 3 else rounded[..., :1].repeat(3, axis=2)


def picture(mode: str = "RGB") -> Image.Image:
    """The scene as Pillow has it, with every transparency there is in modes with alpha."""
    image = Image.fromarray(scene())
    if mode in ("LA", "RGBA"):
        image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image.quantize(32) if mode == "P" else image.convert(mode)


def other() -> Image.Image:
    """A second frame or page, unlike the first everywhere."""
    return ImageOps.invert(picture())


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """A file by Pillow."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def written(extension: str, pixels: npt.NDArray[Any], *options: int) -> bytes:
    """A file by OpenCV, from RGB or grey."""
    done, data = cv2.imencode(extension, pixels[..., ::-1] if pixels.ndim == 3 else pixels, options)
    assert done
    return data.tobytes()


def exif(orientation: int) -> bytes:
    """EXIF that says how the image is turned."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def by_pillow(data: bytes) -> Pixels:
    """What Pillow makes of a file: the oracle for all 8-bit kinds."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def turned(pixels: Pixels, orientation: int) -> Pixels:
    """The pixels as they are to be shown, by the eight values of EXIF."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


# --- images made by hand --------------------------------------------------------------------


def chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + crc(kind + content)


def crc(content: bytes) -> bytes:
    """The sum that ends a chunk."""
    return struct.pack(">I", zlib.crc32(content))


def bit_rows(made: Samples, bits: int, order: str = ">") -> list[bytes]:
    """The numbers of each row, packed without gaps and padded to whole bytes."""
    if bits >= 8:
        return [row.astype(f"{order}u{bits // 8}").tobytes() for row in made]
    shifts = np.arange(bits - 1, -1, -1)
    return [np.packbits((row.ravel()[:, None] >> shifts) & 1).tobytes() for row in made]


ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2))


def png(
    made: Samples, bits: int, colour: int, *, interlaced: bool = False, extra: bytes = b""
) -> bytes:
    """A PNG of any colour type and depth."""
    height, width = made.shape[:2]
    passes = (*ADAM7, (0, 1, 1, 2)) if interlaced else ((0, 0, 1, 1),)
    parts = [made[y::dy, x::dx] for x, y, dx, dy in passes]
    raw = b"".join(b"\0" + row for part in parts if part.size for row in bit_rows(part, bits))
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", head),
            extra,
            chunk(b"IDAT", zlib.compress(raw)),
            chunk(b"IEND", b""),
        )
    )


def tiff(
    made: Samples,
    bits: int,
    photometric: int,
    *,
    order: str = "<",
    planar: bool = False,
    **tags: int | list[int],
) -> bytes:
    """An uncompressed TIFF, each channel a strip if planar; other tags as `t274=6`, none as []."""
    height, width, channels = made.shape
    planes = [made[..., n : n + 1] for n in range(channels)] if planar else [made]
    strips = [b"".join(bit_rows(plane, bits, order)) for plane in planes]
    fields: dict[int, int | list[int]] = {
        256: width,
        257: height,
        258: [bits] * channels,
        259: 1,
        262: photometric,
        277: channels,
        278: height,
        279: [len(strip) for strip in strips],
        284: 2 if planar else 1,
        273: [0] * len(strips),
        **{int(tag[1:]): value for tag, value in tags.items()},
    }
    fields = {tag: value for tag, value in fields.items() if value != []}

    def laid_out(first_strip: int) -> bytes:
        fields[273] = [first_strip + sum(map(len, strips[:n])) for n in range(len(strips))]
        table, behind = struct.pack(order + "H", len(fields)), b""
        far = 8 + 2 + 12 * len(fields) + 4
        for tag in sorted(fields):
            field = fields[tag]
            values = field if isinstance(field, list) else [field]
            kind, letter = (4, "I") if tag in (273, 279) else (3, "H")
            content = struct.pack(f"{order}{len(values)}{letter}", *values)
            if len(content) > 4:
                behind += content
                content = struct.pack(order + "I", far + len(behind) - len(content))
            table += struct.pack(order + "HHI", tag, kind, len(values)) + content.ljust(4, b"\0")
        start = struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, 8)
        return start + table + bytes(4) + behind

    return laid_out(len(laid_out(0))) + b"".join(strips)


def bmp(
    rows: list[bytes],
    width: int,
    bits: int,
    *,
    compression: int = 0,
    palette: bytes = b"",
    masks: bytes = b"",
    upright: bool = True,
) -> bytes:
    """A bitmap with the header of 40 bytes; the rows are given from the top."""
    if compression in (0, 3):
        rows = [row + bytes(-len(row) % 4) for row in rows]
    body = b"".join(rows[::-1] if upright else rows)
    start = 54 + len(masks) + len(palette)
    height = len(rows) if upright else -len(rows)
    head = struct.pack("<IiiHHII", 40, width, height, 1, bits, compression, len(body))
    head += struct.pack("<iiII", 0, 0, len(palette) // 4, 0)
    return struct.pack("<2sIHHI", b"BM", start + len(body), 0, 0, start) + (
        head + masks + palette + body
    )


def pnm(kind: str, made: Samples, maximum: int = 0) -> bytes:
    """A file of Netpbm's: P1 to P3 as text, P4 to P6 binary."""
    head = f"{kind}\n# by hand\n{made.shape[1]} {made.shape[0]}\n" + f"{maximum}\n" * (maximum > 0)
    if kind in ("P1", "P2", "P3"):
        return (head + "\n".join(" ".join(map(str, row.ravel())) for row in made) + "\n").encode()
    bits = 1 if kind == "P4" else 16 if maximum > 255 else 8
    return head.encode() + b"".join(bit_rows(made, bits))


def ycck_jpeg() -> bytes:
    """A JPEG in YCCK, as Photoshop writes it.

    Pillow writes CMYK only. So what it takes for inks is luma, two chromas and no black, and the
    Adobe marker is then told so.
    """
    inverted = ImageOps.invert(picture()).convert("YCbCr")
    channels = [ImageOps.invert(channel) for channel in inverted.split()]
    image = Image.merge("CMYK", [*channels, Image.new("L", inverted.size)])
    data = saved(image, "JPEG", quality=98)
    transform = data.index(b"Adobe") + 11
    return data[:transform] + b"\2" + data[transform + 1 :]


def frame_header(data: bytes) -> int:
    """Where SOF0 of a JPEG starts."""
    return data.index(b"\xff\xc0")


def run_lengths() -> tuple[bytes, Samples]:
    """A bitmap packed as RLE8, and its pixels."""
    places, palette = samples(8, 1, 10, 6)[..., 0], samples(8, 4, 256, 1)[0]
    rows = [b"".join(bytes((1, place)) for place in row) + b"\0\0" for row in places]
    colours = palette.astype(np.uint8).tobytes()
    data = bmp(rows, 10, 8, compression=1, palette=colours)
    return data, palette[places, 2::-1]


# --- the kinds ------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A kind of image, and what is to come out."""

    make: Callable[[], bytes]
    expected: Callable[[bytes], Pixels] = by_pillow
    levels: int = 0
    """By how much pixels may differ."""


def exactly(pixels: npt.NDArray[Any]) -> Callable[[bytes], Pixels]:
    """An oracle that knows the pixels from what was put in."""
    return lambda _: pixels.astype(np.uint8)


def known(data: bytes, pixels: npt.NDArray[Any], levels: int = 0) -> Kind:
    """A file made by hand, with its pixels."""
    return Kind(lambda: data, exactly(pixels), levels)


def pillow(kind: str, mode: str = "RGB", *, levels: int = 0, **options: Any) -> Kind:
    """The scene saved by Pillow and compared with what Pillow reads."""
    return Kind(lambda: saved(picture(mode), kind, **options), levels=levels)


def png_kinds() -> dict[str, Kind]:
    """All colour types and depths of PNG, interlaced or not."""
    kinds: dict[str, Kind] = {}
    table = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
    for colour, depths in table.items():
        for bits in depths:
            made = samples(bits, {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour])
            palette = samples(8, 3, 1 << bits if colour == 3 else 1, 1)[0]
            extra = chunk(b"PLTE", palette.astype(np.uint8).tobytes()) if colour == 3 else b""
            pixels = palette[made[..., 0]] if colour == 3 else to_eight(made, (1 << bits) - 1)
            for interlaced in (False, True):
                name = f"png-colour{colour}-{bits}-bit" + "-interlaced" * interlaced
                data = png(made, bits, colour, interlaced=interlaced, extra=extra)
                kinds[name] = known(data, pixels)
    for name, bits, channels in (("grey", 8, 1), ("rgb", 8, 3), ("rgb16", 16, 3)):
        made = samples(bits, channels)
        key = struct.pack(f">{channels}H", *made[3, 3])
        data = png(made, bits, 0 if channels == 1 else 2, extra=chunk(b"tRNS", key))
        pixels = to_eight(made, (1 << bits) - 1)
        kinds[f"png-{name}-key"] = known(data, pixels)
    return kinds


def tiff_kinds() -> dict[str, Kind]:
    """TIFF by hand: depths, byte orders, planes, and what is white."""
    kinds: dict[str, Kind] = {}

    def put(name: str, data: bytes, pixels: npt.NDArray[Any]) -> None:
        kinds[f"tiff-{name}"] = known(data, pixels)

    for order, end in (("<", "little"), (">", "big")):
        for bits in (8, 16):
            for channels in (1, 3):
                made = samples(bits, channels)
                data = tiff(made, bits, 2 if channels == 3 else 1, order=order)
                put(f"{channels}x{bits}-{end}", data, to_eight(made, (1 << bits) - 1))
    for bits in (1, 8, 16):
        made = samples(bits, 1)
        put(f"white-is-0-{bits}-bit", tiff(made, bits, 0), 255 - to_eight(made, (1 << bits) - 1))
    for channels in (2, 4):
        made = samples(8, channels)
        made[..., -1] = 255
        data = tiff(made, 8, 1 if channels == 2 else 2, t338=2)
        put(f"opaque-alpha-{channels}", data, to_eight(made, 255))
    made = samples(16, 4)
    put("rgba-16-bit", tiff(made, 16, 2, t338=2), to_eight(made, 65535))
    put("planes-8-bit", tiff(samples(8, 3), 8, 2, planar=True), samples(8, 3))
    for orientation in range(1, 9):
        for bits in (8, 16):
            made = samples(bits, 3)
            data = tiff(made, bits, 2, t274=orientation)
            pixels = turned(to_eight(made, (1 << bits) - 1), orientation)
            put(f"turned-{orientation}-{bits}-bit", data, pixels)
    return kinds


def bmp_kinds() -> dict[str, Kind]:
    """Bitmaps that Pillow does not write."""
    rgb, rgbx = samples(8, 3, 10, 6), samples(8, 4, 10, 6)
    body = bit_rows(rgb[..., ::-1], 8)
    four, palette = samples(4, 1, 10, 6), samples(8, 4, 16, 1)
    colours = palette.astype(np.uint8).tobytes()
    core = struct.pack("<2sIHHI", b"BM", 0, 0, 0, 26) + struct.pack("<IHHHH", 12, 10, 6, 1, 24)
    core += b"".join(row + b"\0\0" for row in body[::-1])
    masks = struct.pack("<3I", 0xFF0000, 0xFF00, 0xFF)
    masked = bmp(bit_rows(rgbx, 8), 10, 32, compression=3, masks=masks)
    return {
        "bmp-from-the-top": known(bmp(body, 10, 24, upright=False), rgb),
        "bmp-of-os2": known(core, rgb),
        "bmp-4-bit": known(
            bmp(bit_rows(four, 4), 10, 4, palette=colours), palette[0][four[..., 0], 2::-1]
        ),
        "bmp-run-lengths": known(*run_lengths()),
        "bmp-32-bit": known(bmp(bit_rows(rgbx, 8), 10, 32), rgbx[..., 2::-1]),
        "bmp-32-bit-masks": known(masked, rgbx[..., 2::-1]),
    }


def pnm_kinds() -> dict[str, Kind]:
    """Netpbm's kinds, binary and as text, with any maximum."""
    kinds: dict[str, Kind] = {}
    for kind in ("P1", "P4"):
        made = samples(1, 1)
        data = pnm(kind, made)
        kinds[f"pnm-{kind}"] = known(data, to_eight(1 - made, 1))
    for kind in ("P2", "P3", "P5", "P6"):
        for maximum in (1, 2, 100, 254, 255, 256, 1000, 4095, 65534, 65535):
            made = samples(16, 3 if kind in ("P3", "P6") else 1, 9, 7) % (maximum + 1)
            made[0, 0] = maximum
            data = pnm(kind, made, maximum)
            # OpenCV rounds down where it scales text itself.
            levels = int(kind in ("P2", "P3") and maximum < 255)
            kinds[f"pnm-{kind}-to-{maximum}"] = known(data, to_eight(made, maximum), levels)
    return kinds


def depth_kinds() -> dict[str, Kind]:
    """16 bits in JPEG 2000, and more than 8 in AVIF."""
    # OpenCV writes no JPEG 2000 that is smaller than its six halvings.
    grey, rgb = samples(16, 1), samples(16, 3, 65, 70)
    ten = np.round(scene().astype(np.float64) * (1023 / 255)).astype(np.uint16)
    twelve = np.round(scene().astype(np.float64) * (4095 / 255)).astype(np.uint16)
    alpha = np.full((HEIGHT, WIDTH, 1), 500, np.uint16)
    ratio = (cv2.IMWRITE_JPEG2000_COMPRESSION_X1000, 1000)

    def avif(pixels: npt.NDArray[Any], depth: int) -> Callable[[], bytes]:
        options = (cv2.IMWRITE_AVIF_DEPTH, depth, cv2.IMWRITE_AVIF_QUALITY, 95)
        channels = [2, 1, 0, 3] if pixels.shape[2] == 4 else [2, 1, 0]
        return lambda: written(".avif", pixels[..., channels][..., ::-1], *options)

    grey_image = Image.fromarray(grey[..., 0].astype(np.uint16))
    return {
        "jp2-grey-16-bit": Kind(
            lambda: saved(grey_image, "JPEG2000"), exactly(to_eight(grey, 65535))
        ),
        "jp2-rgb-16-bit": Kind(
            lambda: written(".jp2", rgb.astype(np.uint16), *ratio), exactly(to_eight(rgb, 65535))
        ),
        "avif-10-bit": Kind(avif(ten[..., ::-1], 10), levels=LOSSY),
        "avif-12-bit": Kind(avif(twelve[..., ::-1], 12), levels=LOSSY),
        "avif-10-bit-alpha": Kind(avif(np.dstack([ten, alpha]), 10), levels=LOSSY),
    }


def turned_kinds() -> dict[str, Kind]:
    """All eight orientations, wherever a kind keeps them."""
    kinds: dict[str, Kind] = {}
    for orientation in range(1, 9):
        tags = exif(orientation)
        kinds[f"jpeg-turned-{orientation}"] = pillow("JPEG", levels=LOSSY, exif=tags)
        kinds[f"png-turned-{orientation}"] = pillow("PNG", exif=tags)
        kinds[f"webp-turned-{orientation}"] = pillow("WEBP", lossless=True, exif=tags)
        kinds[f"webp-lossy-turned-{orientation}"] = pillow("WEBP", levels=LOSSY, exif=tags)
        kinds[f"avif-turned-{orientation}"] = pillow("AVIF", levels=LOSSY, quality=90, exif=tags)
        kinds[f"tiff-lzw-turned-{orientation}"] = pillow(
            "TIFF", compression="tiff_lzw", tiffinfo={274: orientation}
        )
    made = samples(16, 3)
    data = png(made, 16, 2, extra=chunk(b"eXIf", exif(6).removeprefix(b"Exif\0\0")))
    kinds["png-turned-16-bit"] = Kind(lambda: data, exactly(turned(to_eight(made, 65535), 6)))
    kinds["avif-alpha-turned"] = pillow("AVIF", "RGBA", levels=LOSSY, exif=exif(6))
    return kinds


def animated(kind: str, **options: Any) -> Kind:
    """Two frames or pages, of which the first is wanted."""
    return Kind(
        lambda: saved(picture(), kind, save_all=True, append_images=[other()], **options),
        levels=LOSSY if kind in ("AVIF", "MPO") else 0,
    )


KINDS: dict[str, Kind] = {
    "jpeg": pillow("JPEG", levels=LOSSY),
    "jpeg-progressive": pillow("JPEG", levels=LOSSY, progressive=True),
    "jpeg-grey": pillow("JPEG", "L", levels=LOSSY),
    "jpeg-cmyk": pillow("JPEG", "CMYK", levels=LOSSY),
    "jpeg-ycck": Kind(ycck_jpeg, levels=LOSSY),
    "jpeg-rgb": pillow("JPEG", levels=LOSSY, keep_rgb=True),
    "jpeg-444": pillow("JPEG", levels=LOSSY, subsampling=0),
    "jpeg-422": pillow("JPEG", levels=LOSSY, subsampling=1),
    "jpeg-restarts": pillow("JPEG", levels=LOSSY, restart_marker_blocks=2),
    "jpeg-several": animated("MPO"),
    "jpeg-and-more": Kind(lambda: saved(picture(), "JPEG") + b"more" * 99, levels=LOSSY),
    **png_kinds(),
    "png-palette": pillow("PNG", "P"),
    "png-palette-transparent": pillow("PNG", "P", transparency=3),
    "png-palette-alpha": Kind(
        lambda: saved(picture("P"), "PNG", transparency=bytes(range(32))),
        exactly(np.asarray(picture("P").convert("RGB"))),
    ),
    "png-LA": pillow("PNG", "LA"),
    "png-RGBA": pillow("PNG", "RGBA"),
    "png-animated": animated("PNG"),
    "webp": pillow("WEBP", levels=LOSSY),
    "webp-alpha": pillow("WEBP", "RGBA", levels=LOSSY),
    "webp-lossless": pillow("WEBP", lossless=True),
    "webp-lossless-alpha": pillow("WEBP", "RGBA", lossless=True, exact=True),
    "webp-animated": animated("WEBP", lossless=True),
    "gif": pillow("GIF", "P"),
    "gif-interlaced": pillow("GIF", "P", interlace=1),
    "gif-grey": pillow("GIF", "L"),
    "gif-animated": animated("GIF"),
    **{f"bmp-{mode}": pillow("BMP", mode) for mode in ("1", "L", "P", "RGB", "RGBA")},
    **bmp_kinds(),
    **{f"tiff-{mode}": pillow("TIFF", mode) for mode in ("1", "L", "P", "RGB")},
    "tiff-CMYK": pillow("TIFF", "CMYK", levels=LOSSY),
    "tiff-YCbCr": pillow("TIFF", "YCbCr", levels=LOSSY),
    "tiff-jpeg": pillow("TIFF", levels=LOSSY, compression="jpeg"),
    "tiff-lzw": pillow("TIFF", compression="tiff_lzw"),
    "tiff-deflate": pillow("TIFF", compression="tiff_adobe_deflate"),
    "tiff-packbits": pillow("TIFF", compression="packbits"),
    "tiff-group4": pillow("TIFF", "1", compression="group4"),
    "tiff-bigtiff": pillow("TIFF", big_tiff=True),
    "tiff-pages": animated("TIFF"),
    **tiff_kinds(),
    "avif": pillow("AVIF", levels=LOSSY, quality=90),
    "avif-444": pillow("AVIF", levels=LOSSY, subsampling="4:4:4"),
    "avif-grey": pillow("AVIF", "L", levels=LOSSY),
    "avif-alpha": pillow("AVIF", "RGBA", levels=LOSSY, quality=90),
    "avif-animated": animated("AVIF"),
    "jp2": pillow("JPEG2000"),
    "jp2-lossy": pillow("JPEG2000", levels=LOSSY, irreversible=True, quality_layers=[20]),
    "jp2-grey": pillow("JPEG2000", "L"),
    "jp2-LA": pillow("JPEG2000", "LA"),
    "jp2-RGBA": pillow("JPEG2000", "RGBA"),
    "jp2-tiles": pillow("JPEG2000", tile_size=(16, 16)),
    "jp2-bare": pillow("JPEG2000", no_jp2=True),
    **depth_kinds(),
    **pnm_kinds(),
    **{f"pnm-by-pillow-{mode}": pillow("PPM", mode) for mode in ("1", "L", "RGB")},
    **turned_kinds(),
}


@cache
def sample(name: str) -> bytes:
    """The image of that kind, made once."""
    return KINDS[name].make()


def check(pixels: Pixels, expected: Pixels, levels: int) -> None:
    """The promised type and layout, and pixels within so many levels."""
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(np.int16) - expected).max() <= levels


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_kind(decoder: Decoder, name: str) -> None:
    """The pixels are those that were put in, or those that Pillow finds."""
    kind, data = KINDS[name], sample(name)
    pixels, complaint = decoder.decode(data)
    check(pixels, kind.expected(data), kind.levels)
    assert complaint == "" or name == "jp2-bare"


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_kind_in_a_frame(decoder: Decoder, name: str) -> None:
    """In a frame of its own size the image is the same as without."""
    full, _ = decoder.decode(sample(name))
    framed, _ = decoder.decode(sample(name), Frame(full.shape[0], full.shape[1]))
    assert np.array_equal(framed, full)


def test_view_of_bytes(decoder: Decoder) -> None:
    """A memoryview gives what the bytes under it give, and neither is changed."""
    data = sample("jpeg-turned-6")
    padded = bytearray(b"xx" + data + b"xx")
    found, _ = decoder.decode(memoryview(padded)[2:-2])
    assert np.array_equal(found, decoder.decode(data)[0])
    assert padded == b"xx" + data + b"xx"


def test_pixels_are_the_callers(decoder: Decoder) -> None:
    """What was decoded may be written to and is not changed by decoding more."""
    first, _ = decoder.decode(sample("png-RGBA"))
    kept = first.copy()
    decoder.decode(sample("png-turned-3"))
    assert np.array_equal(first, kept)
    first[:] = 7
    assert np.array_equal(decoder.decode(sample("png-RGBA"))[0], kept)


# --- details --------------------------------------------------------------------------------


def test_ycck_has_the_colours_that_were_put_in(decoder: Decoder) -> None:
    """The YCCK file made here is what it should be: its colours are the scene's."""
    pixels, _ = decoder.decode(sample("jpeg-ycck"))
    assert np.abs(pixels.astype(np.int16) - scene()).mean() <= 2


@pytest.mark.parametrize("background", [0, 5, 9])
def test_transparent_gif(decoder: Decoder, background: int) -> None:
    """Transparent pixels of a GIF have its background colour, all others their own."""
    image = picture("P")
    data = saved(image, "GIF", transparency=3, optimize=False)
    data = data[:11] + bytes((background,)) + data[12:]
    palette = np.frombuffer(data, np.uint8, 3 * 32, 13).reshape(32, 3)
    expected = palette[np.where(np.asarray(image) == 3, background, np.asarray(image))]
    assert (np.asarray(image) == 3).any()
    assert np.array_equal(decoder.decode(data)[0], expected)


def test_gif_frame_smaller_than_its_canvas(decoder: Decoder) -> None:
    """What the first frame leaves of the canvas has the background colour."""
    plain = saved(picture("P"), "GIF")
    data = plain[:6] + struct.pack("<HH", WIDTH + 10, HEIGHT + 5) + plain[10:]
    background = np.frombuffer(data, np.uint8, 3, 13 + 3 * data[11])
    pixels, _ = decoder.decode(data)
    assert pixels.shape == (HEIGHT + 5, WIDTH + 10, 3)
    assert np.array_equal(pixels[:HEIGHT, :WIDTH], by_pillow(plain))
    assert (pixels[HEIGHT:] == background).all()
    assert (pixels[:, WIDTH:] == background).all()


def test_apng_with_a_poster(decoder: Decoder) -> None:
    """Of an APNG whose still image is no part of the animation, the animation's first frame."""
    frames = [other(), picture()]
    data = saved(picture(), "PNG", save_all=True, default_image=True, append_images=frames)
    assert np.array_equal(decoder.decode(data)[0], np.asarray(other()))


def test_orientation_in_xmp_is_ignored(decoder: Decoder) -> None:
    """Only EXIF turns an image; Pillow heeds XMP too."""
    xmp = (
        b'<x:xmpmeta xmlns:x="adobe:ns:meta/">'
        b'<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
        b"</rdf:RDF></x:xmpmeta>"
    )
    data = saved(picture(), "JPEG", xmp=xmp)
    assert decoder.decode(data)[0].shape == (HEIGHT, WIDTH, 3)


def swapped_profile() -> bytes:
    """A profile that exchanges red and blue for whoever applies it."""
    made = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    table = 132 + 12 * int.from_bytes(made[128:132])
    head = made[:table].replace(b"rXYZ", b"----").replace(b"bXYZ", b"rXYZ")
    return head.replace(b"----", b"bXYZ") + made[table:]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "AVIF", "TIFF"])
def test_colour_profiles_are_ignored(decoder: Decoder, kind: str) -> None:
    """A profile changes no pixel."""
    profile = swapped_profile()
    pixels, complaint = decoder.decode(saved(picture(), kind, icc_profile=profile))
    assert complaint == ""
    assert np.array_equal(pixels, decoder.decode(saved(picture(), kind, icc_profile=b""))[0])


@pytest.mark.parametrize("gamma", [45_455, 100_000])
def test_gamma_is_ignored(decoder: Decoder, gamma: int) -> None:
    """A PNG's gamma changes no pixel."""
    data = png(samples(8, 3), 8, 2, extra=chunk(b"gAMA", struct.pack(">I", gamma)))
    check(decoder.decode(data)[0], to_eight(samples(8, 3), 255), 0)


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_orientation_that_is_none(decoder: Decoder, orientation: int) -> None:
    """A value outside 1 to 8 turns nothing."""
    data = saved(picture(), "JPEG", exif=exif(orientation))
    assert decoder.decode(data)[0].shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("bits", [10, 12, 14])
def test_tiff_of_odd_depths(decoder: Decoder, bits: int) -> None:
    """Grey of 10, 12 or 14 bits is scaled within a level."""
    made = samples(bits, 1)
    shifts = np.arange(bits - 1, -1, -1)
    rows = [np.packbits((row.ravel()[:, None] >> shifts) & 1).tobytes() for row in made]
    data = tiff(made, bits, 1)
    strip = b"".join(rows)
    data = data[: len(data) - len(b"".join(bit_rows(made, bits)))] + strip
    size = struct.pack("<HHII", 279, 4, 1, len(b"".join(bit_rows(made, bits))))
    data = data.replace(size, struct.pack("<HHII", 279, 4, 1, len(strip)))
    check(decoder.decode(data)[0], to_eight(made, (1 << bits) - 1), 1)


def test_bmp_of_16_bits(decoder: Decoder) -> None:
    """Five and six bits are scaled to the whole range: white is white."""
    packed = np.array([[0xFFFF, 0xF800, 0x07E0, 0x001F, 0x0000]], "<u2")
    masks = struct.pack("<3I", 0xF800, 0x07E0, 0x001F)
    data = bmp([packed.tobytes()], 5, 16, compression=3, masks=masks)
    white, red, green, blue, black = decoder.decode(data)[0][0].tolist()
    assert (white, red, green, blue, black) == (
        [255, 255, 255],
        [255, 0, 0],
        [0, 255, 0],
        [0, 0, 255],
        [0, 0, 0],
    )


def test_bmp_of_other_masks(decoder: Decoder) -> None:
    """Masks that put red first are heeded, or the bitmap is refused."""
    body = [bytes((255, 0, 0, 0)) * 2]
    data = bmp(body, 2, 32, compression=3, masks=struct.pack("<3I", 0xFF, 0xFF00, 0xFF0000))
    try:
        pixels, _ = decoder.decode(data)
    except Undecodable:
        return
    assert pixels.tolist() == [[[255, 0, 0]] * 2]


def test_tiff_of_planes_and_16_bits(decoder: Decoder) -> None:
    """Channels of 16 bits one after another come out right, or are refused."""
    made = samples(16, 3)
    data = tiff(made, 16, 2, planar=True)
    try:
        pixels, _ = decoder.decode(data)
    except Undecodable:
        return
    check(pixels, to_eight(made, 65535), 0)


# --- what is refused by name ----------------------------------------------------------------


def patched(data: bytes, at: int, new: bytes) -> bytes:
    """The data with some bytes changed."""
    return data[:at] + new + data[at + len(new) :]


def test_jpeg_of_12_bits(decoder: Decoder) -> None:
    """A JPEG of 12 bits is refused, and the message says why."""
    plain = saved(picture(), "JPEG")
    at = frame_header(plain)
    deep = patched(patched(plain, at, b"\xff\xc1"), at + 4, b"\x0c")
    assert "12" in refused(decoder, deep)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tiff_of_floats(decoder: Decoder, dtype: type) -> None:
    """A TIFF of floats is refused by the name of its numbers."""
    data = written(".tiff", scene().astype(dtype) / 255)
    assert f"TIFF of {np.dtype(dtype).name} numbers" in refused(decoder, data)


@pytest.mark.parametrize(
    ("bits", "sign", "name"),
    [(8, 2, "int8"), (16, 2, "int16"), (32, 1, "uint32"), (32, 2, "int32")],
)
def test_tiff_of_other_numbers(decoder: Decoder, bits: int, sign: int, name: str) -> None:
    """A TIFF of signed or 32-bit numbers is refused by their name."""
    assert f"TIFF of {name} numbers" in refused(decoder, tiff(samples(bits, 1), bits, 1, t339=sign))


def test_tiff_of_lab(decoder: Decoder) -> None:
    """A TIFF in Lab is refused by its kind of colours."""
    assert "colours of kind 8" in refused(decoder, saved(picture("LAB"), "TIFF"))


def test_tiff_with_transparency(decoder: Decoder) -> None:
    """A TIFF whose transparency would change colours is refused by name."""
    assert "TIFF with transparency" in refused(decoder, saved(picture("RGBA"), "TIFF"))


@pytest.mark.parametrize("bits", [2, 4])
def test_tiff_of_few_bits(decoder: Decoder, bits: int) -> None:
    """Grey of 2 or 4 bits is refused, and the message names the bits."""
    assert "bitsperpixel" in refused(decoder, tiff(samples(bits, 1), bits, 1))


@pytest.mark.parametrize("compression", ["zstd", "lzma"])
def test_tiff_of_new_compressions(decoder: Decoder, compression: str) -> None:
    """A compression that OpenCV's libtiff lacks is named."""
    data = saved(picture(), "TIFF", compression=compression)
    assert f"{compression.upper()} compression support is not configured" in refused(decoder, data)


def test_jp2_of_12_bits(decoder: Decoder) -> None:
    """A JPEG 2000 of neither 8 nor 16 bits is refused by its bits."""
    grey = Image.fromarray(samples(12, 1)[..., 0].astype(np.uint16))
    plain = saved(grey, "JPEG2000")
    for start in (plain.index(b"ihdr") + 14, plain.index(b"\xff\x4f\xff\x51") + 42):
        assert plain[start] == 15
        plain = patched(plain, start, b"\x0b")
    assert "JPEG 2000 of 12 bits" in refused(decoder, plain)


def with_property(data: bytes, prop: bytes) -> bytes:
    """An AVIF of one item, by libavif, whose properties get one more behind the others."""
    ipco, ipma, iloc = (data.index(name) - 4 for name in (b"ipco", b"ipma", b"iloc"))
    places = ipma + 19
    count = data[places - 1]
    number, at = 1, ipco + 8
    while at < ipma:
        number, at = number + 1, at + int.from_bytes(data[at : at + 4])
    table = data[places : places + count] + bytes((0x80 | number,))
    grown = bytearray(data)
    for start, more in ((ipma, 1), (ipco, len(prop))):
        grown[start : start + 4] = (int.from_bytes(data[start : start + 4]) + more).to_bytes(4)
    for start in (data.index(b"iprp") - 4, data.index(b"meta") - 4):
        size = int.from_bytes(data[start : start + 4]) + len(prop) + 1
        grown[start : start + 4] = size.to_bytes(4)
    content = (data.index(b"mdat") + 4).to_bytes(4)
    moved = (data.index(b"mdat") + 4 + len(prop) + 1).to_bytes(4)
    at = data.index(content, iloc)
    grown[at : at + 4] = moved
    grown[places - 1 : places + count] = bytes((count + 1,)) + table
    grown[ipma:ipma] = prop
    return bytes(grown)


def test_avif_to_be_cropped(decoder: Decoder) -> None:
    """An AVIF with a crop is refused by name, as OpenCV would show all of it."""
    crop = struct.pack(">I4s8I", 40, b"clap", 20, 1, 10, 1, 0, 1, 0, 1)
    data = with_property(sample("avif"), crop)
    assert header_of(data) == header_of(sample("avif"))
    assert "an AVIF that is to be cropped (clap)" in refused(decoder, data)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99), "HEIC image"),
        (b"\xff\x0a" + bytes(99), "JPEG XL image"),
        (b"8BPS\0\1" + bytes(99), "PSD image"),
        (b"v/1\x01" + bytes(99), "EXR image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG image"),
        (b"%PDF-1.7\n", "PDF document"),
        (bytes((0, 0, 2)) + bytes(99), "unknown"),
        (b"", "unknown"),
    ],
)
def test_what_is_no_image(decoder: Decoder, data: bytes, name: str) -> None:
    """Other kinds of files are refused by their name if they have one."""
    assert refused(decoder, data) == f"is no image that can be decoded ({name})"


# --- limits ---------------------------------------------------------------------------------


def claim(kind: str, width: int, height: int) -> bytes:
    """A small image whose header claims to be of another size."""
    big, little = struct.pack(">II", width, height), struct.pack("<II", width, height)
    swapped = struct.pack(">II", height, width)
    jpeg, avif, jp2 = sample("jpeg"), sample("avif"), sample("jp2")
    png_head = b"IHDR" + big + sample("png-turned-1")[24:29]
    jp2 = patched(jp2, jp2.index(b"ihdr") + 4, swapped)
    jp2_size = jp2.index(b"\xff\x4f\xff\x51") + 8
    jpeg_sides = struct.pack(">HH", height, width)
    webp_sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return {
        "jpeg": patched(jpeg, frame_header(jpeg) + 5, jpeg_sides),
        "png": patched(sample("png-turned-1"), 12, png_head + crc(png_head)),
        "gif": patched(sample("gif"), 6, struct.pack("<HH", width, height)),
        "bmp": patched(sample("bmp-RGB"), 18, little),
        "tiff": tiff(samples(8, 1), 8, 1, t256=width, t257=height, t278=height),
        "webp": patched(sample("webp-animated"), 24, webp_sides),
        "avif": patched(avif, avif.index(b"ispe") + 8, big),
        "jp2": patched(patched(jp2, jp2_size, big), jp2_size + 16, big),
        "P4": b"P4\n%d %d\n" % (width, height) + bytes(99),
        "P5": b"P5\n%d %d\n255\n" % (width, height) + bytes(99),
        "P6": b"P6\n%d %d\n255\n" % (width, height) + bytes(99),
    }[kind]


CLAIMS = ["jpeg", "png", "gif", "bmp", "tiff", "webp", "avif", "jp2", "P4", "P5", "P6"]


@pytest.mark.parametrize("kind", CLAIMS)
def test_claims_are_understood(kind: str) -> None:
    """The headers made for these tests claim what they should."""
    header = header_of(claim(kind, 60_000, 60_001))
    assert header is not None
    assert (header.width, header.height) == (60_000, 60_001)


@pytest.mark.parametrize("kind", CLAIMS)
def test_limit_of_pixels(decoder: Decoder, kind: str) -> None:
    """A header that claims too much is refused by it, with a frame as without."""
    data = claim(kind, 60_000, 60_000)
    message = "its header claims 60,000 x 60,000 pixels, more than the limit of 134,217,728"
    assert refused(decoder, data) == message
    assert refused(decoder, data, Frame(8, 8)) == message


def test_limit_is_exact() -> None:
    """An image of just as many pixels as the limit is decoded, one more is refused."""
    pixels = WIDTH * HEIGHT
    data = sample("png-turned-1")
    assert Decoder(max_pixels=pixels).decode(data)[0].shape == (HEIGHT, WIDTH, 3)
    assert "more than the limit of 1,394" in refused(Decoder(max_pixels=pixels - 1), data)
    assert MAX_PIXELS == 2**27


IN_LITTLE_MEMORY = """
import resource, struct, sys
from tarshard.imaging.decode import Decoder, Undecodable
decoder = Decoder()
decoder.use_one_thread()
files = []
while size := sys.stdin.buffer.read(4):
    files.append(sys.stdin.buffer.read(struct.unpack(">I", size)[0]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[1]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for data in files:
    try:
        pixels, _ = decoder.decode(data)
        print("decoded", pixels.shape)
    except Undecodable as error:
        print("refused", error)
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print("memory", "little" if used < 50_000 else f"{used} KB")
"""


def in_little_memory(files: list[bytes], megabytes: int) -> list[str]:
    """What a process says that decodes these files and may use so much memory for it."""
    done = subprocess.run(
        [sys.executable, "-c", IN_LITTLE_MEMORY, str(megabytes)],
        input=b"".join(struct.pack(">I", len(data)) + data for data in files),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def test_limit_needs_no_memory() -> None:
    """Too large claims are refused by the limit in a process that can hold no such image."""
    said = in_little_memory([claim(kind, 60_000, 60_000) for kind in CLAIMS], 200)
    assert said[-1] == "memory little"
    assert len(said) == len(CLAIMS) + 1
    assert all(" more than the limit of " in line for line in said[:-1])


def test_memory_that_is_not_there() -> None:
    """Claims within the limit for which there is no memory are refused, not a crash."""
    said = in_little_memory([claim(kind, 11_000, 11_000) for kind in CLAIMS], 64)
    assert len(said) == len(CLAIMS) + 1
    assert all(line.startswith("refused ") for line in said[:-1])


def test_png_chunk_that_claims_too_much() -> None:
    """A PNG of some hundred bytes with a chunk that claims 512 MB takes no such memory."""
    plain = sample("png-turned-1")
    at = plain.index(b"IDAT") - 4
    said = in_little_memory([patched(plain, at, b"\x20\0\0\0")], 2048)
    assert said[0].startswith("refused ")
    assert said[1] == "memory little"


# --- damage ---------------------------------------------------------------------------------

CUT = [
    *["jpeg", "jpeg-progressive", "jpeg-cmyk", "jpeg-grey", "png-turned-1", "png-palette"],
    *["png-animated", "png-colour2-16-bit", "webp", "webp-lossless", "webp-animated", "gif"],
    *["gif-animated", "bmp-RGB", "bmp-P", "bmp-run-lengths", "tiff-RGB", "tiff-lzw"],
    *["tiff-deflate", "tiff-packbits", "tiff-jpeg", "tiff-group4", "tiff-pages"],
    *["tiff-3x16-little", "avif", "avif-alpha", "jp2", "jp2-bare", "jp2-rgb-16-bit"],
    *["pnm-by-pillow-L", "pnm-by-pillow-RGB", "pnm-by-pillow-1", "pnm-P3-to-255"],
]


def outcome(decoder: Decoder, data: bytes, frame: Frame | None = None) -> Pixels | str:
    """The pixels, or why there are none."""
    try:
        return decoder.decode(data, frame)[0]
    except Undecodable as error:
        why = str(error)
    assert why
    assert "\n" not in why
    return why


@pytest.mark.parametrize("name", CUT)
def test_cut_short(decoder: Decoder, name: str) -> None:
    """An image that is cut is refused, unless what is missing does not matter to its pixels."""
    data = sample(name)
    whole, _ = decoder.decode(data)
    for end in sorted({0, 1, 20, 400, len(data) // 2, len(data) * 3 // 4, len(data) - 2}):
        if end < len(data):
            found = outcome(decoder, data[:end])
            assert isinstance(found, str) or np.array_equal(found, whole), end


@pytest.mark.parametrize("name", [name for name in CUT if name != "tiff-pages"])
def test_cut_in_half(decoder: Decoder, name: str) -> None:
    """Half of an image is refused with a cause; of an animation too, unless its frame is whole."""
    data = sample(name)
    whole, _ = decoder.decode(data)
    found = outcome(decoder, data[: len(data) // 2])
    if name in ("gif-animated", "webp-animated", "png-animated"):
        assert isinstance(found, str) or np.array_equal(found, whole)
    else:
        assert isinstance(found, str)


def test_tiff_without_its_second_page(decoder: Decoder) -> None:
    """Of a TIFF that is cut in its second page the first comes out right."""
    data, first = sample("tiff-pages"), len(saved(picture(), "TIFF"))
    assert len(data) > 2 * first - 100
    for end in range(first + 16, len(data), 97):
        assert np.array_equal(decoder.decode(data[:end])[0], scene()), end


def test_jpeg_without_end(decoder: Decoder) -> None:
    """A JPEG cut just before its end marker is refused as cut, whatever its size in a frame."""
    data = sample("jpeg")[:-2]
    for frame in (None, Frame(8, 8)):
        assert refused(decoder, data, frame) == "it is cut short: its end marker is missing"


def test_jpeg_cut_but_ended(decoder: Decoder) -> None:
    """A JPEG whose data stops early is refused or complained of, though it has an end marker."""
    data = sample("jpeg")
    at = data.index(b"\xff\xda") + 14
    short = data[: (at + len(data)) // 2] + b"\xff\xd9"
    try:
        _, complaint = decoder.decode(short)
    except Undecodable:
        return
    assert complaint


def test_one_bit_of_a_jpeg(decoder: Decoder) -> None:
    """With any one bit wrong a JPEG is refused, or decoded, complained of or not: nothing else."""
    data, seen = sample("jpeg"), Counter[str]()
    bits = random.Random(5)
    for at in range(len(data)):
        wrong = patched(data, at, bytes((data[at] ^ 1 << bits.randrange(8),)))
        try:
            pixels, complaint = decoder.decode(wrong)
        except Undecodable:
            seen["refused"] += 1
        else:
            header = header_of(wrong)
            assert header is not None
            assert sorted(pixels.shape[:2]) == sorted((header.height, header.width))
            seen["complained of" if complaint else "unnoticed"] += 1
    assert seen.keys() == {"refused", "complained of", "unnoticed"}


def test_one_bit_of_a_jpeg_that_is_noticed(decoder: Decoder) -> None:
    """What libjpeg warns of becomes the complaint, in its own words and without decoration."""
    data = sample("jpeg")
    at = data.index(b"\xff\xda") + 14
    _, complaint = decoder.decode(data[:at] + b"\x55" * 40 + data[at:])
    assert complaint.startswith("Corrupt JPEG data: ")


@pytest.mark.parametrize("name", ["png-turned-1", "png-palette", "png-colour2-16-bit-interlaced"])
def test_one_bit_of_a_png(decoder: Decoder, name: str) -> None:
    """With any one bit of its header or pixels wrong a PNG is refused: it has check sums."""
    data = sample(name)
    whole, _ = decoder.decode(data)
    bits = random.Random(6)
    needed = data.index(b"IEND") - 4
    for at in range(len(data)):
        wrong = patched(data, at, bytes((data[at] ^ 1 << bits.randrange(5),)))
        found = outcome(decoder, wrong)
        if at < needed and at not in range(data.index(b"IDAT") - 4, data.index(b"IDAT")):
            assert isinstance(found, str) or np.array_equal(found, whole), at
        if at in range(16, 33) or at in range(data.index(b"IDAT") + 4, needed):
            assert isinstance(found, str), at


def test_one_bit_of_an_animated_png(decoder: Decoder) -> None:
    """A wrong bit in the first frame's pixels is refused as in any other PNG."""
    data = sample("png-animated")
    start = data.index(b"IDAT") + 4
    end = start + int.from_bytes(data[start - 8 : start - 4])
    for at in range(start, end, 7):
        found = outcome(decoder, patched(data, at, bytes((data[at] ^ 4,))))
        assert isinstance(found, str), at


# --- any bytes ------------------------------------------------------------------------------

FUZZED = [
    *["jpeg", "jpeg-turned-6", "jpeg-progressive", "jpeg-ycck", "png-turned-5", "png-palette"],
    *["png-animated", "png-colour6-16-bit-interlaced", "webp", "webp-lossless", "webp-animated"],
    *["gif", "gif-animated", "bmp-RGB", "bmp-run-lengths", "bmp-1", "tiff-RGB", "tiff-jpeg"],
    *["tiff-lzw-turned-8", "tiff-group4", "tiff-pages", "tiff-turned-6-16-bit", "tiff-P"],
    *["avif-turned-5", "avif-10-bit", "avif-alpha", "jp2", "jp2-bare", "jp2-rgb-16-bit"],
    *["pnm-P3-to-100", "pnm-P5-to-1000", "pnm-P6-to-255", "pnm-P4", "pnm-P1"],
]
ODD_NUMBERS = (0, 1, 5000, 65_536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The image with bytes changed, cut off, put in or taken out, or continued as another image."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(min(len(made), chance.choice((60, 400, 1 << 20))) or 1)
        what = chance.randrange(10)
        if what < 5:
            made[at : at + 1] = bytes((chance.choice((0, 255, chance.randrange(256))),))
        elif what < 6:
            del made[chance.randrange(len(made) + 1) :]
        elif what < 7:
            follower = sample(chance.choice(FUZZED))
            made[at:] = follower[chance.randrange(len(follower)) :]
        elif what < 8:
            made[at : at + chance.randrange(9)] = chance.randbytes(chance.randrange(9))
        else:
            number = struct.pack(chance.choice("<>") + "I", chance.choice(ODD_NUMBERS))
            made[at : at + 4] = number
    return bytes(made)


FRAMES = (None, None, Frame(8, 8), Frame(5, 9, "contain"), Frame(3, 3, "stretch"), Frame(40, 2))


@pytest.mark.parametrize("seed", range(10))
def test_damaged_images(seed: int) -> None:
    """Of a thousand damaged images each is refused or gives pixels of the promised form."""
    decoder, chance, decoded = Decoder(max_pixels=1 << 20), random.Random(seed), 0
    for _ in range(1000):
        data = damaged(sample(chance.choice(FUZZED)), chance)
        frame = chance.choice(FRAMES)
        found = outcome(decoder, data, frame)
        if isinstance(found, str):
            continue
        decoded += 1
        header = header_of(data)
        assert header is not None
        assert found.dtype == np.uint8
        assert found.flags.c_contiguous
        sides = (header.height, header.width)
        possible = {sides, sides[::-1]} if frame is None else {frame.size}
        assert found.shape[:2] in possible
        assert found.shape[2:] == (3,)
    assert 100 < decoded < 900


def plain_files(colour: str) -> list[bytes]:
    """Images of a single colour, and of the size of the damaged ones that follow them."""
    image = Image.new("RGB", (WIDTH, HEIGHT), colour)
    kinds = ("PNG", "BMP", "TIFF", "JPEG", "GIF", "WEBP", "PPM")
    return [saved(image, kind) for kind in kinds]


@pytest.mark.parametrize("name", CUT)
def test_pixels_of_no_other_image(decoder: Decoder, name: str) -> None:
    """A damaged image comes out the same whatever was decoded before it: nothing shines through."""
    chance = random.Random(name)
    before = {colour: plain_files(colour) for colour in ("red", "lime")}
    for _ in range(40):
        data = sample(name)
        at = chance.randrange(len(data))
        if chance.random() < 0.6:
            data = patched(data, at, bytes((data[at] ^ 1 << chance.randrange(8),)))
        elif chance.random() < 0.5:
            data = data[: max(at, len(data) // 3)]
        else:
            data = data[:at] + data[at + chance.randrange(1, 9) :]
        found: list[Pixels | str] = []
        for files in before.values():
            for file in files:
                decoder.decode(file)
            found.append(outcome(decoder, data))
        assert type(found[0]) is type(found[1])
        if not isinstance(found[0], str):
            assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("tags", [{"t277": 1}, {"t277": []}, {"planar": True}])
@pytest.mark.parametrize("bits", [8, 16])
def test_channels_that_are_not_there(decoder: Decoder, bits: int, tags: dict[str, Any]) -> None:
    """A TIFF whose strips hold less than its colours need is not filled up from memory."""
    data = tiff(samples(bits, 3, WIDTH, HEIGHT), bits, 2, **tags)
    found: list[Pixels | str] = []
    for colour in ("red", "lime"):
        for file in plain_files(colour):
            decoder.decode(file)
        found.append(outcome(decoder, data))
    assert type(found[0]) is type(found[1])
    assert isinstance(found[0], str) or np.array_equal(found[0], found[1])


@pytest.mark.parametrize("frame", [None, Frame(16, 16)])
def test_no_red_in_damaged_blue(decoder: Decoder, frame: Frame | None) -> None:
    """After red images a blue JPEG, cut or with bytes wrong, is refused or has no red in it."""
    blue = saved(Image.new("RGB", (64, 64), "blue"), "JPEG", quality=90)
    red = saved(Image.new("RGB", (64, 64), "red"), "JPEG", quality=90)
    scan = blue.index(b"\xff\xda") + 14
    for end in range(scan, len(blue)):
        for data in (blue[:end], blue[:end] + b"\xff\xd9", blue[:end] + bytes(3) + b"\xff\xd9"):
            decoder.decode(red)
            found = outcome(decoder, data, frame)
            if not isinstance(found, str):
                reddish = (found[..., 0] > 200) & (found[..., 2] < 60)
                assert not reddish.any()


# --- writing --------------------------------------------------------------------------------


@pytest.mark.parametrize("quality", [50, 95, 100])
def test_encode_jpeg(decoder: Decoder, quality: int) -> None:
    """What is written as JPEG is read again, by Pillow too, with its colours."""
    data = decoder.encode_jpeg(scene(64, 48), quality=quality)
    pixels, complaint = decoder.decode(data)
    assert complaint == ""
    check(pixels, by_pillow(data), LOSSY)
    assert np.abs(pixels.astype(np.int16) - scene(64, 48)).mean() <= 6
