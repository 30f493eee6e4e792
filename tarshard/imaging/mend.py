"""Makes one promise of OpenCV's many decoders: how each is asked, and what it leaves undone.

Seen with OpenCV 5.0; a test holds each line of it.
"""

import re
from collections.abc import Callable
from types import ModuleType

import numpy as np
import numpy.typing as npt

from tarshard.imaging.containers import primary_properties, tiff_fields
from tarshard.imaging.header import jp2_bits, jpeg_bits, pnm_maximum
from tarshard.imaging.window import Window

Raw = npt.NDArray[np.generic]
"""As OpenCV gives it."""

Pixels = npt.NDArray[np.uint8]
"""RGB, uint8, (height, width, 3)."""


class Undecodable(Exception):
    """An image that cannot be decoded; the message is the cause, without its name."""


def flags(cv2: ModuleType, extension: str) -> int:
    """Return how `cv2.imdecode` is to be asked for an image of that kind."""
    if extension in {"tif", "avif"}:
        # Asked for RGB, OpenCV 5.0 mixes up the colours of AVIF with alpha and of 16-bit
        # TIFF. Unchanged it gives BGR, with alpha if there is any.
        return int(cv2.IMREAD_UNCHANGED)
    if extension in {"png", "jp2", "pgm", "ppm"}:
        return int(cv2.IMREAD_COLOR_RGB | cv2.IMREAD_ANYDEPTH)
    return int(cv2.IMREAD_COLOR_RGB)


def check(extension: str, data: bytes | memoryview, window: Window) -> None:
    """Refuse, before it is decoded, what a decoder would not; raises `Undecodable`."""
    if extension == "jpg" and (bits := jpeg_bits(window)) != 8:
        raise Undecodable(f"a JPEG of {bits} bits is not supported")
    if extension == "png" and _png_is_cut(data):
        # The decoder would take as much memory as a chunk claims to need.
        raise Undecodable("it is cut short: a chunk goes beyond its end")


def _png_is_cut(data: bytes | memoryview) -> bool:
    offset = 8
    while offset + 8 <= len(data):
        kind = bytes(data[offset + 4 : offset + 8])
        offset += 12 + int.from_bytes(data[offset : offset + 4], "big")
        if kind == b"IEND":
            break
    return offset > len(data)


def is_damage(extension: str, complaint: str) -> bool:
    """Tell a complaint after which the pixels are not the image's, though there are some."""
    # What is left of an animated PNG is whatever was in memory.
    return extension == "png" and re.search("ADLER32|IDAT|fcTL|fdAT", complaint) is not None


def mend(cv2: ModuleType, extension: str, raw: Raw, window: Window) -> Pixels:
    """Return RGB pixels of what was decoded; raises `Undecodable`."""
    return _MENDERS.get(extension, _mend)(cv2, raw, window)


def _mend(_cv2: ModuleType, raw: Raw, _window: Window) -> Pixels:
    """RGB of 8 or 16 bits; alpha is left out by the decoder."""
    return _eight_bits(raw, 65535 if raw.dtype == np.uint16 else 255)


def _mend_pnm(_cv2: ModuleType, raw: Raw, window: Window) -> Pixels:
    """Netpbm's kinds have any maximum; OpenCV heeds it only in text, and only up to 255."""
    maximum = pnm_maximum(window)
    is_text = window.at(1, 1) in {b"2", b"3"}
    return _eight_bits(raw, 255 if is_text and maximum < 256 else maximum)


def _mend_jp2(cv2: ModuleType, raw: Raw, window: Window) -> Pixels:
    bits = jp2_bits(window)
    if bits not in {8, 16}:
        raise Undecodable(f"a JPEG 2000 of {bits} bits is not supported")
    return _mend(cv2, raw, window)


def _mend_tiff(cv2: ModuleType, raw: Raw, window: Window) -> Pixels:
    fields = tiff_fields(window)
    photometric = fields.get(262, 2)
    if photometric not in _TIFF_PHOTOMETRICS:
        raise Undecodable(f"a TIFF with colours of kind {photometric}, which is not supported")
    pixels = _mend(cv2, _without_alpha(cv2, raw, "TIFF"), window)
    if raw.dtype != np.uint16:
        return pixels
    # Of 16 bits OpenCV takes the numbers as they lie.
    is_planar, channels = fields.get(284, 1) != 1, fields.get(277, 1)
    if raw.ndim == 3 and (is_planar or (photometric == 2 and channels < 3)):
        raise Undecodable("a TIFF of 16 bits whose channels lie apart is not supported")
    return 255 - pixels if photometric == 0 else pixels


_TIFF_PHOTOMETRICS = {0, 1, 2, 3, 5, 6}
"""TIFF 6.0: white is zero, black is zero, RGB, palette, CMYK, YCbCr. Not Lab or raw."""


def _mend_bmp(cv2: ModuleType, raw: Raw, window: Window) -> Pixels:
    """Fill up the five or six bits of a 16-bit BMP, so that white is white.

    In a BITMAPINFOHEADER of 32 bits OpenCV does not heed the colour masks.
    """
    pixels = _mend(cv2, raw, window)
    header = window.at(0, 66)
    header_size, bits, packing = (int.from_bytes(header[a:b], "little") for a, b in _BMP_FIELDS)
    masks = [int.from_bytes(header[at : at + 4], "little") for at in (54, 58, 62)]
    has_masks = packing == _BMP_BITFIELDS
    if header_size == 40 and bits == 32 and has_masks and masks != [0xFF0000, 0xFF00, 0xFF]:
        raise Undecodable("a BMP with unusual colour masks is not supported")
    if header_size >= 40 and bits == 16:
        green = 6 if has_masks and masks[1] == 0x7E0 else 5
        pixels = pixels | pixels >> np.array([5, green, 5], dtype=np.uint8)
    return pixels


_BMP_FIELDS = ((14, 18), (28, 30), (30, 34))
_BMP_BITFIELDS = 3


def _mend_avif(cv2: ModuleType, raw: Raw, window: Window) -> Pixels:
    """Undo what OpenCV leaves undone: it ignores rotation, mirror and crop of AVIF."""
    pixels = _without_alpha(cv2, raw, "AVIF", is_straight=True)
    own, _ = primary_properties(window)
    maximum = 255
    for part in own:
        content = window.at(part.start, 4)
        if part.kind == b"irot":
            pixels = np.rot90(pixels, content[0] & 3)
        elif part.kind == b"imir":
            pixels = pixels[:, ::-1] if content[0] & 1 else pixels[::-1]
        elif part.kind == b"clap":
            raise Undecodable("an AVIF that is to be cropped (clap) is not supported")
        elif part.kind == b"av1C" and raw.dtype == np.uint16:
            maximum = 4095 if content[2] & 0x20 else 1023
    return _eight_bits(np.ascontiguousarray(pixels), maximum)


def _without_alpha(cv2: ModuleType, raw: Raw, kind: str, *, is_straight: bool = False) -> Raw:
    """Return RGB for grey, BGR or BGR with alpha."""
    if raw.dtype not in (np.uint8, np.uint16):
        raise Undecodable(f"a {kind} of {raw.dtype} numbers, which have no agreed range")
    if raw.ndim == 2:
        return np.asarray(cv2.cvtColor(raw, cv2.COLOR_GRAY2RGB))
    if raw.shape[2] == 3:
        return np.asarray(cv2.cvtColor(raw, cv2.COLOR_BGR2RGB))
    if not is_straight and raw.dtype == np.uint8 and raw[..., 3].min(initial=255) < 255:
        raise Undecodable(f"a {kind} with transparency, whose colours OpenCV darkens")
    return np.asarray(cv2.cvtColor(raw, cv2.COLOR_BGRA2RGB))


_MENDERS: dict[str, Callable[[ModuleType, Raw, Window], Pixels]] = {
    "tif": _mend_tiff,
    "bmp": _mend_bmp,
    "avif": _mend_avif,
    "jp2": _mend_jp2,
    "pgm": _mend_pnm,
    "ppm": _mend_pnm,
}


def _eight_bits(raw: Raw, maximum: int) -> Pixels:
    """Scale to 255, rounded to the nearest; of 16 bits that is value / 257."""
    if maximum == 255 and raw.dtype == np.uint8:
        return np.asarray(raw, dtype=np.uint8)
    scaled = (raw.astype(np.uint32) * 255 + maximum // 2) // maximum
    return np.minimum(scaled, 255).astype(np.uint8)
