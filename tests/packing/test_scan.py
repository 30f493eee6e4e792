"""The scan: every file below a folder is an image found or a skip with its reason, once."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Watching, folder, image, no_hang

from tarshard.errors import InputUnusable
from tarshard.packing.scan import Found, SourceFile, scan
from tarshard.packing.skips import Reason

JPEG = image()
PNG = image(kind="PNG")
TEXT = b"only words, no pixels\n" * 40


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up root for a while: root may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Give a folder that everybody may enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)  # noqa: S103
        yield Path(made)


@contextmanager
def shut(path: Path) -> Iterator[None]:
    """Take all permissions from a file or folder for a while."""
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(0o755)


def look(root: Path) -> tuple[set[str], dict[str, Reason]]:
    """Scan a folder; return the images found, and the reason for each skip."""
    with no_hang():
        found = scan(os.fsencode(root))
    images = [os.fsdecode(found_image.path) for found_image in found.images]
    skips = [os.fsdecode(skip.path) for skip in found.skips]
    assert len(set(images) | set(skips)) == len(images) + len(skips), "a file was counted twice"
    return set(images), dict(zip(skips, (skip.reason for skip in found.skips), strict=True))


def faults(found: Found) -> set[bytes]:
    """Return the paths of skips that stop a pack."""
    return {skip.path for skip in found.skips if skip.is_fault}


def test_source_file_has_size_and_time(tmp_path: Path) -> None:
    """An image is found with its path below the folder, its size and its time, sorted by path."""
    root = folder(tmp_path / "in", {"b/2.jpg": JPEG, "a.png": PNG, "b/1.jpg": JPEG + b"x"})
    for at, name in enumerate(["a.png", "b/1.jpg", "b/2.jpg"]):
        os.utime(root / name, ns=(5, 1_000_000_007 + at))
    assert scan(os.fsencode(root)).images == [
        SourceFile(b"a.png", len(PNG), 1_000_000_007),
        SourceFile(b"b/1.jpg", len(JPEG) + 1, 1_000_000_008),
        SourceFile(b"b/2.jpg", len(JPEG), 1_000_000_009),
    ]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".hidden.jpg", Reason.HIDDEN),
        ("a/.hidden.jpg", Reason.HIDDEN),
        (".git/a.jpg", Reason.HIDDEN),
        (".git/deep/er/a.jpg", Reason.HIDDEN),
        (".git/._a.jpg", Reason.HIDDEN),
        ("._photo.jpg", Reason.SYSTEM),
        (".DS_Store", Reason.SYSTEM),
        ("a/.DS_Store", Reason.SYSTEM),
        ("Thumbs.db", Reason.SYSTEM),
        ("desktop.ini", Reason.SYSTEM),
        ("__MACOSX/a/._b.jpg", Reason.SYSTEM),
        ("__MACOSX/a/b.jpg", Reason.SYSTEM),
        ("notes.txt", Reason.NOT_AN_IMAGE),
        ("noextension", Reason.NOT_AN_IMAGE),
    ],
)
def test_left_out_by_name_or_content(tmp_path: Path, path: str, reason: Reason) -> None:
    """Hidden files, traces of operating systems and non-images have one row each; none is a fault.

    The files have image content where only their name speaks against them.
    """
    content = TEXT if reason is Reason.NOT_AN_IMAGE else JPEG
    root = folder(tmp_path / "in", {path: content, "b/good.jpg": JPEG})
    assert look(root) == ({"b/good.jpg"}, {path: reason})
    assert faults(scan(os.fsencode(root))) == set()


def test_every_file_of_a_hidden_folder_has_its_row(tmp_path: Path) -> None:
    """A hidden folder is one row a file, not one for all."""
    files: dict[str | bytes, bytes] = {
        f".cache/{n % 3}/{n}.{end}": JPEG for n, end in enumerate(["jpg", "txt", "png"] * 3)
    }
    assert look(folder(tmp_path / "in", files)) == (set(), dict.fromkeys(files, Reason.HIDDEN))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("A.JPG", JPEG),
        ("a.JPeG", PNG),
        ("a.png", JPEG),
        ("missing_extension", JPEG),
        ("a.", PNG),
        ("a.dat", PNG),
        ("a.jpg.bak", JPEG),
        ("not_an_image.jpg", TEXT),
        ("__init__.jpg", JPEG),
        ("_MACOSX", JPEG),
    ],
)
def test_taken_for_an_image(tmp_path: Path, name: str, content: bytes) -> None:
    """An image extension in any case is believed during the scan; otherwise content decides."""
    assert look(folder(tmp_path / "in", {name: content})) == ({name}, {})


@pytest.mark.parametrize("name", ["a.jpg", "B.PNG"])
def test_empty_image_is_a_fault(tmp_path: Path, name: str) -> None:
    """An empty file that calls itself an image cannot be stored."""
    found = scan(os.fsencode(folder(tmp_path / "in", {name: b"", "b.jpg": JPEG, "c.txt": b""})))
    assert faults(found) == {name.encode()}
    assert {skip.path: skip.detail for skip in found.skips} == {
        name.encode(): "is empty",
        b"c.txt": "is empty",
    }
    assert {skip.reason for skip in found.skips} == {Reason.NOT_AN_IMAGE}


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """Names are bytes: any that the file system allows is found as it is."""
    names = [b"\xff\xfe.jpg", b"caf\xe9/\x80", b"new\nline.jpg", b" .jpg", "日本.png".encode()]
    found = scan(os.fsencode(folder(tmp_path / "in", dict.fromkeys(names, JPEG))))
    assert [found_image.path for found_image in found.images] == sorted(names)
    assert found.skips == []


def test_links_to_files(tmp_path: Path) -> None:
    """A link to a file inside is an image of its own; one to a file outside is left out."""
    outside = folder(tmp_path / "out", {"x.jpg": JPEG})
    beside = folder(tmp_path / "in-not", {"x.jpg": JPEG})
    root = folder(tmp_path / "in", {"a/real.jpg": JPEG})
    (root / "absolute.jpg").symlink_to(root / "a/real.jpg")
    (root / "relative.jpg").symlink_to("a/../a/real.jpg")
    (root / "again.jpg").symlink_to("relative.jpg")
    (root / "around.jpg").symlink_to("../in/a/real.jpg")
    (root / "outside.jpg").symlink_to(outside / "x.jpg")
    (root / "beside.jpg").symlink_to(beside / "x.jpg")
    (root / "up").symlink_to("..")
    assert look(root) == (
        {"a/real.jpg", "absolute.jpg", "relative.jpg", "again.jpg", "around.jpg"},
        {
            "outside.jpg": Reason.LINK_OUTSIDE,
            "beside.jpg": Reason.LINK_OUTSIDE,
            "up": Reason.LINK_OUTSIDE,
        },
    )


def test_folder_given_by_a_link(tmp_path: Path) -> None:
    """The folder itself may be a link; links inside are judged by where it really lies."""
    root = folder(tmp_path / "in", {"a.jpg": JPEG})
    (root / "b.jpg").symlink_to(root / "a.jpg")
    (tmp_path / "link").symlink_to(root)
    assert look(tmp_path / "link") == ({"a.jpg", "b.jpg"}, {})


def test_links_to_folders_and_loops(tmp_path: Path) -> None:
    """Links to folders inside are walked, loops end where they close, and each is said once."""
    root = folder(tmp_path / "in", {"a/1.jpg": JPEG, "b/2.jpg": JPEG})
    (root / "again").symlink_to("a")
    (root / "a/to_b").symlink_to("../b")
    (root / "b/to_a").symlink_to("../a")
    (root / "a/parent").symlink_to("..")
    (root / "a/here").symlink_to(".")
    images, skips = look(root)
    assert images == {
        "a/1.jpg", "a/to_b/2.jpg", "b/2.jpg", "b/to_a/1.jpg", "again/1.jpg", "again/to_b/2.jpg",
    }  # fmt: skip
    assert set(skips.values()) == {Reason.LINK_LOOP}
    assert set(skips) == {
        "a/to_b/to_a", "b/to_a/to_b", "a/parent", "a/here", "again/to_b/to_a", "again/parent",
        "again/here", "b/to_a/parent", "b/to_a/here",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("links", "reason"),
    [
        ({"me.jpg": "me.jpg"}, Reason.LINK_LOOP),
        ({"one.jpg": "two.jpg", "two.jpg": "one.jpg"}, Reason.LINK_LOOP),
        ({"broken.jpg": "nowhere.jpg"}, Reason.BROKEN_LINK),
        ({"broken": "/nowhere/at/all"}, Reason.BROKEN_LINK),
        ({"broken.jpg": "good.jpg/below"}, Reason.BROKEN_LINK),
        ({"zero.jpg": "/dev/zero"}, Reason.LINK_OUTSIDE),
        ({".hidden.jpg": "good.jpg"}, Reason.HIDDEN),
        ({".hidden": "."}, Reason.HIDDEN),
        ({"._x.jpg": "nowhere"}, Reason.SYSTEM),
    ],
)
def test_links_that_lead_nowhere(tmp_path: Path, links: dict[str, str], reason: Reason) -> None:
    """A link that gives no file has one row with the reason that it is."""
    root = folder(tmp_path / "in", {"good.jpg": JPEG})
    for name, target in links.items():
        (root / name).symlink_to(target)
    assert look(root) == ({"good.jpg"}, dict.fromkeys(links, reason))


def test_special_files_are_not_opened(tmp_path: Path) -> None:
    """A pipe or socket is left out at once, whatever its name: reading it would wait for ever."""
    root = folder(tmp_path / "in", {"good.jpg": JPEG})
    os.mkfifo(root / "pipe.jpg")
    os.mkfifo(root / "pipe")
    (root / "link.jpg").symlink_to("pipe.jpg")
    with socket.socket(socket.AF_UNIX) as listening:
        at = os.open(root, os.O_PATH)
        listening.bind(f"/proc/self/fd/{at}/socket.png")
        os.close(at)
        assert look(root) == (
            {"good.jpg"},
            dict.fromkeys(["pipe.jpg", "pipe", "link.jpg", "socket.png"], Reason.SPECIAL_FILE),
        )


def test_unreadable_files_and_folders(open_folder: Path) -> None:
    """What the system refuses to list or to sniff is a fault with its own row."""
    root = folder(open_folder / "in", {"good.jpg": JPEG, "shut/x.jpg": JPEG, "unknown": JPEG})
    with shut(root / "shut"), shut(root / "unknown"), as_nobody():
        found = scan(os.fsencode(root))
    assert [found_image.path for found_image in found.images] == [b"good.jpg"]
    assert {skip.path: (skip.reason, skip.detail, skip.is_fault) for skip in found.skips} == {
        b"shut": (Reason.UNREADABLE, "permission denied", True),
        b"unknown": (Reason.UNREADABLE, "permission denied", True),
    }


def test_link_through_an_unreadable_folder(open_folder: Path) -> None:
    """A link that cannot be followed for want of permission is unreadable, and no loop."""
    root = folder(open_folder / "in", {"good.jpg": JPEG, "shut/x.jpg": JPEG})
    (root / "link.jpg").symlink_to("shut/x.jpg")
    with shut(root / "shut"), as_nobody():
        found = scan(os.fsencode(root))
    assert {skip.path: skip.reason for skip in found.skips} == {
        b"shut": Reason.UNREADABLE,
        b"link.jpg": Reason.UNREADABLE,
    }


@pytest.mark.parametrize("kind", ["file", "missing", "dangling"])
def test_no_folder(tmp_path: Path, kind: str) -> None:
    """What is no folder is refused by name."""
    (tmp_path / "file").write_bytes(JPEG)
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(InputUnusable, match=rf"{kind} (is no folder|does not exist)"):
        scan(os.fsencode(tmp_path / kind))


def test_unreadable_top(open_folder: Path) -> None:
    """A folder that cannot be listed at all is refused, and not taken for an empty one."""
    root = folder(open_folder / "in", {"good.jpg": JPEG})
    with shut(root), as_nobody(), pytest.raises(InputUnusable, match="Permission denied"):
        scan(os.fsencode(root))


def test_progress_counts_every_file(tmp_path: Path) -> None:
    """The scan is one phase that advances once for each file, image or not."""
    phases: list[str] = []
    watching = Watching(at_phase=phases.append)
    root = folder(tmp_path / "in", {"a.jpg": JPEG, ".b.jpg": JPEG, "c/d.txt": TEXT})
    scan(os.fsencode(root), progress=watching)
    assert (phases, watching.steps) == (["Scanning"], 3)


NAMES = st.sampled_from(
    [b"a", b"b.jpg", b"c.PNG", b".hid", b"._r", b"__MACOSX", b"Thumbs.db", b"\xff", b"e.txt"]
)
LEAVES = st.sampled_from([JPEG, PNG, TEXT, b"", "link", "loop", "fifo"])
TREES = st.recursive(
    st.dictionaries(NAMES, LEAVES, max_size=5),
    lambda below: st.dictionaries(NAMES, st.one_of(LEAVES, below), max_size=5),
    max_leaves=12,
)


def build(at: bytes, tree: dict[bytes, object]) -> None:
    """Make a tree of files; links lead to the file ``target`` beside the folder, or up."""
    os.makedirs(at)
    for name, what in tree.items():
        path = os.path.join(at, name)
        if isinstance(what, dict):
            build(path, what)
        elif isinstance(what, bytes):
            with open(path, "wb") as file:
                file.write(what)
        elif what == "fifo":
            os.mkfifo(path)
        else:
            os.symlink("nowhere" if what == "link" else ".", path)


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_every_file_is_accounted_for_once(tree: dict[bytes, object]) -> None:
    """Whatever the tree, each name in it that is no real folder is an image or a skip, once."""
    with tempfile.TemporaryDirectory() as made:
        top = os.path.join(os.fsencode(made), b"in")
        build(top, tree)
        there = []
        for at, folders, files in os.walk(top):
            links = [name for name in folders if os.path.islink(os.path.join(at, name))]
            there += [os.path.relpath(os.path.join(at, name), top) for name in files + links]
        with no_hang():
            found = scan(top)
        images = [found_image.path for found_image in found.images]
        assert sorted(images + [skip.path for skip in found.skips]) == sorted(there)
        for path in images:
            assert not any(part.startswith(b".") for part in path.split(b"/"))
            assert os.path.isfile(os.path.join(top, path))
