"""Pure: how an image of any size comes to lie in a frame of a given size."""

from dataclasses import dataclass
from typing import Literal

Fit = Literal["cover", "contain", "stretch"]


@dataclass(frozen=True, slots=True)
class Placement:
    """A part of the image, scaled, at a place in the frame; all in pixels."""

    left: int
    """Of the part, in the image."""
    top: int
    width: int
    height: int
    scaled_width: int
    """Of the part in the frame."""
    scaled_height: int
    frame_left: int
    """Where the part lies in the frame."""
    frame_top: int


def place(width: int, height: int, frame: tuple[int, int], fit: Fit) -> Placement:
    """Place an image in a frame, which is (height, width).

    ``cover`` fills the frame with the largest middle part of its shape. ``contain``
    shows the whole image in the middle of the frame. ``stretch`` fills the frame with the
    whole image and changes its shape.
    """
    frame_height, frame_width = frame
    if fit == "stretch":
        return Placement(0, 0, width, height, frame_width, frame_height, 0, 0)
    # Which side is the tighter one: width / frame_width against height / frame_height.
    is_wide = width * frame_height > height * frame_width
    if fit == "cover":
        part_width = _scaled(frame_width, height, frame_height) if is_wide else width
        part_height = height if is_wide else _scaled(frame_height, width, frame_width)
        part_width, part_height = min(part_width, width), min(part_height, height)
        return Placement(
            (width - part_width) // 2,
            (height - part_height) // 2,
            part_width,
            part_height,
            frame_width,
            frame_height,
            0,
            0,
        )
    scaled_width = frame_width if is_wide else _scaled(width, frame_height, height)
    scaled_height = _scaled(height, frame_width, width) if is_wide else frame_height
    scaled_width, scaled_height = min(scaled_width, frame_width), min(scaled_height, frame_height)
    return Placement(
        0,
        0,
        width,
        height,
        scaled_width,
        scaled_height,
        (frame_width - scaled_width) // 2,
        (frame_height - scaled_height) // 2,
    )


def reduction(width: int, height: int, frame: tuple[int, int], fit: Fit) -> int:
    """Return by what an image may be reduced first, 1, 2, 4 or 8, without losing detail.

    The part that is shown stays at least as large as it will be in the frame, whichever
    way the image is turned.
    """
    ways = [place(*sides, frame, fit) for sides in ((width, height), (height, width))]
    return max(
        (
            factor
            for factor in (1, 2, 4, 8)
            if all(
                way.width >= factor * way.scaled_width and way.height >= factor * way.scaled_height
                for way in ways
            )
        ),
        default=1,
    )


def _scaled(length: int, by: int, over: int) -> int:
    """Return length * by / over, rounded, at least 1."""
    return max(1, (2 * length * by + over) // (2 * over))
