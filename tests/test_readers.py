"""Other tools read what pack writes: every sample, with equal bytes and labels."""

import gc
import hashlib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import webdataset
import webshart
import wids
from making import every_member, folder, image

import tarshard

SHARDS = 5

PLAIN: dict[str | bytes, bytes] = {
    f"n{number:08d}/n{number:08d}_{number * 7919}.JPEG": image(
        number, size=(64 + number, 48 + 2 * (number % 9))
    )
    for number in range(64)
}
"""64 photos in 64 classes."""

AWKWARD: dict[str | bytes, bytes] = {
    "a class/my photo (1).jpg": image(100),
    "a class/my_photo__1_.jpg": image(101),
    "v1.0.beta/shot.final.jpg": image(102),
    "v1.0.beta/shot.raw.jpg": image(103),
    "Katzen über Köln/ñandú.jpg": image(104),
    "写真/猫.jpg": image(105),
    b"latin1/caf\xe9.jpg": image(106),
    b"latin1/caf\xe8.jpg": image(107),
    b"\xff\xfe/\xff.jpg": image(108),
    "-rf/-dash.jpg": image(109),
    "_private/_under.jpg": image(110),
    "__meta__/__init__.jpg": image(111),
    f"long/{'x' * 140}/{'y' * 140}/{'z' * 10}.jpg": image(112),
    f"long/{'x' * 140}/{'y' * 140}/{'z' * 11}.jpg": image(113),
    "twins/1.jpg": image(114),
    "twins/1.png": image(115, kind="PNG"),
    "a/b.jpg": image(116),
    "a_b/c.jpg": image(117),
    "a/b_c.jpg": image(118),
    "a b/c.jpg": image(119),
    "upper/LOUD.JPG": image(120),
    "upper/loud.jpg": image(121),
    "lies/png.JPEG": image(122, kind="PNG"),
    "lies/noextension": image(123),
    "lies/trailing.": image(124),
    "odd/quote'\"\\back\nline.jpg": image(125),
    "odd/#hash%20&{0..9}.jpg": image(126),
    "odd/name.cls.jpg": image(127),
    "odd/name.json": image(128),
    "other/g.webp": image(129, kind="WEBP"),
}
"""Names that break readers, if they are taken as they are."""

LOOSE: dict[str | bytes, bytes] = {
    "top.jpg": image(200),
    "a_b.jpg": image(201),
    "a/b.jpg": image(202),
    "a b.jpg": image(203),
    "-.jpg": image(204),
    b"\xe9.jpg": image(205),
    "noextension": image(206),
}
"""Images that lie in no class folder: a dataset without labels."""


@dataclass(frozen=True)
class Packed:
    """A dataset, and what must be read from it."""

    path: Path
    sources: Mapping[bytes, bytes]
    """Relative path and bytes of each file that was packed."""
    contents: Mapping[bytes, int | None]
    """Bytes of each image, all different, and the number of its class."""

    @property
    def shards(self) -> list[str]:
        """The tars."""
        return [str(path) for path in sorted(self.path.glob("*.tar"))]


@pytest.fixture
def _collected() -> Iterator[None]:
    """Let what a reader left open be found in its own test, where that is expected."""
    yield
    gc.collect()


@pytest.fixture(scope="module", params=["plain", "awkward", "loose"])
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Pack one of the folders above."""
    files = {"plain": PLAIN, "awkward": AWKWARD, "loose": LOOSE}[request.param]
    root = tmp_path_factory.mktemp(request.param)
    result = tarshard.pack(folder(root / "images", files), root / "packed", shards=SHARDS)
    assert (result.shards, result.samples, result.skipped) == (SHARDS, len(files), {})
    sources = {
        path if isinstance(path, bytes) else path.encode(): content
        for path, content in files.items()
    }
    classes = sorted({path.partition(b"/")[0] for path in sources if b"/" in path})
    labelled = request.param != "loose"
    return Packed(
        root / "packed",
        sources,
        {
            content: classes.index(path.partition(b"/")[0]) if labelled else None
            for path, content in sources.items()
        },
    )


def check(packed: Packed, samples: list[Mapping[str, Any]]) -> None:
    """Hold samples of another reader - its key, image bytes, label - against what was packed."""
    keys = [sample["key"] for sample in samples]
    assert len(set(keys)) == len(keys) == len(packed.contents)
    got = {sample["image"]: sample["label"] for sample in samples}
    assert got == dict(packed.contents)


IMAGE_FIELDS = {"jpg", "png", "webp"}


def sample_of(key: str, fields: Mapping[str, bytes]) -> Mapping[str, Any]:
    """Turn a sample as its fields into what `check` takes; any other field is a fault."""
    [kind] = fields.keys() & IMAGE_FIELDS
    assert fields.keys() <= {kind, "cls"}
    label = int(fields["cls"]) if "cls" in fields else None
    return {"key": key, "image": fields[kind], "label": label}


def test_sources_are_all_different(packed: Packed) -> None:
    """The tests below tell images by their bytes, so no two may be equal."""
    assert len(packed.contents) == len(packed.sources)


def test_table(packed: Packed) -> None:
    """Our own tables lead from each original path to its bytes and label."""
    facts = tarshard.open_dataset(packed.path)
    found = {}
    for shard in facts.shards:
        tar = (packed.path / shard.url).read_bytes()
        for sample in facts.table(shard).samples:
            assert sample.path is not None
            start = sample.image.offset
            content = tar[start : start + sample.image.size_bytes]
            found[sample.path.encode("utf-8", "surrogateescape")] = content
            assert sample.label == packed.contents[content]
            assert sample.image.sha256 == hashlib.sha256(content).hexdigest()
    assert found == packed.sources


def test_stream(packed: Packed) -> None:
    """Our own stream delivers every file with its label."""
    samples: list[Mapping[str, Any]] = [
        {
            "key": facts.key,
            "image": bytes(data),
            "label": None if facts.label < 0 else facts.label,
        }
        for batch in tarshard.Stream(packed.path, batch_size=7)
        for facts, data in zip(batch.samples, batch.data, strict=True)
    ]
    check(packed, samples)


def test_tarfile(packed: Packed) -> None:
    """Python's tarfile reads plain members, whose names follow the common convention."""
    samples: dict[str, dict[str, bytes]] = {}
    order = []
    for name, content in every_member(packed.path):
        assert len(name.encode("ascii")) <= 100
        key, dot, extension = name.partition(".")
        assert dot
        assert "." not in extension
        assert not any(part.startswith(("_", "-")) for part in name.split("/"))
        samples.setdefault(key, {})[extension] = content
        order.append(key)
    assert order == [key for key, fields in samples.items() for _ in fields], "members are adjacent"
    check(packed, [sample_of(key, fields) for key, fields in samples.items()])


def test_gnu_tar(packed: Packed, tmp_path: Path) -> None:
    """GNU tar extracts all shards into one folder, without a complaint or a file over another."""
    names = []
    for shard in packed.shards:
        listing = subprocess.run(["tar", "tf", shard], capture_output=True, check=True)
        done = subprocess.run(["tar", "xf", shard, "-C", tmp_path], capture_output=True, check=True)
        assert listing.stderr == done.stderr == b""
        names += listing.stdout.decode("ascii").splitlines()
    extracted = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert sorted(extracted) == sorted(names)
    samples: dict[str, dict[str, bytes]] = {}
    for name, content in extracted.items():
        key, _, extension = name.partition(".")
        samples.setdefault(key, {})[extension] = content
    check(packed, [sample_of(key, fields) for key, fields in samples.items()])


# webdataset leaves closing the files it read to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.usefixtures("_collected")
def test_webdataset(packed: Packed) -> None:
    """The webdataset package reads every sample, image and label as stored."""
    samples = []
    for sample in webdataset.WebDataset(packed.shards, shardshuffle=False):
        fields = {name: value for name, value in sample.items() if not name.startswith("__")}
        samples.append(sample_of(sample["__key__"], fields))
    check(packed, samples)


# webdataset leaves closing the files it read to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.usefixtures("_collected")
def test_webdataset_decodes(packed: Packed) -> None:
    """The webdataset package decodes every label to its number and every image to pixels."""
    labels, pixels = [], 0
    for sample in webdataset.WebDataset(packed.shards, shardshuffle=False).decode("rgb8"):
        [kind] = sample.keys() & IMAGE_FIELDS
        assert sample[kind].ndim == 3
        pixels += sample[kind].size
        if "cls" in sample:
            assert type(sample["cls"]) is int
            labels.append(sample["cls"])
    assert sorted(labels) == sorted(
        label for label in packed.contents.values() if label is not None
    )
    facts = tarshard.open_dataset(packed.path)
    sizes = [
        sample.width * sample.height * 3
        for shard in facts.shards
        for sample in facts.table(shard).samples
        if sample.width is not None and sample.height is not None
    ]
    assert len(sizes) == len(packed.contents)
    assert pixels == sum(sizes)


def test_wids(packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wids package takes index.json as it is and reads every sample by number."""
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path))
    read = wids.ShardListDataset(str(packed.path / "index.json"), transformations=[])
    assert len(read) == len(packed.contents)
    samples = []
    for number in range(len(read)):
        sample = read[number]
        fields = {
            name.removeprefix("."): value.read()
            for name, value in sample.items()
            if not name.startswith("__")
        }
        samples.append(sample_of(sample["__key__"], fields))
    check(packed, samples)


def test_webshart(packed: Packed) -> None:
    """The webshart package finds exactly the samples by our tables, and reads each image."""
    found = webshart.discover_dataset(str(packed.path))
    assert found.num_shards == SHARDS
    assert [found.get_shard_info(at)["name"] for at in range(SHARDS)] == [
        Path(shard).stem for shard in packed.shards
    ]
    assert found.total_files == len(packed.contents)
    assert sum(found.get_shard_sample_count(at) for at in range(SHARDS)) == len(packed.contents)
    sizes = {
        sample.image_name: (sample.width, sample.height)
        for shard in tarshard.open_dataset(packed.path).shards
        for sample in tarshard.open_dataset(packed.path).table(shard).samples
    }
    names, contents = [], []
    for entry in webshart.TarDataLoader(found):
        names.append(entry.path)
        contents.append(bytes(entry.data))
        assert (entry.width, entry.height) == sizes[entry.path]
    assert sorted(names) == sorted(sizes)
    assert sorted(contents) == sorted(packed.contents)


def test_webshart_by_number(packed: Packed) -> None:
    """The webshart package reads any image of a shard by its place among the shard's samples."""
    found = webshart.discover_dataset(str(packed.path))
    contents = []
    for shard in range(SHARDS):
        reader = found.open_shard(shard)
        contents += [bytes(reader.read_file(at)) for at in range(reader.num_samples)]
    assert sorted(contents) == sorted(packed.contents)
