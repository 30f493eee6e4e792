"""Writes batches as bytes that other programs take: tar, JSON lines, arrays, frames, JPEGs."""

import json
from typing import BinaryIO, ClassVar, Literal, Protocol

import numpy as np

from tarshard import ustar
from tarshard.streaming.batch import Batch

Asked = Literal["sample", "facts", "jpeg", "pixels"]
"""What a sink takes of each sample; pixels are of one size."""


class Sink(Protocol):
    """Takes batches in turn."""

    takes: ClassVar[Asked]
    """What it needs of each sample."""

    def write(self, batch: Batch) -> None:
        """Write a batch."""

    def finish(self) -> None:
        """Write what belongs at the end, and flush."""


class TarSink:
    """Samples as they lie in the shards, all members byte by byte; padding is left out."""

    takes: ClassVar[Asked] = "sample"

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._length_bytes = 0

    def write(self, batch: Batch) -> None:
        """Write the valid samples."""
        for facts, data in zip(batch.samples, batch.data, strict=True):
            if facts.valid:
                self._file.write(data)
                self._length_bytes += len(data)

    def finish(self) -> None:
        """Write the end of the archive."""
        self._file.write(ustar.end_of_archive(self._length_bytes))
        self._file.flush()


class _PlainSink:
    """One thing after another, without beginning or end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def finish(self) -> None:
        """Flush."""
        self._file.flush()


class JsonlSink(_PlainSink):
    """A JSON object for each sample: which it is and where its image lies; no image is read."""

    takes: ClassVar[Asked] = "facts"

    def write(self, batch: Batch) -> None:
        """Write a line for each sample; padding has ``valid`` false."""
        for facts in batch.samples:
            row = {
                "key": facts.key,
                "label": None if facts.label < 0 else facts.label,
                "shard": facts.shard,
                "offset": facts.offset,
                "size": facts.size_bytes,
                "width": facts.width,
                "height": facts.height,
                "valid": facts.valid,
            }
            self._file.write(json.dumps(row).encode("ascii") + b"\n")


class NpySink(_PlainSink):
    """Batches of pixels as .npy arrays, uint8 (N, 3, H, W), to be read by repeated numpy.load."""

    takes: ClassVar[Asked] = "pixels"

    def write(self, batch: Batch) -> None:
        """Write the valid images as one array; nothing if there is none."""
        images = batch.images[batch.valid].numpy()
        if len(images):
            np.lib.format.write_array(self._file, images, version=(1, 0), allow_pickle=False)


class Rgb24Sink(_PlainSink):
    """Raw frames, one after another: H x W pixels of three bytes, red, green, blue."""

    takes: ClassVar[Asked] = "pixels"

    def write(self, batch: Batch) -> None:
        """Write the valid images."""
        frames = batch.images[batch.valid].permute(0, 2, 3, 1).contiguous()
        self._file.write(frames.numpy().data)


class MjpegSink(_PlainSink):
    """JPEG files, one after another."""

    takes: ClassVar[Asked] = "jpeg"

    def write(self, batch: Batch) -> None:
        """Write the valid images."""
        for facts, data in zip(batch.samples, batch.data, strict=True):
            if facts.valid:
                self._file.write(data)


AnySink = TarSink | JsonlSink | NpySink | Rgb24Sink | MjpegSink
SINKS: dict[str, type[AnySink]] = {
    "tar": TarSink,
    "jsonl": JsonlSink,
    "npy": NpySink,
    "rgb24": Rgb24Sink,
    "mjpeg": MjpegSink,
}
