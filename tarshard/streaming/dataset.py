"""A dataset as PyTorch's IterableDataset: epochs of batches, shared by ranks and workers."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tarshard.checks import one_of, whole_number
from tarshard.dataset import Dataset
from tarshard.errors import UsageError
from tarshard.imaging.decode import MAX_PIXELS, Frame
from tarshard.imaging.fit import Fit
from tarshard.streaming import ranks
from tarshard.streaming.batch import Batch
from tarshard.streaming.order import Line, Recipe, Share, Tail, Window
from tarshard.streaming.preprocess import OnError, Preprocessing, Preprocessor, Transform
from tarshard.streaming.read import Content, ReadSample, ShardReader

MOST_WORKERS = 1024
"""More than any machine has cores for."""
_LARGEST_SIDE = 2**14
"""Pixels; a batch of such frames takes gigabytes already."""
_PLACE_BYTES = 192
"""A key, a shard's name and an offset; what is longer is cut."""


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
        size: int | tuple[int, int] | None = None,
        fit: Fit = "cover",
        transform: Transform | None = None,
        tail: Tail | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        on_error: OnError = "fail",
        max_pixels: int = MAX_PIXELS,
        content: Literal["image", "sample", "facts", "jpeg"] = "image",
        group: int = Recipe().group,
        window: int = Recipe().window,
        block_bytes: int = Recipe().block_bytes,
    ) -> None:
        """Open the dataset and decide this rank's share; see `Share` and `Recipe`.

        With ``size``, a side or (height, width), images are decoded and fitted into it
        (see ``docs/decode.md``): ``Batch.images`` is uint8 (N, 3, H, W). With ``transform``
        they are decoded and handed to ``transform(image, sample, rng)``: the image is RGB,
        uint8, (H, W, 3), the sample a `Delivered`, and the random numbers follow from seed,
        epoch and sample alone.

        Without both ``Batch.data`` holds what ``content`` says: the ``image`` files, all
        bytes of the ``sample`` as they lie in the tar, ``jpeg`` files (other kinds are
        encoded anew), or nothing but ``facts``.

        ``tail`` is ``uneven`` for one rank and ``pad`` for several unless given.

        Raises `InputUnusable` or `DatasetDamaged` for the dataset, `UsageError` for
        values that cannot be. Iterating raises `DatasetDamaged`; `ImageUndecodable` for an
        image that cannot be decoded or has more than ``max_pixels``, unless ``on_error`` is
        ``skip``: then it keeps its place with ``valid`` False; `WorkerFailed` when the
        transform raises.
        """
        super().__init__()
        one_of("content", content, ("image", "sample", "facts", "jpeg"))
        rank, world_size = ranks.resolve(rank, world_size)
        tail = tail or ("uneven" if world_size == 1 else "pad")
        self.dataset = Dataset(path)
        self.share = Share(self.dataset.samples, batch_size, rank, world_size, tail)
        self._content: Content = "image" if content == "jpeg" else content
        frame = None if size is None else _frame(size, fit)
        self._preprocessing = Preprocessing(
            frame=frame,
            transform=transform,
            to_jpeg=content == "jpeg",
            on_error=on_error,
            max_pixels=max_pixels,
        )
        if transform is not None and content == "jpeg":
            raise UsageError("a transform gets pixels; leave content 'jpeg' out")
        if self._preprocessing.is_asked_for and self._content != "image":
            raise UsageError(f"content {content!r} cannot be decoded; leave it out")
        self._recipe = Recipe(
            seed=seed, shuffle=shuffle, group=group, window=window, block_bytes=block_bytes
        )
        # Shared, so that set_epoch reaches workers that are kept between epochs, and the
        # main process knows where each worker is, without reading anything, when one dies.
        self._epoch = _shared((1,), torch.int64)
        self._processes = _shared((MOST_WORKERS,), torch.int64)
        self._places = _shared((MOST_WORKERS, _PLACE_BYTES), torch.uint8)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration yields."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, also for workers that are kept."""
        Recipe(epoch=epoch)
        self._epoch[0] = epoch

    def positions(self) -> list[tuple[int, int, str]]:
        """Return number, process and place of each worker that began."""
        return [
            (worker, process, bytes(self._places[worker].numpy()).rstrip(b"\0").decode("ascii"))
            for worker, process in enumerate(self._processes.tolist())
            if process
        ]

    def __len__(self) -> int:
        """Return the number of batches of this rank, the same for any number of workers."""
        return self.share.batches

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        at = self._follow(worker)
        start, stop = self.share.worker_span(worker, workers)
        if start == stop:
            return
        make: Callable[[Sequence[ReadSample], Callable[[str], None]], Batch] = _batch
        if self._preprocessing.is_asked_for:
            preprocessor = Preprocessor(
                self._preprocessing,
                seed=self._recipe.seed,
                epoch=self.epoch,
                alone=info is None,
            )
            make = preprocessor.batch
        batch: list[ReadSample] = []
        for sample in self._samples(start, stop, at):
            batch.append(sample)
            if len(batch) == self.share.batch_size:
                yield make(batch, at)
                batch = []
        if batch:
            yield make(batch, at)

    def _follow(self, worker: int) -> Callable[[str], None]:
        """Return what notes the place in the dataset that this worker is at."""
        if worker >= MOST_WORKERS:
            return lambda _place: None
        self._processes[worker] = os.getpid()
        noted = self._places[worker].numpy().data

        def at(place: str) -> None:
            raw = place.encode("ascii", "replace")[:_PLACE_BYTES]
            noted[:] = raw.ljust(_PLACE_BYTES, b"\0")

        at("its start")
        return at

    def _samples(self, start: int, stop: int, at: Callable[[str], None]) -> Iterator[ReadSample]:
        recipe = replace(self._recipe, epoch=self.epoch)
        line = Line(
            np.array([shard.nsamples for shard in self.dataset.shards], dtype=np.int64),
            np.array([shard.filesize for shard in self.dataset.shards], dtype=np.int64),
            fingerprint=self.dataset.fingerprint,
            recipe=recipe,
        )
        with ShardReader(
            self.dataset, content=self._content, open_shards=2 * recipe.group, at=at
        ) as reader:
            for window in line.windows(start, stop):
                yield from _deliver(window, reader)


def _frame(size: object, fit: Fit) -> Frame:
    sides = size if isinstance(size, tuple) else (size, size)
    if len(sides) != 2:
        raise UsageError(f"size must be a side or (height, width), got {size!r}")
    for side in sides:
        whole_number("size", side, at_least=1, at_most=_LARGEST_SIDE)
    return Frame(*sides, fit)


def _shared(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    numbers: torch.Tensor = torch.zeros(shape, dtype=dtype)
    numbers.share_memory_()  # type: ignore[no-untyped-call]
    return numbers


def _deliver(window: Window, reader: ShardReader) -> Iterator[ReadSample]:
    # A function of its own: when it ends, so do its references to the window's bytes.
    samples = [sample for piece in window.pieces for sample in reader.read(piece)]
    if window.order is None:
        yield from samples
    else:
        for at in window.order:
            yield samples[at]


def _batch(samples: Sequence[ReadSample], _at: Callable[[str], None], /) -> Batch:
    facts, data = zip(*samples, strict=True)
    return Batch(facts, data)
