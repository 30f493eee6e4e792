"""A dataset as it lies in a folder: its facts, and each way in which it can be damaged."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from making import dataset, no_hang

from tarshard import open_dataset
from tarshard.dataset import Dataset
from tarshard.errors import DatasetDamaged, InputUnusable, ShardCorrupt
from tarshard.index import Index, Sample, ShardTable


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Give a dataset of nine samples in three shards and three classes."""
    return dataset(tmp_path, 9, 3)


def use(path: Path) -> Dataset:
    """Open a dataset, all its tables and all its shards."""
    with no_hang():
        opened = open_dataset(path)
        for shard in opened.shards:
            assert len(opened.table(shard).samples) == shard.nsamples
            with opened.open_shard(shard) as file:
                assert file.size_bytes == shard.filesize
    return opened


def with_table(packed: Path, change: Callable[[ShardTable], ShardTable]) -> None:
    """Exchange the second shard's table, and its checksum in the index, as a forger would."""
    path = packed / "shard-000001.json"
    content = change(ShardTable.from_json(path.read_bytes(), name="t")).to_json()
    path.write_bytes(content)
    index = Index.from_json((packed / "index.json").read_bytes())
    row = replace(index.shards[1], table_sha256=hashlib.sha256(content).hexdigest())
    shards = (index.shards[0], row, *index.shards[2:])
    (packed / "index.json").write_bytes(replace(index, shards=shards).to_json())


def test_facts(packed: Path) -> None:
    """A dataset says how many samples, shards and classes it has, and what names its data."""
    opened = use(packed)
    assert (opened.samples, len(opened.shards)) == (9, 3)
    assert opened.classes == ("class0", "class1", "class2")
    assert opened.fingerprint == opened.index.fingerprint
    assert repr(opened) == f"<Dataset {str(packed)!r}: 9 samples, 3 shards>"


def test_moved_dataset_is_the_same(tmp_path: Path, packed: Path) -> None:
    """The fingerprint is of the data, not of the place; a path may be text."""
    before = open_dataset(packed).fingerprint
    packed.rename(tmp_path / "moved")
    assert use(tmp_path / "moved").fingerprint == before
    assert open_dataset(str(tmp_path / "moved")).fingerprint == before


def test_opening_reads_the_index_alone(packed: Path) -> None:
    """Facts need ``index.json`` and nothing else."""
    for path in packed.iterdir():
        if path.name != "index.json":
            path.unlink()
    assert open_dataset(packed).samples == 9


def test_nothing_stays_open(packed: Path) -> None:
    """A dataset holds no descriptor."""
    before = os.listdir("/proc/self/fd")
    opened = use(packed)
    assert opened.samples == 9
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing", "missing does not exist"),
        ("images", "holds no index.json"),
        ("packed/index.json", "is a file; give the folder"),
        ("huge", "more than"),
        ("pipe", "no regular file"),
        ("linked", "links in a dataset are not followed"),
        ("folder", "no regular file"),
    ],
)
def test_no_dataset(tmp_path: Path, packed: Path, path: str, message: str) -> None:
    """What is no dataset is unusable, with what is wrong and where."""
    for name in ("huge", "pipe", "linked", "folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "huge/index.json").touch()
    os.truncate(tmp_path / "huge/index.json", 10**12)
    os.mkfifo(tmp_path / "pipe/index.json")
    (tmp_path / "linked/index.json").symlink_to(packed / "index.json")
    (tmp_path / "folder/index.json").mkdir()
    with pytest.raises(InputUnusable, match=message) as caught:
        use(tmp_path / path)
    assert path in str(caught.value)


def test_damaged_index(packed: Path) -> None:
    """An index cut short is damage that names the file."""
    os.truncate(packed / "index.json", 200)
    with pytest.raises(DatasetDamaged, match=r"packed/index\.json is not JSON"):
        use(packed)


def remove(path: Path) -> None:
    """Remove a file."""
    path.unlink()


def cut(path: Path) -> None:
    """Take the last byte."""
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    """Take all bytes."""
    os.truncate(path, 0)


def lengthen(path: Path) -> None:
    """Add a byte."""
    path.write_bytes(path.read_bytes() + b"\n")


def link(path: Path) -> None:
    """Put a link to the same bytes in its place."""
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def pipe(path: Path) -> None:
    """Put a pipe in its place."""
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    """Put a folder in its place."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", ["shard-000001.tar", "shard-000001.json"])
@pytest.mark.parametrize("harm", [remove, cut, empty, lengthen, link, pipe, directory])
def test_harmed_file(packed: Path, name: str, harm: Callable[[Path], None]) -> None:
    """A tar or table that is not whole is an error that names it; the other shards still serve."""
    harm(packed / name)
    with pytest.raises(ShardCorrupt, match=name.replace(".", r"\.")) as caught:
        use(packed)
    assert caught.value.shard == "shard-000001.tar"
    opened = open_dataset(packed)
    for number in (0, 2):
        assert len(opened.table(opened.shards[number]).samples) == 3
        opened.open_shard(opened.shards[number]).close()


def test_huge_table(packed: Path) -> None:
    """A table of a terabyte is refused by its size, unread."""
    os.truncate(packed / "shard-000001.json", 10**12)
    with pytest.raises(ShardCorrupt, match=r"shard-000001\.json.*more than"):
        use(packed)


def test_exchanged_tables(packed: Path) -> None:
    """The table of another shard is noticed, though it is a whole and valid table."""
    shutil.copy(packed / "shard-000000.json", packed / "shard-000001.json")
    with pytest.raises(ShardCorrupt, match=r"shard-000001\.json is not the table"):
        use(packed)


def test_one_changed_digit(packed: Path) -> None:
    """One changed letter in a table is noticed."""
    path = packed / "shard-000001.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"photo", b"phoXo", 1))
    with pytest.raises(ShardCorrupt, match="sha256 differs"):
        use(packed)


def test_index_without_checksums(packed: Path) -> None:
    """A dataset whose index has no checksums is used without them."""
    row = json.loads((packed / "index.json").read_bytes())
    for shard in row["shardlist"]:
        shard["table_sha256"] = None
        del shard["sha256"]
    (packed / "index.json").write_bytes(json.dumps(row).encode())
    assert use(packed).samples == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: replace(table, samples=table.samples[:-1]), "lists 2 samples"),
        (lambda table: replace(table, samples=()), "lists 0 samples"),
        (lambda table: replace(table, filesize=table.filesize + 1), "bytes"),
        (lambda table: replace(table, samples=with_label(table, 3)), "label"),
        (lambda table: replace(table, samples=with_label(table, 2**62)), "label"),
    ],
)
def test_table_that_disagrees_with_the_index(
    packed: Path, change: Callable[[ShardTable], ShardTable], message: str
) -> None:
    """Counts, sizes and labels of a table must fit the index, even when its checksum does."""
    with_table(packed, change)
    with pytest.raises(ShardCorrupt, match=rf"shard-000001\.json.*{message}"):
        use(packed)


def with_label(table: ShardTable, label: int | None) -> tuple[Sample, ...]:
    """Return the samples with another label for the last one."""
    return (*table.samples[:-1], replace(table.samples[-1], label=label))


@pytest.mark.parametrize("label", [None, 0, 2])
def test_labels_that_are_classes(packed: Path, label: int | None) -> None:
    """Each class, and none, is a label."""
    with_table(packed, lambda table: replace(table, samples=with_label(table, label)))
    assert use(packed).samples == 9


def test_damage_is_said_before_it_costs(packed: Path) -> None:
    """More samples than a tar has room for are damage: nobody may plan an epoch over them."""
    row = json.loads((packed / "index.json").read_bytes())
    row["shardlist"][0]["nsamples"] += 2**60
    row["tarshard"]["samples"] += 2**60
    (packed / "index.json").write_bytes(json.dumps(row).encode())
    with pytest.raises(DatasetDamaged):
        open_dataset(packed)
