"""What goes wrong while images are decoded and transformed: named, counted, and cleared away."""

import importlib
import io
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from making import dataset, folder, image, no_hang
from PIL import Image

import tarshard
from tarshard.errors import ImageUndecodable, UsageError, WorkerFailed
from tarshard.imaging.decode import Decoder
from tarshard.streaming.batch import Batch
from tarshard.streaming.loader import Loader

COUNT = 30
BAD = {0: "jpg", 11: "png", 25: "jpg"}
"""Which images cannot be decoded, and their kind."""
COMPLAINS = 14


def flipped(content: bytes) -> bytes:
    """Return a JPEG with one bit turned over, so that it decodes but libjpeg complains."""
    decoder = Decoder()
    for at in range(len(content) - 3, 700, -1):
        changed = bytearray(content)
        changed[at] ^= 0x40
        try:
            _, complaint = decoder.decode(bytes(changed))
        except Exception:  # noqa: BLE001, S112  (it only has to be found)
            continue
        if complaint:
            return bytes(changed)
    raise AssertionError("libjpeg does not complain of any bit")


def name(number: int) -> str:
    """Return an image's path in its folder; names sort as numbers do."""
    return f"c{number % 2}/{number:02d}.{BAD.get(number, 'jpg')}"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset with three images that cannot be decoded and one that is complained of."""
    root = tmp_path_factory.mktemp("bad")
    files: dict[str | bytes, bytes] = {}
    for number in range(COUNT):
        kind = {"png": "PNG", "jpg": "JPEG"}[BAD.get(number, "jpg")]
        content = image(number, size=(40, 30), kind=kind)
        if number in BAD:
            content = content[: len(content) // 2]
        if number == COMPLAINS:
            content = flipped(content)
        files[name(number)] = content
    tarshard.pack(folder(root / "images", files), root / "packed", shards=3)
    return root / "packed"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of 30 photos in 3 shards."""
    return dataset(tmp_path_factory.mktemp("good"), COUNT, 3)


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    yield
    left = multiprocessing.active_children()
    for child in left:
        child.kill()
        child.join()
    assert left == []


def batches(packed: Path, **values: Any) -> list[Batch]:
    """Run one epoch of a loader with these values."""
    loader = Loader(packed, **({"batch_size": 4, "workers": 0, "shuffle": False} | values))
    try:
        return list(loader)
    finally:
        loader.close()


def number_of(key: str) -> int:
    """Return an image's number."""
    return int(key.rpartition("/")[2])


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork"), (3, "fork"), (1, "spawn")])
def test_fail_names_the_image(packed: Path, workers: int, method: str | None) -> None:
    """An image that cannot be decoded is one sentence with key, shard, offset and cause."""
    with pytest.raises(ImageUndecodable) as caught:
        batches(packed, size=8, workers=workers, start_method=method)
    error = caught.value
    assert isinstance(error.member, str)
    key, _, extension = error.member.partition(".")
    number = number_of(key)
    assert number in BAD
    shard = next(shard for shard in tarshard.Dataset(packed).shards if shard.url == error.shard)
    samples = tarshard.Dataset(packed).table(shard).samples
    assert error.offset == next(row.image.offset for row in samples if row.key == key)
    assert str(error).startswith(f"{error.member} ({error.shard}, byte {error.offset:,}): ")
    assert "cut short" in str(error) or "truncated" in str(error).lower() or "PNG" in str(error)
    assert "on-error skip" in str(error)
    assert "\n" not in str(error)
    assert extension == BAD[number], "member is the member's name in the tar, as its text says"


def test_fail_is_the_usual(packed: Path) -> None:
    """Unless told otherwise an image that cannot be decoded is an error, with a transform too."""
    with pytest.raises(ImageUndecodable, match=r"^c[01]/\d\d\.jpg \(shard-00000\d\.tar, byte "):
        batches(packed, transform=lambda picture, _sample, _rng: picture)


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork"), (3, "fork"), (1, "spawn")])
def test_skip_keeps_the_place(packed: Path, workers: int, method: str | None) -> None:
    """An image that cannot be decoded is zeros and not valid; its problem is listed once."""
    got = batches(packed, size=8, on_error="skip", workers=workers, start_method=method)
    assert sum(len(batch) for batch in got) == COUNT
    for batch in got:
        assert batch.images.shape == (len(batch), 3, 8, 8)
        for facts, picture in zip(batch.samples, batch.images, strict=True):
            is_good = number_of(facts.key) not in BAD
            assert facts.valid == is_good
            assert bool(picture.any()) == is_good
        assert batch.valid.tolist() == [facts.valid for facts in batch.samples]
    problems = {number_of(row.sample.key): row for batch in got for row in batch.problems}
    assert sum(len(batch.problems) for batch in got) == 4
    assert {number for number, row in problems.items() if row.is_fatal} == set(BAD)
    assert {number for number, row in problems.items() if not row.is_fatal} == {COMPLAINS}
    assert all(row.cause and "\n" not in row.cause for row in problems.values())
    for batch in got:
        assert {row.sample.index for row in batch.problems} <= set(batch.index.tolist())


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_skip_counts_exactly_over_ranks(packed: Path, ranks: int, shuffle: bool) -> None:
    """Over padded ranks each good image is valid once, each bad one a problem once."""
    got = [
        batches(
            packed,
            size=8,
            on_error="skip",
            workers=1,
            rank=rank,
            world_size=ranks,
            tail="pad",
            shuffle=shuffle,
        )
        for rank in range(ranks)
    ]
    assert {sum(len(batch) for batch in rank) for rank in got} == {-(-COUNT // ranks)}
    everything = [batch for rank in got for batch in rank]
    valid = [facts.index for batch in everything for facts in batch.samples if facts.valid]
    assert len(valid) == len(set(valid)) == COUNT - len(BAD)
    problems = [number_of(row.sample.key) for batch in everything for row in batch.problems]
    assert sorted(problems) == sorted([*BAD, COMPLAINS])


def test_a_complaint_is_delivered(packed: Path) -> None:
    """With on-error fail too an image that libjpeg complains of is delivered, and listed."""
    rows = []
    with pytest.raises(ImageUndecodable):
        batches(packed, size=8)
    for batch in batches(packed, size=(30, 40), on_error="skip"):
        for row in batch.problems:
            if not row.is_fatal:
                at = batch.index.tolist().index(row.sample.index)
                rows.append((row, batch.samples[at], batch.images[at]))
    [(row, facts, picture)] = rows
    assert row.sample == facts
    assert facts.valid
    assert row.cause
    assert picture.any()


def test_a_complaint_is_no_failure(tmp_path: Path) -> None:
    """On-error fail does not stop at a complaint."""
    files: dict[str | bytes, bytes] = {"a.jpg": flipped(image(3, size=(40, 30))), "b.jpg": image()}
    tarshard.pack(folder(tmp_path / "in", files), tmp_path / "p", shards=1)
    [batch] = batches(tmp_path / "p", size=8, workers=1)
    assert batch.valid.tolist() == [True, True]
    assert [(row.sample.key, row.is_fatal) for row in batch.problems] == [("a", False)]


@pytest.mark.parametrize("workers", [0, 1])
def test_skip_with_a_transform(packed: Path, workers: int) -> None:
    """The transform sees good images alone; the others' places are zeros, or None in a list."""

    def stacked(picture: Any, _sample: object, _rng: object) -> Any:
        assert picture.shape == (30, 40, 3)
        return np.ones((2, 2), dtype=np.float32)

    def listed(_picture: Any, sample: Any, _rng: object) -> str:
        return str(sample.key)

    for batch in batches(packed, on_error="skip", workers=workers, transform=stacked):
        assert batch.images.dtype is torch.float32
        assert batch.images.mean(dim=(1, 2)).tolist() == batch.valid.tolist()
    for batch in batches(packed, on_error="skip", workers=workers, transform=listed):
        assert batch.images == [facts.key if facts.valid else None for facts in batch.samples]


def test_skip_of_a_whole_batch(packed: Path) -> None:
    """A batch without any good image has its zeros in the size all the same."""
    got = batches(packed, size=(5, 7), batch_size=1, on_error="skip")
    failed = [batch for batch in got if not batch.valid.any()]
    assert len(failed) == len(BAD)
    for batch in failed:
        assert torch.equal(batch.images, torch.zeros((1, 3, 5, 7), dtype=torch.uint8))


@pytest.mark.parametrize("workers", [0, 1])
def test_skip_for_jpegs(packed: Path, workers: int) -> None:
    """A JPEG that is cut short is not passed on as it is; what is skipped has no bytes."""
    rows = {
        number_of(facts.key): (facts.valid, len(data))
        for batch in batches(packed, content="jpeg", on_error="skip", workers=workers)
        for facts, data in zip(batch.samples, batch.data, strict=True)
    }
    for number, (valid, length) in rows.items():
        assert valid == (length > 0) == (number not in BAD)
    with pytest.raises(ImageUndecodable):
        batches(packed, content="jpeg", workers=workers)


def test_max_pixels(good: Path) -> None:
    """The limit itself is allowed; one pixel fewer is not, and the message has both numbers."""
    sizes = {
        facts.width * facts.height
        for batch in batches(good)
        for facts in batch.samples
        if facts.width and facts.height
    }
    limit = max(sizes)
    assert all(batch.valid.all() for batch in batches(good, size=4, max_pixels=limit))
    with pytest.raises(ImageUndecodable, match=f"more than the limit of {limit - 1:,}"):
        batches(good, size=4, max_pixels=limit - 1)
    got = batches(good, size=4, max_pixels=limit - 1, on_error="skip", workers=1)
    for batch in got:
        for facts in batch.samples:
            assert facts.width
            assert facts.height
            assert facts.valid == (facts.width * facts.height < limit)


def test_a_bomb_is_not_decoded(tmp_path: Path) -> None:
    """A small file that claims to be gigantic is refused by its header."""
    buffer = io.BytesIO()
    Image.new("1", (40_000, 40_000)).save(buffer, "PNG")
    tarshard.pack(folder(tmp_path / "in", {"a.png": buffer.getvalue()}), tmp_path / "p", shards=1)
    with pytest.raises(ImageUndecodable, match="claims 40,000 x 40,000 pixels"):
        batches(tmp_path / "p", size=4, workers=1)


TRANSFORMS = '''
"""Transforms that go wrong, which workers that are spawned can import."""

import os
import signal
import sys


class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__("this cannot be pickled")
        self.file = sys.stdout


class At:
    """Does something at one sample."""

    def __init__(self, index, what, reached=None, gate=None):
        self.index, self.what, self.reached, self.gate = index, what, reached, gate

    def __call__(self, image, sample, rng):
        if sample.index == self.index:
            getattr(self, self.what)(sample)
        return sample.index

    def leave(self, sample):
        os._exit(3)

    def leave_well(self, sample):
        os._exit(0)

    def ask_to_leave(self, sample):
        sys.exit(3)

    def die(self, sample):
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(self, sample):
        raise KeyError("thirteen", sample.key)

    def fail_oddly(self, sample):
        raise Unpicklable(1, 2)

    def stop(self, sample):
        raise StopIteration

    def wait(self, sample):
        from torch.utils.data import get_worker_info
        self.reached.put((os.getpid(), get_worker_info().id))
        self.gate.wait()


class DeadOnArrival:
    """Ends the process that unpickles it."""

    def __getstate__(self):
        return {"some": "state"}

    def __setstate__(self, state):
        os._exit(3)

    def __call__(self, image, sample, rng):
        return 0


def unpicklable(image, sample, rng):
    return lambda: sample.index


class Bomb:
    """Can be pickled but not unpickled."""

    def __reduce__(self):
        return int, ("no number",)


def bomb(image, sample, rng):
    return Bomb()
'''


@pytest.fixture(scope="module")
def transforms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Return `TRANSFORMS` as a module on the path."""
    root = tmp_path_factory.mktemp("modules")
    (root / "transforms_that_fail.py").write_text(TRANSFORMS)
    sys.path.insert(0, str(root))
    yield importlib.import_module("transforms_that_fail")
    sys.path.remove(str(root))


def place(good: Path, index: int) -> tuple[str, str]:
    """Return member and shard of a sample."""
    [facts] = [
        facts
        for batch in batches(good, content="facts")
        for facts in batch.samples
        if facts.index == index
    ]
    return f"{facts.key}.jpg", facts.shard


METHODS = ["fork", "spawn"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("what", ["leave", "die"])
def test_a_worker_that_ends_is_named(
    good: Path, transforms: ModuleType, what: str, method: str
) -> None:
    """Worker, process, member and shard are in the message, when a worker ends by itself."""
    transform = transforms.At(21, what)
    with no_hang(30), pytest.raises(WorkerFailed) as caught:
        batches(good, transform=transform, workers=2, batch_size=1, start_method=method)
    member, shard = place(good, 21)
    said = str(caught.value)
    assert said.startswith("worker 1 (process "), said
    assert f"it was at {member}" in said
    assert f"{shard}, byte " in said
    assert "Traceback" not in said


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("what", "how"), [("leave", "exit code 3"), ("die", "killed by a signal (Killed)")]
)
def test_it_is_said_how_a_worker_ended(
    good: Path, transforms: ModuleType, what: str, how: str, method: str
) -> None:
    """The message has the exit code or the signal, which tells want of memory from a crash."""
    transform = transforms.At(5, what)
    with no_hang(30), pytest.raises(WorkerFailed) as caught:
        batches(good, transform=transform, workers=1, start_method=method)
    assert how in str(caught.value)


@pytest.mark.parametrize("what", ["ask_to_leave", "leave_well"])
def test_a_worker_that_leaves_of_its_own_will(
    good: Path, transforms: ModuleType, what: str
) -> None:
    """A transform that calls sys.exit, or ends the process with code 0, is found out."""
    with no_hang(30), pytest.raises(WorkerFailed, match=r"^worker 0 \(process \d+\) .* it was at"):
        batches(good, transform=transforms.At(5, what), workers=1)


def test_a_worker_that_dies_before_it_begins(good: Path, transforms: ModuleType) -> None:
    """A worker that ends before its first sample is a `WorkerFailed` that names the worker."""
    with no_hang(30), pytest.raises(WorkerFailed, match=r"worker 0 \(process \d+\)"):
        batches(good, transform=transforms.DeadOnArrival(), workers=1, start_method="spawn")


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_transform_that_raises(good: Path, transforms: ModuleType, workers: int) -> None:
    """The message has the image, the error and the transform's own traceback."""
    with pytest.raises(WorkerFailed) as caught:
        batches(good, transform=transforms.At(13, "fail"), workers=workers)
    member, shard = place(good, 13)
    said = str(caught.value)
    assert said.startswith(f"the transform failed on {member} ({shard}, byte ")
    assert "KeyError('thirteen', " in said.splitlines()[0]
    assert "transforms_that_fail.py" in said
    assert 'raise KeyError("thirteen", sample.key)' in said


@pytest.mark.parametrize("what", ["fail", "fail_oddly"])
def test_a_transform_that_raises_when_spawned(
    good: Path, transforms: ModuleType, what: str
) -> None:
    """Errors, also such as cannot be pickled, come from a spawned worker with their traceback."""
    with pytest.raises(WorkerFailed, match=r"(?s)^the transform failed on .*Traceback.*raise "):
        batches(good, transform=transforms.At(13, what), workers=1, start_method="spawn")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("what", ["fail_oddly", "stop"])
def test_odd_errors_of_a_transform(
    good: Path, transforms: ModuleType, workers: int, what: str
) -> None:
    """StopIteration does not shorten the epoch; what cannot be pickled is told as text."""
    with no_hang(30), pytest.raises(WorkerFailed, match="the transform failed on"):
        batches(good, transform=transforms.At(13, what), workers=workers)


def test_results_that_cannot_travel(good: Path, transforms: ModuleType) -> None:
    """A result that cannot be pickled is an error and no endless wait."""
    with no_hang(30), pytest.raises(WorkerFailed):
        batches(good, transform=transforms.unpicklable, workers=1)


def test_a_failed_loader_is_closed(good: Path, transforms: ModuleType) -> None:
    """After a worker's end nothing runs any more, and the loader says that it is closed."""
    loader = Loader(
        good, batch_size=4, workers=3, transform=transforms.At(5, "leave"), shuffle=False
    )
    with no_hang(30), pytest.raises(WorkerFailed):
        list(loader)
    assert multiprocessing.active_children() == []
    with pytest.raises(UsageError, match="the loader is closed"):
        list(loader)


def frames(of: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it."""
    while of is not None:
        yield of
        of = of.f_back


def when_this_thread_waits(act: Callable[[], object]) -> threading.Thread:
    """Do something as soon as the calling thread waits for a worker's data, and not before."""
    own = threading.get_ident()

    def watch() -> None:
        while True:
            inner = sys._current_frames()[own]
            calls = [frame.f_code for frame in frames(inner)]
            if calls[0].co_name == "select" and any(
                code.co_filename.endswith("loader.py") and code.co_name == "_next" for code in calls
            ):
                act()
                return

    return threading.Thread(target=watch, daemon=True)


def until_it_hangs(
    good: Path, transforms: ModuleType, method: str, workers: int
) -> tuple[Loader, Iterator[Batch], int, int]:
    """Return a loader one of whose workers waits at sample 21; and its process and number."""
    context = multiprocessing.get_context(method)
    reached, gate = context.SimpleQueue(), context.Event()
    loader = Loader(
        good,
        batch_size=1,
        workers=workers,
        shuffle=False,
        start_method=method,
        transform=transforms.At(21, "wait", reached, gate),
    )
    iterator = iter(loader)
    # Two batches are made ahead by each worker: these can be had, and the next is begun on.
    for _ in range({1: 20, 2: 12}[workers]):
        next(iterator)
    process, worker = reached.get()
    return loader, iterator, process, worker


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_is_killed_while_it_is_waited_for(
    good: Path, transforms: ModuleType, workers: int, method: str
) -> None:
    """A worker that is killed from outside is named with the sample that it was at."""
    with no_hang(60):
        loader, iterator, process, worker = until_it_hangs(good, transforms, method, workers)
        killer = when_this_thread_waits(lambda: os.kill(process, signal.SIGKILL))
        killer.start()
        try:
            with pytest.raises(WorkerFailed) as caught:
                list(iterator)
        finally:
            loader.close()
            killer.join()
    member, shard = place(good, 21)
    said = str(caught.value)
    assert said.startswith(f"worker {worker} (process {process}) "), said
    assert f"it was at {member}" in said
    assert f"{shard}, byte " in said
    assert "Traceback" not in said


def test_a_worker_is_killed_while_the_consumer_works(good: Path, transforms: ModuleType) -> None:
    """A consumer that is not in the loader is not interrupted; the next batch tells it."""
    with no_hang(30):
        loader, iterator, process, _ = until_it_hangs(good, transforms, "fork", 1)
        [worker] = multiprocessing.active_children()
        consumed = 0
        try:
            with pytest.raises(  # noqa: PT012  (what interrupts the work must be seen)
                WorkerFailed, match=rf"^worker 0 \(process {process}\)"
            ):
                try:
                    os.kill(process, signal.SIGKILL)
                    multiprocessing.connection.wait([worker.sentinel])
                    consumed = sum(range(100_000))
                finally:
                    list(iterator)
        finally:
            loader.close()
    assert consumed == sum(range(100_000)), "the consumer's own work went on"


@pytest.mark.parametrize("method", METHODS)
def test_a_hanging_transform_is_named_at_ctrl_c(
    good: Path, transforms: ModuleType, method: str
) -> None:
    """Ctrl-C while a worker hangs carries a note with worker, process, member and shard."""
    with no_hang(60):
        loader, iterator, process, worker = until_it_hangs(good, transforms, method, 1)
        interrupter = when_this_thread_waits(lambda: os.kill(os.getpid(), signal.SIGINT))
        interrupter.start()
        try:
            with pytest.raises(KeyboardInterrupt) as caught:
                list(iterator)
        finally:
            loader.close()
            interrupter.join()
    member, shard = place(good, 21)
    [note] = caught.value.__notes__
    assert note.startswith(f"worker {worker} (process {process}) ")
    assert f"was at {member}" in note
    assert f"{shard}, byte " in note
