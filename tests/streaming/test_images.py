"""Any image by its number."""

import copy
import gc
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from making import dataset, folder, image, photos
from torch.utils.data import DataLoader

import tarshard
from tarshard.errors import InputUnusable, ShardCorrupt
from tarshard.streaming.images import Images

COUNT = 23


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos in five shards."""
    return dataset(tmp_path_factory.mktemp("images"), COUNT, 5)


def test_all_images(packed: Path) -> None:
    """Each number gives one source file with its class, key and number; all are there."""
    images = Images(packed)
    sources = photos(COUNT)
    assert len(images) == COUNT
    keys = set()
    for number in range(COUNT):
        item = images[number]
        assert type(item.data) is bytes
        assert item.data == sources[f"{item.key}.jpg"]
        assert images.dataset.classes[item.label] == item.key.partition("/")[0]
        assert item.index == number
        keys.add(item.key)
    assert len(keys) == COUNT


def test_order_is_that_of_an_unshuffled_stream(packed: Path) -> None:
    """Image i is sample i of a stream."""
    images = Images(packed)
    [batch] = tarshard.Stream(packed, batch_size=64)
    for facts, data in zip(batch.samples, batch.data, strict=True):
        assert images[facts.index] == (bytes(data), facts.label, facts.key, facts.index)


def test_numbers_from_the_end(packed: Path) -> None:
    """Negative numbers count from the end, as in a list."""
    images = Images(packed)
    everything = [images[number] for number in range(COUNT)]
    assert [images[number] for number in range(-COUNT, 0)] == everything


@pytest.mark.parametrize("number", [COUNT, COUNT + 1, -COUNT - 1, 10**30])
def test_out_of_range(packed: Path, number: int) -> None:
    """A number beyond either end is an IndexError, so that a for loop ends by itself."""
    with pytest.raises(IndexError, match=f"^image {number} of {COUNT}$"):
        Images(packed)[number]


def test_for_loop(packed: Path) -> None:
    """Iterating gives all images in turn and then ends."""
    assert [item.index for item in iter(Images(packed))] == list(range(COUNT))


def test_without_labels(tmp_path: Path) -> None:
    """Without classes the label is -1."""
    tarshard.pack(folder(tmp_path / "in", {"a.jpg": image(0)}), tmp_path / "out", shards=1)
    assert Images(tmp_path / "out")[0] == (image(0), -1, "a", 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_dataloader(packed: Path, workers: int) -> None:
    """A DataLoader makes batches of it, in any number of workers, also after it was used here."""
    images = Images(packed)
    assert images[0].index == 0, "a reader is open before workers are forked"
    loader: DataLoader[object] = DataLoader(images, batch_size=4, num_workers=workers, shuffle=True)
    sources = photos(COUNT)
    seen = []
    for batch in loader:
        assert isinstance(batch, tuple)
        data, labels, keys, numbers = batch
        assert isinstance(labels, torch.Tensor)
        for content, label, key in zip(data, labels.tolist(), keys, strict=True):
            assert content == sources[f"{key}.jpg"]
            assert images.dataset.classes[label] == key.partition("/")[0]
        seen += numbers.tolist()
    assert sorted(seen) == list(range(COUNT))


def test_pickling(packed: Path) -> None:
    """Pickled and copied, with or without open shards, it gives the same images."""
    images = Images(packed)
    fresh = pickle.dumps(images)
    expected = [images[number] for number in range(COUNT)]
    for content in (fresh, pickle.dumps(images)):
        back = pickle.loads(content)  # noqa: S301  # our own bytes
        assert [back[number] for number in range(COUNT)] == expected
    copied = copy.copy(images)
    assert [copied[number] for number in range(COUNT)] == expected


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/fd")
def test_closed_when_forgotten(tmp_path: Path) -> None:
    """Images that are no longer used give their descriptors back."""
    packed = dataset(tmp_path, 2, 1)

    def is_open() -> bool:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return str(packed / "shard-000000.tar") in [
            os.readlink(link) for link in links if os.path.islink(link)
        ]

    images = Images(packed)
    assert images[0].index == 0
    assert is_open()
    del images
    gc.collect()
    assert not is_open()


def test_damage(tmp_path: Path) -> None:
    """A damaged shard is refused by name, the images of other shards can still be had."""
    packed = dataset(tmp_path, 6, 2)
    (packed / "shard-000000.tar").unlink()
    images = Images(packed)
    lost = images.dataset.shards[0].nsamples
    for number in range(lost):
        with pytest.raises(ShardCorrupt, match="is missing") as caught:
            images[number]
        assert caught.value.shard == "shard-000000.tar"
    assert [images[number].index for number in range(lost, 6)] == list(range(lost, 6))


def test_missing_dataset(tmp_path: Path) -> None:
    """A folder without a dataset is refused at once."""
    with pytest.raises(InputUnusable, match="does not exist"):
        Images(tmp_path / "nowhere")
