"""Finds the images of a folder, and says of every other file why it is none."""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from tarshard import ustar
from tarshard.errors import InputUnusable
from tarshard.imaging.header import IMAGE_EXTENSIONS, foreign_kind, kind_of
from tarshard.packing.skips import Reason, Skip
from tarshard.progress import NO_PROGRESS, Progress

SNIFF_BYTES = 512
"""Enough to tell an image by its first bytes, and a tar from it."""

_MOST_LINKS = 3
"""Links to folders in one path. Folders that all link to each other have endless paths."""

_CAMERA_RAW = frozenset(b"3fr arw cr2 cr3 dng erf iiq nef nrw orf pef raf rw2 srw".split())
"""Extensions of files that look like a TIFF and hold a sensor's readings behind a thumbnail."""

_SYSTEM_NAMES = {b".ds_store", b"thumbs.db", b"desktop.ini", b"__macosx"}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that is taken for an image: by its extension, or else by its first bytes."""

    path: bytes
    """Relative to the folder."""
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Found:
    """All files of a folder: each is an image or was left out."""

    images: list[SourceFile] = field(default_factory=list)
    """Sorted by path."""
    skips: list[Skip] = field(default_factory=list)


def scan(folder: bytes, *, progress: Progress = NO_PROGRESS) -> Found:
    """Walk through a folder and its symbolic links, as far as these stay inside.

    Raises `InputUnusable` when the folder itself cannot be read.
    """
    if not os.path.isdir(folder):
        what = "is no folder" if os.path.exists(folder) else "does not exist"
        raise InputUnusable(f"{os.fsdecode(folder)} {what}; give a folder of images")
    progress.phase("Scanning")
    found = Found()
    for item in _walk(folder):
        progress.advance(1)
        if isinstance(item, Skip):
            found.skips.append(item)
        else:
            found.images.append(item)
    found.images.sort(key=lambda image: image.path)
    return found


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder yet to be listed."""

    path: bytes
    """Relative; empty for the top."""
    above: tuple[tuple[int, int], ...]
    """Device and inode of it and of the folders it was reached through, to notice loops."""
    links: int
    """How many links it was reached through."""
    excluded: Reason | None
    """Why everything below it is left out."""


def _walk(top: bytes) -> Iterator[SourceFile | Skip]:
    real_top = os.path.realpath(top)
    waiting = [_Folder(b"", (_identity(os.stat(top)),), 0, None)]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(os.path.join(top, folder.path)) as entries:
                listed = list(entries)
        except OSError as error:
            if not folder.path:
                raise InputUnusable(f"{os.fsdecode(top)}: {error.strerror}") from error
            yield Skip(folder.path, Reason.UNREADABLE, _said(error), is_fault=True)
            continue
        for entry in listed:
            yield from _classify(entry, folder, real_top, waiting)


def _classify(
    entry: os.DirEntry[bytes], folder: _Folder, real_top: bytes, waiting: list[_Folder]
) -> Iterator[SourceFile | Skip]:
    path = os.path.join(folder.path, entry.name)
    excluded = folder.excluded or _excluded(entry.name)
    try:
        if excluded and not entry.is_dir(follow_symlinks=False):
            yield Skip(path, excluded, _EXCLUDED_DETAIL[excluded])
            return
        if entry.is_symlink() and (fault := _link_fault(entry, path, real_top)):
            yield fault
            return
        status = entry.stat()
    except OSError as error:
        yield Skip(path, Reason.UNREADABLE, _said(error), is_fault=True)
        return
    if stat.S_ISDIR(status.st_mode):
        links = folder.links + entry.is_symlink()
        if _identity(status) in folder.above:
            yield Skip(path, Reason.LINK_LOOP, "links to a folder that it lies in")
        elif links > _MOST_LINKS:
            yield Skip(path, Reason.LINK_LOOP, f"lies behind more than {_MOST_LINKS} links")
        else:
            waiting.append(_Folder(path, (*folder.above, _identity(status)), links, excluded))
    elif stat.S_ISREG(status.st_mode):
        yield _file(entry, path, status)
    else:
        yield Skip(path, Reason.SPECIAL_FILE, "is a device, socket or pipe")


def _file(entry: os.DirEntry[bytes], path: bytes, status: os.stat_result) -> SourceFile | Skip:
    size_bytes = status.st_size
    extension = _extension_of(entry.name)
    if extension in _CAMERA_RAW:
        return Skip(path, Reason.NOT_AN_IMAGE, "camera raw image, which is not stored")
    if extension not in IMAGE_EXTENSIONS:
        try:
            with open(entry.path, "rb", buffering=0) as file:
                start = file.read(SNIFF_BYTES)
        except OSError as error:
            return Skip(path, Reason.UNREADABLE, _said(error), is_fault=True)
        if kind_of(start) is None:
            return Skip(path, Reason.NOT_AN_IMAGE, describe(start))
    if size_bytes == 0:
        return Skip(path, Reason.NOT_AN_IMAGE, "is empty", is_fault=True)
    if size_bytes >= ustar.MEMBER_LIMIT_BYTES:
        return Skip(
            path,
            Reason.TOO_LARGE,
            f"has {size_bytes:,} bytes; a tar member must be smaller than 8 GiB",
            is_fault=True,
        )
    return SourceFile(path, size_bytes, status.st_mtime_ns)


def _extension_of(name: bytes) -> bytes:
    """Return a file name's extension in lower case, without the dot."""
    return os.path.splitext(name)[1][1:].lower()


def describe(start: bytes) -> str:
    """Say what a file that is no image is, by its first bytes."""
    if not start:
        return "is empty"
    kind = foreign_kind(start)
    return f"{kind}, which is not stored" if kind else "its content is no known kind of image"


_EXCLUDED_DETAIL = {
    Reason.HIDDEN: "is hidden or lies in a hidden folder",
    Reason.SYSTEM: "was left there by an operating system",
}


def _excluded(name: bytes) -> Reason | None:
    if name.lower() in _SYSTEM_NAMES or name.startswith(b"._"):
        return Reason.SYSTEM
    return Reason.HIDDEN if name.startswith(b".") else None


def _link_fault(entry: os.DirEntry[bytes], path: bytes, real_top: bytes) -> Skip | None:
    try:
        target = os.path.realpath(entry.path, strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return Skip(path, Reason.BROKEN_LINK, "links to nothing")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return Skip(path, Reason.LINK_LOOP, "links to itself")
    if not target.startswith(os.path.join(real_top, b"")) and target != real_top:
        # As the link says it, not where that leads: the report must not depend on the place.
        said = os.readlink(entry.path).decode("utf-8", "backslashreplace")
        return Skip(path, Reason.LINK_OUTSIDE, f"links to {said}, outside the folder")
    return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _said(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
