"""Pure: decides which samples, in which sequence, one worker of one rank reads in one epoch.

The shards, permuted, are taken in groups; the blocks of a group, permuted, are
laid end to end; all groups together are a line of samples. Ranks take parts of
the line, workers take parts of a rank's part at multiples of the batch size. A
worker walks its part in windows of blocks and shuffles the samples of each.

Nothing else than the arguments decides. Random numbers are raw Philox output,
whose stream NumPy promises never to change; a permutation is the stable order of
as many 64-bit numbers.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tarshard.checks import one_of, whole_number
from tarshard.errors import UsageError

Tail = Literal["uneven", "pad", "drop"]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an epoch is ordered."""

    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    group: int = 16
    """Shards whose blocks are mixed; a worker has about so many open."""
    window: int = 64
    """Blocks whose samples are mixed; a worker holds so many in memory."""
    block_bytes: int = 1024 * 1024
    """About so many bytes of one shard are read at once."""

    def __post_init__(self) -> None:
        """Raise `UsageError` for a value that cannot be."""
        for name in ("seed", "epoch"):
            whole_number(name, getattr(self, name), at_least=0)
        for name in ("group", "window", "block_bytes"):
            whole_number(name, getattr(self, name), at_least=1)


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of an epoch falls to one rank, and in what batches."""

    samples: int
    """Of the whole dataset."""
    batch_size: int
    rank: int = 0
    world_size: int = 1
    tail: Tail = "uneven"
    """What to do when the samples do not divide evenly; see `span`."""

    def __post_init__(self) -> None:
        """Raise `UsageError` for a value that cannot be."""
        whole_number("batch size", self.batch_size, at_least=1)
        whole_number("world size", self.world_size, at_least=1)
        if not isinstance(self.rank, int) or not 0 <= self.rank < self.world_size:
            raise UsageError(
                f"rank must be from 0 to {self.world_size - 1} "
                f"for a world size of {self.world_size}, got {self.rank}"
            )
        one_of("tail", self.tail, ("uneven", "pad", "drop"))
        every = self.world_size * self.batch_size
        if self.tail == "drop" and self.samples < every:
            raise UsageError(
                f"tail 'drop' leaves no batch: {self.samples:,} samples are fewer than "
                f"{self.world_size} ranks x batch size {self.batch_size} = {every:,}"
            )

    @property
    def span(self) -> tuple[int, int]:
        """Start and end of the rank's part of the line.

        ``uneven`` cuts the line into parts that differ by at most one sample.
        ``pad`` gives each rank equally many; positions past the line's end start
        at its beginning again, and do not count as valid. ``drop`` gives each rank
        equally many whole batches and leaves out the rest.
        """
        n, ranks, rank = self.samples, self.world_size, self.rank
        if self.tail == "uneven":
            return rank * n // ranks, (rank + 1) * n // ranks
        if self.tail == "pad":
            each = -(-n // ranks)
        else:
            each = n // (ranks * self.batch_size) * self.batch_size
        return rank * each, (rank + 1) * each

    @property
    def batches(self) -> int:
        """How many batches the rank gets; only its last part may be a short one."""
        start, stop = self.span
        return -(-(stop - start) // self.batch_size)

    @property
    def valid_samples(self) -> int:
        """How many samples of the rank are no padding."""
        start, stop = self.span
        return max(min(stop, self.samples) - start, 0)

    def worker_span(self, worker: int, workers: int) -> tuple[int, int]:
        """Return start and end of one worker's part of the line; 0 workers count as 1.

        The first ``batches % workers`` workers get one batch more, so that the
        rank's batch j comes from worker ``j % workers``.
        """
        start, stop = self.span
        each, more = divmod(self.batches, max(workers, 1))
        before = worker * each + min(worker, more)
        count = each + (worker < more)
        return (
            min(start + before * self.batch_size, stop),
            min(start + (before + count) * self.batch_size, stop),
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive samples of one shard, to be read at once: a block or a part of one."""

    shard: int
    """Position in the index."""
    first: int
    """Position in the shard."""
    count: int
    valid: bool
    """False for padding."""


@dataclass(frozen=True, slots=True)
class Window:
    """Pieces whose samples are delivered together."""

    pieces: tuple[Piece, ...]
    order: Integers | None
    """The sequence of delivery, as positions among the pieces' samples; None for as they lie."""


class Line:
    """All samples of one epoch in a line.

    It needs of the dataset only each shard's number of samples and size, and
    holds some numbers a shard; blocks are laid out a group at a time.
    """

    def __init__(
        self, nsamples: Integers, filesizes: Integers, *, fingerprint: str, recipe: Recipe
    ) -> None:
        self._nsamples = nsamples
        self._filesizes = filesizes
        self._fingerprint = fingerprint
        self._recipe = recipe
        self._shards = (
            self._permutation(len(nsamples), "shards")
            if recipe.shuffle
            else np.arange(len(nsamples), dtype=np.int64)
        )
        ends = np.cumsum(nsamples[self._shards], dtype=np.int64)
        self._group_ends = ends[recipe.group - 1 :: recipe.group]
        if len(nsamples) % recipe.group:
            self._group_ends = np.append(self._group_ends, ends[-1])
        self.samples = int(ends[-1]) if len(ends) else 0

    def windows(self, start: int, stop: int) -> Iterator[Window]:
        """Walk through a part of the line; past its end it starts again, as padding."""
        if not self._recipe.shuffle:
            for piece in self._pieces(start, stop):
                yield Window((piece,), None)
            return
        at, pieces = start, []
        for piece in self._pieces(start, stop):
            pieces.append(piece)
            if len(pieces) == self._recipe.window:
                yield self._window(pieces, at)
                at += sum(piece.count for piece in pieces)
                pieces = []
        if pieces:
            yield self._window(pieces, at)

    def _window(self, pieces: list[Piece], at: int) -> Window:
        count = sum(piece.count for piece in pieces)
        return Window(tuple(pieces), self._permutation(count, "window", at))

    def _pieces(self, start: int, stop: int) -> Iterator[Piece]:
        while start < stop:
            lap = start // self.samples
            lap_start = lap * self.samples
            lap_stop = min(stop, lap_start + self.samples)
            yield from self._pieces_of_lap(start - lap_start, lap_stop - lap_start, valid=lap == 0)
            start = lap_stop

    def _pieces_of_lap(self, start: int, stop: int, *, valid: bool) -> Iterator[Piece]:
        group = int(np.searchsorted(self._group_ends, start, side="right"))
        while start < stop:
            group_start = int(self._group_ends[group - 1]) if group else 0
            shards, firsts, counts = self._blocks(group)
            ends = group_start + np.cumsum(counts)
            for block in range(int(np.searchsorted(ends, start, side="right")), len(ends)):
                begin = int(ends[block] - counts[block])
                end = min(int(ends[block]), stop)
                skipped = start - begin
                yield Piece(int(shards[block]), int(firsts[block]) + skipped, end - start, valid)
                start = end
                if start == stop:
                    return
            group += 1

    def _blocks(self, group: int) -> tuple[Integers, Integers, Integers]:
        """Return shard, first sample and number of samples of each block of a group."""
        size = self._recipe.group
        shards = self._shards[group * size : (group + 1) * size]
        firsts, counts = [], []
        for shard in shards:
            samples = int(self._nsamples[shard])
            fit = self._recipe.block_bytes * samples // max(int(self._filesizes[shard]), 1)
            starts = np.arange(0, samples, max(1, fit), dtype=np.int64)
            firsts.append(starts)
            counts.append(np.diff(starts, append=samples))
        numbers = np.repeat(shards, [len(starts) for starts in firsts])
        first, count = np.concatenate(firsts), np.concatenate(counts)
        if not self._recipe.shuffle:
            return numbers, first, count
        order = self._permutation(len(numbers), "blocks", group)
        return numbers[order], first[order], count[order]

    def _permutation(self, length: int, purpose: str, number: int = 0) -> Integers:
        recipe = self._recipe
        text = f"{self._fingerprint}\0{recipe.seed}\0{recipe.epoch}\0{purpose}\0{number}"
        key = np.frombuffer(hashlib.sha256(text.encode()).digest()[:16], dtype="<u8")
        numbers = np.random.Philox(key=key).random_raw(length)
        return np.argsort(numbers, kind="stable")
