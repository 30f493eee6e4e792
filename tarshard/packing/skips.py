"""The skip report: every file that was left out, with its reason."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tarshard.index import text_to_json

SKIPS_NAME = "skipped.jsonl"


class Reason(StrEnum):
    """Why a file was left out: the whole list."""

    HIDDEN = "hidden"
    """Its name or a folder's above it starts with a dot."""
    SYSTEM = "system"
    """Left by an operating system: ``.DS_Store``, ``._*``, ``Thumbs.db``, ``__MACOSX``."""
    NOT_AN_IMAGE = "not-an-image"
    """Its content is of no kind of image that is stored."""
    BROKEN_LINK = "broken-link"
    """A symbolic link to nothing."""
    LINK_LOOP = "link-loop"
    """A symbolic link to itself or to a folder that it lies in."""
    LINK_OUTSIDE = "link-outside"
    """A symbolic link that leaves the folder."""
    SPECIAL_FILE = "special-file"
    """A device, socket or pipe."""
    UNREADABLE = "unreadable"
    """The system refused to open or read it."""
    VANISHED = "vanished"
    """It was there during the scan and gone when it was to be read."""
    CHANGED = "changed"
    """It changed between the scan and the end of reading."""
    TOO_LARGE = "too-large"
    """A tar member must be smaller than 8 GiB."""


@dataclass(frozen=True, slots=True)
class Skip:
    """One file that was left out."""

    path: bytes
    """Relative to the image folder."""
    reason: Reason
    detail: str
    """What exactly, for a person."""
    is_fault: bool = False
    """Stops the pack unless it was told to skip: it looked like an image and cannot be stored."""

    def __str__(self) -> str:
        return f"{shown(self.path)}: {self.detail}"


def shown(path: bytes) -> str:
    """Return a path fit for a terminal, which control characters would upset."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def report(skips: Iterable[Skip]) -> bytes:
    """Return the skip report: a JSON line for each file, sorted by path."""
    rows = (
        {
            "path": text_to_json(skip.path.decode("utf-8", "surrogateescape")),
            "reason": skip.reason.value,
            "detail": skip.detail,
        }
        for skip in sorted(skips, key=lambda skip: skip.path)
    )
    return "".join(json.dumps(row) + "\n" for row in rows).encode("ascii")


def counts(skips: Iterable[Skip]) -> dict[str, int]:
    """Return how many files were left out for each reason, sorted by reason."""
    return dict(sorted(Counter(skip.reason.value for skip in skips).items()))
