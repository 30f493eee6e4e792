"""Writes batches as bytes that other programs take: a tar, or JSON lines."""

import json
from typing import BinaryIO, ClassVar, Protocol

from tarshard import ustar
from tarshard.streaming.batch import Batch
from tarshard.streaming.read import Content


class Sink(Protocol):
    """Takes batches in turn."""

    content: ClassVar[Content]
    """What it needs of each sample."""

    def write(self, batch: Batch) -> None:
        """Write a batch."""

    def finish(self) -> None:
        """Write what belongs at the end."""


class TarSink:
    """Samples as they lie in the shards, all members byte by byte; padding is left out."""

    content: ClassVar[Content] = "sample"

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


class JsonlSink:
    """A JSON object for each sample: which it is and where its image lies; no image is read."""

    content: ClassVar[Content] = "facts"

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

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

    def finish(self) -> None:
        """Flush; lines have no end."""
        self._file.flush()


SINKS: dict[str, type[TarSink] | type[JsonlSink]] = {"tar": TarSink, "jsonl": JsonlSink}
