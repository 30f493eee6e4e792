"""A Stream by itself and in a plain DataLoader."""

import json
import pickle
from itertools import product
from pathlib import Path

import pytest
import torch
from making import dataset, folder, image, photos
from torch.utils.data import DataLoader

import tarshard
from tarshard.errors import DatasetDamaged, InputUnusable, TarshardError, UsageError
from tarshard.index import INDEX_NAME, Index
from tarshard.streaming.batch import Batch
from tarshard.streaming.dataset import Stream
from tarshard.streaming.order import Tail

COUNT = 23


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos in five shards of several blocks each."""
    return dataset(tmp_path_factory.mktemp("stream"), COUNT, 5)


def indices(batches: list[Batch]) -> list[list[int]]:
    """Return which samples came, batch by batch."""
    return [[facts.index for facts in batch.samples] for batch in batches]


def flat(batches: list[Batch]) -> list[int]:
    """Return which samples came."""
    return [index for batch in indices(batches) for index in batch]


@pytest.mark.parametrize("tail", ["uneven", "pad", "drop"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_the_dataset(packed: Path, ranks: int, tail: Tail) -> None:
    """All ranks together deliver each photo as it was packed, and as many batches as announced."""
    sources = photos(COUNT)
    for size, shuffle in product((1, 4, 64), (True, False)):
        if tail == "drop" and ranks * size > COUNT:
            with pytest.raises(UsageError, match=f"= {ranks * size}$"):
                Stream(packed, batch_size=size, rank=0, world_size=ranks, tail=tail)
            continue
        seen, lengths = [], []
        for rank in range(ranks):
            stream = Stream(
                packed,
                batch_size=size,
                shuffle=shuffle,
                rank=rank,
                world_size=ranks,
                tail=tail,
                group=2,
                window=3,
                block_bytes=3_000,
            )
            batches = list(stream)
            assert len(batches) == len(stream)
            assert all(len(batch) == size for batch in batches[:-1])
            for batch in batches:
                for facts, data in zip(batch.samples, batch.data, strict=True):
                    assert bytes(data) == sources[f"{facts.key}.jpg"]
            lengths.append(len(stream))
            seen += [facts.index for batch in batches for facts in batch.samples if facts.valid]
        assert len(set(seen)) == len(seen)
        if tail == "drop":
            assert len(seen) == COUNT // (ranks * size) * ranks * size
        else:
            assert len(seen) == COUNT
        if tail != "uneven":
            assert len(set(lengths)) == 1


def test_default_tails(packed: Path) -> None:
    """One rank gets the dataset as it is; several get equally many batches by padding."""
    assert Stream(packed).share.tail == "uneven"
    assert Stream(packed, rank=0, world_size=2).share.tail == "pad"
    assert Stream(packed, rank=0, world_size=2, tail="uneven").share.tail == "uneven"


def test_unshuffled(packed: Path) -> None:
    """Without shuffling the samples come as the index lists them."""
    assert flat(list(Stream(packed, batch_size=4, shuffle=False))) == list(range(COUNT))


def test_epochs(packed: Path) -> None:
    """Shuffled epochs differ; each repeats when asked for again, here or with the same seed."""
    stream = Stream(packed, batch_size=4, seed=5)
    assert stream.epoch == 0
    first = flat(list(stream))
    assert flat(list(stream)) == first, "iterating alone does not move on"
    stream.set_epoch(1)
    assert stream.epoch == 1
    second = flat(list(stream))
    assert second != first
    assert sorted(second) == sorted(first) == list(range(COUNT))
    stream.set_epoch(0)
    assert flat(list(stream)) == first
    again = Stream(packed, batch_size=4, seed=5)
    again.set_epoch(1)
    assert flat(list(again)) == second
    assert flat(list(Stream(packed, batch_size=4, seed=6))) != first


def test_batch_size_does_not_change_a_workers_order(packed: Path) -> None:
    """Read by one process, the samples come in the same sequence whatever the batch size."""
    orders = {tuple(flat(list(Stream(packed, batch_size=size)))) for size in (1, 4, 64)}
    assert len(orders) == 1


@pytest.mark.parametrize("epoch", [-1, -(2**63)])
def test_impossible_epoch(packed: Path, epoch: int) -> None:
    """An epoch that cannot be is refused and changes nothing."""
    stream = Stream(packed)
    stream.set_epoch(3)
    with pytest.raises(UsageError, match="epoch must be at least 0"):
        stream.set_epoch(epoch)
    assert stream.epoch == 3


def test_facts(packed: Path) -> None:
    """Facts alone are the same as with images, and come without bytes."""
    with_images = list(Stream(packed, batch_size=4))
    alone = list(Stream(packed, batch_size=4, content="facts"))
    assert [batch.samples for batch in alone] == [batch.samples for batch in with_images]
    assert sum(len(view) for batch in alone for view in batch.data) == 0


def test_whole_samples(packed: Path) -> None:
    """Whole samples begin with the image's header and hold the label's member too."""
    [batch] = Stream(packed, batch_size=64, content="sample", shuffle=False)
    sources = photos(COUNT)
    for facts, data in zip(batch.samples, batch.data, strict=True):
        content = sources[f"{facts.key}.jpg"]
        assert bytes(data[:100]).rstrip(b"\0").decode() == f"{facts.key}.jpg"
        assert data[512 : 512 + len(content)] == content
        assert f"{facts.key}.cls".encode() in bytes(data)


def test_labels(packed: Path) -> None:
    """A label is the position of the first folder among the classes."""
    stream = Stream(packed)
    [batch] = stream
    assert stream.dataset.classes == ("class0", "class1", "class2")
    named = [stream.dataset.classes[label] for label in batch.labels.tolist()]
    assert named == [key.partition("/")[0] for key in batch.keys]


def test_no_labels(tmp_path: Path) -> None:
    """Without classes every label is -1."""
    tarshard.pack(folder(tmp_path / "in", {"a.jpg": image(0)}), tmp_path / "out", shards=1)
    [batch] = Stream(tmp_path / "out")
    assert batch.labels.tolist() == [-1]


def test_pickled_stream(packed: Path) -> None:
    """A pickled stream yields what the first would, in its epoch."""
    stream = Stream(packed, batch_size=4, rank=1, world_size=2)
    stream.set_epoch(9)
    back = pickle.loads(pickle.dumps(stream))  # noqa: S301  # our own bytes
    assert (back.epoch, len(back)) == (9, len(stream))
    assert indices(list(back)) == indices(list(stream))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_plain_dataloader(packed: Path, workers: int) -> None:
    """In a DataLoader of the user's each sample comes once, bytes and all."""
    stream = Stream(packed, batch_size=4)
    loader: DataLoader[Batch] = DataLoader(stream, batch_size=None, num_workers=workers)
    assert len(loader) == len(stream) == 6
    batches = list(loader)
    assert len(batches) == 6
    assert sorted(flat(batches)) == list(range(COUNT))
    sources = photos(COUNT)
    for batch in batches:
        for key, data in zip(batch.keys, batch.data, strict=True):
            assert bytes(data) == sources[f"{key}.jpg"]


def test_epoch_reaches_kept_workers(packed: Path) -> None:
    """Workers that a plain DataLoader keeps between epochs follow set_epoch."""
    stream = Stream(packed, batch_size=4)
    loader: DataLoader[Batch] = DataLoader(
        stream, batch_size=None, num_workers=2, persistent_workers=True
    )
    orders: dict[int, list[int]] = {}
    for epoch in (0, 1, 0, 5):
        stream.set_epoch(epoch)
        order = flat(list(loader))
        assert sorted(order) == list(range(COUNT))
        assert orders.setdefault(epoch, order) == order
    assert len({tuple(order) for order in orders.values()}) == 3


def test_two_iterations_at_once(packed: Path) -> None:
    """Two iterations of one stream do not disturb each other."""
    stream = Stream(packed, batch_size=4)
    alone = indices(list(stream))
    pairs = list(zip(stream, stream, strict=True))
    assert indices([left for left, _ in pairs]) == alone
    assert indices([right for _, right in pairs]) == alone


def test_batches_stay_what_they_are(packed: Path) -> None:
    """Batches that are kept do not change while the stream goes on."""
    kept = []
    copies = []
    for batch in Stream(packed, batch_size=4, window=1, block_bytes=3_000):
        kept.append(batch)
        copies.append([bytes(view) for view in batch.data])
    assert [[bytes(view) for view in batch.data] for batch in kept] == copies


def test_empty_dataset(tmp_path: Path) -> None:
    """A dataset without samples has no batch; dropping the tail of nothing is an error."""
    (tmp_path / INDEX_NAME).write_bytes(Index(shards=()).to_json())
    stream = Stream(tmp_path, batch_size=4)
    assert len(stream) == 0
    assert list(stream) == []
    with pytest.raises(UsageError, match="leaves no batch"):
        Stream(tmp_path, batch_size=4, tail="drop")


def test_missing_dataset(tmp_path: Path) -> None:
    """A folder that is missing or holds no dataset is named at once, not at the first batch."""
    with pytest.raises(InputUnusable, match="does not exist"):
        Stream(tmp_path / "nowhere")
    with pytest.raises(InputUnusable, match=f"holds no {INDEX_NAME}"):
        Stream(tmp_path)


def test_damaged_index(tmp_path: Path) -> None:
    """An index that is no JSON is refused at once."""
    (tmp_path / INDEX_NAME).write_bytes(b"{")
    with pytest.raises(DatasetDamaged, match="is not JSON"):
        Stream(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 0}, "batch size must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"group": 0}, "group must be at least 1"),
        ({"window": 0}, "window must be at least 1"),
        ({"block_bytes": 0}, "block_bytes must be at least 1"),
        ({"tail": "wrap"}, "tail must be one of"),
        ({"rank": 1}, "together"),
        ({"rank": 2, "world_size": 2}, "rank must be from 0 to 1"),
        ({"content": "pixels"}, "content"),
    ],
)
def test_impossible_values(packed: Path, values: dict[str, object], message: str) -> None:
    """A value that cannot be is refused when the stream is made, by name."""
    with pytest.raises(UsageError, match=message):
        Stream(packed, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("nsamples", [10**13, 2**62])
@pytest.mark.parametrize("shards", [1, 4])
def test_index_that_lies_about_its_numbers(
    packed: Path, tmp_path: Path, nsamples: int, shards: int
) -> None:
    """An index that claims more samples than fit in its bytes is an error, not an end of memory."""
    content = json.loads((packed / INDEX_NAME).read_bytes())
    for row in content["shardlist"][:shards]:
        row["nsamples"] = nsamples
    content["tarshard"]["samples"] = sum(row["nsamples"] for row in content["shardlist"])
    (tmp_path / INDEX_NAME).write_text(json.dumps(content))
    with pytest.raises(TarshardError):
        next(iter(Stream(tmp_path, batch_size=4)))


def test_epoch_is_shared_memory(packed: Path) -> None:
    """The epoch lies in shared memory, which is how it reaches workers of any start method."""
    epoch = Stream(packed)._epoch
    assert epoch.is_shared()  # type: ignore[no-untyped-call]
    assert epoch.dtype == torch.int64
