"""Pure: decides which sample goes to which shard."""

import heapq
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

Plan = list[list[int]]
"""For each shard the positions of its samples, in the order of the tar."""


def plan_shards(weights: Sequence[int], shards: int, *, runs: bool) -> Plan:
    """Deal samples, given in pack order, to shards; none stays empty.

    ``weights`` are tar bytes, or 1 for each sample to balance their number.
    Without ``runs`` each sample goes to the lightest shard, ties to the lower
    number: heaviest and lightest differ by at most the largest sample. With
    ``runs`` each shard is a run of consecutive samples: they differ by at most
    twice the largest sample, by at most one when all weigh the same.

    Raises `ValueError` when there are more shards than samples.
    """
    if not 1 <= shards <= len(weights):
        raise ValueError(f"shards must be from 1 to {len(weights):,}, got {shards:,}")
    return _runs(weights, shards) if runs else _lightest_first(weights, shards)


def is_balanced(weights: Sequence[Sequence[int]], *, runs: bool) -> bool:
    """Tell whether shards with samples of these weights keep the promise of `plan_shards`."""
    heavy = [sum(shard) for shard in weights]
    largest = max(max(shard, default=0) for shard in weights)
    equal = all(weight == largest for shard in weights for weight in shard)
    allowed = largest if equal or not runs else 2 * largest
    return all(weights) and max(heavy) - min(heavy) <= allowed


def _lightest_first(weights: Sequence[int], shards: int) -> Plan:
    plan: Plan = [[] for _ in range(shards)]
    lightest = [(0, number) for number in range(shards)]
    for at, weight in enumerate(weights):
        before, number = lightest[0]
        plan[number].append(at)
        heapq.heapreplace(lightest, (before + weight, number))
    return plan


def _runs(weights: Sequence[int], shards: int) -> Plan:
    """Cut at the sample boundaries nearest to equal parts, at least one sample apart.

    Each cut is off by at most half the largest sample, so a run is within one
    largest sample of the mean.
    """
    ends = np.array([0, *accumulate(weights)], dtype=np.int64)
    count, total = len(weights), int(ends[-1])
    cuts = [0]
    for number in range(1, shards):
        target = total * number // shards
        above = int(np.searchsorted(ends, target))
        below = max(above - 1, 0)
        nearest = above if ends[above] - target < target - ends[below] else below
        cuts.append(min(max(nearest, cuts[-1] + 1), count - (shards - number)))
    cuts.append(count)
    return [list(range(start, end)) for start, end in pairwise(cuts)]
