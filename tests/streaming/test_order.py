"""Who reads what, in which sequence: exhaustively for small numbers, by property for large."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarshard.errors import UsageError
from tarshard.streaming.order import Line, Piece, Recipe, Share, Tail, Window

SAMPLES = (0, 1, 2, 7, 64)
SHARDS = (1, 2, 5)
WORKERS = (0, 1, 2, 3, 8)
RANKS = (1, 2, 3)
BATCH_SIZES = (1, 4, 64)
TAILS: tuple[Tail, ...] = ("uneven", "pad", "drop")

SMALL = Recipe(group=2, window=3, block_bytes=3_000)
"""Cuts the lines below into blocks of one to three samples, several windows and groups."""

Item = tuple[int, bool]
"""A sample's position in the dataset, and whether it is valid."""


def uneven_shards(samples: int, shards: int) -> list[int]:
    """Spread samples over shards that differ in size; few samples leave some empty."""
    edges = [samples * k * (k + 1) // (shards * (shards + 1)) for k in range(shards + 1)]
    return [stop - start for start, stop in pairwise(edges)]


def line_of(nsamples: list[int], recipe: Recipe = SMALL, fingerprint: str = "ab" * 32) -> Line:
    """Lay out shards whose samples have about 1,000 bytes each."""
    counts = np.array(nsamples, dtype=np.int64)
    return Line(counts, counts * 1_000 + 1_024, fingerprint=fingerprint, recipe=recipe)


def items(nsamples: list[int], pieces: tuple[Piece, ...]) -> list[Item]:
    """Name the samples of pieces as they lie."""
    first = np.cumsum([0, *nsamples])
    return [
        (int(first[piece.shard]) + piece.first + at, piece.valid)
        for piece in pieces
        for at in range(piece.count)
    ]


def laid(nsamples: list[int], line: Line, start: int, stop: int) -> list[Item]:
    """Return a part of the line before windows are shuffled."""
    return [item for window in line.windows(start, stop) for item in items(nsamples, window.pieces)]


def read(nsamples: list[int], line: Line, start: int, stop: int) -> list[Item]:
    """Return a part of the line in the sequence of delivery."""
    result = []
    for window in line.windows(start, stop):
        samples = items(nsamples, window.pieces)
        order = range(len(samples)) if window.order is None else window.order.tolist()
        assert sorted(order) == list(range(len(samples)))
        result += [samples[at] for at in order]
    return result


def chunks(part: list[Item], size: int) -> list[list[Item]]:
    """Cut a worker's samples into batches."""
    return [part[at : at + size] for at in range(0, len(part), size)]


def round_robin(workers: list[list[list[Item]]]) -> Iterator[list[Item]]:
    """Hand out the workers' batches as a DataLoader does: in turn, skipping who is done."""
    for turn in range(max(len(batches) for batches in workers)):
        for batches in workers:
            if turn < len(batches):
                yield batches[turn]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("samples", SAMPLES)
def test_each_sample_exactly_once(samples: int, shards: int, tail: Tail) -> None:
    """All ranks and workers together deliver the dataset once, in as many batches as announced."""
    nsamples = uneven_shards(samples, shards)
    for shuffle, ranks, size in product((True, False), RANKS, BATCH_SIZES):
        line = line_of(nsamples, replace(SMALL, shuffle=shuffle))
        if tail == "drop" and samples < ranks * size:
            with pytest.raises(UsageError, match=rf"= {ranks * size:,}$"):
                Share(samples, size, 0, ranks, tail)
            continue
        for workers in WORKERS:
            counts, everything = [], []
            for rank in range(ranks):
                share = Share(samples, size, rank, ranks, tail)
                spans = [
                    share.worker_span(worker, max(workers, 1)) for worker in range(max(workers, 1))
                ]
                batches = [chunks(read(nsamples, line, *span), size) for span in spans]
                delivered = list(round_robin(batches))
                got = [item for batch in delivered for item in batch]
                assert len(delivered) == share.batches
                assert sum(valid for _, valid in got) == share.valid_samples
                counts.append(len(got))
                everything += got
            valid = sorted(index for index, valid in everything if valid)
            if tail == "drop":
                assert len(set(valid)) == len(valid) == len(everything)
                assert set(counts) == {samples // (ranks * size) * size}
            else:
                assert valid == list(range(samples))
            if tail == "uneven":
                assert len(everything) == samples
                assert max(counts) - min(counts) <= 1
            if tail == "pad":
                assert set(counts) == {-(-samples // ranks)}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_workers_take_turns(workers: int, tail: Tail) -> None:
    """The first (count mod W) workers get one batch more, so batch j is worker (j mod W)'s."""
    for samples, ranks, size in product((0, 1, 7, 64, 1_000), RANKS, BATCH_SIZES):
        if tail == "drop" and samples < ranks * size:
            continue
        for rank in range(ranks):
            share = Share(samples, size, rank, ranks, tail)
            spans = [share.worker_span(worker, workers) for worker in range(workers)]
            assert spans[0][0] == share.span[0]
            assert spans[-1][1] == share.span[1]
            assert all(before[1] == after[0] for before, after in pairwise(spans))
            lengths = [stop - start for start, stop in spans]
            counts = [-(-length // size) for length in lengths]
            each, more = divmod(share.batches, workers)
            assert counts == [each + 1] * more + [each] * (workers - more)
            assert sum(length % size > 0 for length in lengths) <= 1, "one short batch at most"


@pytest.mark.parametrize(
    ("share", "span", "batches"),
    [
        (Share(10, 4, 0, 3), (0, 3), 1),
        (Share(10, 4, 1, 3), (3, 6), 1),
        (Share(10, 4, 2, 3), (6, 10), 1),
        (Share(10, 4, 2, 3, "pad"), (8, 12), 1),
        (Share(10, 3, 2, 3, "pad"), (8, 12), 2),
        (Share(10, 2, 1, 2, "drop"), (4, 8), 2),
        (Share(1, 4, 2, 3, "pad"), (2, 3), 1),
        (Share(1, 4, 0, 3), (0, 0), 0),
    ],
)
def test_tails_by_hand(share: Share, span: tuple[int, int], batches: int) -> None:
    """Ranks get the parts of the line that the interface's formulas give."""
    assert share.span == span
    assert share.batches == batches


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("samples", [1, 2, 7, 64])
def test_padding_starts_again_at_the_beginning(samples: int, shuffle: bool) -> None:
    """Position p of the line beyond its end is the sample at p modulo N, and is not valid."""
    nsamples = uneven_shards(samples, 5)
    line = line_of(nsamples, replace(SMALL, shuffle=shuffle))
    once = [index for index, _ in laid(nsamples, line, 0, samples)]
    assert sorted(once) == list(range(samples))
    for start, length in product(range(samples + 2), (1, 2, 3 * samples)):
        expected = [(once[p % samples], p < samples) for p in range(start, start + length)]
        assert laid(nsamples, line, start, start + length) == expected


@pytest.mark.parametrize("samples", [7, 64])
def test_unshuffled_is_the_order_of_the_index(samples: int) -> None:
    """Without shuffling every part of the line is in ascending order, as the index lists it."""
    nsamples = uneven_shards(samples, 5)
    line = line_of(nsamples, replace(SMALL, shuffle=False))
    for start, stop in product(range(samples + 1), repeat=2):
        expected = [(index, True) for index in range(start, stop)]
        assert read(nsamples, line, start, stop) == expected


@pytest.mark.parametrize("nsamples", [[7, 9], [0, 5, 0], [100], [1, 1, 1]])
@pytest.mark.parametrize("block_bytes", [1, 999, 3_000, 10**9])
def test_blocks_have_about_so_many_bytes(nsamples: list[int], block_bytes: int) -> None:
    """A block is max(1, block_bytes * nsamples // filesize) samples of a shard, or what is left."""
    line = line_of(nsamples, Recipe(shuffle=False, block_bytes=block_bytes))
    pieces = [piece for window in line.windows(0, sum(nsamples)) for piece in window.pieces]
    expected = []
    for shard, count in enumerate(nsamples):
        size = max(1, block_bytes * count // (count * 1_000 + 1_024))
        expected += [
            Piece(shard, first, min(size, count - first), valid=True)
            for first in range(0, count, size)
        ]
    assert pieces == expected


@pytest.mark.parametrize("group", [1, 2, 16])
@pytest.mark.parametrize("window", [1, 3, 64])
def test_windows_are_bounded(window: int, group: int) -> None:
    """No window holds more blocks than asked for, and its samples are shuffled among themselves."""
    nsamples = [40, 1, 25, 30]
    line = line_of(nsamples, Recipe(group=group, window=window, block_bytes=5_000))
    windows = list(line.windows(3, 90))
    assert max(len(w.pieces) for w in windows) <= window
    assert all(len(w.pieces) == window for w in windows[:-1])
    assert all(w.order is not None and len(w.order) == _length(w) for w in windows)


def _length(window: Window) -> int:
    return sum(piece.count for piece in window.pieces)


@pytest.mark.parametrize("group", [1, 2, 3, 16])
def test_few_shards_are_read_at_a_time(group: int) -> None:
    """The line finishes a group of shards before it begins the next one."""
    nsamples = [10, 20, 5, 8, 30, 1, 12]
    line = line_of(nsamples, replace(SMALL, group=group))
    visited = [piece.shard for w in line.windows(0, sum(nsamples)) for piece in w.pieces]
    first = {shard: visited.index(shard) for shard in visited}
    by_appearance = sorted(first, key=lambda shard: first[shard])
    assert len(by_appearance) == len(nsamples)
    last = {shard: at for at, shard in enumerate(visited)}
    open_at_once = max(
        sum(first[shard] <= at <= last[shard] for shard in first) for at in range(len(visited))
    )
    assert open_at_once <= group


def test_order_changes_with_its_arguments_and_nothing_else() -> None:
    """Each argument of the order changes it; with the same arguments it repeats."""
    nsamples = [30, 20, 14]

    def order(recipe: Recipe = SMALL, fingerprint: str = "00") -> list[Item]:
        return read(nsamples, line_of(nsamples, recipe, fingerprint), 0, sum(nsamples))

    variants = [
        order(),
        order(fingerprint="01"),
        order(replace(SMALL, seed=1)),
        order(replace(SMALL, epoch=1)),
        order(replace(SMALL, seed=1, epoch=1)),
        order(replace(SMALL, group=3)),
        order(replace(SMALL, window=4)),
        order(replace(SMALL, block_bytes=9_000)),
        order(replace(SMALL, shuffle=False)),
    ]
    assert len({tuple(variant) for variant in variants}) == len(variants)
    assert order() == variants[0]
    assert order(replace(SMALL, seed=1, epoch=1)) == variants[4]


def test_seed_and_epoch_are_not_confused() -> None:
    """Seed 1 epoch 2 is another order than seed 2 epoch 1, or seed 12 epoch 0."""
    nsamples = [40]
    orders = {
        tuple(read(nsamples, line_of(nsamples, replace(SMALL, seed=seed, epoch=epoch)), 0, 40))
        for seed, epoch in product((0, 1, 2, 12), repeat=2)
    }
    assert len(orders) == 16


def test_line_is_the_same_for_all_ranks_and_workers() -> None:
    """However the line is cut, the samples at its positions are the same."""
    nsamples = [30, 20, 14]
    line = line_of(nsamples)
    whole = laid(nsamples, line, 0, 64)
    for ranks, workers in product(RANKS, (1, 2, 3, 8)):
        shares = [Share(64, 4, rank, ranks) for rank in range(ranks)]
        spans = [
            share.worker_span(worker, workers) for share in shares for worker in range(workers)
        ]
        assert [item for span in spans for item in laid(nsamples, line, *span)] == whole


def test_order_is_the_same_for_ever() -> None:
    """These literal orders never change: a release that changes them breaks resumed runs."""
    # Checked once against a reimplementation from the description, Philox included.
    nsamples = [6, 4, 5]
    line = line_of(nsamples)
    assert [
        [(piece.shard, piece.first, piece.count) for piece in window.pieces]
        for window in line.windows(0, 15)
    ] == [
        [(1, 0, 2), (1, 2, 2), (2, 0, 2)],
        [(2, 2, 2), (2, 4, 1), (0, 2, 2)],
        [(0, 4, 2), (0, 0, 2)],
    ]
    once = [7, 11, 10, 8, 9, 6, 12, 13, 3, 14, 2, 0, 5, 4, 1]
    assert read(nsamples, line, 0, 15) == [(index, True) for index in once]
    later = line_of(nsamples, replace(SMALL, seed=7, epoch=3))
    wrapping = [14, 10, 12, 13, 11, 1, 3, 4, 2, 5, 0, 7, 8, 9, 6, 12]
    assert [index for index, _ in read(nsamples, later, 4, 20)] == wrapping


def test_every_place_is_reached() -> None:
    """Over many epochs each sample is delivered first sometimes: the shuffle has no blind spot."""
    nsamples = [6, 4, 5]
    firsts = {
        next(iter(read(nsamples, line_of(nsamples, replace(SMALL, epoch=epoch)), 0, 15)))[0]
        for epoch in range(300)
    }
    assert firsts == set(range(15))


def test_empty_dataset_has_an_empty_line() -> None:
    """No shard, or shards without samples, give no window."""
    for nsamples in ([], [0], [0, 0]):
        line = line_of(list(nsamples))
        assert line.samples == 0
        assert list(line.windows(0, 0)) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"epoch": -1}, "epoch must be at least 0, got -1"),
        ({"group": 0}, "group must be at least 1, got 0"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"block_bytes": 0}, "block_bytes must be at least 1, got 0"),
    ],
)
def test_impossible_recipes(values: dict[str, int], message: str) -> None:
    """A recipe names the value that cannot be."""
    with pytest.raises(UsageError, match=f"^{message}$"):
        replace(SMALL, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 0}, "batch size must be at least 1, got 0"),
        ({"world_size": 0}, "world size must be at least 1, got 0"),
        ({"rank": 2}, "rank must be from 0 to 1 for a world size of 2, got 2"),
        ({"rank": -1}, "rank must be from 0 to 1 for a world size of 2, got -1"),
        ({"tail": "wrap"}, "tail must be one of uneven, pad, drop, got 'wrap'"),
        ({"tail": "drop", "batch_size": 6}, r"10 samples .* 2 ranks x batch size 6 = 12"),
    ],
)
def test_impossible_shares(values: dict[str, object], message: str) -> None:
    """A share names the value that cannot be."""
    with pytest.raises(UsageError, match=message):
        replace(Share(10, 1, 0, 2), **values)  # type: ignore[arg-type]


large_shards = st.lists(st.integers(0, 3_000_000), min_size=1, max_size=40).filter(any)
recipes = st.builds(
    Recipe,
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 2**40),
    shuffle=st.booleans(),
    group=st.integers(1, 8),
    window=st.integers(1, 20),
    block_bytes=st.integers(20_000, 200_000),
)


@settings(max_examples=60, deadline=None)
@given(nsamples=large_shards, recipe=recipes, data=st.data())
def test_parts_of_large_lines(nsamples: list[int], recipe: Recipe, data: st.DataObject) -> None:
    """Anywhere in a large line a part is what its own parts are, without a sample twice."""
    line = line_of(nsamples, recipe)
    assert line.samples == sum(nsamples)
    start = data.draw(st.integers(0, line.samples))
    length = min(data.draw(st.integers(0, 3_000)), line.samples)
    cut = data.draw(st.integers(0, length))
    whole = laid(nsamples, line, start, start + length)
    assert whole == laid(nsamples, line, start, start + cut) + laid(
        nsamples, line, start + cut, start + length
    )
    assert [valid for _, valid in whole] == [p < line.samples for p in range(start, start + length)]
    assert len({index for index, _ in whole}) == length
    assert sorted(read(nsamples, line, start, start + length)) == sorted(whole)
    for window in line.windows(start, start + length):
        assert len(window.pieces) <= recipe.window
        for piece in window.pieces:
            assert 0 <= piece.first < piece.first + piece.count <= nsamples[piece.shard]


@settings(max_examples=150, deadline=None)
@given(
    samples=st.integers(0, 10**12),
    size=st.integers(1, 5_000),
    ranks=st.integers(1, 200),
    workers=st.integers(1, 100),
    tail=st.sampled_from(TAILS),
    data=st.data(),
)
def test_large_shares(
    samples: int, size: int, ranks: int, workers: int, tail: Tail, data: st.DataObject
) -> None:
    """Neighbouring ranks and workers meet without gap or overlap; batches are as announced."""
    if tail == "drop" and samples < ranks * size:
        with pytest.raises(UsageError):
            Share(samples, size, 0, ranks, tail)
        return
    shares = [Share(samples, size, rank, ranks, tail) for rank in range(ranks)]
    assert shares[0].span[0] == 0
    assert all(before.span[1] == after.span[0] for before, after in pairwise(shares))
    if tail != "uneven":
        assert len({share.batches for share in shares}) == 1
    if tail == "drop":
        assert 0 <= samples - shares[-1].span[1] < ranks * size
    else:
        assert sum(share.valid_samples for share in shares) == samples
    share = data.draw(st.sampled_from(shares))
    spans = [share.worker_span(worker, workers) for worker in range(workers)]
    assert spans[0][0] == share.span[0]
    assert spans[-1][1] == share.span[1]
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert sum(-(-(stop - start) // size) for start, stop in spans) == share.batches
