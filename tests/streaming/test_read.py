"""Pieces of shards, read whole or refused with what is wrong and where."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from making import dataset, photos

from tarshard.dataset import Dataset
from tarshard.errors import DatasetDamaged, ShardCorrupt
from tarshard.index import INDEX_NAME, Sample, ShardTable
from tarshard.streaming.order import Piece
from tarshard.streaming.read import Content, ShardReader

COUNT = 20
FIRST = "shard-000000.tar"

needs_proc = pytest.mark.skipif(
    sys.platform != "linux", reason="counts the entries of /proc/self/fd"
)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty photos in four shards; only to be read."""
    return dataset(tmp_path_factory.mktemp("read"), COUNT, 4)


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """The same to be damaged."""
    return shutil.copytree(packed, tmp_path / "copy")


@pytest.fixture
def reader(copy: Path) -> Iterator[ShardReader]:
    """A reader of the copy's images."""
    with ShardReader(Dataset(copy), content="image", open_shards=2) as opened:
        yield opened


def samples_of(path: Path, shard: int = 0) -> tuple[Sample, ...]:
    """Return what the table of a shard lists."""
    facts = Dataset(path)
    return facts.table(facts.shards[shard]).samples


def whole(path: Path, shard: int = 0) -> Piece:
    """Return the piece that is all of a shard."""
    return Piece(shard, 0, Dataset(path).shards[shard].nsamples, valid=True)


def edit(file: Path, offset: int, content: bytes) -> None:
    """Overwrite bytes in the middle of a file."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(content)


def without_checksums(path: Path, table: ShardTable) -> None:
    """Put another table into the first shard's place, in a dataset that knows no sums of tables."""
    (path / FIRST).with_suffix(".json").write_bytes(table.to_json())
    index = Dataset(path).index
    shards = tuple(replace(shard, table_sha256=None) for shard in index.shards)
    (path / INDEX_NAME).write_bytes(replace(index, shards=shards).to_json())


def test_images_are_the_source_files(packed: Path) -> None:
    """Every image is byte by byte the file that was packed, with its facts."""
    facts = Dataset(packed)
    sources = photos(COUNT)
    seen = []
    with ShardReader(facts, content="image", open_shards=1) as reader:
        for number, shard in enumerate(facts.shards):
            for sample in reader.read(whole(packed, number)):
                path = f"{sample.facts.key}.jpg"
                assert bytes(sample.data) == sources[path]
                assert sample.data.readonly
                assert sample.facts.shard == shard.url
                assert sample.facts.size_bytes == len(sources[path])
                assert facts.classes[sample.facts.label] == path.partition("/")[0]
                assert sample.facts.valid
                with (packed / shard.url).open("rb") as tar:
                    tar.seek(sample.facts.offset)
                    assert tar.read(sample.facts.size_bytes) == sources[path]
                seen.append(sample.facts.index)
    assert seen == list(range(COUNT))


@pytest.mark.parametrize("valid", [True, False])
def test_part_of_a_shard(packed: Path, valid: bool) -> None:
    """A piece in the middle of a shard is the same samples as in the whole shard."""
    with ShardReader(Dataset(packed), content="image", open_shards=1) as reader:
        everything = reader.read(whole(packed, 1))
        part = reader.read(Piece(1, 1, 2, valid))
    assert [bytes(sample.data) for sample in part] == [bytes(s.data) for s in everything[1:3]]
    assert [s.facts for s in part] == [s.facts._replace(valid=valid) for s in everything[1:3]]


def test_whole_samples_are_their_spans(packed: Path) -> None:
    """All of a sample is the bytes from its first header to the next sample's."""
    with ShardReader(Dataset(packed), content="sample", open_shards=1) as reader:
        read = reader.read(whole(packed, 2))
    tar = (packed / "shard-000002.tar").read_bytes()
    spans = [sample.span for sample in samples_of(packed, 2)]
    assert [bytes(sample.data) for sample in read] == [tar[start:stop] for start, stop in spans]


def test_facts_need_no_image(copy: Path) -> None:
    """For facts alone no image is read: they come though the open shard has lost all its bytes."""
    with ShardReader(Dataset(copy), content="facts", open_shards=1) as reader:
        before = reader.read(whole(copy))
        os.truncate(copy / FIRST, 0)
        after = reader.read(whole(copy))
    assert after == before
    assert all(len(sample.data) == 0 for sample in after)
    assert [s.facts.key for s in after] == [s.key for s in samples_of(copy)]


def test_missing_shard(copy: Path, reader: ShardReader) -> None:
    """A shard that is not there is named."""
    (copy / FIRST).unlink()
    with pytest.raises(ShardCorrupt, match=f"^{FIRST} is missing; ") as caught:
        reader.read(whole(copy))
    assert caught.value.shard == FIRST


def test_missing_table(copy: Path, reader: ShardReader) -> None:
    """A table that is not there is named, and its shard with it."""
    (copy / "shard-000000.json").unlink()
    with pytest.raises(ShardCorrupt, match=r"^shard-000000\.json is missing; ") as caught:
        reader.read(whole(copy))
    assert caught.value.shard == FIRST


@pytest.mark.parametrize("change", [-1, -10_240, 10_240])
def test_wrong_size(copy: Path, reader: ShardReader, change: int) -> None:
    """A shard that is shorter or longer than the index says is refused when it is opened."""
    size = (copy / FIRST).stat().st_size
    os.truncate(copy / FIRST, size + change)
    expected = f"^{FIRST} has {size + change:,} bytes, the index says {size:,}; "
    with pytest.raises(ShardCorrupt, match=expected) as caught:
        reader.read(whole(copy))
    assert caught.value.shard == FIRST


@needs_proc
def test_refused_shard_is_closed(copy: Path, reader: ShardReader) -> None:
    """An error at opening leaves no descriptor behind, and is the same error again."""
    edit(copy / "shard-000000.json", 0, b"[")
    for _ in range(3):
        with pytest.raises(ShardCorrupt, match="its sha256 differs"):
            reader.read(whole(copy))
    assert open_tars(copy) == []


def test_cut_short_while_read(copy: Path, reader: ShardReader) -> None:
    """A shard that loses its end after it was opened is refused, with the member at the cut."""
    samples = samples_of(copy)
    reader.read(Piece(0, 0, 1, valid=True))
    cut = samples[2].image.offset + 3
    os.truncate(copy / FIRST, cut)
    assert len(reader.read(Piece(0, 0, 2, valid=True))) == 2, "what is left can be read"
    with pytest.raises(ShardCorrupt, match=f"ends at byte {cut:,}, inside ") as caught:
        reader.read(whole(copy))
    error = caught.value
    assert (error.shard, error.member, error.offset) == (FIRST, samples[2].image_name, cut)


HEADER_EDITS: list[tuple[int, bytes]] = [
    (0, b"x"),  # the name
    (0, b"\0"),
    (99, b"x"),  # the end of the name field
    (124, b"00000000001\0"),  # another size
    (124, b"00000000009\0"),  # digits that are not octal
    (124, b"99999999999\0"),
    (124, b"-0000000001\0"),
    (124, b"            "),
    (124, b"\x80" + bytes(11)),  # GNU's binary size
    (124, "0000000001²".encode()),
    (257, b"u\0"),  # the magic
    (0, bytes(512)),  # as if the file had a hole
]


@pytest.mark.parametrize("content", ["image", "sample"])
@pytest.mark.parametrize(("at", "wrong"), HEADER_EDITS)
def test_header_disagrees(copy: Path, content: Content, at: int, wrong: bytes) -> None:
    """A header that is not that of the table's member is refused, with member and offset."""
    sample = samples_of(copy)[1]
    header = sample.image.offset - 512
    edit(copy / FIRST, header + at, wrong)
    with ShardReader(Dataset(copy), content=content, open_shards=1) as reader:
        assert len(reader.read(Piece(0, 0, 1, valid=True))) == 1, "the sample before is whole"
        with pytest.raises(ShardCorrupt, match=f"at byte {header:,} there is no header") as caught:
            reader.read(whole(copy))
    error = caught.value
    assert (error.shard, error.member, error.offset) == (FIRST, sample.image_name, header)


def test_other_members_are_checked_too(copy: Path) -> None:
    """Whole samples are delivered with all headers right, not only the image's."""
    sample = samples_of(copy)[1]
    header = sample.others["cls"].offset - 512
    edit(copy / FIRST, header, b"x")
    with (
        ShardReader(Dataset(copy), content="sample", open_shards=1) as reader,
        pytest.raises(ShardCorrupt, match=f"at byte {header:,}") as caught,
    ):
        reader.read(whole(copy))
    error = caught.value
    assert (error.shard, error.member, error.offset) == (FIRST, f"{sample.key}.cls", header)


def test_swapped_shards(copy: Path, reader: ShardReader) -> None:
    """Another shard's bytes of the same size under this name do not pass for it."""
    other = next(
        shard.url
        for shard in Dataset(copy).shards[1:]
        if shard.filesize == Dataset(copy).shards[0].filesize
    )
    shutil.copy(copy / other, copy / FIRST)
    with pytest.raises(ShardCorrupt, match="does not belong to its table"):
        reader.read(whole(copy))


def test_edited_table(copy: Path, reader: ShardReader) -> None:
    """A table that is not the one the index was written with is refused, be it valid or not."""
    table = copy / "shard-000000.json"
    table.write_bytes(table.read_bytes().replace(b'"label":0', b'"label":1', 1))
    with pytest.raises(ShardCorrupt, match=r"^shard-000000\.json .* sha256 differs") as caught:
        reader.read(whole(copy))
    assert caught.value.shard == FIRST


def _with_first(table: ShardTable, sample: Sample) -> ShardTable:
    return replace(table, samples=(sample, *table.samples[1:]))


WRONG_TABLES: dict[str, tuple[Callable[[ShardTable], ShardTable], str]] = {
    "a sample is missing": (lambda t: replace(t, samples=t.samples[1:]), r"lists \d+ samples"),
    "another size": (lambda t: replace(t, filesize=t.filesize + 512), "lists .* bytes"),
    "no such class": (
        lambda t: _with_first(t, replace(t.samples[0], label=3)),
        "a label that is none of the 3 classes",
    ),
    "an image outside its span": (
        lambda t: _with_first(
            t, replace(t.samples[0], image=replace(t.samples[0].image, size_bytes=10**6))
        ),
        "not inside its sample's span",
    ),
    "a span beyond the file": (
        lambda t: replace(
            t,
            samples=(
                *t.samples[:-1],
                replace(t.samples[-1], span=(t.samples[-1].span[0], t.filesize + 1)),
            ),
        ),
        "its samples end at byte",
    ),
    "spans that overlap": (
        lambda t: _with_first(
            t, replace(t.samples[0], span=(t.samples[0].span[0], t.samples[0].span[1] + 1))
        ),
        "span must be two rising offsets",
    ),
}


@pytest.mark.parametrize("what", WRONG_TABLES)
def test_wrong_tables(copy: Path, what: str) -> None:
    """Without a checksum a table that contradicts index or itself is still refused by name."""
    wrong, message = WRONG_TABLES[what]
    facts = Dataset(copy)
    without_checksums(copy, wrong(facts.table(facts.shards[0])))
    with (
        ShardReader(Dataset(copy), content="image", open_shards=1) as reader,
        pytest.raises(DatasetDamaged, match=rf"shard-000000\.json.*{message}"),
    ):
        reader.read(whole(copy))


def test_shard_that_is_a_link(copy: Path, tmp_path: Path, reader: ShardReader) -> None:
    """A link in a shard's place is not followed, wherever it leads."""
    shutil.move(copy / FIRST, tmp_path / "elsewhere.tar")
    (copy / FIRST).symlink_to(tmp_path / "elsewhere.tar")
    with pytest.raises(ShardCorrupt, match=f"{FIRST} is .* not followed"):
        reader.read(whole(copy))


def test_shard_that_is_a_pipe(copy: Path, reader: ShardReader) -> None:
    """A named pipe in a shard's place is refused, not waited for."""
    (copy / FIRST).unlink()
    os.mkfifo(copy / FIRST)
    with pytest.raises(ShardCorrupt, match=f"{FIRST} is no regular file"):
        reader.read(whole(copy))


def open_tars(packed: Path) -> list[str]:
    """Return the tars of a dataset that this process has open, as Linux lists them."""
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # the descriptor of this listing itself
            continue
    below = f"{packed.resolve()}/"
    return sorted(t.removeprefix(below) for t in targets if t.startswith(below))


@needs_proc
@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_open_shards_are_limited(packed: Path, limit: int) -> None:
    """A reader keeps the last few shards open, never more than it may, and none at its end."""
    facts = Dataset(packed)
    with ShardReader(facts, content="image", open_shards=limit) as reader:
        for turn in range(12):
            reader.read(Piece(turn * 3 % 4, 0, 1, valid=True))
            assert len(open_tars(packed)) == min(turn + 1, limit, len(facts.shards))
    assert open_tars(packed) == []


@needs_proc
def test_oldest_shard_is_closed_first(packed: Path) -> None:
    """The shard that was not used for the longest time makes way for a new one."""
    with ShardReader(Dataset(packed), content="image", open_shards=2) as reader:
        for shard in (0, 1, 0, 2):
            reader.read(Piece(shard, 0, 1, valid=True))
        assert open_tars(packed) == ["shard-000000.tar", "shard-000002.tar"]
