"""Real worker processes: every sample once, in the announced sequence, and nothing left behind."""

import multiprocessing
import os
import shutil
from collections.abc import Iterator
from functools import partial
from itertools import product
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from making import dataset, photos

from tarshard.errors import DatasetDamaged, InputUnusable, ShardCorrupt, UsageError
from tarshard.streaming.batch import Batch
from tarshard.streaming.dataset import Stream
from tarshard.streaming.loader import Loader
from tarshard.streaming.order import Share, Tail


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven photos in two shards."""
    return dataset(tmp_path_factory.mktemp("seven"), 7, 2)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 photos in five shards."""
    return dataset(tmp_path_factory.mktemp("many"), 64, 5)


class Workers:
    """Counts the processes that a test started, whatever a failed test before it left."""

    def __init__(self) -> None:
        self._before = set(multiprocessing.active_children())

    def running(self) -> set[int | None]:
        """Return the process ids."""
        return {child.pid for child in set(multiprocessing.active_children()) - self._before}


@pytest.fixture(autouse=True)
def workers_left() -> Iterator[Workers]:
    """Hold every test to leave no process behind."""
    workers = Workers()
    yield workers
    assert workers.running() == set()


def indices(batches: list[Batch]) -> list[list[int]]:
    """Return which samples came, batch by batch."""
    return [[facts.index for facts in batch.samples] for batch in batches]


def flat(batches: list[Batch]) -> list[int]:
    """Return which samples came."""
    return [index for batch in indices(batches) for index in batch]


def valid(batches: list[Batch]) -> list[int]:
    """Return which samples came, without padding."""
    return [facts.index for batch in batches for facts in batch.samples if facts.valid]


def epoch_of(loader: Loader) -> list[Batch]:
    """Run one epoch, end the workers, return what came."""
    batches = list(loader)
    loader.close()
    return batches


GRID = [
    *product([7], [0, 1, 2, 3, 8], [1, 2], ["uneven", "pad", "drop"]),
    *product([64], [0, 3], [2], ["uneven", "pad", "drop"]),
    *product([64], [2, 8], [1], ["uneven"]),
]


@pytest.mark.parametrize(("count", "workers", "ranks", "tail"), GRID)
def test_each_sample_exactly_once(
    seven: Path, many: Path, count: int, workers: int, ranks: int, tail: Tail
) -> None:
    """All workers of all ranks deliver each photo once, in as many batches as len() says."""
    size = 3 if count == 7 else 5
    sources = photos(count)
    seen, lengths = [], []
    for rank in range(ranks):
        loader = Loader(
            {7: seven, 64: many}[count],
            batch_size=size,
            workers=workers,
            rank=rank,
            world_size=ranks,
            tail=tail,
            group=2,
            window=3,
            block_bytes=3_000,
        )
        announced = len(loader)
        batches = epoch_of(loader)
        assert len(batches) == announced == Share(count, size, rank, ranks, tail).batches
        for batch in batches:
            assert len(batch.data) == len(batch) <= size
            for key, data in zip(batch.keys, batch.data, strict=True):
                assert bytes(data) == sources[f"{key}.jpg"]
        seen += valid(batches)
        lengths.append(sum(len(batch) for batch in batches))
    assert len(set(seen)) == len(seen)
    if tail == "drop":
        assert len(seen) == count // (ranks * size) * ranks * size
    else:
        assert len(seen) == count
    if tail != "uneven":
        assert len(set(lengths)) == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_start_methods(many: Path, method: str) -> None:
    """However workers are started, the same batches come, and set_epoch reaches them."""
    loader = Loader(many, batch_size=5, workers=1, start_method=method)
    here = Loader(many, batch_size=5, workers=0)
    assert indices(list(loader)) == indices(list(here))
    loader.set_epoch(7)
    here.set_epoch(7)
    assert indices(list(loader)) == indices(list(here))
    loader.close()


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_batches_come_in_turn(many: Path, workers: int) -> None:
    """Batch j is batch (j div W) of worker (j mod W), whose part is one run of the rank's part."""
    size, ranks = 5, 2
    for rank in range(ranks):
        got = indices(
            epoch_of(
                Loader(
                    many,
                    batch_size=size,
                    workers=workers,
                    shuffle=False,
                    rank=rank,
                    world_size=ranks,
                )
            )
        )
        part = list(range(32 * rank, 32 * rank + 32))
        batches = [part[at : at + size] for at in range(0, len(part), size)]
        each, more = divmod(len(batches), workers)
        of_worker = []
        for worker in range(workers):
            count = each + (worker < more)
            of_worker.append(batches[:count])
            batches = batches[count:]
        assert got == [of_worker[j % workers][j // workers] for j in range(len(got))]


def test_union_does_not_depend_on_workers(many: Path) -> None:
    """Whatever the number of workers, a rank's samples are the same, labels and padding too."""
    whole = [
        sorted(
            facts
            for batch in epoch_of(Loader(many, batch_size=7, workers=workers, rank=1, world_size=3))
            for facts in batch.samples
        )
        for workers in (0, 1, 3)
    ]
    assert whole[0] == whole[1] == whole[2]
    assert len(whole[0]) == 22


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_move_on(many: Path, workers: int) -> None:
    """A finished iteration moves on to the next epoch; set_epoch chooses any."""
    loader = Loader(many, batch_size=5, workers=workers, seed=3)
    stream = Stream(many, batch_size=5, seed=3)
    seen: dict[int, list[list[int]]] = {}
    assert loader.epoch == 0
    for epoch in (0, 1, 2):
        assert loader.epoch == epoch
        seen[epoch] = indices(list(loader))
        assert sorted(sum(seen[epoch], [])) == list(range(64))  # noqa: RUF017  # 13 lists
    assert len({str(order) for order in seen.values()}) == 3
    for epoch in (1, 9, 0):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        order = indices(list(loader))
        assert seen.setdefault(epoch, order) == order
        assert loader.epoch == epoch + 1
    if workers == 0:
        for epoch, order in seen.items():
            stream.set_epoch(epoch)
            assert indices(list(stream)) == order
    loader.close()


def test_workers_are_kept(many: Path, workers_left: Workers) -> None:
    """Between epochs the same worker processes are used, until close."""
    loader = Loader(many, batch_size=5, workers=2)
    list(loader)
    workers = workers_left.running()
    assert len(workers) == 2
    list(loader)
    assert workers_left.running() == workers
    loader.close()
    assert workers_left.running() == set()


@pytest.mark.parametrize("workers", [0, 2])
def test_same_seed_same_run(many: Path, workers: int) -> None:
    """Two runs with one seed are the same in every epoch; another seed is another run."""
    runs = []
    for seed in (1, 1, 2):
        loader = Loader(many, batch_size=5, workers=workers, seed=seed)
        runs.append([indices(list(loader)) for _ in range(2)])
        loader.close()
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]


@pytest.mark.parametrize("workers", [0, 2])
def test_unshuffled_epochs_are_equal(many: Path, workers: int) -> None:
    """Without shuffling every epoch has the same order."""
    loader = Loader(many, batch_size=5, workers=workers, shuffle=False)
    assert indices(list(loader)) == indices(list(loader))
    loader.close()


@pytest.mark.parametrize(("shards", "workers"), [(1, 8), (8, 1)])
def test_shards_and_workers_are_independent(tmp_path: Path, shards: int, workers: int) -> None:
    """One shard feeds eight workers, one worker reads eight shards."""
    packed = dataset(tmp_path, 24, shards)
    batches = epoch_of(Loader(packed, batch_size=2, workers=workers))
    assert sorted(flat(batches)) == list(range(24))
    assert len(batches) == 12


@pytest.mark.parametrize("workers", [0, 2])
def test_early_break(many: Path, workers: int) -> None:
    """An iteration that was broken off does not move on; the next one is whole again."""
    loader = Loader(many, batch_size=5, workers=workers)
    whole = indices(list(Loader(many, batch_size=5, workers=workers)))
    for batch in loader:
        assert indices([batch]) == whole[:1]
        break
    assert loader.epoch == 0
    assert indices(list(loader)) == whole
    for number, _ in enumerate(loader):
        if number == 3:
            break
    loader.set_epoch(0)
    assert indices(list(loader)) == whole
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_two_iterations_at_once(many: Path, workers: int) -> None:
    """A newer iteration is whole; the older one says so instead of sharing out its epoch."""
    loader = Loader(many, batch_size=5, workers=workers)
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(UsageError, match="newer iteration"):
        next(first)
    assert sorted(flat(list(second))) == list(range(64))
    loader.close()


def test_broken_off_and_forgotten(many: Path, workers_left: Workers) -> None:
    """A loader that goes out of scope in the middle of an epoch takes its workers with it."""
    loader = Loader(many, batch_size=5, workers=2)
    iterator = iter(loader)
    next(iterator)
    assert len(workers_left.running()) == 2
    del loader, iterator
    assert workers_left.running() == set()


def test_close_in_the_middle(many: Path, workers_left: Workers) -> None:
    """Close ends the workers, though an iteration is not at its end."""
    loader = Loader(many, batch_size=5, workers=2)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    left = workers_left.running()
    iterator.close()  # type: ignore[attr-defined]  # a generator; so that a failure is the only one
    assert left == set()


def test_closed(many: Path) -> None:
    """A closed loader says so; closing it again does nothing."""
    loader = Loader(many, batch_size=5, workers=0)
    loader.close()
    loader.close()
    with pytest.raises(UsageError, match="the loader is closed"):
        next(iter(loader))
    assert len(loader) == 13


def test_set_epoch_in_the_last_step(many: Path) -> None:
    """What set_epoch chose while an epoch was running holds for the next iteration."""
    loader = Loader(many, batch_size=64, workers=0)
    for _ in loader:
        loader.set_epoch(7)
    assert loader.epoch == 7


def _begin_when(event: Event, late: int, worker: int) -> None:
    if worker == late:
        event.wait()


def test_set_epoch_does_not_touch_the_running_epoch(many: Path) -> None:
    """Set_epoch is for the next iteration: a worker that begins late serves the running one."""
    event = multiprocessing.get_context("fork").Event()
    loader = Loader(many, batch_size=5, workers=2, start_method="fork")
    assert loader._loader is not None
    loader._loader.worker_init_fn = partial(_begin_when, event, 1)
    iterator = iter(loader)
    try:
        batches = [next(iterator)]
        loader.set_epoch(5)
    finally:
        event.set()
    batches += iterator
    loader.close()
    assert sorted(flat(batches)) == list(range(64))


def test_no_warning_for_many_workers(seven: Path) -> None:
    """More workers than cores or samples is no reason for a warning (warnings are errors here)."""
    workers = (os.cpu_count() or 1) + 1
    assert len(epoch_of(Loader(seven, batch_size=64, workers=workers))) == 1


def test_facts_of_the_loader(many: Path) -> None:
    """The loader tells its dataset and its share."""
    loader = Loader(many, batch_size=5, workers=0, rank=1, world_size=2)
    assert (loader.dataset.samples, len(loader.dataset.shards)) == (64, 5)
    assert loader.share == Share(64, 5, 1, 2, "pad")
    assert len(loader) == loader.share.batches == 7


@pytest.mark.parametrize("content", ["facts", "sample"])
def test_other_contents(many: Path, content: str) -> None:
    """From workers too, facts come without bytes and samples with all of theirs."""
    here, there = (
        epoch_of(Loader(many, batch_size=5, workers=workers, content=content))  # type: ignore[arg-type]
        for workers in (0, 1)
    )
    assert [list(batch.samples) for batch in there] == [list(batch.samples) for batch in here]
    assert [list(map(bytes, batch.data)) for batch in there] == [
        list(map(bytes, batch.data)) for batch in here
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workers": -1}, "workers must be at least 0, got -1"),
        (
            {"start_method": "thread"},
            "start method must be one of fork, spawn, forkserver, got 'thread'",
        ),
        ({"batch_size": 0}, "batch size must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"world_size": 2}, "rank and world size together"),
        ({"batch_size": 65, "tail": "drop"}, "64 samples are fewer than .* = 65"),
    ],
)
def test_impossible_values(many: Path, values: dict[str, object], message: str) -> None:
    """A value that cannot be is refused when the loader is made."""
    with pytest.raises(UsageError, match=message):
        Loader(many, **({"batch_size": 5, "workers": 0} | values))  # type: ignore[arg-type]


def test_missing_dataset(tmp_path: Path) -> None:
    """A folder without a dataset is refused before a worker is started."""
    with pytest.raises(InputUnusable, match="does not exist"):
        Loader(tmp_path / "nowhere", batch_size=5, workers=2)


def damaged(packed: Path, copy: Path) -> tuple[Path, str, int]:
    """Copy a dataset, damage one header in its third shard; return it, the member, the offset."""
    shutil.copytree(packed, copy)
    facts = Stream(copy).dataset
    sample = facts.table(facts.shards[2]).samples[1]
    header = sample.image.offset - 512
    with (copy / facts.shards[2].url).open("r+b") as tar:
        tar.seek(header)
        tar.write(b"?")
    return copy, sample.image_name, header


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (1, "spawn")])
def test_damage_arrives_whole(
    many: Path, tmp_path: Path, workers: int, method: str | None, workers_left: Workers
) -> None:
    """An error of a worker arrives as itself, with its fields and one clean sentence."""
    copy, member, header = damaged(many, tmp_path / "copy")
    loader = Loader(copy, batch_size=5, workers=workers, shuffle=False, start_method=method)
    with pytest.raises(ShardCorrupt) as caught:
        list(loader)
    error = caught.value
    assert (error.shard, error.member, error.offset) == ("shard-000002.tar", member, header)
    assert f"at byte {header:,} there is no header of {member}" in str(error)
    assert "Traceback" not in str(error)
    assert "\n" not in str(error)
    assert workers_left.running() == set()
    with pytest.raises(UsageError, match="the loader is closed"):
        list(loader)


def test_samples_before_the_damage_arrive(many: Path, tmp_path: Path) -> None:
    """What one worker read before the damage is delivered; nothing is delivered after it."""
    copy, _, _ = damaged(many, tmp_path / "copy")
    first = sum(shard.nsamples for shard in Stream(copy).dataset.shards[:2])
    loader = Loader(copy, batch_size=1, workers=1, shuffle=False, block_bytes=1)
    got: list[Batch] = []
    with pytest.raises(ShardCorrupt):
        got.extend(loader)  # extend keeps what came before the error
    assert flat(got) == list(range(first + 1))


@pytest.mark.parametrize("workers", [0, 2])
def test_lost_shard(many: Path, tmp_path: Path, workers: int, workers_left: Workers) -> None:
    """A shard that goes missing between epochs is an error that names it, not a shorter epoch."""
    copy = shutil.copytree(many, tmp_path / "copy")
    loader = Loader(copy, batch_size=5, workers=workers)
    assert len(flat(list(loader))) == 64
    (copy / "shard-000003.tar").unlink()
    with pytest.raises(ShardCorrupt, match=r"^shard-000003\.tar is missing; ") as caught:
        list(loader)
    assert caught.value.shard == "shard-000003.tar"
    assert loader.epoch == 1, "the epoch that failed is not counted"
    assert workers_left.running() == set()


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_size_field(many: Path, tmp_path: Path, workers: int) -> None:
    """A size field that is no octal number is damage like any other, in a worker too."""
    copy = shutil.copytree(many, tmp_path / "copy")
    facts = Stream(copy).dataset
    header = facts.table(facts.shards[0]).samples[0].image.offset - 512
    with (copy / facts.shards[0].url).open("r+b") as tar:
        tar.seek(header + 124)
        tar.write(b"99999999999\0")
    with pytest.raises(DatasetDamaged, match="there is no header of") as caught:
        list(Loader(copy, batch_size=5, workers=workers))
    assert "Traceback" not in str(caught.value)
