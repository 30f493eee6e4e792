"""The folder that a pack writes to: its state, and how it becomes whole or stays as it was.

Everything is written to ``.tarshard-work`` inside it. Committing moves an old
index out of the way, moves the new shards in and the new index last, so that at
no instant an index lies over shards that are not whole.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tarshard.errors import CannotWrite, TarshardError, UsageError
from tarshard.index import INDEX_NAME, Index
from tarshard.packing.scan import SourceFile
from tarshard.packing.skips import SKIPS_NAME

WORK_NAME = ".tarshard-work"

_LOCK_NAME = "lock"
_ASKED_NAME = "asked.json"
_REPLACED_NAME = "replaced-index.json"
_OWN_FILES = re.compile(r"shard-\d{6,}\.(tar|json)|" + re.escape(SKIPS_NAME))


def check_apart(images: Path, out: Path) -> None:
    """Raise `UsageError` when one folder lies in the other, also by links."""
    real_images, real_out = Path(os.path.realpath(images)), Path(os.path.realpath(out))
    if real_out.is_relative_to(real_images):
        raise UsageError(f"{out} lies inside {images}; write the shards to a folder outside of it")
    if real_images.is_relative_to(real_out):
        raise UsageError(f"{images} lies inside {out}; write the shards to another folder")


def check_state(out: Path, *, overwrite: bool) -> None:
    """Raise `CannotWrite` unless a pack may write to ``out`` in the state it is in."""
    if not out.exists():
        if os.path.lexists(out):
            raise CannotWrite(f"{out} is a link to nothing; remove it, or name another folder")
        return
    if not out.is_dir():
        raise CannotWrite(f"{out} is a file; name a folder that does not exist, or an empty one")
    try:
        names = set(os.listdir(out))
    except OSError as error:
        raise CannotWrite(f"{out}: {error.strerror}") from error
    if INDEX_NAME in names:
        if not overwrite:
            raise CannotWrite(f"{out} holds a dataset already; --overwrite replaces it")
        _check_replaceable(out / INDEX_NAME)
    elif names and WORK_NAME not in names:
        raise CannotWrite(
            f"{out} holds other files ({', '.join(sorted(names)[:3])}); "
            "name a folder that does not exist, or an empty one"
        )


def _check_replaceable(index_path: Path) -> None:
    try:
        _files_of(index_path)
    except TarshardError as error:
        raise CannotWrite(
            f"{error}; which shards to replace is not known, so remove {index_path.parent} yourself"
        ) from error


class Workspace:
    """The work folder of one pack, held under a lock."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out / WORK_NAME

    def tar_path(self, name: str) -> str:
        """Return where a growing file lies."""
        return str(self.path / name)

    def write(self, name: str, content: bytes) -> None:
        """Write a file of the new dataset and force it to disk."""
        with open(self.path / name, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def commit(self, names: Iterable[str]) -> None:
        """Put the new dataset in place of what was there: these files, then the index.

        All of them lie in the work folder, forced to disk.
        """
        replaced = self.path / _REPLACED_NAME
        _sync_folder(self.path)
        if (self.out / INDEX_NAME).exists():
            os.replace(self.out / INDEX_NAME, replaced)
            _sync_folder(self.out)
        new = sorted(names)
        for name in new:
            os.replace(self.path / name, self.out / name)
        if replaced.exists():
            _remove(self.out, _files_of(replaced) - set(new))
        _sync_folder(self.out)
        os.replace(self.path / INDEX_NAME, self.out / INDEX_NAME)
        _sync_folder(self.out)


@contextmanager
def workspace(out: Path, *, asked: Mapping[str, object]) -> Iterator[Workspace]:
    """Make ``out`` and its work folder; take both away again if the pack does not succeed.

    ``asked`` says what is packed and how; a work folder that a killed pack left is
    taken over when it is the same, else `CannotWrite` says so. So does it when
    ``out`` is full or read-only.
    """
    made = not out.exists()
    space = Workspace(out)
    wanted = json.dumps(asked, sort_keys=True).encode("ascii")
    lock = _lock(space)
    try:
        _check_left(space, wanted)
        try:
            _clear(space)
            space.write(_ASKED_NAME, wanted)
            yield space
            shutil.rmtree(space.path)
        except BaseException as error:
            _undo(space, remove_out=made)
            if isinstance(error, OSError):
                raise _cannot_write(out, error) from error
            raise
    finally:
        os.close(lock)


def sources_digest(sources: Iterable[SourceFile]) -> str:
    """Return what changes when a source file is added, removed or edited."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(b"%d %d %s\0" % (source.size_bytes, source.mtime_ns, source.path))
    return digest.hexdigest()


def check_space(out: Path, needed_bytes: int) -> None:
    """Raise `CannotWrite` when the file system of ``out`` has less room than that."""
    at = out.absolute()
    while not at.exists():
        at = at.parent
    free_bytes = shutil.disk_usage(at).free
    if free_bytes < needed_bytes:
        raise CannotWrite(
            f"{out} needs {needed_bytes:,} bytes, its file system has {free_bytes:,} left; "
            "make room or write elsewhere"
        )


def _lock(space: Workspace) -> int:
    try:
        space.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(space.path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _cannot_write(space.out, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_taken = os.fstat(lock).st_nlink == 0
        holder = "finished just now"
    except BlockingIOError:
        is_taken = True
        holder = "process " + (os.pread(lock, 32, 0).decode("ascii", "replace") or "unknown")
    except OSError as error:
        os.close(lock)
        raise _cannot_write(space.out, error) from error
    if is_taken:
        os.close(lock)
        raise CannotWrite(f"{space.out} is being written by another tarshard pack ({holder})")
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d" % os.getpid(), 0)
    return lock


def _check_left(space: Workspace, wanted: bytes) -> None:
    """Raise `CannotWrite` if a killed pack of something else left its work here."""
    asked = space.path / _ASKED_NAME
    if asked.exists() and asked.read_bytes() != wanted:
        raise CannotWrite(
            f"{space.out} holds an unfinished pack of other images or with other options; "
            f"repeat that command to finish it, or remove {space.path} to give it up"
        )


def _clear(space: Workspace) -> None:
    for name in os.listdir(space.path):
        if name not in {_LOCK_NAME, _ASKED_NAME, _REPLACED_NAME}:
            os.unlink(space.path / name)


def _undo(space: Workspace, *, remove_out: bool) -> None:
    """Take back what is not whole; a commit that has begun stays, to be finished by a rerun."""
    if _commit_has_begun(space):
        return
    shutil.rmtree(space.path, ignore_errors=True)
    if remove_out and not os.listdir(space.out):
        os.rmdir(space.out)


def _commit_has_begun(space: Workspace) -> bool:
    has_index = (space.out / INDEX_NAME).exists()
    return not has_index and any(_OWN_FILES.fullmatch(name) for name in os.listdir(space.out))


def _cannot_write(out: Path, error: OSError) -> CannotWrite:
    what = (error.strerror or str(error)).lower()
    advice = "; make room or write elsewhere" if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""
    return CannotWrite(f"cannot write to {out}: {what}{advice}")


def _files_of(index_path: Path) -> set[str]:
    index = Index.from_json(index_path.read_bytes(), name=str(index_path))
    names = {SKIPS_NAME}
    for shard in index.shards:
        names |= {shard.url, shard.table_name}
    return names


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
