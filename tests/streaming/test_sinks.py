"""What other programs get: a tar that every tar reader reads, and lines of JSON."""

import gc
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from making import dataset, every_member, folder, image, photos

import tarshard
from tarshard.streaming.batch import Batch, Delivered
from tarshard.streaming.dataset import Stream
from tarshard.streaming.order import Tail
from tarshard.streaming.sinks import SINKS, JsonlSink, MjpegSink, NpySink, Rgb24Sink, TarSink

COUNT = 23


@pytest.fixture
def _collected() -> Iterator[None]:
    """Let what a reader left open be found in its own test, where that is expected."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos with classes in five shards."""
    return dataset(tmp_path_factory.mktemp("sinks"), COUNT, 5)


def through(
    sink_type: type[TarSink] | type[JsonlSink],
    packed: Path,
    *,
    ranks: int = 1,
    tail: Tail | None = None,
    shuffle: bool = True,
) -> bytes:
    """Write the epoch of all ranks, one after another, through one sink."""
    file = io.BytesIO()
    sink = sink_type(file)
    for rank in range(ranks):
        for batch in Stream(
            packed,
            batch_size=4,
            shuffle=shuffle,
            content=sink_type.takes if sink_type.takes != "pixels" else "image",
            rank=rank,
            world_size=ranks,
            tail=tail,
        ):
            sink.write(batch)
    sink.finish()
    return file.getvalue()


def members(content: bytes) -> list[tuple[str, bytes]]:
    """Return names and bytes as Python's tarfile reads them."""
    result = []
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            result.append((member.name, file.read()))
    return result


@pytest.mark.parametrize("tail", ["uneven", "pad"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_tar_has_the_members_of_the_shards(packed: Path, ranks: int, tail: Tail) -> None:
    """The tar has each member of the shards once, byte by byte; padding is not written."""
    got = members(through(TarSink, packed, ranks=ranks, tail=tail))
    assert sorted(got) == sorted(every_member(packed))
    assert len(got) == 2 * COUNT


def test_members_of_a_sample_stay_together(packed: Path) -> None:
    """In a shuffled tar too the image is followed by its label."""
    names = [name for name, _ in members(through(TarSink, packed))]
    assert [name.removesuffix(".jpg") for name in names[::2]] == [
        name.removesuffix(".cls") for name in names[1::2]
    ]
    unshuffled = [name for name, _ in members(through(TarSink, packed, shuffle=False))]
    assert names != unshuffled
    assert unshuffled == [name for name, _ in every_member(packed)]


@pytest.mark.parametrize("count", [1, 5, 6, 20])
def test_end_of_the_archive(tmp_path: Path, count: int) -> None:
    """The tar ends with two blocks of zeros at least, and is whole records long."""
    packed = dataset(tmp_path, count, 1)
    content = through(TarSink, packed, shuffle=False)
    assert len(content) % 10_240 == 0
    assert content[-1_024:] == bytes(1_024)
    assert content == (packed / "shard-000000.tar").read_bytes(), "one shard in order is that shard"


def test_empty_tar() -> None:
    """No batch gives an empty tar that can be read, not an empty file."""
    file = io.BytesIO()
    TarSink(file).finish()
    assert file.getvalue() == bytes(10_240)
    assert members(file.getvalue()) == []


def test_gnu_tar(packed: Path, tmp_path: Path) -> None:
    """GNU tar lists and extracts the tar from a pipe without a complaint."""
    content = through(TarSink, packed, ranks=2)
    listing = subprocess.run(["tar", "tf", "-"], input=content, capture_output=True, check=True)
    assert listing.stderr == b""
    assert listing.stdout.decode().splitlines() == [name for name, _ in members(content)]
    done = subprocess.run(
        ["tar", "xf", "-", "-C", tmp_path], input=content, capture_output=True, check=True
    )
    assert done.stderr == b""
    for path, photo in photos(COUNT).items():
        assert (tmp_path / str(path)).read_bytes() == photo


# webdataset leaves closing the files it read to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.usefixtures("_collected")
def test_webdataset(packed: Path, tmp_path: Path) -> None:
    """The webdataset package reads every sample of the tar with its bytes and its label."""
    (tmp_path / "out.tar").write_bytes(through(TarSink, packed, ranks=3))
    read = webdataset.WebDataset(str(tmp_path / "out.tar"), shardshuffle=False)
    samples: list[dict[str, Any]] = list(read)
    assert len(samples) == COUNT
    sources = photos(COUNT)
    for sample in samples:
        assert sample["jpg"] == sources[f"{sample['__key__']}.jpg"]
        assert sample["cls"] == sample["__key__"][len("class") : len("class0")].encode()


def rows(content: bytes) -> list[dict[str, Any]]:
    """Return the objects of JSON lines."""
    assert content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


def test_jsonl_leads_to_the_images(packed: Path) -> None:
    """Each line has exactly the promised fields, and its bytes in the shard are the image."""
    sources = photos(COUNT)
    got = rows(through(JsonlSink, packed))
    for row in got:
        assert list(row) == [
            "key",
            "label",
            "shard",
            "offset",
            "size",
            "width",
            "height",
            "valid",
        ]
        content = (packed / row["shard"]).read_bytes()[row["offset"] : row["offset"] + row["size"]]
        assert content == sources[f"{row['key']}.jpg"]
        number = int(row["key"][-3:])
        assert row["label"] == number % 3
        assert (row["width"], row["height"]) == (16 + 8 * (number % 5), 16 + number % 7)
        assert row["valid"] is True
    assert {row["key"] for row in got} == {str(path).removesuffix(".jpg") for path in sources}
    assert len(got) == COUNT


def test_jsonl_marks_padding(packed: Path) -> None:
    """Padding has a line of its own that says so; the valid lines are the dataset once."""
    got = rows(through(JsonlSink, packed, ranks=3, tail="pad"))
    assert len(got) == 24
    assert [row["valid"] for row in got].count(False) == 1
    assert len({row["key"] for row in got if row["valid"]}) == COUNT


def test_jsonl_without_classes(tmp_path: Path) -> None:
    """Without classes the label is null."""
    tarshard.pack(folder(tmp_path / "in", {"a.jpg": image(0)}), tmp_path / "out", shards=1)
    [row] = rows(through(JsonlSink, tmp_path / "out"))
    assert row["label"] is None
    assert row["key"] == "a"


def test_jsonl_of_nothing() -> None:
    """No batch gives no line."""
    file = io.BytesIO()
    JsonlSink(file).finish()
    assert file.getvalue() == b""


def test_names_of_sinks() -> None:
    """The formats that can be asked for are these."""
    assert set(SINKS) == {"tar", "jsonl", "npy", "rgb24", "mjpeg"}


def of_pixels() -> list[Batch]:
    """Return batches of images of which some are not valid, in one none."""
    images = torch.arange(4 * 3 * 2 * 5, dtype=torch.uint8).reshape(4, 3, 2, 5)
    return [
        Batch([row(at, valid=flag) for at, flag in enumerate(flags)], (), images[: len(flags)])
        for flags in ([True, False, True, True], [False, False], [True])
    ]


def row(index: int, *, valid: bool) -> Delivered:
    """Return facts of a sample."""
    return Delivered(str(index), 0, "s.tar", f"{index}.png", 512, 9, 5, 2, index, valid)


def test_npy_has_valid_images_alone() -> None:
    """A batch is an array of its valid images; without any it is none."""
    file = io.BytesIO()
    sink = NpySink(file)
    for batch in of_pixels():
        sink.write(batch)
    sink.finish()
    file.seek(0)
    first, last = np.load(file), np.load(file)
    assert file.read() == b""
    assert np.array_equal(first, of_pixels()[0].images[[0, 2, 3]].numpy())
    assert np.array_equal(last, of_pixels()[2].images.numpy())


def test_rgb24_has_valid_images_alone() -> None:
    """Frames have rows of pixels of three bytes, and nothing for what is not valid."""
    file = io.BytesIO()
    sink = Rgb24Sink(file)
    for batch in of_pixels():
        sink.write(batch)
    sink.finish()
    frames = np.frombuffer(file.getvalue(), dtype=np.uint8).reshape(-1, 2, 5, 3)
    assert len(frames) == 4
    for frame, at in zip(frames, (0, 2, 3, 0), strict=True):
        assert np.array_equal(frame.transpose(2, 0, 1), of_pixels()[0].images[at].numpy())


def test_mjpeg_has_valid_images_alone() -> None:
    """JPEGs follow one another; what is not valid is left out."""
    file = io.BytesIO()
    sink = MjpegSink(file)
    rows = [row(at, valid=at != 1) for at in range(3)]
    sink.write(Batch(rows, [memoryview(data) for data in (b"one", b"two", b"three")]))
    sink.finish()
    assert file.getvalue() == b"onethree"
