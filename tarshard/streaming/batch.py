"""What a stream delivers: a batch of samples, each with its facts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch


class Delivered(NamedTuple):
    """The facts of one delivered sample."""

    key: str
    label: int
    """Position in the dataset's classes, -1 for none."""
    shard: str
    """The shard's ``url``."""
    member: str
    """The image's name in the shard."""
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
    """False for padding, which repeats a sample to give all ranks equally many, and for an image
    that could not be decoded."""

    @property
    def place(self) -> str:
        """Where the image is, for messages."""
        return f"{self.member} ({self.shard}, byte {self.offset:,})"


class Problem(NamedTuple):
    """An image that could not be decoded, or that a decoder complained of."""

    sample: Delivered
    cause: str
    is_fatal: bool
    """Whether there are no pixels; else the image was delivered all the same."""


@dataclass(frozen=True, repr=False)
class Batch:
    """Samples that were delivered together; N of them."""

    samples: Sequence[Delivered]
    """Their facts, length N."""
    data: Sequence[memoryview]
    """Their bytes, read-only, length N; of no bytes when only facts were asked for. Empty when
    images were decoded."""
    images: Any = None
    """With a size: uint8 (N, 3, H, W), RGB, as a tensor. With a transform: what it returned, as a
    tensor (N, ...) where all are arrays of one shape and type, else as a list of length N."""
    problems: Sequence[Problem] = ()
    """Images that could not be decoded, or only with complaints."""

    def __post_init__(self) -> None:
        if isinstance(self.images, np.ndarray):
            object.__setattr__(self, "images", torch.from_numpy(self.images))

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

    def __repr__(self) -> str:
        decoded = "" if self.images is None else f", images {getattr(self.images, 'shape', 'list')}"
        return f"<Batch of {len(self)}{decoded}>"

    def beginning(self, samples: int) -> "Batch":
        """Return the batch up to and with so many valid samples."""
        valid = [at for at, facts in enumerate(self.samples) if facts.valid]
        stop = valid[samples] if samples < len(valid) else len(self)
        images = None if self.images is None else self.images[:stop]
        kept = {facts.index for facts in self.samples[:stop]}
        problems = tuple(problem for problem in self.problems if problem.sample.index in kept)
        return Batch(self.samples[:stop], self.data[:stop], images, problems)

    def __reduce__(self) -> tuple[object, ...]:
        # Views cannot be pickled; from a worker the bytes travel as one piece. Tensors would
        # take a descriptor each, which a consumer that keeps batches runs out of.
        sizes = [len(view) for view in self.data]
        images = self.images.numpy() if isinstance(self.images, torch.Tensor) else self.images
        samples = list(map(tuple, self.samples))
        return _rebuild, (samples, b"".join(self.data), sizes, images, tuple(self.problems))


def _rebuild(
    samples: list[tuple[object, ...]],
    joined: bytes,
    sizes: list[int],
    images: object,
    problems: tuple[Problem, ...],
) -> Batch:
    data, at, whole = [], 0, memoryview(joined)
    for size in sizes:
        data.append(whole[at : at + size])
        at += size
    return Batch(tuple(map(Delivered._make, samples)), tuple(data), images, problems)
