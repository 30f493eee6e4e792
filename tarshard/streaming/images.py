"""A dataset as PyTorch's map-style dataset: any image by its number."""

import os
from bisect import bisect_right
from itertools import accumulate
from typing import Any, NamedTuple

from torch.utils.data import Dataset as MapDataset

from tarshard.dataset import Dataset
from tarshard.streaming.order import Piece
from tarshard.streaming.read import ShardReader

_OPEN_SHARDS = 32


class Image(NamedTuple):
    """One image as it was packed; PyTorch's default collate makes batches of it."""

    data: bytes
    """The image file's bytes."""
    label: int
    """Position in the dataset's classes, -1 for none."""
    key: str
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody needs here


class Images(MapDataset[Image]):
    """All images of a dataset in the order of the index; slower than a `Stream`.

    Can be shared among processes: each opens the shards for itself.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the dataset; raises `InputUnusable` or `DatasetDamaged`."""
        self.dataset = Dataset(path)
        self._ends = list(accumulate(shard.nsamples for shard in self.dataset.shards))
        self._reader: ShardReader | None = None

    def __len__(self) -> int:
        return self.dataset.samples

    def __getitem__(self, index: int) -> Image:
        """Read one image; raises `IndexError`, or `DatasetDamaged`."""
        count = len(self)
        at = index + count if index < 0 else index
        if not 0 <= at < count:
            raise IndexError(f"image {index} of {count:,}")
        shard = bisect_right(self._ends, at)
        first = self._ends[shard] - self.dataset.shards[shard].nsamples
        if self._reader is None:
            self._reader = ShardReader(self.dataset, content="image", open_shards=_OPEN_SHARDS)
        [sample] = self._reader.read(Piece(shard, at - first, 1, valid=True))
        return Image(bytes(sample.data), sample.facts.label, sample.facts.key, at)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None}
