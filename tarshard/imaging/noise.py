"""What a C library prints to stderr while it works, caught instead of printed."""

import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

_LIMIT_BYTES = 64 * 1024


class Noise:
    """Catches what is written to the process's stderr, descriptor 2, during a block.

    It holds for the whole process, so the blocks should be short and other threads
    should not print. Not to be shared between processes.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (open as long as this lives)
        self._text = ""
        weakref.finalize(self, self._file.close)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch what the block prints; `take` returns it afterwards."""
        outside = os.dup(2)
        os.dup2(self._file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(outside, 2)
            os.close(outside)
            if self._file.tell():
                self._text += self._emptied()

    def take(self) -> str:
        """Return what was caught since it was last taken; mostly nothing."""
        text, self._text = self._text, ""
        return text

    def _emptied(self) -> str:
        self._file.seek(0)
        text = self._file.read(_LIMIT_BYTES).decode("utf-8", "replace")
        self._file.seek(0)
        self._file.truncate()
        return text
