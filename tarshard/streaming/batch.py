"""What a stream delivers: a batch of samples, each with its facts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch


class Delivered(NamedTuple):
    """The facts of one delivered sample."""

    key: str
    label: int
    """Position in the dataset's classes, -1 for none."""
    shard: str
    """The shard's ``url``."""
    offset: int
    """Where the image's bytes start in the shard."""
    size_bytes: int
    """Of the image."""
    width: int | None
    """Pixels, as stored."""
    height: int | None
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody needs here
    """Position in the dataset, in the order of the index."""
    valid: bool
    """False for padding, which repeats a sample to give all ranks equally many."""


@dataclass(frozen=True)
class Batch:
    """Samples that were delivered together; N of them."""

    samples: Sequence[Delivered]
    """Their facts, length N."""
    data: Sequence[memoryview]
    """Their bytes, read-only, length N; of no bytes when only facts were asked for."""

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def keys(self) -> list[str]:
        """The samples' keys, unique in the dataset."""
        return [sample.key for sample in self.samples]

    @cached_property
    def labels(self) -> torch.Tensor:
        """Class numbers, int64 (N,), -1 for none."""
        return torch.tensor([sample.label for sample in self.samples], dtype=torch.int64)

    @cached_property
    def valid(self) -> torch.Tensor:
        """Bool (N,), False for padding."""
        return torch.tensor([sample.valid for sample in self.samples], dtype=torch.bool)

    @cached_property
    def index(self) -> torch.Tensor:
        """Positions in the dataset, int64 (N,)."""
        return torch.tensor([sample.index for sample in self.samples], dtype=torch.int64)

    def beginning(self, samples: int) -> "Batch":
        """Return the batch up to and with so many valid samples."""
        valid = [at for at, facts in enumerate(self.samples) if facts.valid]
        stop = valid[samples] if samples < len(valid) else len(self)
        return Batch(self.samples[:stop], self.data[:stop])

    def __reduce__(self) -> tuple[object, ...]:
        # Views cannot be pickled; from a worker the bytes travel as one piece.
        sizes = [len(view) for view in self.data]
        return _rebuild, (list(map(tuple, self.samples)), b"".join(self.data), sizes)


def _rebuild(samples: list[tuple[object, ...]], joined: bytes, sizes: list[int]) -> Batch:
    data, at, whole = [], 0, memoryview(joined)
    for size in sizes:
        data.append(whole[at : at + size])
        at += size
    return Batch(tuple(map(Delivered._make, samples)), tuple(data))
