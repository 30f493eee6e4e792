"""The plan: every sample in one shard, no shard empty, none much heavier than another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarshard.packing.plan import Plan, is_balanced, plan_shards

GIGABYTE = 10**9
SIZES = st.one_of(
    st.integers(1, 100), st.integers(1, GIGABYTE), st.sampled_from([1, 512, GIGABYTE])
)
WEIGHTS = st.one_of(
    st.lists(SIZES, min_size=1, max_size=60),
    st.tuples(SIZES, st.integers(1, 60)).map(lambda pair: [pair[0]] * pair[1]),
)
WORK = WEIGHTS.flatmap(lambda weights: st.tuples(st.just(weights), st.integers(1, len(weights))))


def heavy(weights: list[int], plan: Plan) -> list[int]:
    """Return the weight of each shard."""
    return [sum(weights[at] for at in shard) for shard in plan]


def naive_plan(weights: list[int], shards: int) -> Plan:
    """Walk the order, each sample to the lightest shard, ties to the lower number."""
    plan: Plan = [[] for _ in range(shards)]
    for at in range(len(weights)):
        loads = heavy(weights, plan)
        plan[loads.index(min(loads))].append(at)
    return plan


@given(WORK)
def test_lightest_first_is_the_written_rule(work: tuple[list[int], int]) -> None:
    """The plan equals a naive walk that gives each sample to the lightest shard."""
    weights, shards = work
    assert plan_shards(weights, shards, runs=False) == naive_plan(weights, shards)


@given(WORK, st.booleans())
def test_every_sample_once_and_no_shard_empty(work: tuple[list[int], int], runs: bool) -> None:
    """N shards asked are N shards made, none empty, each sample in one, in pack order."""
    weights, shards = work
    plan = plan_shards(weights, shards, runs=runs)
    assert len(plan) == shards
    assert all(plan)
    assert sorted(at for shard in plan for at in shard) == list(range(len(weights)))
    assert all(shard == sorted(shard) for shard in plan)


@given(WORK)
def test_balance_in_bytes(work: tuple[list[int], int]) -> None:
    """Heaviest and lightest shard differ by at most the largest sample."""
    weights, shards = work
    loads = heavy(weights, plan_shards(weights, shards, runs=False))
    assert max(loads) - min(loads) <= max(weights)


@given(WORK)
def test_balance_of_runs(work: tuple[list[int], int]) -> None:
    """Runs are consecutive and differ by at most twice the largest sample."""
    weights, shards = work
    plan = plan_shards(weights, shards, runs=True)
    assert [at for shard in plan for at in shard] == list(range(len(weights)))
    loads = heavy(weights, plan)
    assert max(loads) - min(loads) <= 2 * max(weights)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), SIZES)
@pytest.mark.parametrize("runs", [False, True])
def test_balance_in_samples(runs: bool, numbers: tuple[int, int], weight: int) -> None:
    """When all samples weigh the same, shards differ by at most one sample."""
    samples, shards = numbers
    counts = [len(shard) for shard in plan_shards([weight] * samples, shards, runs=runs)]
    assert max(counts) - min(counts) <= 1


@given(WORK, st.booleans())
def test_a_fresh_plan_is_balanced(work: tuple[list[int], int], runs: bool) -> None:
    """What the plan makes always passes its own check, or packing would plan for ever."""
    weights, shards = work
    plan = plan_shards(weights, shards, runs=runs)
    assert is_balanced([[weights[at] for at in shard] for shard in plan], runs=runs)


@given(WORK, st.booleans())
def test_plan_is_determined(work: tuple[list[int], int], runs: bool) -> None:
    """The same weights give the same plan."""
    weights, shards = work
    assert plan_shards(weights, shards, runs=runs) == plan_shards(tuple(weights), shards, runs=runs)


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize(("samples", "shards"), [(0, 1), (1, 2), (3, 0), (3, -1)])
def test_impossible_number_of_shards(runs: bool, samples: int, shards: int) -> None:
    """More shards than samples, or none, is refused with both numbers."""
    with pytest.raises(ValueError, match=f"got {shards}"):
        plan_shards([1] * samples, shards, runs=runs)


@pytest.mark.parametrize(
    ("weights", "runs", "balanced"),
    [
        ([[5], [5]], False, True),
        ([[5, 5], [5]], False, True),
        ([[5, 5, 5], [5]], False, False),
        ([[9], [1, 1]], False, True),
        ([[9, 9], [1, 1]], False, False),
        ([[9, 9], [1, 1]], True, True),
        ([[9, 9, 9], [1, 1]], True, False),
        ([[1, 1], [1]], True, True),
        ([[1, 1, 1], [1]], True, False),
        ([[], [3]], False, False),
        ([[], [3]], True, False),
    ],
)
def test_is_balanced(weights: list[list[int]], runs: bool, balanced: bool) -> None:
    """One largest sample is allowed, two for runs of differing samples, and no empty shard."""
    assert is_balanced(weights, runs=runs) is balanced


def test_many_samples() -> None:
    """A hundred thousand samples are dealt to a thousand shards within the promise."""
    weights = [1 + (n * 7919) % 1_000_003 for n in range(100_000)]
    for runs, allowed in ((False, 1), (True, 2)):
        loads = heavy(weights, plan_shards(weights, 1000, runs=runs))
        assert max(loads) - min(loads) <= allowed * max(weights)
