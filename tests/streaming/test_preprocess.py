"""Decoded and transformed batches: the right pixels, whoever makes them and however many."""

import io
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from making import dataset, folder, image
from PIL import Image

import tarshard
from tarshard.errors import UsageError
from tarshard.imaging.decode import Pixels
from tarshard.streaming.batch import Batch, Delivered
from tarshard.streaming.loader import Loader

COUNT = 22
HEIGHT, WIDTH = 16, 24


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of PNGs, all of one size, whose pixels `source` knows; two classes."""
    root = tmp_path_factory.mktemp("exact")
    files: dict[str | bytes, bytes] = {
        f"{'ab'[n % 2]}/{n:02d}.png": image(n, size=(WIDTH, HEIGHT), kind="PNG")
        for n in range(COUNT)
    }
    tarshard.pack(folder(root / "images", files), root / "packed", shards=3)
    return root / "packed"


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of JPEGs of many sizes."""
    return dataset(tmp_path_factory.mktemp("varied"), COUNT, 3)


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def source(key: str) -> Pixels:
    """Return the pixels that were packed under a key of `exact`."""
    return np.asarray(Image.open(io.BytesIO(image(int(key[2:]), size=(WIDTH, HEIGHT), kind="PNG"))))


def epochs(packed: Path, count: int = 1, **values: Any) -> list[list[Batch]]:
    """Run so many epochs of a loader with these values."""
    loader = Loader(packed, **({"batch_size": 4, "workers": 0} | values))
    try:
        return [list(loader) for _ in range(count)]
    finally:
        loader.close()


def batches(packed: Path, **values: Any) -> list[Batch]:
    """Run one epoch."""
    return epochs(packed, **values)[0]


def by_index(got: list[Batch]) -> dict[int, tuple[Delivered, Any]]:
    """Return each sample's facts and image by its index; each is there once."""
    rows = [
        (facts, picture)
        for batch in got
        for facts, picture in zip(batch.samples, batch.images, strict=True)
    ]
    found = {facts.index: (facts, picture) for facts, picture in rows}
    assert len(found) == len(rows)
    return found


def same_samples(left: list[Batch], right: list[Batch]) -> bool:
    """Tell whether two epochs have the same samples, facts and images, in any order."""
    mine, other = by_index(left), by_index(right)
    return mine.keys() == other.keys() and all(
        facts == other[index][0] and torch.equal(picture, other[index][1])
        for index, (facts, picture) in mine.items()
    )


def same_batches(left: list[Batch], right: list[Batch]) -> bool:
    """Tell whether two epochs have the same batches in the same order."""
    return len(left) == len(right) and all(
        list(mine.samples) == list(other.samples) and torch.equal(mine.images, other.images)
        for mine, other in zip(left, right, strict=True)
    )


@pytest.mark.parametrize(
    ("workers", "method"), [(0, None), (1, "fork"), (4, "fork"), (1, "spawn"), (1, "forkserver")]
)
def test_images_are_the_pixels_that_were_packed(
    exact: Path, workers: int, method: str | None
) -> None:
    """Each image is RGB, uint8, (3, H, W), and lies beside its own key, label and index."""
    seen = []
    for batch in batches(exact, workers=workers, size=(HEIGHT, WIDTH), start_method=method):
        assert isinstance(batch.images, torch.Tensor)
        assert batch.images.dtype is torch.uint8
        assert batch.images.shape == (len(batch), 3, HEIGHT, WIDTH)
        assert batch.images.is_contiguous()
        assert batch.valid.all()
        assert len(batch.data) == 0
        assert list(batch.problems) == []
        for key, label, picture in zip(
            batch.keys, batch.labels.tolist(), batch.images, strict=True
        ):
            assert np.array_equal(picture.permute(1, 2, 0).numpy(), source(key))
            assert "ab"[label] == key[0]
        seen += batch.index.tolist()
    assert sorted(seen) == list(range(COUNT))


def test_images_may_be_written_to(exact: Path) -> None:
    """Images from workers belong to the consumer, who may change them in place."""
    [batch] = batches(exact, workers=1, batch_size=COUNT, size=(HEIGHT, WIDTH))
    before = batch.images.clone()
    batch.images.add_(1)
    assert torch.equal(batch.images, before + 1)


def test_one_number_is_a_square(varied: Path) -> None:
    """A size of one number is both height and width."""
    assert same_batches(batches(varied, size=12), batches(varied, size=(12, 12)))
    assert batches(varied, size=12)[0].images.shape == (4, 3, 12, 12)


def test_height_comes_first(varied: Path) -> None:
    """A size of two numbers is height and width, in this order."""
    assert batches(varied, size=(5, 9))[0].images.shape == (4, 3, 5, 9)


@pytest.mark.parametrize("workers", [0, 1])
def test_fits(tmp_path: Path, workers: int) -> None:
    """Cover shows the middle, contain all of it on black, stretch all of it out of shape."""
    stripes = np.zeros((20, 60, 3), dtype=np.uint8)
    for number in range(3):
        stripes[:, 20 * number : 20 * number + 20, number] = 255
    buffer = io.BytesIO()
    Image.fromarray(stripes).save(buffer, "PNG")
    tarshard.pack(folder(tmp_path / "in", {"a.png": buffer.getvalue()}), tmp_path / "p", shards=1)
    got = {
        fit: batches(tmp_path / "p", size=30, fit=fit, workers=workers)[0].images[0].numpy()
        for fit in ("cover", "contain", "stretch")
    }
    green = np.array([0, 255, 0]).reshape(3, 1, 1)
    assert np.array_equal(got["cover"], np.broadcast_to(green, (3, 30, 30)))
    assert np.flatnonzero(got["contain"].any(axis=(0, 2))).tolist() == list(range(10, 20))
    for fit, row in (("contain", 15), ("stretch", 0), ("stretch", 29)):
        assert got[fit][:, row, [3, 15, 26]].tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]


def test_cover_is_the_usual_fit(varied: Path) -> None:
    """Unless told otherwise the size is covered."""
    assert same_batches(batches(varied, size=12), batches(varied, size=12, fit="cover"))
    assert not same_batches(batches(varied, size=12), batches(varied, size=12, fit="stretch"))


@pytest.mark.parametrize("fit", ["cover", "contain", "stretch"])
def test_pixels_do_not_depend_on_workers(varied: Path, fit: str) -> None:
    """Sample by sample 0, 1 and 4 workers deliver the same facts and pixels."""
    here, one, four = (
        batches(varied, workers=workers, size=(20, 14), fit=fit) for workers in (0, 1, 4)
    )
    assert same_samples(here, one)
    assert same_samples(here, four)
    assert same_batches(here, one)


def test_pixels_do_not_depend_on_threads(tmp_path: Path) -> None:
    """Large images, which OpenCV shares out among threads, come out as with one thread."""
    files: dict[str | bytes, bytes] = {f"{n}.jpg": image(n, size=(1500, 1100)) for n in range(2)}
    tarshard.pack(folder(tmp_path / "in", files), tmp_path / "p", shards=1)
    assert same_samples(
        batches(tmp_path / "p", size=400), batches(tmp_path / "p", workers=2, size=400)
    )


def noisy(picture: Pixels, _sample: Delivered, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Add noise, and a number drawn after it, to the top left corner of an image."""
    corner = picture[:16, :16] + rng.normal(size=(16, 16, 3))
    corner[0, 0, 0] = rng.integers(2**40)
    return corner


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_random_transform_repeats(varied: Path, shuffle: bool) -> None:
    """Two runs with equally many workers are identical batch by batch, over two epochs."""
    first, second = (
        epochs(varied, 2, workers=3, transform=noisy, shuffle=shuffle) for _ in range(2)
    )
    assert all(map(same_batches, first, second))
    assert not same_samples(first[0], first[1])


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_random_transform_does_not_depend_on_workers(varied: Path, shuffle: bool) -> None:
    """Sample by sample 0, 1 and 4 workers give the same, for any batch size, in each epoch."""
    here = epochs(varied, 2, transform=noisy, shuffle=shuffle)
    for workers, batch_size in ((1, 4), (4, 4), (4, 3)):
        there = epochs(
            varied, 2, workers=workers, batch_size=batch_size, transform=noisy, shuffle=shuffle
        )
        assert all(map(same_samples, here, there))


def test_batches_do_not_depend_on_workers(varied: Path) -> None:
    """In order, 1 and 4 workers with a random transform make the same batches, each in its turn."""
    alone, four = (
        sorted(
            batches(varied, workers=workers, transform=noisy, shuffle=False),
            key=lambda batch: batch.samples[0].index,
        )
        for workers in (1, 4)
    )
    assert len(alone) > 4
    assert same_batches(alone, four)


def test_a_random_transform_does_not_depend_on_ranks(varied: Path) -> None:
    """Two ranks give the samples that one gives."""
    ranks = [
        batch
        for rank in (0, 1)
        for batch in batches(varied, transform=noisy, rank=rank, world_size=2)
    ]
    assert same_samples(ranks, batches(varied, transform=noisy))


def draw(_picture: Pixels, _sample: Delivered, rng: np.random.Generator) -> int:
    """Return a random number."""
    return int(rng.integers(2**60))


def test_random_numbers_follow_from_seed_epoch_and_sample(varied: Path) -> None:
    """No two of seed, epoch and sample share their numbers; shuffling does not change them."""
    drawn: set[int] = set()
    for seed in (0, 1, 2**62):
        for epoch in epochs(varied, 3, transform=draw, seed=seed, workers=1):
            drawn |= {number for batch in epoch for number in batch.images}
    assert len(drawn) == 3 * 3 * COUNT
    mixed, straight = (
        {index: number for index, (_, number) in by_index(got).items()}
        for got in (
            batches(varied, transform=draw, shuffle=True),
            batches(varied, transform=draw, shuffle=False),
        )
    )
    assert mixed == straight


def test_padding_is_the_sample_again(varied: Path) -> None:
    """A sample that pads a rank has the same image, transformed alike, and is not valid."""
    # 22 samples for 4 ranks of 6: two pad.
    rows = [
        (facts, picture)
        for rank in range(4)
        for batch in batches(varied, transform=noisy, rank=rank, world_size=4, workers=1)
        for facts, picture in zip(batch.samples, batch.images, strict=True)
    ]
    valid = {facts.index: picture for facts, picture in rows if facts.valid}
    padding = [(facts.index, picture) for facts, picture in rows if not facts.valid]
    assert len(valid) == COUNT
    assert len(padding) == 2
    assert all(torch.equal(picture, valid[index]) for index, picture in padding)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_transform_is_given(exact: Path, workers: int) -> None:
    """It gets the image as RGB, uint8, (H, W, 3), which it may change, and the sample's facts."""

    def transform(
        picture: Pixels, sample: Delivered, rng: np.random.Generator
    ) -> dict[str, object]:
        kind = (picture.dtype == np.uint8, picture.shape, type(rng) is np.random.Generator)
        is_right = bool(np.array_equal(picture, source(sample.key)))
        picture[0, 0] = 0
        return {"kind": kind, "is right": is_right, "sample": sample}

    for batch in batches(exact, workers=workers, transform=transform):
        assert [result["sample"] for result in batch.images] == list(batch.samples)
        assert all(type(result["sample"]) is Delivered for result in batch.images)
        assert all(result["is right"] for result in batch.images)
        assert {result["kind"] for result in batch.images} == {(True, (HEIGHT, WIDTH, 3), True)}


def test_a_transform_gets_images_of_the_size(varied: Path) -> None:
    """With a size too the transform gets what would be delivered without it."""

    def turned(picture: Pixels, _sample: Delivered, _rng: object) -> Pixels:
        return picture.transpose(2, 0, 1)

    assert same_batches(
        batches(varied, size=(9, 7), transform=turned), batches(varied, size=(9, 7))
    )


ARRAYS: list[Callable[[int], Any]] = [
    lambda index: np.full((2, 3), index, dtype=np.float32),
    lambda index: np.full((), index, dtype=np.int64),
    lambda index: np.full((1, 4), index, dtype=np.uint8)[:, ::-2],
    lambda index: torch.full((2, 3), index, dtype=torch.float32),
    lambda index: torch.full((3,), index, dtype=torch.float16),
    lambda index: torch.arange(6).reshape(2, 3).T + index,
    lambda index: torch.full((2,), index > 9),
]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", ARRAYS)
def test_equal_arrays_are_stacked(exact: Path, workers: int, make: Callable[[int], Any]) -> None:
    """Arrays and tensors of one shape and type become one tensor of that type."""
    for batch in batches(
        exact, workers=workers, transform=lambda _image, sample, _rng: make(sample.index)
    ):
        expected = torch.stack(
            [
                torch.as_tensor(
                    make(index).copy() if isinstance(make(index), np.ndarray) else make(index)
                )
                for index in batch.index.tolist()
            ]
        )
        assert isinstance(batch.images, torch.Tensor)
        assert batch.images.dtype == expected.dtype
        assert torch.equal(batch.images, expected)


def alike(left: object, right: object) -> bool:
    """Tell whether two results are of one type and equal."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(alike(left[key], right[key]) for key in left)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    return bool(left == right)


OTHERS: dict[str, Callable[[int], Any]] = {
    "int": lambda index: index,
    "NumPy scalar": np.float32,
    "text": str,
    "None": lambda _index: None,
    "None and arrays": lambda index: np.ones(2) if index % 2 else None,
    "dict": lambda index: {"number": index, "array": np.ones(index), "tensor": torch.ones(2)},
    "tuple": lambda index: (np.ones(2), index),
    "arrays of several shapes": lambda index: np.full(1 + index % 3, index),
    "arrays of several types": lambda index: np.full(2, index, ("u1", "i8")[index % 2]),
    "tensors of several shapes": lambda index: torch.full((1 + index % 3,), index),
    "tensors of several types": lambda index: torch.full(
        (2,), index, dtype=(torch.uint8, torch.float32)[index % 2]
    ),
    "bfloat16": lambda index: torch.full((2,), index, dtype=torch.bfloat16),
    "arrays and numbers": lambda index: index if index % 2 else np.full(2, index),
    "arrays of text": lambda index: np.array([str(index), "b"], dtype="U4"),
    "arrays of objects": lambda index: np.array([index, None], dtype=object),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", OTHERS)
def test_other_results_are_a_list(exact: Path, workers: int, kind: str) -> None:
    """What cannot be one tensor is delivered as a list of what the transform returned."""
    make = OTHERS[kind]
    for batch in batches(
        exact, workers=workers, transform=lambda _image, sample, _rng: make(sample.index)
    ):
        assert isinstance(batch.images, list)
        expected = [make(index) for index in batch.index.tolist()]
        pairs = list(zip(batch.images, expected, strict=True))
        assert all(alike(got, wanted) for got, wanted in pairs), pairs


def test_kept_batches_take_no_descriptors(exact: Path) -> None:
    """A consumer may keep all images of an epoch without running out of descriptors."""
    loader = Loader(exact, batch_size=1, workers=1, size=8)
    kept: list[Batch] = []
    open_files = []
    for batch in loader:
        kept.append(batch)
        open_files.append(len(os.listdir("/proc/self/fd")))
    loader.close()
    assert len(kept) == COUNT
    assert max(open_files) < min(open_files) + COUNT // 2


def pixels_of(data: bytes | memoryview) -> npt.NDArray[np.int64]:
    """Decode with Pillow."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=np.int64)


def gradient(number: int) -> bytes:
    """Return a smooth PNG, which JPEG can keep nearly as it is."""
    y, x = np.mgrid[:40, :56]
    picture = np.stack([4 * x, 6 * y, np.full_like(x, 20 * number)], axis=-1).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("workers", [0, 2])
def test_content_jpeg(tmp_path: Path, workers: int) -> None:
    """JPEGs are delivered as they are, byte by byte; a PNG as a JPEG that looks the same."""
    files: dict[str | bytes, bytes] = {f"{n}.jpg": image(n) for n in range(5)}
    files |= {f"{n}.png": gradient(n) for n in range(5, 8)}
    tarshard.pack(folder(tmp_path / "in", files), tmp_path / "p", shards=2)
    got = batches(tmp_path / "p", workers=workers, content="jpeg", batch_size=3)
    data = {
        key: bytes(part) for batch in got for key, part in zip(batch.keys, batch.data, strict=True)
    }
    assert len(data) == 8
    for n in range(5):
        assert data[str(n)] == files[f"{n}.jpg"]
    for n in range(5, 8):
        with Image.open(io.BytesIO(data[str(n)])) as opened:
            assert (opened.format, opened.size) == ("JPEG", (56, 40))
        assert np.abs(pixels_of(data[str(n)]) - pixels_of(files[f"{n}.png"])).mean() < 2
    assert all(batch.images is None for batch in got)


def test_content_jpeg_with_a_size(varied: Path) -> None:
    """With a size all JPEGs have it, and look like the pixels that would be delivered."""
    jpegs = batches(varied, content="jpeg", size=(32, 48), workers=1)
    pixels = by_index(batches(varied, size=(32, 48)))
    for batch in jpegs:
        for facts, data in zip(batch.samples, batch.data, strict=True):
            wanted = pixels[facts.index][1].permute(1, 2, 0).numpy().astype(np.int64)
            assert pixels_of(data).shape == (32, 48, 3)
            assert np.abs(pixels_of(data) - wanted).mean() < 20


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 0}, "size"),
        ({"size": -3}, "size"),
        ({"size": (4, 0)}, "size"),
        ({"size": (1, 2, 3)}, "size"),
        ({"size": (64, None)}, "size"),
        ({"size": [4, "x"]}, "size"),
        ({"size": "64"}, "size"),
        ({"size": 1.5}, "size"),
        ({"size": 4, "fit": "crop"}, "fit must be"),
        ({"size": 4, "on_error": "ignore"}, "on_error must be"),
        ({"size": 4, "max_pixels": 0}, "max_pixels must be"),
        ({"size": 4, "content": "facts"}, "content 'facts' cannot be decoded"),
        ({"transform": noisy, "content": "sample"}, "content 'sample' cannot be decoded"),
        ({"transform": noisy, "content": "jpeg"}, "transform"),
    ],
)
def test_impossible_values(exact: Path, values: dict[str, Any], message: str) -> None:
    """A value that cannot be is refused when the loader is made, not in the middle of an epoch."""
    with pytest.raises(UsageError, match=message):
        Loader(exact, **({"batch_size": 4, "workers": 0} | values))
