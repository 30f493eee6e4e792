"""Pure: gives every image a class, from the folder it lies in."""

from collections.abc import Sequence
from dataclasses import dataclass

from tarshard.errors import SourceProblems
from tarshard.packing.skips import shown

MODES = ("auto", "folder", "none")


@dataclass(frozen=True)
class Labels:
    """The classes and each image's place among them."""

    mode: str
    """``folder`` or ``none``: what was done."""
    classes: tuple[bytes, ...] = ()
    """Sorted by bytes."""
    numbers: tuple[int, ...] | None = None
    """For each image its position in ``classes``; None without classes."""


def label_images(paths: Sequence[bytes], mode: str) -> Labels:
    """Label images by the first folder of their path, as torchvision's ImageFolder does.

    ``auto`` is ``folder`` if every image lies in a folder, else ``none``.
    Raises `SourceProblems` when ``folder`` is asked for and an image lies in none.
    """
    loose = [path for path in paths if b"/" not in path]
    if mode == "none" or (mode == "auto" and loose):
        return Labels("none")
    if loose:
        raise SourceProblems(
            f"{len(loose):,} images lie in no class folder; "
            "move them into one, or use --labels none",
            problems=[shown(path) for path in loose],
        )
    names = [path.partition(b"/")[0] for path in paths]
    classes = tuple(sorted(set(names)))
    number = {name: at for at, name in enumerate(classes)}
    return Labels("folder", classes, tuple(number[name] for name in names))


def cls_content(number: int) -> bytes:
    """Return a ``.cls`` member's bytes: ASCII digits without a newline."""
    return b"%d" % number
