"""Batches from worker processes: a DataLoader over a Stream, with its known traps closed."""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tarshard.checks import one_of, whole_number
from tarshard.dataset import Dataset
from tarshard.errors import TarshardError, UsageError, WorkerFailed
from tarshard.imaging.decode import MAX_PIXELS
from tarshard.imaging.fit import Fit
from tarshard.streaming.batch import Batch
from tarshard.streaming.dataset import MOST_WORKERS, Stream
from tarshard.streaming.lifeline import ENDING_SIGNALS, Lifeline
from tarshard.streaming.order import Recipe, Share, Tail
from tarshard.streaming.preprocess import OnError, Transform

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


@dataclass(frozen=True)
class _Failure:
    """An error of a worker, carried to the main process without a traceback's text."""

    error: TarshardError


class Loader:
    """Iterates over a packed dataset, each sample exactly once an epoch.

    Each iteration that runs to its end moves on to the next epoch, with another
    order when shuffled. Workers are kept between epochs until `close`, or the end of a
    ``with`` block:

        with Loader("OUT", batch_size=64, workers=4, size=224) as loader:
            for batch in loader:
                train(batch.images, batch.labels)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        batch_size: int,
        workers: int,
        shuffle: bool = True,
        seed: int = 0,
        size: int | tuple[int, int] | None = None,
        fit: Fit = "cover",
        transform: Transform | None = None,
        tail: Tail | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        start_method: str | None = None,
        on_error: OnError = "fail",
        max_pixels: int = MAX_PIXELS,
        content: Literal["image", "sample", "facts", "jpeg"] = "image",
        group: int = Recipe().group,
        window: int = Recipe().window,
        block_bytes: int = Recipe().block_bytes,
    ) -> None:
        """Open the dataset; arguments and errors as of `Stream`.

        ``workers`` 0 reads in this process. ``start_method`` is ``fork``, ``spawn``
        or ``forkserver``; unless given it is ``fork`` on Linux, ``spawn`` elsewhere.
        """
        whole_number("workers", workers, at_least=0, at_most=MOST_WORKERS)
        if start_method is not None:
            one_of("start method", start_method, ("fork", "spawn", "forkserver"))
        self._stream = Stream(
            path,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            size=size,
            fit=fit,
            transform=transform,
            tail=tail,
            rank=rank,
            world_size=world_size,
            on_error=on_error,
            max_pixels=max_pixels,
            content=content,
            group=group,
            window=window,
            block_bytes=block_bytes,
        )
        # Workers without a batch would only wait. The order stays the same.
        workers = min(workers, max(len(self._stream), 1))
        self._begun_epoch = 0
        self._asked_epoch: int | None = None
        self._iterations = 0
        self._workers: list[BaseProcess] = []
        self._batches: Iterator[Batch | _Failure] | None = None
        with _own_number_of_workers():
            self._loader: DataLoader[Batch | _Failure] | None = DataLoader(
                _WorkerSide(self._stream),
                batch_size=None,
                num_workers=workers,
                persistent_workers=workers > 0,
                worker_init_fn=Lifeline(),
                multiprocessing_context=(start_method or _START_METHOD) if workers else None,
            )

    @property
    def dataset(self) -> Dataset:
        """The dataset's facts."""
        return self._stream.dataset

    @property
    def share(self) -> Share:
        """What of the dataset falls to this rank."""
        return self._stream.share

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._begun_epoch if self._asked_epoch is None else self._asked_epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; one that runs goes on as it is."""
        Recipe(epoch=epoch)
        self._asked_epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches of this rank, the same for any number of workers."""
        return len(self._stream)

    def __iter__(self) -> Iterator[Batch]:
        """Begin an iteration; one that was begun before ends with this.

        Iterating raises what `Stream` raises, `UsageError` when the loader is closed
        or a newer iteration has begun: the workers can serve only one.
        """
        if self._loader is None:
            raise UsageError("the loader is closed")
        self._begun_epoch, self._asked_epoch = self.epoch, None
        # Not earlier: workers that are in the middle of an epoch look at it, too.
        self._stream.set_epoch(self._begun_epoch)
        try:
            self._batches = self._begun(self._loader)
        except RuntimeError as error:
            raise self.explained(error) from None
        self._iterations += 1
        return self._iterate(self._iterations)

    def _begun(self, loader: DataLoader[Batch | _Failure]) -> Iterator[Batch | _Failure]:
        others = set(multiprocessing.active_children())
        try:
            with _own_number_of_workers(), _signals_held():
                return iter(loader)
        finally:
            begun = set(multiprocessing.active_children()) - others
            # Named by number in the order in which they were started.
            self._workers += sorted(begun, key=lambda worker: (len(worker.name), worker.name))

    def _iterate(self, iteration: int) -> Iterator[Batch]:
        while True:
            if self._batches is None:
                raise UsageError("the loader is closed")
            if iteration != self._iterations:
                raise UsageError("a newer iteration of this loader has begun; make a second loader")
            item = self._next(self._batches)
            if item is None:
                break
            if isinstance(item, _Failure):
                self.close()
                raise item.error
            yield item
        if self._asked_epoch is None:
            self._asked_epoch = self._begun_epoch + 1

    def _next(self, batches: Iterator[Batch | _Failure]) -> Batch | _Failure | None:
        try:
            return next(batches, None)
        except RuntimeError as error:
            raise self.explained(error) from None
        except KeyboardInterrupt as error:
            for worker, process, place in self._stream.positions():
                error.add_note(f"worker {worker} (process {process}) was at {place}")
            self.close()
            raise

    def explained(self, error: RuntimeError) -> RuntimeError | WorkerFailed:
        """Return what a RuntimeError of PyTorch means: which worker died, and where it was.

        PyTorch raises it in the main process at the moment when a worker dies, whatever
        it is doing then, so it may come up outside of this loader's methods. Any other
        error is returned as it is.
        """
        places = {process: place for _, process, place in self._stream.positions()}
        lost = [
            f"worker {number} (process {worker.pid}) {_how_it_ended(worker.exitcode)}; "
            f"it was at {places.get(worker.pid or 0, 'its start')}"
            for number, worker in enumerate(self._workers)
            if worker.exitcode is not None and str(worker.pid) in str(error)
        ]
        if not lost and "DataLoader worker" not in str(error):
            return error
        lost = lost or [f"a worker ended before its first sample ({error})"]
        self.close()
        return WorkerFailed("\n".join(lost))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, also in the middle of an iteration."""
        self._loader = self._batches = None
        with _deaths_expected():
            for worker in self._workers:
                # Not SIGTERM: one that is just starting holds signals back for a while.
                worker.kill()
            for worker in self._workers:
                worker.join()
        self._workers.clear()


_START_METHOD = "fork" if sys.platform == "linux" else "spawn"


def _how_it_ended(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    hint = ", perhaps for want of memory" if -exit_code == signal.SIGKILL else ""
    return f"was killed by a signal ({signal.strsignal(-exit_code)}){hint}"


@contextmanager
def _signals_held() -> Iterator[None]:
    """Let signals wait while workers are started: an exception in there would get lost."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _deaths_expected() -> Iterator[None]:
    """Keep PyTorch from raising when workers end that we end ourselves."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)


@contextmanager
def _own_number_of_workers() -> Iterator[None]:
    # Whoever asks for more workers than cores has a reason: storage that waits.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


class _WorkerSide(IterableDataset["Batch | _Failure"]):
    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def __iter__(self) -> Iterator["Batch | _Failure"]:
        try:
            for batch in self._stream:
                if isinstance(batch.images, list) and get_worker_info():
                    # PyTorch would wait for ever for what cannot be pickled.
                    ForkingPickler.dumps(batch)
                yield batch
        except TarshardError as error:
            yield _Failure(error)
        except Exception as error:  # noqa: BLE001  (a process boundary)
            trace = "".join(traceback.format_exception(error)).rstrip()
            yield _Failure(WorkerFailed(f"a worker failed: {error!r}\n{trace}"))
