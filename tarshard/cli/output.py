"""Where data goes: stdout, or a file that is there whole or not at all."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from tarshard.errors import CannotWrite


@contextmanager
def stdout() -> Iterator[BinaryIO]:
    """Write to stdout, and flush it at the end.

    Raises `CannotWrite`, or `BrokenPipeError` when whoever read it has enough.
    """
    if sys.stdout is None:
        raise CannotWrite("stdout is closed; give --output FILE, or leave it open")
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except OSError as error:
        # What is left in the buffer must not be tried again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise CannotWrite(f"stdout: {(error.strerror or str(error)).lower()}") from error


@contextmanager
def opened(path: Path | None) -> Iterator[BinaryIO]:
    """Open a file for writing, or stdout for None.

    A file is written under another name beside its place and renamed when the block
    ends well; else it is removed, and what was there before stays. What is no regular
    file, such as a pipe, is written to as it is. Raises as `stdout` does.
    """
    if path is None:
        with stdout() as file:
            yield file
        return
    growing = None
    try:
        # Through links: what they lead to is replaced, not they.
        place = Path(os.path.realpath(path))
        is_whole = not place.exists() or place.is_file()
        if is_whole:
            growing = place.with_name(f".tarshard-{os.getpid()}-{uuid4().hex[:8]}.partial")
        with open(growing or place, "wb", buffering=1024 * 1024) as file:
            yield file
            if growing:
                file.flush()
                os.fsync(file.fileno())
        if growing:
            os.replace(growing, place)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CannotWrite(f"{path}: {(error.strerror or str(error)).lower()}") from error
    finally:
        if growing:
            with suppress(OSError):
                growing.unlink(missing_ok=True)
