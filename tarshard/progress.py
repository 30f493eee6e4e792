"""How far the work is: the core reports it, the command line draws it."""

from typing import Protocol


class Progress(Protocol):
    """What the core calls while it works."""

    def phase(self, name: str, *, items: int | None = None) -> None:
        """A phase begins, with its whole amount of work where that is known."""

    def advance(self, items: int = 0, size_bytes: int = 0) -> None:
        """So much more is done."""

    def finish(self) -> None:
        """The last phase is over, well or not."""


class _NoProgress:
    def phase(self, name: str, *, items: int | None = None) -> None:
        pass

    def advance(self, items: int = 0, size_bytes: int = 0) -> None:
        pass

    def finish(self) -> None:
        pass


NO_PROGRESS: Progress = _NoProgress()
