"""The whole pack: what stands in OUT, the same wherever it is done, and what it says of faults."""

import base64
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Watching, every_member, everything, folder, image, no_hang, photos, run
from PIL import Image

import tarshard
from tarshard.errors import InputUnusable, SourceProblems, UsageError
from tarshard.index import Index, ShardTable
from tarshard.packing.keys import pack_order

TEXT = b"only words, no pixels\n" * 40


def tables(out: Path) -> list[ShardTable]:
    """Return the tables of a dataset, in the order of the index."""
    index = Index.from_json((out / "index.json").read_bytes())
    return [
        ShardTable.from_json((out / shard.table_name).read_bytes(), name=shard.table_name)
        for shard in index.shards
    ]


def paths_of(out: Path) -> list[list[str | None]]:
    """Return the original paths, shard by shard."""
    return [[sample.path for sample in table.samples] for table in tables(out)]


def check_dataset(out: Path, files: Mapping[str | bytes, bytes]) -> None:
    """Check that a dataset holds these images, each once, and that all its sums are right."""
    index = Index.from_json((out / "index.json").read_bytes())
    stored: dict[bytes, bytes] = {}
    keys: list[str] = []
    names = {"index.json"} | ({"skipped.jsonl"} if index.skipped else set())
    for shard, table in zip(index.shards, tables(out), strict=True):
        tar, table_content = (out / shard.url).read_bytes(), (out / shard.table_name).read_bytes()
        assert (shard.filesize, shard.nsamples) == (len(tar), len(table.samples))
        assert shard.filesize == table.filesize
        assert shard.sha256 == hashlib.sha256(tar).hexdigest()
        assert shard.table_sha256 == hashlib.sha256(table_content).hexdigest()
        names |= {shard.url, shard.table_name}
        for sample in table.samples:
            assert sample.path is not None
            content = tar[sample.image.offset : sample.image.offset + sample.image.size_bytes]
            assert sample.image.sha256 == hashlib.sha256(content).hexdigest()
            with Image.open(io.BytesIO(content)) as shown:
                assert (sample.width, sample.height) == shown.size
            path = sample.path.encode("utf-8", "surrogateescape")
            assert path not in stored
            stored[path] = content
            keys.append(sample.key)
            if sample.label is not None:
                first = index.classes[sample.label].encode("utf-8", "surrogateescape")
                assert path.startswith(first + b"/")
                cls = sample.others["cls"]
                assert tar[cls.offset : cls.offset + cls.size_bytes] == b"%d" % sample.label
    assert stored == {os.fsencode(path): content for path, content in files.items()}
    assert len(set(keys)) == len(keys)
    assert {str(path.relative_to(out)) for path in out.rglob("*")} == names


@pytest.mark.parametrize("shards", [1, 3, 12])
@pytest.mark.parametrize("order", ["shuffled", "path"])
@pytest.mark.parametrize("balance", ["bytes", "count"])
def test_whole_dataset(
    tmp_path: Path,
    shards: int,
    order: Literal["shuffled", "path"],
    balance: Literal["bytes", "count"],
) -> None:
    """Every image is in exactly one of N balanced shards, and index and result agree."""
    files = photos(12)
    root, out = folder(tmp_path / "in", files), tmp_path / "out"
    result = tarshard.pack(root, out, shards=shards, order=order, balance=balance, seed=5)
    check_dataset(out, files)
    index = Index.from_json((out / "index.json").read_bytes())
    weights = [
        [sample.span[1] - sample.span[0] if balance == "bytes" else 1 for sample in table.samples]
        for table in tables(out)
    ]
    assert len(weights) == shards
    assert all(weights)
    loads = [sum(shard) for shard in weights]
    allowed = max(max(shard) for shard in weights)
    allowed *= 2 if order == "path" and balance == "bytes" else 1
    assert max(loads) - min(loads) <= allowed
    sizes = [shard.filesize for shard in index.shards]
    assert (result.out, result.shards, result.samples) == (out, shards, 12)
    assert (result.size_bytes, result.heaviest_bytes, result.lightest_bytes) == (
        sum(sizes), max(sizes), min(sizes),
    )  # fmt: skip
    assert (result.classes, result.labels, result.skipped) == (3, "folder", {})
    assert index.classes == ("class0", "class1", "class2")
    assert (index.seed, index.order, index.created_by) == (
        5, order, f"tarshard {tarshard.__version__}",
    )  # fmt: skip


def test_order_within_shards(tmp_path: Path) -> None:
    """Samples follow each other in pack order: shuffled by the seed, or by path as one line."""
    files = photos(12)
    root = folder(tmp_path / "in", files)
    names = sorted(os.fsencode(path) for path in files)
    for seed in (0, 1):
        tarshard.pack(root, tmp_path / f"{seed}", shards=3, seed=seed)
        rank = [names[at].decode() for at in pack_order(names, order="shuffled", seed=seed)]
        for shard in paths_of(tmp_path / f"{seed}"):
            assert shard == sorted(shard, key=lambda path: rank.index(str(path)))
    assert paths_of(tmp_path / "0") != paths_of(tmp_path / "1")
    tarshard.pack(root, tmp_path / "path", shards=3, order="path")
    in_line = [path for shard in paths_of(tmp_path / "path") for path in shard]
    assert in_line == [name.decode() for name in names]


AWKWARD: dict[str | bytes, bytes] = {
    **photos(9),
    "class0/.hidden.jpg": image(50),
    "class0/notes.txt": TEXT,
    "class1/text.jpg": TEXT,
    "class1/empty.png": b"",
    "__MACOSX/class1/._x.jpg": TEXT,
    b"class2/\xff\xfe.jpg": image(51),
    "class2/png.JPEG": image(52, kind="PNG"),
    "class2/no_extension": image(53),
    "class2/a.b c.jpg": image(54),
    "class2/photo.jpg": image(55),
    "class2/photo.png": image(56, kind="PNG"),
}


def two_places(tmp_path: Path, **options: Any) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Pack two copies of a folder that differ in all that must not matter; return both OUTs."""
    first = folder(tmp_path / "in", AWKWARD)
    second = folder(tmp_path / "some/where/else", dict(reversed(AWKWARD.items())))
    for number, (at, folders, names) in enumerate(os.walk(os.fsencode(second))):
        for name in names + folders:
            path = os.path.join(at, name)
            os.utime(path, ns=(number, 10**18 + number))
            os.chmod(path, 0o700)
    for root in (first, second):
        (root / "class0/link.jpg").symlink_to("../class1/photo001.jpg")
    (tmp_path / "by-link").symlink_to(second)
    tarshard.pack(first, tmp_path / "out", on_error="skip", **options)
    flags = [f"--{name}={value}" for name, value in options.items()]
    env = {"LC_ALL": "C", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}
    out = tmp_path / "some/other/out"
    run("pack", tmp_path / "by-link", out, "--on-error=skip", *flags, env=env)
    return everything(tmp_path / "out"), everything(out)


@pytest.mark.parametrize(
    "options",
    [
        {"shards": 4},
        {"shards": 3, "order": "path"},
        {"shards": 3, "balance": "count", "seed": 9, "labels": "none"},
    ],
)
def test_same_bytes_wherever_it_is_done(tmp_path: Path, options: dict[str, Any]) -> None:
    """Same paths, bytes and options give the same files, whatever place, time or listing order."""
    first, second = two_places(tmp_path, **options)
    assert first.keys() == second.keys()
    assert first == second
    assert not any(os.fsencode(tmp_path) in content for content in first.values())


def test_link_that_leads_out_is_reported_alike(tmp_path: Path) -> None:
    """The skip report tells no absolute path, so it is the same wherever the folder lies."""
    written = []
    for place in ("one", "two"):
        root = folder(tmp_path / place / "in", photos(3))
        (root / "class0/out.jpg").symlink_to("../../x.jpg")
        folder(tmp_path / place, {"x.jpg": image(9)})
        tarshard.pack(root, tmp_path / place / "out", shards=2)
        written.append(everything(tmp_path / place / "out"))
    assert written[0] == written[1]


def test_awkward_folder(tmp_path: Path) -> None:
    """Each file is in a shard or in the report with its reason, and the index counts them."""
    root, out = folder(tmp_path / "in", AWKWARD), tmp_path / "out"
    result = tarshard.pack(root, out, shards=3, on_error="skip")
    skipped = {
        "class0/.hidden.jpg": "hidden",
        "class0/notes.txt": "not-an-image",
        "class1/text.jpg": "not-an-image",
        "class1/empty.png": "not-an-image",
        "__MACOSX/class1/._x.jpg": "system",
    }
    check_dataset(out, {path: AWKWARD[path] for path in AWKWARD if path not in skipped})
    rows = [json.loads(line) for line in (out / "skipped.jsonl").read_bytes().splitlines()]
    assert {row["path"]: row["reason"] for row in rows} == skipped
    assert [row["path"] for row in rows] == sorted(skipped)
    counts = {"hidden": 1, "not-an-image": 3, "system": 1}
    assert result.skipped == counts
    index = Index.from_json((out / "index.json").read_bytes())
    assert index.skipped == counts
    assert {sample.extension for table in tables(out) for sample in table.samples} == {"jpg", "png"}


def test_paths_that_are_not_utf8_stand_as_bytes(tmp_path: Path) -> None:
    """Paths, classes and skips keep bytes that are not UTF-8, as base64 in plain ASCII JSON."""
    files: dict[str | bytes, bytes] = {b"\xff/\xfe.jpg": image(1), b"\xff/a.jpg": image(2)}
    out = tmp_path / "out"
    tarshard.pack(folder(tmp_path / "in", {**files, b"\xff/\xfd.txt": TEXT}), out, shards=1)
    check_dataset(out, files)
    assert json.loads((out / "index.json").read_text("ascii"))["tarshard"]["classes"] == [
        {"bytes": base64.b64encode(b"\xff").decode()}
    ]
    assert json.loads((out / "skipped.jsonl").read_text("ascii"))["path"] == {
        "bytes": base64.b64encode(b"\xff/\xfd.txt").decode()
    }
    assert (out / "shard-000000.json").read_bytes().isascii()


@pytest.mark.parametrize(
    ("files", "labels", "mode", "classes"),
    [
        (["a/1", "b/2"], "auto", "folder", ("a", "b")),
        (["a/1", "b/c/2"], "folder", "folder", ("a", "b")),
        (["a/1", "2"], "auto", "none", ()),
        (["a/1", "2"], "none", "none", ()),
        (["a/1", "b/2"], "none", "none", ()),
    ],
)
def test_labels(
    tmp_path: Path, files: list[str], labels: str, mode: str, classes: tuple[str, ...]
) -> None:
    """Labels are in the tar as digits when there are classes, else there is no .cls at all."""
    root = folder(tmp_path / "in", {f"{name}.jpg": image(at) for at, name in enumerate(files)})
    result = tarshard.pack(root, tmp_path / "out", shards=1, labels=labels, order="path")
    assert result.labels == mode
    assert Index.from_json((tmp_path / "out/index.json").read_bytes()).classes == classes
    labels_in_tar = [
        content for name, content in every_member(tmp_path / "out") if name.endswith(".cls")
    ]
    assert labels_in_tar == [b"%d" % at for at in range(len(classes))]


def test_labels_by_folder_need_a_folder(tmp_path: Path) -> None:
    """``folder`` with a loose image is refused before anything is written."""
    root = folder(tmp_path / "in", {"a/1.jpg": image(1), "2.jpg": image(2)})
    with pytest.raises(SourceProblems, match=r"2\.jpg"):
        tarshard.pack(root, tmp_path / "out", shards=1, labels="folder")
    assert not (tmp_path / "out").exists()


def test_images_that_are_none_are_left_out(tmp_path: Path) -> None:
    """Under skip, a text named .jpg leaves no trace in the tars, which stay readable."""
    files: dict[str | bytes, bytes] = {f"{n:02d}.jpg": image(n) for n in range(10)}
    spoilt: dict[str | bytes, bytes] = {
        **files, "01.jpg": TEXT, "05.jpg": b"\xff\xd8\xff", "09.jpg": b"",
    }  # fmt: skip
    out = tmp_path / "out"
    result = tarshard.pack(folder(tmp_path / "in", spoilt), out, shards=3, on_error="skip")
    assert result.skipped == {"not-an-image": 3}
    check_dataset(out, {name: files[name] for name in files if str(name)[1] not in "159"})
    assert sorted(content for _, content in every_member(out)) == sorted(
        content for name, content in files.items() if str(name)[1] not in "159"
    )


@pytest.mark.parametrize("order", ["shuffled", "path"])
@pytest.mark.parametrize("balance", ["bytes", "count"])
def test_leaving_out_keeps_the_balance(
    tmp_path: Path, order: Literal["shuffled", "path"], balance: Literal["bytes", "count"]
) -> None:
    """When many images are left out, shards are planned again: none is empty, all are balanced."""
    good: dict[str | bytes, bytes] = {f"b{n:02d}.jpg": image(n) for n in range(7)}
    bad: dict[str | bytes, bytes] = {f"a{n:02d}.jpg": TEXT * (n + 1) for n in range(14)}
    out = tmp_path / "out"
    root = folder(tmp_path / "in", good | bad)
    tarshard.pack(root, out, shards=6, order=order, balance=balance, on_error="skip")
    check_dataset(out, good)
    counts = sorted(len(table.samples) for table in tables(out))
    if balance == "count":
        assert counts == [1, 1, 1, 1, 1, 2]
    loads = [table.samples[-1].span[1] for table in tables(out)]
    largest = max(s.span[1] - s.span[0] for table in tables(out) for s in table.samples)
    assert max(loads) - min(loads) <= largest * (2 if order == "path" else 1)


def test_only_affected_shards_are_written_again(tmp_path: Path) -> None:
    """After an image was left out, a shard that the new plan leaves alone is not touched."""
    files: dict[str | bytes, bytes] = {f"{n:02d}.jpg": image(n) for n in range(11)}
    root, out = folder(tmp_path / "in", files | {"09.jpg": TEXT, "10.jpg": TEXT}), tmp_path / "out"
    rounds: list[str] = []

    def mark(phase: str) -> None:
        if phase == "Packing":
            rounds.append(phase)
            for tar in (out / ".tarshard-work").glob("*.tar"):
                os.utime(tar, ns=(1, 1))

    tarshard.pack(
        root, out, shards=3, order="path", balance="count", on_error="skip",
        progress=Watching(at_phase=mark),
    )  # fmt: skip
    assert len(rounds) == 2
    assert [len(table.samples) for table in tables(out)] == [3, 3, 3]
    touched = [(out / f"shard-{n:06d}.tar").stat().st_mtime_ns != 1 for n in range(3)]
    assert touched == [False, True, True]
    check_dataset(out, {name: files[name] for name in list(files)[:9]})


def test_too_few_images_left(tmp_path: Path) -> None:
    """When fewer images are left than shards asked, that is an error and nothing stays."""
    root = folder(tmp_path / "in", {"1.jpg": image(1), "2.jpg": TEXT, "3.jpg": TEXT})
    with pytest.raises(UsageError, match="use --shards 1 or fewer"):
        tarshard.pack(root, tmp_path / "out", shards=2, on_error="skip")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "files",
    [
        {f"{n}.jpg": b"" for n in range(4)},
        {f"{n}.jpg": TEXT for n in range(4)},
    ],
    ids=["seen by the scan", "seen while packing"],
)
def test_all_problems_are_listed(tmp_path: Path, files: dict[str | bytes, bytes]) -> None:
    """Without skip, one error lists every file that cannot be packed, and OUT is not made."""
    root = folder(tmp_path / "in", {**photos(8), **files})
    with pytest.raises(SourceProblems) as caught:
        tarshard.pack(root, tmp_path / "out", shards=8, labels="none")
    assert not (tmp_path / "out").exists()
    assert "--on-error skip" in str(caught.value)
    assert sorted(problem.partition(":")[0] for problem in caught.value.problems) == list(files)


def test_long_list_of_problems_is_cut_for_people(tmp_path: Path) -> None:
    """Ten problems are shown, the rest are counted; all are in the error's own list."""
    root = folder(tmp_path / "in", {f"{n:02d}.jpg": b"" for n in range(13)})
    with pytest.raises(SourceProblems, match=r"(?s)^13 .*09\.jpg.*and 3 more$") as caught:
        tarshard.pack(root, tmp_path / "out", shards=1)
    assert "10.jpg" not in str(caught.value)
    assert len(caught.value.problems) == 13


@pytest.mark.parametrize("files", [{}, {"a.txt": TEXT}, {".a.jpg": TEXT, "b/Thumbs.db": TEXT}])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_no_images(
    tmp_path: Path, files: dict[str | bytes, bytes], on_error: Literal["fail", "skip"]
) -> None:
    """A folder without images is refused, with what was left out of it."""
    with pytest.raises(InputUnusable, match="no images in"):
        tarshard.pack(folder(tmp_path / "in", files), tmp_path / "out", shards=1, on_error=on_error)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"shards": 0},
        {"shards": -1},
        {"shards": 4},
        {"shards": 1, "seed": -1},
        {"shards": 1, "order": "random"},
        {"shards": 1, "balance": "pixels"},
        {"shards": 1, "labels": "file"},
        {"shards": 1, "on_error": "ignore"},
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, Any]) -> None:
    """A value that cannot be is refused with the value, and nothing is written."""
    root = folder(tmp_path / "in", photos(3))
    with pytest.raises(UsageError, match=str(list(options.values())[-1])):
        tarshard.pack(root, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "deleted": (Path.unlink, "vanished"),
    "truncated": (lambda path: os.truncate(path, 50), "changed"),
    "grown": (lambda path: path.write_bytes(path.read_bytes() + b"more"), "changed"),
    "text": (lambda path: path.write_bytes(b"t" * path.stat().st_size), "changed"),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_file_changes_after_the_scan(
    tmp_path: Path, edit: str, on_error: Literal["fail", "skip"]
) -> None:
    """A file that changes between scan and copy is a named fault, or left out where asked."""
    files: dict[str | bytes, bytes] = {f"{n}.jpg": image(n, size=(20 + n, 20)) for n in range(6)}
    root, out = folder(tmp_path / "in", files), tmp_path / "out"
    change, reason = EDITS[edit]

    def spoil(phase: str) -> None:
        if phase == "Packing" and not (out / ".tarshard-work/shard-000000.tar").exists():
            change(root / "3.jpg")

    with no_hang():
        if on_error == "fail":
            with pytest.raises(SourceProblems, match=r"3\.jpg"):
                tarshard.pack(root, out, shards=2, progress=Watching(at_phase=spoil))
            assert not out.exists()
        else:
            result = tarshard.pack(
                root, out, shards=2, on_error="skip", progress=Watching(at_phase=spoil)
            )
            assert result.skipped == {reason: 1}
            check_dataset(out, {name: files[name] for name in files if name != "3.jpg"})


def test_file_edited_between_copies(tmp_path: Path) -> None:
    """An edit in the middle of a pack hits only that file: all other sums stay right."""
    files: dict[str | bytes, bytes] = {f"{n}.jpg": image(n, size=(20 + n, 20)) for n in range(8)}
    root, out = folder(tmp_path / "in", files), tmp_path / "out"
    order = pack_order([b"%d.jpg" % n for n in range(8)], order="shuffled", seed=0)
    last = f"{order[-1]}.jpg"
    watching = Watching(at_step=lambda n: os.truncate(root / last, 9) if n == 9 else None)
    result = tarshard.pack(root, out, shards=1, on_error="skip", progress=watching)
    assert result.skipped == {"changed": 1}
    check_dataset(out, {name: files[name] for name in files if name != last})


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(["good", "big", "text", "empty"]), min_size=1, max_size=12),
    st.integers(1, 5),
    st.sampled_from(["shuffled", "path"]),
    st.sampled_from(["bytes", "count"]),
)
def test_any_mixture(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: list[str],
    shards: int,
    order: Literal["shuffled", "path"],
    balance: Literal["bytes", "count"],
) -> None:
    """Whatever is mixed in, under skip the good images are packed whole, or there are too few."""
    content = {"good": image(1), "big": image(2) + bytes(30_000), "text": TEXT, "empty": b""}
    files: dict[str | bytes, bytes] = {f"{n}.jpg": content[kind] for n, kind in enumerate(kinds)}
    root = folder(tmp_path_factory.mktemp("mixture") / "in", files)
    good = [path for path, kind in zip(files, kinds, strict=True) if kind in {"good", "big"}]
    out = root.parent / "out"
    if len(good) < shards:
        with pytest.raises((UsageError, InputUnusable)):
            tarshard.pack(root, out, shards=shards, order=order, balance=balance, on_error="skip")
        assert not out.exists()
    else:
        tarshard.pack(root, out, shards=shards, order=order, balance=balance, on_error="skip")
        check_dataset(out, {path: files[path] for path in good})


def test_progress_adds_up(tmp_path: Path) -> None:
    """Scanning and packing each advance once for each image, in two phases."""
    phases: list[str] = []
    watching = Watching(at_phase=phases.append)
    tarshard.pack(folder(tmp_path / "in", photos(7)), tmp_path / "out", shards=2, progress=watching)
    assert (phases, watching.steps) == (["Scanning", "Packing"], 14)


def test_big_key_space_in_tar_names(tmp_path: Path) -> None:
    """Names that tars cannot hold get keys they can: ASCII, at most 100 bytes, one dot."""
    files: dict[str | bytes, bytes] = {
        b"x" * 250 + b".jpg": image(1),
        b"/".join([b"deep" * 10] * 9) + b"/a.jpg": image(2),
        "日本語/写真.jpg".encode(): image(3),
        "a.b/c.d.jpg": image(4),
        "__init__/-x.jpg": image(5),
    }
    out = tmp_path / "out"
    tarshard.pack(folder(tmp_path / "in", files), out, shards=1)
    check_dataset(out, files)
    with tarfile.open(out / "shard-000000.tar") as tar:
        for name in tar.getnames():
            assert name.isascii()
            assert len(name) <= 100
            assert name.count(".") == 1
            assert not name.startswith(("_", "-", "/"))
