"""What can go wrong, as one tree.

TarshardError
├── UsageError          a value that cannot be: shards 0, rank 3 of 2
├── InputUnusable       the input is missing, or cannot be used as it is
│   └── SourceProblems  files of an image folder, all listed at once
├── DatasetDamaged      an index, table or shard does not say what it must
│   └── ShardCorrupt    one shard, with member and offset
│       └── ImageUndecodable  an image that cannot be decoded, with its cause
├── WorkerFailed        a worker process died, or a transform failed in it
├── CannotWrite         the destination is taken, full or read-only
└── MissingLibrary      a library cannot be imported; the message says what to install

Every error says what, where and what to do next. The only positional argument
is the message, so that errors survive the way from a worker process.
"""

from collections.abc import Sequence

PROBLEMS_SHOWN = 10
"""So many single problems are named in a message; the rest are counted."""


class TarshardError(Exception):
    """The root of all errors that tarshard raises on purpose."""


class UsageError(TarshardError, ValueError):
    """A value that cannot be, whatever the data."""


class InputUnusable(TarshardError):
    """The input is missing, or cannot be used as it is."""


class SourceProblems(InputUnusable):
    """Files that cannot be packed; ``problems`` holds one sentence for each."""

    def __init__(self, message: str, *, problems: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        shown = [f"  {problem}" for problem in self.problems[:PROBLEMS_SHOWN]]
        if len(self.problems) > PROBLEMS_SHOWN:
            shown.append(f"  and {len(self.problems) - PROBLEMS_SHOWN:,} more")
        super().__init__("\n".join([message, *shown]))


class DatasetDamaged(TarshardError):
    """An index, a shard table or a shard does not say what it must."""


class ShardCorrupt(DatasetDamaged):
    """A shard whose bytes are not what index and table say."""

    def __init__(
        self,
        message: str,
        *,
        shard: str = "",
        member: str | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.shard = shard
        """The shard's ``url`` in the index."""
        self.member = member
        """The member's name in the tar, where one is concerned."""
        self.offset = offset
        """Where in the shard, in bytes, where that is known."""


class ImageUndecodable(ShardCorrupt):
    """An image in a shard that cannot be decoded; the message names it and the cause."""


class WorkerFailed(TarshardError):
    """A worker process died, or a transform raised in it; says at which sample."""


class CannotWrite(TarshardError):
    """The destination is taken, full or read-only; what was there is untouched."""


class MissingLibrary(TarshardError, ImportError):
    """A library cannot be imported; the message says what to install."""
