"""A dataset as PyTorch's IterableDataset: epochs of batches, shared by ranks and workers."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tarshard.dataset import Dataset
from tarshard.errors import UsageError
from tarshard.streaming import ranks
from tarshard.streaming.batch import Batch
from tarshard.streaming.order import Line, Recipe, Share, Tail, Window
from tarshard.streaming.read import Content, ReadSample, ShardReader


class Stream(IterableDataset[Batch]):
    """Yields the batches of an epoch; in a DataLoader worker, those of that worker.

    Use it as ``DataLoader(Stream(path), batch_size=None, num_workers=4)``: batches
    are made here, so that no worker drops or splits one. `Loader` does that, and
    brings a worker's errors and a change of epoch over cleanly: here errors carry
    PyTorch's text, and `set_epoch` must not be called while an iteration runs.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        batch_size: int = 64,
        shuffle: bool = True,
        seed: int = 0,
        tail: Tail | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        content: Content = "image",
        group: int = Recipe().group,
        window: int = Recipe().window,
        block_bytes: int = Recipe().block_bytes,
    ) -> None:
        """Open the dataset and decide this rank's share; see `Share` and `Recipe`.

        ``content`` says what ``Batch.data`` holds: the ``image`` bytes, all bytes of
        the ``sample`` as they lie in the tar, or nothing but ``facts``.
        ``tail`` is ``uneven`` for one rank and ``pad`` for several unless given.

        Raises `InputUnusable` or `DatasetDamaged` for the dataset, `UsageError` for
        values that cannot be.
        """
        super().__init__()
        if content not in get_args(Content):
            raise UsageError(f"content must be one of {get_args(Content)}, got {content!r}")
        rank, world_size = ranks.resolve(rank, world_size)
        tail = tail or ("uneven" if world_size == 1 else "pad")
        self.dataset = Dataset(path)
        self.share = Share(self.dataset.samples, batch_size, rank, world_size, tail)
        self._content: Content = content
        self._recipe = Recipe(
            seed=seed, shuffle=shuffle, group=group, window=window, block_bytes=block_bytes
        )
        # Shared, so that set_epoch reaches workers that are kept between epochs.
        self._epoch: torch.Tensor = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration yields."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, also for workers that are kept."""
        Recipe(epoch=epoch)
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        """Return the number of batches of this rank, the same for any number of workers."""
        return self.share.batches

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        batch: list[ReadSample] = []
        for sample in self._samples(*self.share.worker_span(worker, workers)):
            batch.append(sample)
            if len(batch) == self.share.batch_size:
                yield _batch(batch)
                batch = []
        if batch:
            yield _batch(batch)

    def _samples(self, start: int, stop: int) -> Iterator[ReadSample]:
        if start == stop:
            return
        recipe = self._recipe
        line = Line(
            np.array([shard.nsamples for shard in self.dataset.shards], dtype=np.int64),
            np.array([shard.filesize for shard in self.dataset.shards], dtype=np.int64),
            fingerprint=self.dataset.fingerprint,
            recipe=replace(recipe, epoch=self.epoch),
        )
        with ShardReader(
            self.dataset, content=self._content, open_shards=2 * recipe.group
        ) as reader:
            for window in line.windows(start, stop):
                yield from _deliver(window, reader)


def _deliver(window: Window, reader: ShardReader) -> Iterator[ReadSample]:
    # A function of its own: when it ends, so do its references to the window's bytes.
    samples = [sample for piece in window.pieces for sample in reader.read(piece)]
    if window.order is None:
        yield from samples
    else:
        for at in window.order:
            yield samples[at]


def _batch(samples: list[ReadSample]) -> Batch:
    facts, data = zip(*samples, strict=True)
    return Batch(facts, data)
