"""Decodes an image file's bytes to RGB pixels, as ``docs/decode.md`` promises for each kind.

OpenCV decodes; here is what it takes to get the same promise from all its decoders.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from tarshard.imaging.containers import primary_properties, tiff_fields
from tarshard.imaging.fit import Fit, place, reduction
from tarshard.imaging.header import (
    Header,
    foreign_kind,
    jp2_bits,
    kind_of,
    pnm_maximum,
    read_header,
)
from tarshard.imaging.noise import Noise
from tarshard.imaging.opencv import load_opencv
from tarshard.imaging.window import Window

Raw = npt.NDArray[np.generic]
"""As OpenCV gives it."""

Pixels = npt.NDArray[np.uint8]
"""RGB, uint8, (height, width, 3)."""

MAX_PIXELS = 2**27
"""The usual limit, 134 megapixels or 400 MB: more than any camera, less than memory."""


class Undecodable(Exception):
    """An image that cannot be decoded; the message is the cause, without its name."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What size images shall have."""

    height: int
    width: int
    fit: Fit = "cover"

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.height, self.width


class Decoder:
    """Decodes images; one for each process."""

    def __init__(self, *, max_pixels: int = MAX_PIXELS) -> None:
        """Load OpenCV; raises `MissingLibrary`."""
        self._cv2 = load_opencv()
        self._max_pixels = max_pixels
        self._noise = Noise()

    def use_one_thread(self) -> None:
        """Leave the other cores to other workers."""
        self._cv2.setNumThreads(0)

    def decode(self, data: bytes | memoryview, frame: Frame | None = None) -> tuple[Pixels, str]:
        """Return pixels, and what the decoder complained of although it decoded.

        With a frame the pixels have its size, (frame.height, frame.width, 3). Raises
        `Undecodable`.
        """
        header, window = self._header(data)
        factor = reduction(header.width, header.height, frame.size, frame.fit) if frame else 1
        raw, complaint = self._raw(data, header, factor)
        pixels = _MENDERS.get(header.extension, _mend)(self._cv2, raw, window)
        if header.extension != "jpg" and factor > 1:
            pixels = self._reduced(pixels, factor)
        return (self._framed(pixels, frame) if frame else pixels), complaint

    def encode_jpeg(self, pixels: Pixels, *, quality: int) -> bytes:
        """Return a JPEG file's bytes."""
        cv2 = self._cv2
        bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
        _, encoded = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
        return bytes(encoded)

    def _header(self, data: bytes | memoryview) -> tuple[Header, Window]:
        def read_at(offset: int, size: int) -> bytes:
            return bytes(data[offset : offset + size])

        header = read_header(read_at)
        if header is None:
            start = bytes(data[:512])
            if kind_of(start):
                raise Undecodable("its header gives no size; it is cut short or damaged")
            raise Undecodable(
                f"is no image that can be decoded ({foreign_kind(start) or 'unknown'})"
            )
        if header.width * header.height > self._max_pixels:
            raise Undecodable(
                f"its header claims {header.width:,} x {header.height:,} pixels, "
                f"more than the limit of {self._max_pixels:,}"
            )
        return header, Window(read_at, read_at(0, 4096))

    def _raw(self, data: bytes | memoryview, header: Header, factor: int) -> tuple[Raw, str]:
        cv2 = self._cv2
        flags = _flags(cv2, header.extension)
        if header.extension == "jpg" and factor > 1:
            # The bits of IMREAD_REDUCED_* without that for BGR, which they contain.
            flags |= {2: 16, 4: 32, 8: 64}[factor]
        else:
            factor = 1
        with self._noise.caught():
            try:
                raw = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), flags)
            except (cv2.error, MemoryError) as error:
                raw, said = None, str(error)
            else:
                said = ""
        complaint = _cause(self._noise.take() + said)
        if raw is None:
            raise Undecodable(complaint or _likely_cause(data, header))
        sides = {-(-header.width // factor), -(-header.height // factor)}
        if set(raw.shape[:2]) != sides:
            raise Undecodable(
                f"it decodes to {raw.shape[1]} x {raw.shape[0]} pixels, "
                f"its header says {header.width} x {header.height}"
            )
        return raw, complaint

    def _reduced(self, pixels: Pixels, factor: int) -> Pixels:
        cv2 = self._cv2
        height, width = (-(-side // factor) for side in pixels.shape[:2])
        return np.asarray(
            cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA), dtype=np.uint8
        )

    def _framed(self, pixels: Pixels, frame: Frame) -> Pixels:
        cv2 = self._cv2
        height, width = pixels.shape[:2]
        at = place(width, height, frame.size, frame.fit)
        part = pixels[at.top : at.top + at.height, at.left : at.left + at.width]
        scaled = cv2.resize(
            part, (at.scaled_width, at.scaled_height), interpolation=cv2.INTER_LINEAR
        )
        if scaled.shape[:2] == frame.size:
            return np.asarray(scaled, dtype=np.uint8)
        framed = np.zeros((*frame.size, 3), dtype=np.uint8)
        framed[
            at.frame_top : at.frame_top + at.scaled_height,
            at.frame_left : at.frame_left + at.scaled_width,
        ] = scaled
        return framed


def _likely_cause(data: bytes | memoryview, header: Header) -> str:
    if header.extension == "jpg" and bytes(data[-2:]) != b"\xff\xd9":
        return "it is cut short: its end marker is missing"
    return "OpenCV cannot decode it; it is damaged, or of a rare kind"


def _flags(cv2: ModuleType, extension: str) -> int:
    if extension in {"tif", "avif"}:
        # Asked for RGB, OpenCV 5.0 mixes up the colours of AVIF with alpha and of 16-bit
        # TIFF. Unchanged it gives BGR, with alpha if there is any.
        return int(cv2.IMREAD_UNCHANGED)
    if extension in {"png", "jp2", "pgm", "ppm"}:
        return int(cv2.IMREAD_COLOR_RGB | cv2.IMREAD_ANYDEPTH)
    return int(cv2.IMREAD_COLOR_RGB)


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
    photometric = tiff_fields(window).get(262, 2)
    if photometric not in _TIFF_PHOTOMETRICS:
        raise Undecodable(f"a TIFF with colours of kind {photometric}, which is not supported")
    return _mend(cv2, _without_alpha(cv2, raw, "TIFF"), window)


_TIFF_PHOTOMETRICS = {0, 1, 2, 3, 5, 6}
"""TIFF 6.0: white is zero, black is zero, RGB, palette, CMYK, YCbCr. Not Lab or raw."""


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
    "avif": _mend_avif,
    "jp2": _mend_jp2,
    "pgm": _mend_pnm,
    "ppm": _mend_pnm,
}


_DECORATION = re.compile(
    r"\[ *(?:WARN|ERROR|INFO|DEBUG):\d+@[\d.]+\] global \S+ \S+ (?:imdecode_\(''\): )?"
    r"|OpenCV\([\d.]+\) \S+: error: |\(-\d+:[^)]*\) ?| in function '\w+'"
)
_LONGEST_CAUSE = 300


def _cause(said: str) -> str:
    """Return what a decoder printed as one short line, without OpenCV's decoration."""
    lines = [_DECORATION.sub("", line).strip() for line in said.splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines)))[:_LONGEST_CAUSE]


def _eight_bits(raw: Raw, maximum: int) -> Pixels:
    """Scale to 255, rounded to the nearest; of 16 bits that is value / 257."""
    if maximum == 255 and raw.dtype == np.uint8:
        return np.asarray(raw, dtype=np.uint8)
    scaled = (raw.astype(np.uint32) * 255 + maximum // 2) // maximum
    return np.minimum(scaled, 255).astype(np.uint8)
