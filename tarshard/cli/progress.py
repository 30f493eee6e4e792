"""Progress bars on stderr, on a terminal only."""

import sys
from typing import Any

from tqdm import tqdm


class TerminalProgress:
    """Draws a bar for each phase: how much, how fast, how long to go."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._size_bytes = 0

    def phase(self, name: str, *, items: int | None = None) -> None:
        """Begin a bar."""
        self.finish()
        self._size_bytes = 0
        self._bar = tqdm(
            desc=name,
            total=items,
            unit=" images" if items is not None else " files",
            unit_scale=True,
            disable=not sys.stderr.isatty(),
            delay=0.5,
            leave=False,
            dynamic_ncols=True,
            file=sys.stderr,
        )

    def advance(self, items: int = 0, size_bytes: int = 0) -> None:
        """Move the bar on."""
        bar = self._bar
        if bar is None or bar.disable:
            return
        self._size_bytes += size_bytes
        if size_bytes:
            seconds = max(bar.format_dict["elapsed"], 1e-9)
            bar.set_postfix_str(f"{self._size_bytes / seconds / 1e6:,.0f} MB/s", refresh=False)
        bar.update(items)

    def finish(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
