"""The JSON of index and shard tables: both ways, and against everything that might stand there."""

import bisect
import contextlib
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarshard.errors import DatasetDamaged, InputUnusable, TarshardError
from tarshard.index import Index, Member, Sample, Shard, ShardTable

SHA = hashlib.sha256(b"").hexdigest()
TEXTS = st.one_of(
    st.text(max_size=8),
    st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
)
HASHES = st.one_of(
    st.none(), st.binary(max_size=4).map(lambda raw: hashlib.sha256(raw).hexdigest())
)
COUNTS = st.integers(0, 2**40)
KEYS = st.from_regex(r"[a-z0-9][a-z0-9_\-]{0,3}(/[a-z0-9_\-]{1,3}){0,2}", fullmatch=True)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 3),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["\ud800", "../x", "/x", SHA, "a\0b"]),
        st.just({"bytes": "!"}),
        st.just({"bytes": "/w=="}),
    ),
    lambda below: st.one_of(
        st.lists(below, max_size=3), st.dictionaries(st.text(max_size=4), below, max_size=3)
    ),
    max_leaves=6,
)


def shard(number: int = 0, **changes: Any) -> Shard:
    """Return a shard as a pack would list it."""
    facts: dict[str, Any] = {
        "url": f"shard-{number:06d}.tar",
        "nsamples": 2,
        "filesize": 10_240,
        "sha256": SHA,
        "table_sha256": SHA,
    }
    return Shard(**facts | changes)


INDEX = Index(
    shards=(shard(0), shard(1)),
    classes=("cat", "dog\udcff", "\u00e9"),
    seed=3,
    order="shuffled",
    skipped={"hidden": 2},
    options={"balance": "bytes", "labels": "folder", "shards": 2},
    created_by="tarshard 0.1.0",
)
TABLE = ShardTable(
    10_240,
    (
        Sample("a/1", "jpg", Member(512, 700, SHA), 24, 16, 0, "a/1.JPEG", (0, 2560),
               {"cls": Member(2048, 1, SHA)}),
        Sample("b", "png", Member(3072, 5, None), None, None, None, "b\udcff.png", (2560, 3584)),
    ),
)  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> ShardTable:
    """Make a table whose members follow each other as in a tar."""
    samples = []
    at = 0
    for key in draw(st.lists(KEYS, max_size=4, unique=True)):
        start = at
        members = []
        for size in draw(st.lists(st.integers(0, 3000), min_size=1, max_size=3)):
            members.append(Member(at + 512, size, draw(HASHES)))
            at += 512 + size + -size % 512
        sides = draw(st.one_of(st.none(), st.tuples(st.integers(1, 9), st.integers(1, 9))))
        samples.append(
            Sample(
                key=key,
                extension=draw(st.sampled_from(["jpg", "png"])),
                image=members[0],
                width=sides and sides[0],
                height=sides and sides[1],
                label=draw(st.one_of(st.none(), COUNTS)),
                path=draw(st.one_of(st.none(), TEXTS)),
                span=(start, at),
                others={f"{n}.txt": member for n, member in enumerate(members[1:])},
            )
        )
    return ShardTable(at + draw(st.integers(0, 10_240)), tuple(samples))


INDEXES = st.builds(
    Index,
    shards=st.lists(
        st.builds(
            lambda url, count, spare, sha256, table_sha256: Shard(
                url, count, 1024 * count + spare, sha256, table_sha256
            ),
            st.from_regex(r"[a-z]{1,3}(/[a-z]{1,3}){0,2}\.tar", fullmatch=True),
            st.integers(1, 2**29),
            st.integers(0, 2**30),
            HASHES,
            HASHES,
        ),
        max_size=4,
        unique_by=lambda shard: shard.url,
    ).map(tuple),
    classes=st.lists(TEXTS, max_size=4).map(tuple),
    seed=COUNTS,
    order=st.sampled_from(["shuffled", "path"]),
    skipped=st.dictionaries(st.text(max_size=5), COUNTS, max_size=3),
    options=st.dictionaries(st.text(max_size=5), st.one_of(TEXTS.filter(str.isascii), COUNTS)),
    created_by=st.text(max_size=8),
)


@given(INDEXES)
def test_index_round_trip(index: Index) -> None:
    """An index comes back from its JSON as it was, and makes the same ASCII again."""
    content = index.to_json()
    assert content.isascii()
    back = Index.from_json(content)
    assert back == index
    assert back.to_json() == content
    assert back.fingerprint == index.fingerprint


@given(tables())
def test_table_round_trip(table: ShardTable) -> None:
    """A table comes back from its JSON as it was, and makes the same ASCII again."""
    content = table.to_json()
    assert content.isascii()
    back = ShardTable.from_json(content, name="t.json")
    assert back == table
    assert back.to_json() == content


def test_index_is_a_wids_index() -> None:
    """The file has wids' fields on top and ours in one block, in this order."""
    content = json.loads(INDEX.to_json())
    assert list(content) == ["__kind__", "wids_version", "name", "shardlist", "tarshard"]
    assert content["__kind__"] == "wids-shard-index-v1"
    assert content["wids_version"] == 1
    assert content["shardlist"][1] == {
        "url": "shard-000001.tar",
        "nsamples": 2,
        "filesize": 10_240,
        "sha256": SHA,
        "table_sha256": SHA,
    }
    block = content["tarshard"]
    assert block["format"] == 1
    assert block["samples"] == 4
    assert block["classes"] == ["cat", {"bytes": "ZG9n/w=="}, "\u00e9"]
    assert set(block) == {
        "format", "samples", "classes", "seed", "order", "skipped", "options", "created_by",
    }  # fmt: skip


def test_table_is_a_webshart_sidecar() -> None:
    """``files`` lists the images alone, and what is not UTF-8 stands as base64."""
    content = json.loads(TABLE.to_json())
    assert content["filesize"] == 10_240
    assert content["files"] == {
        "a/1.jpg": {"offset": 512, "size": 700, "sha256": SHA, "width": 24, "height": 16},
        "b.png": {"offset": 3072, "size": 5, "sha256": None},
    }
    assert content["tarshard"]["samples"][1]["path"] == {"bytes": "Yv8ucG5n"}
    assert content["tarshard"]["samples"][0]["members"] == {
        "cls": {"offset": 2048, "size": 1, "sha256": SHA}
    }


def test_fingerprint_is_the_written_rule() -> None:
    """The fingerprint is sha256 over a line for each shard, a dash for a missing checksum."""
    index = Index(shards=(shard(0), shard(1, sha256=None)))
    lines = f"shard-000000.tar 2 10240 {SHA}\nshard-000001.tar 2 10240 -\n"
    assert index.fingerprint == hashlib.sha256(lines.encode()).hexdigest()


def test_fingerprint_names_the_data_alone() -> None:
    """Other classes or options are the same data; another checksum is not."""
    assert Index(shards=INDEX.shards).fingerprint == INDEX.fingerprint
    assert Index(shards=INDEX.shards[:1]).fingerprint != INDEX.fingerprint
    assert Index(shards=INDEX.shards[::-1]).fingerprint != INDEX.fingerprint


def test_table_name_lies_beside_the_tar() -> None:
    """A table has its tar's name with .json for .tar."""
    assert shard(url="a.tar/b.tar").table_name == "a.tar/b.json"
    assert shard(url="b.data").table_name == "b.data.json"


def read_index(content: bytes) -> object:
    """Read bytes as an index, and use what came of it."""
    index = Index.from_json(content)
    # Of what was accepted, everything else must be possible.
    assert len(index.fingerprint) == 64
    assert Index.from_json(index.to_json()) == index
    return index


def read_table(content: bytes) -> object:
    """Read bytes as a table, and use what came of it."""
    table = ShardTable.from_json(content, name="t.json")
    content = table.to_json()
    assert ShardTable.from_json(content, name="t.json").to_json() == content
    return table


READERS = [(read_index, INDEX.to_json()), (read_table, TABLE.to_json())]
both = pytest.mark.parametrize(("read", "content"), READERS, ids=["index", "table"])


@both
@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b'"text"',
        b"{}{}",
        b"\xff\xfe",
        b'{"a": 1,}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 5000,
    ],
    ids=lambda content: repr(content[:12]),
)
def test_what_is_no_json_object_is_damage(
    read: Callable[[bytes], object], content: bytes, broken: bytes
) -> None:
    """Anything but one JSON object, however deep or long, is damage that names the file."""
    assert read(content)
    with pytest.raises(DatasetDamaged, match=r"index\.json|t\.json"):
        read(broken)


@both
def test_every_cut_is_noticed(read: Callable[[bytes], object], content: bytes) -> None:
    """A file cut short anywhere before its last brace is damage."""
    for length in range(len(content.rstrip()) - 1):
        with pytest.raises(TarshardError):
            read(content[:length])


@both
def test_newer_format_is_refused(read: Callable[[bytes], object], content: bytes) -> None:
    """A newer format is not damage: the message gives both versions and says to upgrade."""
    row = json.loads(content)
    row["tarshard"]["format"] = 2
    row["tarshard"]["something_new"] = True
    with pytest.raises(InputUnusable, match=r"format 2, this tarshard reads up to 1; upgrade"):
        read(json.dumps(row).encode())


def test_index_of_another_tool() -> None:
    """A wids index without our block is unusable, not damaged."""
    row = json.loads(INDEX.to_json())
    del row["tarshard"]
    with pytest.raises(InputUnusable, match="not written by tarshard"):
        read_index(json.dumps(row).encode())


@pytest.mark.parametrize(
    "url",
    [
        "../x.tar", "/etc/passwd", "a//b.tar", "a/../b.tar", "a/..", "..", ".", "", "./a.tar",
        "a/", "a\\b.tar", "..\\x.tar", "a\0b.tar", "\ud800.tar", "a/./b.tar",
    ],
)  # fmt: skip
def test_url_that_leads_out_is_refused(url: str) -> None:
    """A url stays below the index and can be a file's name, or the index is refused."""
    row = json.loads(INDEX.to_json())
    row["shardlist"][0]["url"] = url
    with pytest.raises(DatasetDamaged, match="url"):
        read_index(json.dumps(row).encode())


def test_url_that_is_not_utf8() -> None:
    """A url of other bytes than UTF-8 is refused, or serves like every other."""
    row = json.loads(INDEX.to_json())
    row["shardlist"][0]["url"] = {"bytes": "/y50YXI="}
    with contextlib.suppress(DatasetDamaged):
        read_index(json.dumps(row).encode())


BAD_NUMBERS = [True, False, -1, 2**63, 10**400, 1.0, 1e300, "1", None, [], {}]
BAD_TEXTS: list[Any] = [1, None, True, [], {}, {"bytes": 1}, {"bytes": "!"}, {"bytes": "é"}]
BAD_OBJECTS = [1, "x", None, [], True]
BAD_HASHES = [1, "", SHA[1:], SHA + "0", SHA.upper(), SHA[:-1] + "\n", [], {}]


def wrongs(*cases: tuple[str, list[Any]]) -> list[Any]:
    """Spell out cases of a place in the JSON, ``a.b.0.c``, and each wrong value for it."""
    return [
        pytest.param(place, value, id=f"{place}={repr(value)[:24]}")
        for place, values in cases
        for value in values
    ]


def put(row: Any, place: str, value: object) -> None:
    """Put a value at a place in JSON."""
    *above, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    for part in above:
        row = row[part]
    row[last] = value


@pytest.mark.parametrize(
    ("place", "value"),
    wrongs(
        ("tarshard", BAD_OBJECTS),
        ("tarshard.format", BAD_NUMBERS[:3] + BAD_NUMBERS[5:]),
        ("tarshard.samples", [*BAD_NUMBERS, 3, 5, 0]),
        ("tarshard.seed", BAD_NUMBERS),
        ("tarshard.order", BAD_TEXTS),
        ("tarshard.created_by", BAD_TEXTS),
        ("tarshard.classes", [1, None, "x", {}, [1], [None], ["a", {"bytes": "!"}], [["a"]]]),
        ("tarshard.skipped", BAD_OBJECTS),
        ("tarshard.skipped.hidden", BAD_NUMBERS),
        ("tarshard.options", BAD_OBJECTS),
        ("shardlist", [1, None, "x", {}, [1], [None], [[]]]),
        ("shardlist.0", BAD_OBJECTS),
        ("shardlist.0.url", [*BAD_TEXTS, "shard-000001.tar"]),
        ("shardlist.0.nsamples", [*BAD_NUMBERS, 1, 11, 2**50]),
        ("shardlist.0.filesize", [*BAD_NUMBERS, 0, 2047, 2**40]),
        ("shardlist.0.sha256", BAD_HASHES),
        ("shardlist.0.table_sha256", BAD_HASHES),
    ),
)
def test_wrong_value_in_the_index(place: str, value: object) -> None:
    """A value of the wrong type, size or count is damage that names the file."""
    row = json.loads(INDEX.to_json())
    put(row, place, value)
    with pytest.raises(DatasetDamaged, match=r"^index\.json"):
        read_index(json.dumps(row).encode())


@pytest.mark.parametrize(
    ("place", "value"),
    wrongs(
        ("filesize", [*BAD_NUMBERS, 3583]),
        ("files", BAD_OBJECTS),
        ("tarshard", BAD_OBJECTS),
        ("tarshard.format", BAD_NUMBERS[:3] + BAD_NUMBERS[5:]),
        ("tarshard.samples", [1, None, "x", {}, [1], [None]]),
        ("tarshard.samples.0.key", [*BAD_TEXTS, "other", "b"]),
        ("tarshard.samples.0.ext", [*BAD_TEXTS, "gif"]),
        ("tarshard.samples.0.label", [value for value in BAD_NUMBERS if value is not None]),
        ("tarshard.samples.0.path", [value for value in BAD_TEXTS if value is not None]),
        (
            "tarshard.samples.0.span",
            [1, None, [], [0], [0, 1, 2], [0, 0], [9, 3], [-1, 2560], [0, True], [0, 2.0],
             [0, 2**63], [0, "1"], [0, 1000], [513, 2560]],
        ),
        ("tarshard.samples.1.span", [[0, 3584], [2559, 3584], [2560, 2**40], [2560, 10_241]]),
        ("tarshard.samples.0.members", BAD_OBJECTS),
        ("tarshard.samples.0.members.cls", BAD_OBJECTS),
        ("tarshard.samples.0.members.cls.offset", [*BAD_NUMBERS, 511, 2560, 2**40]),
        ("tarshard.samples.0.members.cls.size", [*BAD_NUMBERS, 513]),
        ("tarshard.samples.0.members.cls.sha256", BAD_HASHES),
    ),
)  # fmt: skip
def test_wrong_value_in_a_table(place: str, value: object) -> None:
    """A value of the wrong type, or a member outside of its sample, is damage."""
    row = json.loads(TABLE.to_json())
    put(row, place, value)
    with pytest.raises(DatasetDamaged, match=r"^t\.json"):
        read_table(json.dumps(row).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    wrongs(
        ("offset", [*BAD_NUMBERS, 0, 511, 2048, 2**40]),
        ("size", [*BAD_NUMBERS, 2049]),
        ("sha256", BAD_HASHES),
        ("width", [value for value in BAD_NUMBERS if value is not None]),
        ("height", [value for value in BAD_NUMBERS if value is not None]),
    ),
)
def test_wrong_value_of_an_image(field: str, value: object) -> None:
    """An image row is checked like everything else."""
    row = json.loads(TABLE.to_json())
    row["files"]["a/1.jpg"][field] = value
    with pytest.raises(DatasetDamaged, match=r"^t\.json"):
        read_table(json.dumps(row).encode())


@pytest.mark.parametrize(
    ("read", "content", "places"),
    [
        (*READERS[0], ["shardlist", "tarshard"]),
        (*READERS[0], [f"shardlist.0.{name}" for name in ("url", "nsamples", "filesize")]),
        (*READERS[0], [f"tarshard.{name}" for name in json.loads(READERS[0][1])["tarshard"]]),
        (*READERS[1], ["filesize", "files", "tarshard", "tarshard.format", "tarshard.samples"]),
        (*READERS[1], [f"tarshard.samples.0.{name}" for name in ("key", "ext", "span", "members")]),
        (*READERS[1], [f"tarshard.samples.0.members.cls.{name}" for name in ("offset", "size")]),
    ],
)
def test_missing_fields(read: Callable[[bytes], object], content: bytes, places: list[str]) -> None:
    """A file without a field that every one has is refused, and the message names the field."""
    for place in places:
        row = json.loads(content)
        *above, last = place.split(".")
        node = row
        for part in above:
            node = node[int(part) if part.isdigit() else part]
        del node[last]
        with pytest.raises((DatasetDamaged, InputUnusable), match=last):
            read(json.dumps(row).encode())


@pytest.mark.parametrize("change", ["drop", 1, None, [], "x"])
def test_sample_without_image(change: object) -> None:
    """A sample whose image has no row of its own among the files is damage."""
    row = json.loads(TABLE.to_json())
    if change == "drop":
        del row["files"]["b.png"]
    else:
        row["files"]["b.png"] = change
    with pytest.raises(DatasetDamaged, match=r"b\.png"):
        read_table(json.dumps(row).encode())


def test_two_samples_of_one_key() -> None:
    """A key is unique: a table that has one twice is damaged."""
    first, second = TABLE.samples
    twice = Sample(
        first.key, "png", second.image, None, None, None, None, second.span
    )  # the same key with another extension
    with pytest.raises(DatasetDamaged, match="key"):
        ShardTable.from_json(ShardTable(10_240, (first, twice)).to_json(), name="t.json")


@pytest.mark.parametrize(
    ("key", "extension", "other"),
    [
        ("../up", "jpg", "cls"),
        ("/root", "jpg", "cls"),
        ("a/../b", "jpg", "cls"),
        ("a//b", "jpg", "cls"),
        ("", "jpg", "cls"),
        ("a\0b", "jpg", "cls"),
        ("a", "/../../b", "cls"),
        ("a", "jpg", "/../../b"),
    ],
)
def test_member_name_that_leads_out(key: str, extension: str, other: str) -> None:
    """Key and extension become a file's name in whatever unpacks our tar output: none leads out."""
    others = {other: Member(1536, 1, None)}
    sample = Sample(key, extension, Member(512, 1, None), None, None, None, None, (0, 2048), others)
    content = ShardTable(10_240, (sample,)).to_json()
    with pytest.raises(DatasetDamaged):
        ShardTable.from_json(content, name="t.json")


def is_json(content: str) -> bool:
    """Tell whether Python's json can read so deep."""
    try:
        json.loads(content)
    except RecursionError:
        return False
    return True


@both
def test_depth_that_json_reads_but_python_cannot_print(
    read: Callable[[bytes], object], content: bytes
) -> None:
    """A wrong value nested nearly as deep as json can read is damage, not a RecursionError."""
    row = json.loads(content)
    row["shardlist" if "shardlist" in row else "filesize"] = "HERE"

    def nested(depth: int) -> str:
        return json.dumps(row).replace('"HERE"', "[" * depth + "]" * depth)

    deepest = bisect.bisect(range(200_000), x=False, key=lambda depth: not is_json(nested(depth)))
    for depth in range(deepest - 20, deepest + 5):
        with pytest.raises(DatasetDamaged):
            read(nested(depth).encode())


@settings(max_examples=300)
@given(st.data())
@both
def test_any_change_is_the_same_or_an_error(
    read: Callable[[bytes], object], content: bytes, data: st.DataObject
) -> None:
    """Any value put anywhere gives an index that still works, or a tarshard error; nothing else."""
    row: Any = json.loads(content)
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            spots.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(row)
    for _ in range(data.draw(st.integers(1, 2))):
        node, key = data.draw(st.sampled_from(spots))
        change = data.draw(st.sampled_from(["put", "drop", "double"]))
        if change == "put":
            node[key] = data.draw(JSON)
        elif change == "double" and isinstance(node, list) and key < len(node):
            node.append(node[key])
        elif isinstance(node, dict):
            node.pop(key, None)
    with contextlib.suppress(TarshardError):
        read(json.dumps(row).encode())


@settings(max_examples=200)
@given(st.data())
@both
def test_any_changed_bytes_are_an_answer(
    read: Callable[[bytes], object], content: bytes, data: st.DataObject
) -> None:
    """Damaged bytes give a working index or a tarshard error; nothing else."""
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(TarshardError):
        read(bytes(damaged))
