"""The local folder: bytes by name, and nothing beyond it, whatever lies in it."""

import errno
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import folder, no_hang

from tarshard.storage.local import LocalFolder, OutsideFolder, is_inside

FILES: dict[str | bytes, bytes] = {
    "a.tar": b"0123456789",
    "sub/b.tar": b"below",
    "sub/deep/c.tar": b"deeper",
    "empty": b"",
    "na me\n.tar": b"odd",
}


def read(root: Path, name: str) -> bytes:
    """Read a whole file; nothing may make this wait."""
    with no_hang():
        return LocalFolder(root).read(name, limit_bytes=1000)


@pytest.mark.parametrize("name", [str(name) for name in FILES])
def test_files_by_name(tmp_path: Path, name: str) -> None:
    """A file is read whole by its name, at any depth, with its size known."""
    root = folder(tmp_path / "data", FILES)
    assert read(root, name) == FILES[name]
    with LocalFolder(root).open(name) as file:
        assert (file.name, file.size_bytes) == (name, len(FILES[name]))


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "/", "../outside", "/etc/passwd", "a//b", "sub/../a.tar", "sub/..", "sub/",
        "./a.tar", "sub/./b.tar", "a.tar\0", "\0",
    ],
)  # fmt: skip
def test_names_that_lead_out(tmp_path: Path, name: str) -> None:
    """A name that could lead out is refused by its letters alone."""
    (tmp_path / "outside").write_bytes(b"secret")
    assert not is_inside(name)
    with pytest.raises(OutsideFolder) as caught:
        read(folder(tmp_path / "data", FILES), name)
    assert caught.value.filename == name


@given(st.lists(st.sampled_from(["a", "..", ".", "", "...", "a.b", " "]), min_size=1, max_size=5))
def test_inside_is_what_a_path_says(parts: list[str]) -> None:
    """Every name that is called inside stays below the folder when normalised, and is normal."""
    name = "/".join(parts)
    if is_inside(name):
        assert os.path.normpath(os.path.join("/data", name)) == f"/data/{name}"
    else:
        assert set(parts) & {"", ".", ".."}


@pytest.mark.parametrize(
    ("link", "target", "name"),
    [
        ("l.tar", "a.tar", "l.tar"),
        ("l.tar", "../outside/secret", "l.tar"),
        ("l.tar", "/etc/passwd", "l.tar"),
        ("l.tar", "l.tar", "l.tar"),
        ("l.tar", "nowhere", "l.tar"),
        ("sub/l.tar", "b.tar", "sub/l.tar"),
        ("l", "sub", "l/b.tar"),
        ("l", "../outside", "l/secret"),
        ("l", ".", "l/a.tar"),
        ("l", "l", "l/a.tar"),
        ("sub/l", "deep", "sub/l/c.tar"),
        ("sub/l", "../..", "sub/l/outside/secret"),
    ],
)
def test_links_are_not_followed(tmp_path: Path, link: str, target: str, name: str) -> None:
    """No link below the folder is followed, wherever it leads, at any place of a name."""
    folder(tmp_path / "outside", {"secret": b"secret"})
    root = folder(tmp_path / "data", FILES)
    (root / link).symlink_to(target)
    with pytest.raises(OutsideFolder) as caught:
        read(root, name)
    assert caught.value.errno in {errno.ELOOP, errno.ENOTDIR}
    assert caught.value.filename == name


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    """Where the user points is the user's choice: links are followed down to the folder."""
    folder(tmp_path / "data", FILES)
    (tmp_path / "link").symlink_to("data")
    assert read(tmp_path / "link", "a.tar") == FILES["a.tar"]
    assert read(tmp_path / "link", "sub/b.tar") == FILES["sub/b.tar"]


@pytest.mark.parametrize("name", ["pipe", "sub/pipe", "socket", "sub", "sub/deep"])
def test_only_regular_files(tmp_path: Path, name: str) -> None:
    """A pipe, socket or folder is refused at once: opening must not wait for a writer."""
    root = folder(tmp_path / "data", FILES)
    os.mkfifo(root / "pipe")
    os.mkfifo(root / "sub/pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        at = os.open(root, os.O_PATH)
        listening.bind(f"/proc/self/fd/{at}/socket")
        os.close(at)
        with pytest.raises(OSError, match=name) as caught:
            read(root, name)
    assert caught.value.errno in {errno.EINVAL, errno.ENXIO}


def test_device(tmp_path: Path) -> None:
    """A device is no file of a dataset."""
    assert tmp_path.is_dir()
    with pytest.raises(OSError, match="no regular file"):
        read(Path("/dev"), "zero")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("missing", FileNotFoundError),
        ("sub/missing", FileNotFoundError),
        ("missing/a.tar", FileNotFoundError),
        ("a.tar/below", OSError),
        ("n" * 300, OSError),
        ("sub/" + "n" * 300, OSError),
        ("/".join(["sub"] * 2000), OSError),
    ],
)
def test_what_the_system_refuses(tmp_path: Path, name: str, error: type[OSError]) -> None:
    """Other trouble is the system's own error, with the name that was asked for."""
    with pytest.raises(error) as caught:
        read(folder(tmp_path / "data", FILES), name)
    assert caught.value.filename == name


@pytest.mark.parametrize("name", ["\ud800.tar", "sub/\ud800.tar"])
def test_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    """A text that no file system can spell is an OSError like any other bad name."""
    with pytest.raises(OSError, match=r"\\ud800"):
        read(folder(tmp_path / "data", FILES), name)


def test_missing_folder(tmp_path: Path) -> None:
    """A folder that is missing, or a file, has no files in it."""
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "missing", tmp_path / "file"):
        for name in ("a.tar", "sub/a.tar"):
            with pytest.raises((FileNotFoundError, NotADirectoryError)):
                read(root, name)


@pytest.mark.parametrize(("limit", "fits"), [(9, False), (10, True), (11, True), (0, False)])
def test_limit(tmp_path: Path, limit: int, fits: bool) -> None:
    """A file of more bytes than allowed is refused, one of as many is read."""
    local = LocalFolder(folder(tmp_path / "data", FILES))
    if fits:
        assert local.read("a.tar", limit_bytes=limit) == b"0123456789"
    else:
        with pytest.raises(OSError, match=f"has 10 bytes, more than {limit}"):
            local.read("a.tar", limit_bytes=limit)


def test_huge_file_is_refused_unread(tmp_path: Path) -> None:
    """A file of a terabyte is refused by its size; no memory is taken for it."""
    root = folder(tmp_path / "data", FILES)
    os.truncate(root / "a.tar", 10**12)
    with pytest.raises(OSError, match="1,000,000,000,000 bytes"):
        read(root, "a.tar")


@given(st.integers(0, 14), st.integers(0, 14))
def test_read_into(tmp_path_factory: pytest.TempPathFactory, offset: int, size: int) -> None:
    """A read fills what the file has for it, leaves the rest alone and says how much that was."""
    root = folder(tmp_path_factory.getbasetemp() / "read-into", FILES)
    buffer = bytearray(b"-" * size)
    with LocalFolder(root).open("a.tar") as file:
        count = file.read_into(memoryview(buffer), offset)
    assert buffer[:count] == b"0123456789"[offset : offset + size]
    assert bytes(buffer[count:]) == b"-" * (size - count)


def test_reads_have_no_common_position(tmp_path: Path) -> None:
    """Each read names its place, so reads do not disturb each other."""
    buffer = bytearray(3)
    with LocalFolder(folder(tmp_path / "data", FILES)).open("a.tar") as file:
        for offset in (7, 0, 7, 3):
            assert file.read_into(memoryview(buffer), offset) == 3
            assert buffer == b"0123456789"[offset : offset + 3]


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    """Whatever happens, no descriptor stays open; closing twice is nothing."""
    root = folder(tmp_path / "data", FILES)
    (root / "l.tar").symlink_to("a.tar")
    os.mkfifo(root / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("a.tar", "sub/deep/c.tar", "l.tar", "pipe", "sub", "sub/missing", "a.tar/x"):
        try:
            read(root, name)
        except OSError:
            continue
    file = LocalFolder(root).open("a.tar")
    file.close()
    file.close()
    assert len(os.listdir("/proc/self/fd")) == before
