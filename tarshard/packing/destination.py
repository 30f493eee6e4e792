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
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tarshard.errors import CannotWrite, TarshardError, UsageError
from tarshard.index import INDEX_LIMIT_BYTES, INDEX_NAME, Index
from tarshard.packing.scan import SourceFile
from tarshard.packing.skips import SKIPS_NAME
from tarshard.storage.local import LocalFolder

WORK_NAME = ".tarshard-work"

_LOCK_NAME = "lock"
_ASKED_NAME = "asked.json"
_REPLACED_NAME = "replaced-index.json"
_DATASET_FILES = re.compile(r"shard-\d{6,}\.(tar|json)|" + re.escape(SKIPS_NAME))
"""What a pack puts beside the index. No other file is ever removed."""
_WORK_NAMES = {_LOCK_NAME, _ASKED_NAME, _REPLACED_NAME, INDEX_NAME}


def destination_path(out: str | os.PathLike[str]) -> Path:
    """Return where ``out`` leads, once and for all; the way there may change when it is made.

    Raises `UsageError` for no name, `CannotWrite` for a link to nothing.
    """
    if not os.fspath(out):
        raise UsageError("the name of the folder for the shards is empty")
    if os.path.islink(out) and not os.path.exists(out):
        raise CannotWrite(f"{out} is a link to nothing; remove it, or name another folder")
    return Path(os.path.realpath(out))


def check_apart(images: Path, out: Path) -> None:
    """Raise `UsageError` when one folder lies in the other, also by links; ``out`` has none."""
    real_images, real_out = Path(os.path.realpath(images)), out
    if real_out.is_relative_to(real_images):
        raise UsageError(f"{out} lies inside {images}; write the shards to a folder outside of it")
    if real_images.is_relative_to(real_out):
        raise UsageError(f"{images} lies inside {out}; write the shards to another folder")


def check_state(out: Path, *, overwrite: bool) -> None:
    """Raise `CannotWrite` unless a pack may write to ``out`` in the state it is in."""
    try:
        _check_state(out, overwrite=overwrite)
    except OSError as error:
        raise _cannot_write(out, error) from error


def _check_state(out: Path, *, overwrite: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise CannotWrite(f"{out} is a file; name a folder that does not exist, or an empty one")
    names = set(os.listdir(out))
    if INDEX_NAME in names and overwrite:
        _check_replaceable(out / INDEX_NAME)
    elif INDEX_NAME in names and WORK_NAME not in names:
        raise _taken(out)
    elif names - {WORK_NAME} and not (out / WORK_NAME / _ASKED_NAME).exists():
        raise CannotWrite(
            f"{out} holds other files ({', '.join(sorted(names)[:3])}); "
            "name a folder that does not exist, or an empty one"
        )
    if WORK_NAME in names:
        _check_work_is_ours(out / WORK_NAME)


def _taken(out: Path) -> CannotWrite:
    return CannotWrite(
        f"{out} holds a dataset already; to replace it, ask to overwrite (--overwrite)"
    )


def _check_replaceable(index_path: Path) -> None:
    try:
        strange = {n for n in _files_of(index_path) if not _DATASET_FILES.fullmatch(n)}
        problem = f"{index_path} lists {min(strange)!r}, no name that pack gives" if strange else ""
    except (TarshardError, OSError) as error:
        problem = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    if problem:
        raise CannotWrite(
            f"{problem}; what to replace is not known, so remove {index_path.parent} yourself"
        )


def _check_work_is_ours(work: Path) -> None:
    if work.is_symlink() or not work.is_dir():
        raise CannotWrite(f"{work} is no folder that tarshard made; remove it yourself")
    for name in os.listdir(work):
        is_named = name in _WORK_NAMES or _DATASET_FILES.fullmatch(name)
        if not is_named or not stat.S_ISREG(os.lstat(work / name).st_mode):
            raise CannotWrite(
                f"{work} holds {name!r}, which tarshard did not make; remove it yourself"
            )


class Workspace:
    """The work folder of one pack, held under a lock."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out / WORK_NAME
        self.is_committed = False
        """A pack of the same was killed after its last step: nothing is left to do."""

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
            for name in _files_of(replaced) - set(new):
                (self.out / name).unlink(missing_ok=True)
        _sync_folder(self.out)
        os.replace(self.path / INDEX_NAME, self.out / INDEX_NAME)
        _sync_folder(self.out)


@contextmanager
def workspace(
    out: Path, *, asked: Mapping[str, object], overwrite: bool, needed_bytes: int
) -> Iterator[Workspace]:
    """Make ``out`` and its work folder; take both away again if the pack does not succeed.

    ``asked`` says what is packed and how; a work folder that a killed pack left is
    taken over when it is the same, else `CannotWrite` says so. So does it when
    ``out`` is full, has less room than needed, or is read-only.
    """
    space = Workspace(out)
    wanted = json.dumps({**asked, "overwrite": overwrite}, sort_keys=True).encode("ascii")
    made = _missing_folders(space.path)
    lock = None
    is_ours = False
    try:
        space.path.mkdir(parents=True, exist_ok=True)
        lock = _lock(space)
        _check_left(space, wanted, overwrite=overwrite)
        is_ours = True
        space.is_committed = not overwrite and (out / INDEX_NAME).exists()
        if not space.is_committed:
            _clear(space)
            _check_room(out, needed_bytes)
            space.write(_ASKED_NAME, wanted)
        yield space
        _leave(space)
    except BaseException as error:
        if is_ours and not _commit_has_begun(space):
            shutil.rmtree(space.path, ignore_errors=True)
        _remove_empty(made)
        if isinstance(error, OSError):
            raise _cannot_write(out, error) from error
        raise
    finally:
        if lock is not None:
            os.close(lock)


def sources_digest(sources: Iterable[SourceFile]) -> str:
    """Return what changes when a source file is added, removed or edited."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(b"%d %d %s\0" % (source.size_bytes, source.mtime_ns, source.path))
    return digest.hexdigest()


def _missing_folders(folder: Path) -> list[Path]:
    """Return a folder and those above it that do not exist, the innermost first."""
    missing = []
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = folder.parent
    return missing


def _remove_empty(folders: Iterable[Path]) -> None:
    with suppress(OSError):
        for folder in folders:
            if folder.exists():
                folder.rmdir()


def _check_room(out: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(out).free
    if free_bytes < needed_bytes:
        raise CannotWrite(
            f"{out} needs {needed_bytes:,} bytes, its file system has {free_bytes:,} left; "
            "make room or write elsewhere"
        )


def _lock(space: Workspace) -> int:
    """Take the lock of a work folder; it is given back when it is closed."""
    path = space.path / _LOCK_NAME
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace") or "unknown"
        os.close(lock)
        raise CannotWrite(
            f"{space.out} is being written by another tarshard pack (process {holder})"
        ) from error
    if os.fstat(lock).st_nlink == 0:
        os.close(lock)
        raise CannotWrite(f"{space.out} was written by another tarshard pack just now")
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d" % os.getpid(), 0)
    except OSError:
        path.unlink()
        os.close(lock)
        raise
    return lock


def _check_left(space: Workspace, wanted: bytes, *, overwrite: bool) -> None:
    """Raise `CannotWrite` if a killed pack of something else left its work here."""
    _check_work_is_ours(space.path)
    asked = space.path / _ASKED_NAME
    is_same = asked.exists() and asked.read_bytes() == wanted
    if (space.out / INDEX_NAME).exists() and not overwrite and not is_same:
        raise _taken(space.out)
    if asked.exists() and not is_same:
        give_up = "" if _commit_has_begun(space) else f", or remove {space.path} to give it up"
        raise CannotWrite(
            f"{space.out} holds an unfinished pack of other images or with other options; "
            f"repeat that command to finish it{give_up}"
        )


def _clear(space: Workspace) -> None:
    for name in os.listdir(space.path):
        if name not in {_LOCK_NAME, _ASKED_NAME, _REPLACED_NAME}:
            os.unlink(space.path / name)


def _leave(space: Workspace) -> None:
    """Take the work folder away; what was asked goes last, so that a rerun knows it is done."""
    for name in sorted(os.listdir(space.path), key=lambda name: name == _ASKED_NAME):
        os.unlink(space.path / name)
    space.path.rmdir()


def _commit_has_begun(space: Workspace) -> bool:
    has_index = (space.out / INDEX_NAME).exists()
    return not has_index and any(_DATASET_FILES.fullmatch(name) for name in os.listdir(space.out))


def _cannot_write(out: Path, error: OSError) -> CannotWrite:
    what = (error.strerror or str(error)).lower()
    advice = "; make room or write elsewhere" if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""
    return CannotWrite(f"cannot write to {out}: {what}{advice}")


def _files_of(index_path: Path) -> set[str]:
    content = LocalFolder(index_path.parent).read(index_path.name, limit_bytes=INDEX_LIMIT_BYTES)
    index = Index.from_json(content, name=str(index_path))
    names = {SKIPS_NAME}
    for shard in index.shards:
        names |= {shard.url, shard.table_name}
    return names


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
