"""How images come to lie in frames: pure properties, golden numbers, and decoded pixels."""

import io
from typing import Any, get_args

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from tarshard.imaging.decode import Decoder, Frame, Pixels
from tarshard.imaging.fit import Fit, Placement, place, reduction

FITS: tuple[Fit, ...] = get_args(Fit)
SIDE = st.one_of(st.integers(1, 12), st.integers(1, 9000), st.integers(1, 1 << 20))
FRAME = st.tuples(st.integers(1, 1500), st.integers(1, 1500))
many = settings(deadline=None, database=None, max_examples=300)


# --- place ----------------------------------------------------------------------------------


@many
@given(width=SIDE, height=SIDE, frame=FRAME, fit=st.sampled_from(FITS))
@example(width=1, height=4000, frame=(224, 224), fit="contain")
@example(width=4000, height=1, frame=(224, 224), fit="cover")
@example(width=1, height=1, frame=(1500, 1), fit="contain")
def test_part_and_place_exist(width: int, height: int, frame: tuple[int, int], fit: Fit) -> None:
    """The part lies in the image and what becomes of it in the frame; neither is empty."""
    at = place(width, height, frame, fit)
    assert 0 <= at.left < at.left + at.width <= width
    assert 0 <= at.top < at.top + at.height <= height
    assert 0 <= at.frame_left < at.frame_left + at.scaled_width <= frame[1]
    assert 0 <= at.frame_top < at.frame_top + at.scaled_height <= frame[0]


@many
@given(width=SIDE, height=SIDE, frame=FRAME)
def test_stretch_uses_all(width: int, height: int, frame: tuple[int, int]) -> None:
    """The whole image becomes the whole frame."""
    assert place(width, height, frame, "stretch") == Placement(
        0, 0, width, height, frame[1], frame[0], 0, 0
    )


@many
@given(width=SIDE, height=SIDE, frame=FRAME)
def test_cover_fills_with_the_middle(width: int, height: int, frame: tuple[int, int]) -> None:
    """The part fills the frame, is the image's middle, and has the frame's shape."""
    at = place(width, height, frame, "cover")
    assert (at.frame_left, at.frame_top) == (0, 0)
    assert (at.scaled_height, at.scaled_width) == frame
    assert at.width == width or at.height == height
    assert width - at.width - 2 * at.left in (0, 1)
    assert height - at.height - 2 * at.top in (0, 1)
    # The shape is the frame's within half a pixel of the side that was cut; a side is 1 at least.
    if at.width < width:
        assert abs(at.width - max(1.0, frame[1] * height / frame[0])) <= 0.5 + 1e-6
    if at.height < height:
        assert abs(at.height - max(1.0, frame[0] * width / frame[1])) <= 0.5 + 1e-6


@many
@given(width=SIDE, height=SIDE, frame=FRAME)
def test_contain_keeps_the_shape(width: int, height: int, frame: tuple[int, int]) -> None:
    """The whole image in the middle, touching two sides, in its shape within a pixel."""
    at = place(width, height, frame, "contain")
    assert (at.left, at.top, at.width, at.height) == (0, 0, width, height)
    assert at.scaled_height == frame[0] or at.scaled_width == frame[1]
    scale = min(frame[0] / height, frame[1] / width)
    assert abs(at.scaled_width - max(1.0, width * scale)) <= 0.5 + 1e-6
    assert abs(at.scaled_height - max(1.0, height * scale)) <= 0.5 + 1e-6
    assert frame[1] - at.scaled_width - 2 * at.frame_left in (0, 1)
    assert frame[0] - at.scaled_height - 2 * at.frame_top in (0, 1)


@many
@given(width=SIDE, height=SIDE, frame=FRAME, fit=st.sampled_from(FITS))
def test_turning_both_turns_the_placement(
    width: int, height: int, frame: tuple[int, int], fit: Fit
) -> None:
    """Width and height are treated alike: everything transposed gives the transposed placement."""
    at = place(width, height, frame, fit)
    turned = place(height, width, frame[::-1], fit)
    assert (at.left, at.width, at.scaled_width, at.frame_left) == (
        turned.top,
        turned.height,
        turned.scaled_height,
        turned.frame_top,
    )
    assert (at.top, at.height, at.scaled_height, at.frame_top) == (
        turned.left,
        turned.width,
        turned.scaled_width,
        turned.frame_left,
    )


@many
@given(frame=FRAME, fit=st.sampled_from(FITS), factor=st.integers(1, 5))
def test_image_of_the_frames_shape(frame: tuple[int, int], fit: Fit, factor: int) -> None:
    """An image of the frame's shape is scaled as a whole, whichever the fit."""
    height, width = frame[0] * factor, frame[1] * factor
    assert place(width, height, frame, fit) == Placement(
        0, 0, width, height, frame[1], frame[0], 0, 0
    )


@pytest.mark.parametrize(
    ("width", "height", "frame", "fit", "expected"),
    [
        (640, 480, (224, 224), "cover", Placement(80, 0, 480, 480, 224, 224, 0, 0)),
        (480, 640, (224, 224), "cover", Placement(0, 80, 480, 480, 224, 224, 0, 0)),
        (641, 480, (224, 224), "cover", Placement(80, 0, 480, 480, 224, 224, 0, 0)),
        (640, 480, (224, 224), "contain", Placement(0, 0, 640, 480, 224, 168, 0, 28)),
        (480, 640, (224, 224), "contain", Placement(0, 0, 480, 640, 168, 224, 28, 0)),
        (640, 480, (224, 224), "stretch", Placement(0, 0, 640, 480, 224, 224, 0, 0)),
        (500, 375, (256, 512), "cover", Placement(0, 62, 500, 250, 512, 256, 0, 0)),
        (100, 50, (224, 224), "contain", Placement(0, 0, 100, 50, 224, 112, 0, 56)),
        (1, 4000, (224, 224), "cover", Placement(0, 1999, 1, 1, 224, 224, 0, 0)),
        (1, 4000, (224, 224), "contain", Placement(0, 0, 1, 4000, 1, 224, 111, 0)),
        (4000, 1, (224, 224), "stretch", Placement(0, 0, 4000, 1, 224, 224, 0, 0)),
        (1, 1, (1, 1), "cover", Placement(0, 0, 1, 1, 1, 1, 0, 0)),
        (1, 1, (224, 100), "contain", Placement(0, 0, 1, 1, 100, 100, 0, 62)),
        (3, 2, (2, 2), "cover", Placement(0, 0, 2, 2, 2, 2, 0, 0)),
    ],
)
def test_golden_placements(
    width: int, height: int, frame: tuple[int, int], fit: Fit, expected: Placement
) -> None:
    """Worked examples, with the frame as (height, width)."""
    assert place(width, height, frame, fit) == expected


# --- reduction ------------------------------------------------------------------------------


@many
@given(width=SIDE, height=SIDE, frame=FRAME, fit=st.sampled_from(FITS))
@example(width=1, height=4000, frame=(224, 224), fit="cover")
@example(width=447, height=448, frame=(224, 224), fit="stretch")
def test_reduction_keeps_enough(width: int, height: int, frame: tuple[int, int], fit: Fit) -> None:
    """The reduced image still has as many pixels as the frame shows of it, however it is turned."""
    factor = reduction(width, height, frame, fit)
    assert factor in (1, 2, 4, 8)
    if factor == 1:
        return
    for sides in ((width, height), (height, width)):
        reduced = (-(-sides[0] // factor), -(-sides[1] // factor))
        at = place(*reduced, frame, fit)
        assert at.width >= at.scaled_width
        assert at.height >= at.scaled_height


@many
@given(width=SIDE, height=SIDE, frame=FRAME, fit=st.sampled_from(FITS))
def test_reduction_is_the_same_when_turned(
    width: int, height: int, frame: tuple[int, int], fit: Fit
) -> None:
    """A reduction is chosen before it is known how the image is turned, so that must not matter."""
    assert reduction(width, height, frame, fit) == reduction(height, width, frame, fit)


@many
@given(side=st.integers(1, 5000), times=st.integers(1, 40), fit=st.sampled_from(FITS))
def test_reduction_of_squares(side: int, times: int, fit: Fit) -> None:
    """A square is reduced by the power of two below its size in frames, up to 8."""
    expected = max(power for power in (1, 2, 4, 8) if power <= times)
    assert reduction(side * times, side * times, (side, side), fit) == expected


@pytest.mark.parametrize(
    ("width", "height", "frame", "fit", "expected"),
    [
        (4000, 3000, (224, 224), "cover", 8),
        (1000, 750, (224, 224), "cover", 2),
        (500, 375, (224, 224), "cover", 1),
        (447, 1000, (224, 224), "cover", 1),
        (448, 1000, (224, 224), "cover", 2),
        (448, 448, (224, 224), "stretch", 2),
        (447, 448, (224, 224), "stretch", 1),
        (448, 100, (224, 224), "contain", 2),
        (100, 100, (224, 224), "contain", 1),
        (1, 4000, (224, 224), "cover", 1),
        (20_000, 20_000, (10, 10), "stretch", 8),
    ],
)
def test_golden_reductions(
    width: int, height: int, frame: tuple[int, int], fit: Fit, expected: int
) -> None:
    """Worked examples on both sides of the borders."""
    assert reduction(width, height, frame, fit) == expected


# --- through the decoder --------------------------------------------------------------------


def scene(width: int, height: int) -> Pixels:
    """Smooth colours with a grid of soft stripes: enough detail to see a shift of a pixel."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    red = 255 * x / max(width - 1, 1)
    green = 255 * y / max(height - 1, 1)
    blue = 127.5 + 80 * np.sin(x * 40 / max(width, 40)) * np.cos(y * 40 / max(height, 40))
    return np.stack([red, green, blue], axis=-1).round().astype(np.uint8)


def encoded(pixels: Pixels, extension: str, *options: int) -> bytes:
    """The bytes of an image file, by OpenCV."""
    done, data = cv2.imencode(extension, cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), options)
    assert done
    return data.tobytes()


def rotated(jpeg: bytes, orientation: int) -> bytes:
    """The JPEG with an EXIF segment that says how it is turned."""
    tiff = b"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0" + bytes((orientation, 0, 0, 0)) + bytes(4)
    segment = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + jpeg[2:]


def reference(pixels: Pixels, frame: Frame) -> Pixels:
    """The frame by one area average of the full image (linear where it grows)."""
    at = place(pixels.shape[1], pixels.shape[0], frame.size, frame.fit)
    part = pixels[at.top : at.top + at.height, at.left : at.left + at.width]
    shrinks = at.scaled_width <= at.width and at.scaled_height <= at.height
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    framed = np.zeros((*frame.size, 3), np.uint8)
    framed[
        at.frame_top : at.frame_top + at.scaled_height,
        at.frame_left : at.frame_left + at.scaled_width,
    ] = cv2.resize(part, (at.scaled_width, at.scaled_height), interpolation=method)
    return framed


def difference(found: Pixels, expected: Pixels) -> float:
    """The mean difference in levels."""
    assert found.shape == expected.shape
    return float(np.abs(found.astype(np.int16) - expected).mean())


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    """One decoder for all tests, as a process has."""
    return Decoder()


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("extension", [".jpg", ".png"])
@pytest.mark.parametrize(
    ("width", "height", "frame"),
    [
        (1600, 1200, (224, 224)),
        (2001, 1499, (150, 99)),
        (1024, 1024, (128, 128)),
        (700, 500, (224, 224)),
        (450, 449, (224, 224)),
        (333, 77, (64, 200)),
    ],
)
def test_frame_against_full_decoding(
    decoder: Decoder,
    width: int,
    height: int,
    frame: tuple[int, int],
    extension: str,
    fit: Fit,
) -> None:
    """Reduced decoding is within two levels, on average, of an area average in full."""
    data = encoded(scene(width, height), extension)
    full, _ = decoder.decode(data)
    wanted = Frame(*frame, fit)
    pixels, complaint = decoder.decode(data, wanted)
    assert complaint == ""
    assert pixels.flags.c_contiguous
    assert difference(pixels, reference(full, wanted)) <= 2


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(901, 600), (100, 131)])
def test_frame_of_a_turned_jpeg(
    decoder: Decoder, size: tuple[int, int], orientation: int, fit: Fit
) -> None:
    """The image is turned first and then fitted, reduced or not."""
    data = rotated(encoded(scene(*size), ".jpg", cv2.IMWRITE_JPEG_QUALITY, 95), orientation)
    full, _ = decoder.decode(data)
    assert full.shape[:2] == (size if orientation >= 5 else size[::-1])
    wanted = Frame(90, 120, fit)
    pixels, _ = decoder.decode(data, wanted)
    assert difference(pixels, reference(full, wanted)) <= 2


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
@pytest.mark.parametrize("side", [40, 60, 90])
def test_reduced_jpegs_of_all_sorts(
    decoder: Decoder, mode: str, options: dict[str, Any], side: int
) -> None:
    """Grey, CMYK and progressive JPEGs are reduced by 8, 4 and 2 like any other."""
    file = io.BytesIO()
    Image.fromarray(scene(403, 350)).convert(mode).save(file, "JPEG", quality=95, **options)
    full, _ = decoder.decode(file.getvalue())
    wanted = Frame(side, side)
    found, complaint = decoder.decode(file.getvalue(), wanted)
    assert complaint == ""
    assert difference(found, reference(full, wanted)) <= 3


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("extension", [".jpg", ".png", ".bmp", ".webp"])
@pytest.mark.parametrize(
    "size", [(1, 1), (1, 4000), (4000, 1), (3, 5), (17, 16), (224, 224), (2, 1000), (223, 225)]
)
def test_extreme_shapes(decoder: Decoder, size: tuple[int, int], extension: str, fit: Fit) -> None:
    """Any shape, small or narrow, comes to lie in the frame with the image's own colours."""
    data = encoded(np.full((size[1], size[0], 3), (200, 100, 50), np.uint8), extension)
    pixels, _ = decoder.decode(data, Frame(224, 224, fit))
    assert pixels.shape == (224, 224, 3)
    assert pixels.dtype == np.uint8
    at = place(*size, (224, 224), fit)
    inside = np.zeros((224, 224), bool)
    inside[
        at.frame_top : at.frame_top + at.scaled_height,
        at.frame_left : at.frame_left + at.scaled_width,
    ] = True
    assert np.abs(pixels[inside].astype(np.int16) - (200, 100, 50)).max() <= 4
    assert not pixels[~inside].any()


@pytest.mark.parametrize("fit", FITS)
def test_frame_of_the_images_size(decoder: Decoder, fit: Fit) -> None:
    """An image that has the frame's size already is not touched."""
    pixels = scene(61, 43)
    found, _ = decoder.decode(encoded(pixels, ".png"), Frame(43, 61, fit))
    assert np.array_equal(found, pixels)


@pytest.mark.parametrize("fit", FITS)
def test_frame_larger_than_the_image(decoder: Decoder, fit: Fit) -> None:
    """A smaller image is enlarged bilinearly, from the pixels of the part that is shown."""
    pixels = scene(40, 30)
    wanted = Frame(90, 160, fit)
    found, _ = decoder.decode(encoded(pixels, ".png"), wanted)
    assert np.array_equal(found, reference(pixels, wanted))


def test_contain_leaves_black(decoder: Decoder) -> None:
    """What the image does not fill of the frame is black."""
    data = encoded(np.full((50, 100, 3), 255, np.uint8), ".png")
    pixels, _ = decoder.decode(data, Frame(100, 100, "contain"))
    assert not pixels[:25].any()
    assert (pixels[25:75] == 255).all()
    assert not pixels[75:].any()


def test_cover_shows_the_middle(decoder: Decoder) -> None:
    """Of three equal stripes a square in the middle shows the middle one."""
    colours: Any = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    stripes = np.repeat(np.array([colours], np.uint8), 64, axis=1).repeat(64, axis=0)
    pixels, _ = decoder.decode(encoded(stripes, ".png"), Frame(32, 32, "cover"))
    assert (pixels == (0, 255, 0)).all()


def test_lossless_kinds_reduce_by_area(decoder: Decoder) -> None:
    """A checkerboard of single pixels becomes even grey: no pixel is left out of the average."""
    board = np.indices((256, 256)).sum(axis=0) % 2 * 255
    pixels = board.astype(np.uint8)[..., None].repeat(3, axis=2)
    found, _ = decoder.decode(encoded(pixels, ".png"), Frame(32, 32))
    assert np.isin(found, (127, 128)).all()
