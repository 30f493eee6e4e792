"""A folder of the local file system, read by name and never left."""

import errno
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self


class OutsideFolder(OSError):
    """A name leads, or might lead, out of the folder."""


def is_inside(name: str) -> bool:
    """Tell whether a name stays in the folder it is relative to, by its letters alone."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    parts = name.split("/")
    return not any(part in {"", ".", ".."} for part in parts) and "\0" not in name


class LocalFolder:
    """Opens files below one folder; links below it are not followed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def open(self, name: str) -> "LocalFile":
        """Open a regular file for reading.

        Raises `OutsideFolder` for a name or link that may lead elsewhere, other
        `OSError` as the system gives them.
        """
        if not is_inside(name):
            raise OutsideFolder(errno.EPERM, "is no path inside the dataset", name)
        return LocalFile(name, _open_beneath(self.path, name))

    def read(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a whole file, which may have at most ``limit_bytes``."""
        with self.open(name) as file:
            if file.size_bytes > limit_bytes:
                raise OSError(
                    errno.EFBIG, f"has {file.size_bytes:,} bytes, more than {limit_bytes:,}", name
                )
            content = bytearray(file.size_bytes)
            return bytes(content[: file.read_into(memoryview(content), 0)])


class LocalFile:
    """One open file; positions are given with each read, so processes can share it."""

    def __init__(self, name: str, descriptor: int) -> None:
        self._descriptor = descriptor
        self.name = name
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(errno.EINVAL, "is no regular file", name)
        self.size_bytes = status.st_size

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer from ``offset`` on; return how many bytes the file had for it."""
        filled = 0
        while filled < len(buffer):
            count = os.preadv(self._descriptor, [buffer[filled:]], offset + filled)
            if count == 0:
                break
            filled += count
        return filled

    def close(self) -> None:
        """Give the descriptor back; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


# O_NONBLOCK: opening a FIFO that somebody put there would wait for ever.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


def _open_beneath(folder: Path, name: str) -> int:
    *folders, file = name.split("/")
    if not folders:
        return _open(f"{folder}/{file}", _FILE_FLAGS, None, name)
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in folders:
            above, at = at, _open(part, _FOLDER_FLAGS, at, name)
            os.close(above)
        return _open(file, _FILE_FLAGS, at, name)
    finally:
        os.close(at)


def _open(path: str, flags: int, at: int | None, name: str) -> int:
    try:
        return os.open(path, flags, dir_fd=at)
    except OSError as error:
        number = error.errno or errno.EIO
        if number == errno.ELOOP or (number == errno.ENOTDIR and at is not None):
            raise OutsideFolder(
                number, "is or passes through a link; links in a dataset are not followed", name
            ) from error
        raise OSError(number, os.strerror(number), name) from error
