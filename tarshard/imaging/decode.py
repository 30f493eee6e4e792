"""Decodes an image file's bytes to RGB pixels, as ``docs/decode.md`` promises for each kind."""

import re
from dataclasses import dataclass

import numpy as np

from tarshard.imaging.fit import Fit, place, reduction
from tarshard.imaging.header import Header, foreign_kind, kind_of, read_header
from tarshard.imaging.mend import Pixels, Raw, Undecodable, check, flags, is_damage, mend
from tarshard.imaging.noise import Noise
from tarshard.imaging.opencv import load_opencv
from tarshard.imaging.window import Window

__all__ = ["MAX_PIXELS", "Decoder", "Frame", "Pixels", "Undecodable"]

MAX_PIXELS = 2**27
"""The usual limit, 134 megapixels or 400 MB: more than any camera, less than memory."""


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
        check(header.extension, data, window)
        factor = reduction(header.width, header.height, frame.size, frame.fit) if frame else 1
        raw, complaint = self._raw(data, header, factor)
        pixels = mend(self._cv2, header.extension, raw, window)
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
        asked = flags(cv2, header.extension)
        if header.extension == "jpg" and factor > 1:
            # The bits of IMREAD_REDUCED_* without that for BGR, which they contain.
            asked |= {2: 16, 4: 32, 8: 64}[factor]
        else:
            factor = 1
        with self._noise.caught():
            try:
                raw = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), asked)
            except (cv2.error, MemoryError) as error:
                raw, said = None, str(error)
            else:
                said = ""
        complaint = _cause(self._noise.take() + said)
        if raw is None:
            raise Undecodable(complaint or _likely_cause(data, header))
        if is_damage(header.extension, complaint):
            raise Undecodable(complaint)
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


_DECORATION = re.compile(
    r"\[ *(?:WARN|ERROR|INFO|DEBUG):\d+@[\d.]+\] global \S+ \S+ (?:imdecode_\(''\): )?"
    r"|OpenCV\([\d.]+\) \S+: error: |\(-\d+:[^)]*\) ?| in function '[^']*'|^> .*"
)
_LONGEST_CAUSE = 300


def _cause(said: str) -> str:
    """Return what a decoder printed as one short line, without OpenCV's decoration."""
    lines = [_DECORATION.sub("", line).strip() for line in said.splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines)))[:_LONGEST_CAUSE]
