"""One shard: the tar as others read it, the table, and source files that misbehave."""

import hashlib
import io
import os
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from making import folder, image, no_hang
from PIL import Image

from tarshard import ustar
from tarshard.packing.scan import SourceFile, scan
from tarshard.packing.skips import Reason
from tarshard.packing.write import PlannedSample, WrittenShard, write_shard

MEGABYTE = 1024 * 1024
KINDS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "gif": "GIF", "bmp": "BMP", "tif": "TIFF"}


def plan(root: Path, label: int | None = 3) -> list[PlannedSample]:
    """Return all images of a folder, as a plan would hand them to a shard."""
    images = scan(os.fsencode(root)).images
    return [PlannedSample(found, f"key{n}", label) for n, found in enumerate(images)]


def write(root: Path, planned: Sequence[PlannedSample]) -> tuple[Path, WrittenShard]:
    """Write a shard beside a folder, and check what holds for every shard that is written."""
    tar = root.parent / "shard.tar"
    steps: list[tuple[int, int]] = []
    with no_hang():
        shard = write_shard(
            str(tar), planned, folder=os.fsencode(root), wrote=lambda *step: steps.append(step)
        )
    assert steps == [(1, sample.weight_bytes) for sample in planned]
    assert len(shard.stored) + len(shard.skips) == len(planned)
    assert all(skip.is_fault for skip in shard.skips)
    check_whole(tar, shard)
    return tar, shard


def check_whole(path: Path, shard: WrittenShard) -> None:
    """Check that a tar is what its table says, to the last byte."""
    content = path.read_bytes()
    table = shard.table
    assert (len(content), shard.sha256) == (table.filesize, hashlib.sha256(content).hexdigest())
    assert len(content) % ustar.RECORD_BYTES == 0
    at = 0
    names: list[str] = []
    for planned, sample in zip(shard.stored, table.samples, strict=True):
        assert sample.key == planned.key
        assert sample.span[0] == at
        members = {
            sample.image_name: sample.image,
            **{f"{sample.key}.{name}": member for name, member in sample.others.items()},
        }
        for name, member in members.items():
            assert member.offset == at + 512
            stored = content[member.offset : member.offset + member.size_bytes]
            assert member.sha256 == hashlib.sha256(stored).hexdigest()
            assert content[at : at + 512] == ustar.header(name, member.size_bytes)
            at = member.offset + member.size_bytes + -member.size_bytes % 512
        assert sample.span[1] == at
        names += members
    assert content[at:] == ustar.end_of_archive(at)
    with tarfile.open(path, "r:") as tar:
        assert tar.getnames() == names


def test_tar_as_tarfile_reads_it(tmp_path: Path) -> None:
    """Members are plain files without owner or time, image first, label beside it."""
    files: dict[str | bytes, bytes] = {f"{n}.jpg": image(n, size=(8 + n, 9)) for n in range(4)}
    root = folder(tmp_path / "in", files)
    tar_path, _ = write(root, plan(root, label=12))
    content = tar_path.read_bytes()
    with tarfile.open(tar_path, "r:") as tar:
        members = tar.getmembers()
        assert [member.name for member in members] == [
            f"key{n}.{end}" for n in range(4) for end in ("jpg", "cls")
        ]
        for at, member in enumerate(members):
            assert (member.type, member.mode) == (b"0", 0o644)
            assert (member.uid, member.gid, member.mtime) == (0, 0, 0)
            assert (member.uname, member.gname, member.linkname) == ("", "", "")
            assert member.pax_headers == {}
            assert content[member.offset + 257 : member.offset + 265] == b"ustar\x0000"
            file = tar.extractfile(member)
            assert file is not None
            assert file.read() == (b"12" if at % 2 else files[f"{at // 2}.jpg"])


def test_without_labels_there_is_no_cls(tmp_path: Path) -> None:
    """A sample without a label is its image alone."""
    root = folder(tmp_path / "in", {"a.jpg": image(1), "b.jpg": image(2)})
    tar_path, shard = write(root, plan(root, label=None))
    with tarfile.open(tar_path) as tar:
        assert tar.getnames() == ["key0.jpg", "key1.jpg"]
    assert [sample.label for sample in shard.table.samples] == [None, None]


@pytest.mark.parametrize("extension", KINDS)
@pytest.mark.parametrize("name", ["x.JPEG", "x.png", "x"])
def test_content_decides_the_extension(tmp_path: Path, extension: str, name: str) -> None:
    """An image gets the extension of what it is, and the size that Pillow sees."""
    content = image(5, size=(37, 21), kind=KINDS[extension])
    root = folder(tmp_path / "in", {name: content})
    _, shard = write(root, plan(root))
    (sample,) = shard.table.samples
    with Image.open(io.BytesIO(content)) as shown:
        assert (sample.width, sample.height) == shown.size == (37, 21)
    assert (sample.extension, sample.path) == (extension, name)
    assert sample.image.size_bytes == len(content)


@pytest.mark.parametrize(
    "size", [511, 512, 513, 1024, MEGABYTE - 1, MEGABYTE, MEGABYTE + 1, 3 * MEGABYTE]
)
def test_any_size_is_stored_whole(tmp_path: Path, size: int) -> None:
    """Bytes are stored as they are, whatever lies around block and chunk boundaries."""
    start = image(2, size=(4, 4), kind="PNG")
    content = start + bytes((at * 31 + 7) % 251 for at in range(size - len(start)))
    root = folder(tmp_path / "in", {"a.png": content, "b.png": start})
    tar_path, shard = write(root, plan(root))
    with tarfile.open(tar_path) as tar:
        file = tar.extractfile("key0.png")
        assert file is not None
        assert file.read() == content
    assert shard.skips == ()


def test_weight_is_what_it_takes(tmp_path: Path) -> None:
    """The plan's weights add up to the tar, but for its end."""
    root = folder(tmp_path / "in", {f"{n}.jpg": image(n, size=(8 * n + 8, 9)) for n in range(9)})
    for label in (None, 0, 1000):
        planned = plan(root, label)
        _, shard = write(root, planned)
        assert shard.table.samples[-1].span[1] == sum(sample.weight_bytes for sample in planned)


def test_path_that_is_not_utf8(tmp_path: Path) -> None:
    """The original path is kept, whatever its bytes."""
    root = folder(tmp_path / "in", {b"d/\xff\n.jpg": image()})
    _, shard = write(root, plan(root))
    path = shard.table.samples[0].path
    assert path is not None
    assert path.encode("utf-8", "surrogateescape") == b"d/\xff\n.jpg"


Spoil = Callable[[Path], object]


def replace_by(make: Callable[[Path], object]) -> Spoil:
    """Return what removes a file and makes something else in its place."""

    def spoil(path: Path) -> None:
        path.unlink()
        make(path)

    return spoil


def unnoticed(other: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Return what puts other content of the same size and time in a file's place."""

    def spoil(path: Path) -> None:
        status = path.stat()
        path.write_bytes(other(path.read_bytes()[:4]).ljust(status.st_size, b"\0"))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    return spoil


SPOILERS: dict[str, tuple[Spoil, Reason, str]] = {
    "deleted": (Path.unlink, Reason.VANISHED, "gone"),
    "truncated": (lambda path: os.truncate(path, 100), Reason.CHANGED, "before, 100 now"),
    "emptied": (lambda path: os.truncate(path, 0), Reason.CHANGED, "before, 0 now"),
    "appended": (lambda path: path.write_bytes(path.read_bytes() + b"x"), Reason.CHANGED, "now"),
    "another": (
        replace_by(lambda path: path.write_bytes(image(9, size=(99, 99)))),
        Reason.CHANGED,
        "changed while it was packed",
    ),
    "folder": (replace_by(Path.mkdir), Reason.UNREADABLE, "is a directory"),
    "looped": (
        replace_by(lambda path: path.symlink_to(path.name)), Reason.UNREADABLE, "symbolic links",
    ),
    "dangling": (replace_by(lambda path: path.symlink_to("no")), Reason.VANISHED, "gone"),
    "device": (replace_by(lambda path: path.symlink_to("/dev/zero")), Reason.CHANGED, ""),
    "same size": (
        lambda path: path.write_bytes(b"t" * path.stat().st_size), Reason.CHANGED, "changed",
    ),
    "text": (unnoticed(lambda _start: b"t"), Reason.NOT_AN_IMAGE, "content"),
    "html": (unnoticed(lambda _start: b"<html>"), Reason.NOT_AN_IMAGE, "HTML page"),
    "headless": (unnoticed(lambda start: start), Reason.NOT_AN_IMAGE, "gives no size"),
}  # fmt: skip


@pytest.mark.parametrize("spoiler", SPOILERS)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_file_spoiled_after_the_scan(tmp_path: Path, spoiler: str, at: int) -> None:
    """A file that is not what the scan saw is left out with its reason, and leaves no trace."""
    spoil, reason, detail = SPOILERS[spoiler]
    root = folder(tmp_path / "in", {f"{n}.jpg": image(n, size=(40, 30 + n)) for n in range(3)})
    planned = plan(root)
    spoil(root / f"{at}.jpg")
    tar_path, shard = write(root, planned)
    (skip,) = shard.skips
    assert (skip.path, skip.reason) == (b"%d.jpg" % at, reason)
    assert detail in skip.detail
    assert shard.stored == tuple(planned[:at] + planned[at + 1 :])
    others = folder(tmp_path / "again" / "in", {"none": b""})
    for n in {0, 1, 2} - {at}:
        os.link(root / f"{n}.jpg", others / f"{n}.jpg")
    undisturbed, _ = write(others, planned[:at] + planned[at + 1 :])
    assert tar_path.read_bytes() == undisturbed.read_bytes()


def test_file_replaced_by_a_pipe(tmp_path: Path) -> None:
    """A pipe in a file's place is left out: packing does not wait for somebody to write to it."""
    root = folder(tmp_path / "in", {"0.jpg": image(0), "1.jpg": image(1)})
    planned = plan(root)
    (root / "0.jpg").unlink()
    os.mkfifo(root / "0.jpg")
    _, shard = write(root, planned)
    assert [skip.path for skip in shard.skips] == [b"0.jpg"]


def test_folder_above_vanished(tmp_path: Path) -> None:
    """When a whole folder goes, each of its images is missed by name."""
    root = folder(tmp_path / "in", {"d/0.jpg": image(0), "d/1.jpg": image(1), "e.jpg": image(2)})
    planned = plan(root)
    (root / "d").rename(tmp_path / "moved")
    _, shard = write(root, planned)
    assert [(skip.path, skip.reason) for skip in shard.skips] == [
        (b"d/0.jpg", Reason.VANISHED),
        (b"d/1.jpg", Reason.VANISHED),
    ]


def test_nothing_left(tmp_path: Path) -> None:
    """A shard whose images all went is an empty tar, and says so."""
    root = folder(tmp_path / "in", {"0.jpg": image(0)})
    planned = plan(root)
    (root / "0.jpg").unlink()
    tar_path, shard = write(root, planned)
    assert tar_path.read_bytes() == bytes(ustar.RECORD_BYTES)
    assert shard.table.samples == ()


@contextmanager
def after_first_read(act: Callable[[], object]) -> Iterator[list[str]]:
    """Do something once, right after the first piece of an image was read.

    Python's profiling hook tells when the real read returns.
    """
    done: list[str] = []

    def hook(frame: FrameType, event: str, argument: object) -> None:
        is_read = event == "c_return" and getattr(argument, "__name__", "") == "read"
        if is_read and frame.f_code.co_name == "_copy_image" and not done:
            done.append("acted")
            act()

    sys.setprofile(hook)
    try:
        yield done
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("edit", ["cut", "append", "overwrite", "empty"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_file_edited_while_it_is_read(tmp_path: Path, edit: str, at: int) -> None:
    """A file that changes under the reader is an error, never a torn sample."""
    content = image(1) + bytes(3 * MEGABYTE)
    root = folder(tmp_path / "in", {f"{n}.jpg": image(n) for n in range(3)})
    path = root / f"{at}.jpg"
    path.write_bytes(content)
    os.utime(path, ns=(0, 10**18))
    planned = plan(root)
    planned = planned[at:] + planned[:at]

    def act() -> None:
        with open(path, "r+b") as file:
            if edit == "append":
                file.seek(0, os.SEEK_END)
                file.write(b"more")
            elif edit == "overwrite":
                file.seek(2 * MEGABYTE)
                file.write(b"other")
            else:
                file.truncate(MEGABYTE + 5 if edit == "cut" else 0)

    with after_first_read(act) as done:
        _, shard = write(root, planned)
    assert done
    (skip,) = shard.skips
    assert (skip.path, skip.reason) == (b"%d.jpg" % at, Reason.CHANGED)
    assert len(shard.stored) == len(planned) - 1


def test_trouble_with_the_tar_is_no_skip(tmp_path: Path) -> None:
    """When the tar cannot be written, that is an error of the system and blames no image."""
    root = folder(tmp_path / "in", {"0.jpg": image(0)})
    with pytest.raises(OSError, match="No space left on device"):
        write_shard("/dev/full", plan(root), folder=os.fsencode(root), wrote=lambda *_: None)


def test_header_beyond_the_first_chunk(tmp_path: Path) -> None:
    """An image whose size stands far into the file is read there, and copied once all the same."""
    plain = image(3, size=(30, 20))
    segment = b"\xff\xe1" + (65_000).to_bytes(2) + bytes(64_998)
    content = plain[:2] + segment * 20 + plain[2:]
    assert len(content) > MEGABYTE
    root = folder(tmp_path / "in", {"0.jpg": content})
    tar_path, shard = write(root, plan(root))
    assert (shard.table.samples[0].width, shard.table.samples[0].height) == (30, 20)
    assert tar_path.read_bytes()[512 : 512 + len(content)] == content


def test_key_too_long_for_a_tar_name(tmp_path: Path) -> None:
    """A key that no header can hold is a mistake of the caller, not a cut name."""
    root = folder(tmp_path / "in", {"0.jpg": image(0)})
    status = (root / "0.jpg").stat()
    planned = PlannedSample(
        SourceFile(b"0.jpg", status.st_size, status.st_mtime_ns), "k" * 97, None
    )
    with pytest.raises(ValueError, match="at most 100 bytes"):
        write_shard(str(tmp_path / "t"), [planned], folder=os.fsencode(root), wrote=lambda *_: None)
