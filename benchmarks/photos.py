"""Make a folder of photo-like JPEGs in class folders, for the demo, the tests and the benchmarks.

    python benchmarks/photos.py FOLDER --count 2000 --classes 20 --seed 0 [--jobs N]

The pictures are blurry landscapes and close-ups with one kind of object per class. What matters
is that they cost what photographs cost: 20 to 200 KB each, about 110 KB on average, of the usual
dimensions, and with as many coefficients to decode as a camera's picture. The same arguments give
the same bytes, whatever the number of jobs, on one version of OpenCV and NumPy and one kind of
processor.
"""

import argparse
import colorsys
import contextlib
import functools
import itertools
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

Floats = NDArray[np.float32]

NOUNS = (
    *("apple", "boat", "castle", "daisy", "elephant", "fountain", "guitar", "horse", "island"),
    *("jacket", "kettle", "lantern", "mushroom", "nest", "owl", "pumpkin", "rabbit", "statue"),
    *("teapot", "violin"),
)

# (width, height) and how often, after the dimensions that are common in ImageNet.
DIMENSIONS = (
    ((500, 375), 0.42),
    ((375, 500), 0.13),
    ((500, 333), 0.16),
    ((333, 500), 0.07),
    ((640, 480), 0.08),
    ((400, 300), 0.06),
    ((500, 500), 0.04),
    ((320, 240), 0.04),
)

# Inside 20 to 200 KB both for those who count 1,000 bytes to the KB and for those who count 1,024.
SMALLEST_BYTES = 20 * 1024
LARGEST_BYTES = 200 * 1000

PHOTOS_PER_TASK = 8


# --- What a class looks like ----------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One soft-edged piece of an object, in units of the object's radius."""

    across: float
    down: float
    radius: float
    stretch: float
    hue: float


@dataclass(frozen=True)
class Pose:
    """Where in the picture an object is, in pixels, and how its lobes are turned."""

    x: float
    y: float
    size: float
    turn: float


@dataclass(frozen=True)
class Look:
    """What the photos of one class have in common."""

    hue: float
    ground_hue: float
    outdoors: bool
    lobes: int
    lobe_depth: float
    stripes: int
    roughness: float
    parts: tuple[Part, ...]


def class_look(label: int) -> Look:
    """The look depends on the label alone, so that photos of two seeds show the same classes."""
    rng = np.random.default_rng(label)
    hue = label * 0.618034 % 1.0  # steps of the golden ratio keep any number of hues apart
    body = Part(0.0, 0.0, 1.0, rng.uniform(0.7, 1.4), hue)
    extras = tuple(
        Part(
            across=rng.uniform(-0.8, 0.8),
            down=rng.uniform(-1.1, 0.3),
            radius=rng.uniform(0.25, 0.6),
            stretch=rng.uniform(0.5, 1.8),
            hue=hue + rng.uniform(-0.12, 0.12),
        )
        for _ in range(label % 4)
    )
    return Look(
        hue=hue,
        ground_hue=rng.uniform(0.06, 0.3),
        outdoors=label % 3 != 0,
        lobes=int(rng.integers(2, 8)),
        lobe_depth=rng.uniform(0.0, 0.3),
        stripes=int(rng.choice((0, 0, 3, 5, 8))),
        roughness=rng.uniform(0.9, 1.15),
        parts=(*extras, body) if label % 2 else (body, *extras),
    )


# --- Painting -------------------------------------------------------------------------------------


def colour(hue: float, saturation: float, value: float) -> Floats:
    """Blue, green, red in 0 to 1: the order OpenCV writes."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, saturation, min(value, 1.0))
    return np.array((blue, green, red), np.float32)


def resized(field: Floats, height: int, width: int) -> Floats:
    """The field at another size."""
    enlarged = cv2.resize(field, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.asarray(enlarged, np.float32)


def static(rng: np.random.Generator, height: int, width: int) -> Floats:
    """Independent noise in every pixel, with a standard deviation of 1.

    Made of plain bytes, which come ten times as fast as normal numbers and look the same here.
    """
    levels = np.frombuffer(rng.bytes(height * width), np.uint8).astype(np.float32)
    levels -= np.float32(127.5)
    levels *= np.float32(1.0 / 73.9)
    return levels.reshape(height, width)


def noise_field(
    rng: np.random.Generator, height: int, width: int, *, roughness: float, finest: int = 1
) -> Floats:
    """Noise of every scale down to `finest` pixels, with a standard deviation of 1.

    Each octave is drawn at its own small size and enlarged on the way to the next one, which costs
    little more than the last octave alone. `roughness` is how strong an octave is compared with the
    next coarser one: 0.5 looks like a cloud, 1 like gravel.
    """
    level = max(height, width).bit_length() - 2
    strength = 1.0
    field = np.zeros((1, 1), np.float32)
    while level >= 0 and 2**level >= finest:
        rows, columns = -(-height >> level), -(-width >> level)
        octave = static(rng, rows, columns)
        octave *= np.float32(strength)
        octave += resized(field, rows, columns)
        field = octave
        strength *= roughness
        level -= 1
    field *= np.float32(1.0 / max(float(cv2.meanStdDev(field)[1][0, 0]), 1e-6))
    return resized(field, height, width)


def patches(field: Floats, contrast: float) -> Floats:
    """Noise pressed towards two tones with edges between, as leaves, stones and fur have."""
    pressed: Floats = np.tanh(field * np.float32(contrast))
    return pressed


def coverage(depth: Floats, softness: float) -> Floats:
    """How much of each pixel is covered: `depth` is the distance inside the edge."""
    cover: Floats = np.clip(depth * np.float32(1.0 / softness) + np.float32(0.5), 0.0, 1.0)
    return cover


def paint(planes: Floats, tint: Floats, cover: Floats, light: Floats | None = None) -> None:
    """Lay a colour, as bright as the light makes it, over the planes where it covers them.

    Plane by plane, because fresh memory for all three at once costs more than the arithmetic.
    """
    for plane, tone in zip(planes, tint, strict=True):
        difference = tone - plane if light is None else tone * light - plane
        difference *= cover
        np.add(plane, difference, out=plane)


def sky(rng: np.random.Generator, height: int, width: int) -> tuple[Floats, Floats]:
    """A clouded sky, and the colour it has at the horizon."""
    hue, brightness = rng.normal(0.58, 0.03), rng.uniform(0.55, 0.95)
    zenith = colour(hue, rng.uniform(0.25, 0.75), brightness)
    haze = colour(rng.choice((hue, 0.08)), rng.uniform(0.05, 0.3), brightness * 1.05)
    down = np.linspace(0.0, 1.6, height, dtype=np.float32).clip(0.0, 1.0)
    planes = np.empty((3, height, width), np.float32)
    planes[:] = (zenith.reshape(3, 1) + np.outer(haze - zenith, down)).reshape(3, height, 1)
    clouds = noise_field(rng, height, width, roughness=0.6, finest=2)
    cover = coverage(clouds - np.float32(rng.uniform(-0.5, 1.5)), 2.0)
    paint(planes, colour(hue, 0.03, brightness * 1.1), cover * np.float32(0.8))
    return planes, haze


def seen_at_a_slant(texture: Floats, height: int) -> Floats:
    """The texture of a plain as it looks from above it: coarse at one's feet, fine far off."""
    rows, width = texture.shape
    flat = np.array(((0, 0), (width, 0), (width, rows), (0, rows)), np.float32)
    slant = np.array(((0.25, 0.0), (0.75, 0.0), (1.2, 1.0), (-0.2, 1.0)), np.float32)
    slant *= np.array((width, height), np.float32)
    warp = cv2.getPerspectiveTransform(flat, slant)
    seen = cv2.warpPerspective(texture, warp, (width, height), borderMode=cv2.BORDER_REFLECT)
    return np.asarray(seen, np.float32)


def landscape(
    rng: np.random.Generator, look: Look, height: int, width: int, detail: float
) -> Floats:
    """Sky, two ranges of hills and the ground."""
    planes, haze = sky(rng, height, width)
    rows = np.arange(height, dtype=np.float32).reshape(height, 1)
    horizon = int(height * rng.uniform(0.35, 0.65))
    texture = patches(noise_field(rng, height, width, roughness=look.roughness), 1.2)
    for nearness in (0.3, 0.65):
        ridge = noise_field(rng, 1, width, roughness=0.5, finest=2) * np.float32(height * 0.06)
        cover = coverage(rows - ridge - np.float32(horizon - height * 0.1 * (1.1 - nearness)), 2.0)
        wood = colour(look.ground_hue + rng.normal(0.0, 0.03), 0.4, rng.uniform(0.2, 0.45))
        tint = haze + (wood - haze) * np.float32(nearness)
        paint(planes, tint, cover, 1.0 + texture * np.float32(0.4 * nearness * detail))
    soil = colour(look.ground_hue + rng.normal(0.0, 0.02), rng.uniform(0.25, 0.55), 0.55)
    light = 1.0 + seen_at_a_slant(texture, height - horizon) * np.float32(0.4 * detail)
    light *= np.linspace(1.1, 0.7, height - horizon, dtype=np.float32).reshape(-1, 1)
    paint(planes[:, horizon:], soil, coverage(rows[horizon:] - np.float32(horizon), 3.0), light)
    return planes


def close_up(
    rng: np.random.Generator, look: Look, height: int, width: int, detail: float
) -> Floats:
    """A table top before a background that is out of focus."""
    planes = np.empty((3, height, width), np.float32)
    wall = colour(look.ground_hue + rng.normal(0.0, 0.05), 0.25, rng.uniform(0.3, 0.7))
    planes[:] = wall.reshape(3, 1, 1)
    for _ in range(2):
        blur = noise_field(rng, height, width, roughness=0.5, finest=16)
        tone = colour(look.ground_hue + rng.normal(0.0, 0.15), 0.3, rng.uniform(0.1, 0.95))
        paint(planes, tone, coverage(blur, 1.2))
    rows = np.arange(height, dtype=np.float32).reshape(height, 1)
    edge = np.float32(height * rng.uniform(0.45, 0.7))
    grain = noise_field(rng, height, max(width // 6, 8), roughness=look.roughness)
    grain = patches(resized(grain, height, width), 0.8)
    top = colour(look.ground_hue - 0.05, rng.uniform(0.2, 0.6), rng.uniform(0.35, 0.8))
    paint(planes, top, coverage(rows - edge, 14.0), 1.0 + grain * np.float32(0.25 * detail))
    return planes


def lit_skin(
    rng: np.random.Generator, look: Look, across: Floats, down: Floats, outline: Floats
) -> tuple[Floats, Floats]:
    """How bright a rounded surface is, lit from the upper left, and the texture of its skin."""
    height, width = across.shape
    bulge = np.sqrt(np.clip(1.0 - (across**2 + down**2) / outline**2, 0.0, 1.0))
    light = 0.25 + 0.65 * bulge - np.float32(0.3) * across - np.float32(0.35) * down
    if look.stripes:
        wound = across + np.float32(0.4) * bulge
        light *= 0.85 + np.float32(0.2) * np.sin(wound * np.float32(look.stripes * 2.5))
    return light, patches(noise_field(rng, height, width, roughness=look.roughness), 1.0)


def paint_part(
    rng: np.random.Generator, planes: Floats, look: Look, part: Part, *, pose: Pose, detail: float
) -> None:
    """One rounded, lit and textured piece of an object."""
    height, width = planes.shape[1:]
    radius = pose.size * part.radius
    x, y = pose.x + part.across * pose.size, pose.y + part.down * pose.size
    reach = radius * (1.0 + look.lobe_depth) * max(part.stretch, 1.0 / part.stretch) + 3.0
    left, right = max(int(x - reach), 0), min(int(x + reach) + 1, width)
    top, bottom = max(int(y - reach), 0), min(int(y + reach) + 1, height)
    if left >= right or top >= bottom:
        return  # outside the picture
    columns = (np.arange(left, right, dtype=np.float32) - x) / (radius * part.stretch)
    rows = (np.arange(top, bottom, dtype=np.float32) - y) / (radius / part.stretch)
    across, down = np.meshgrid(columns.astype(np.float32), rows.astype(np.float32))
    distance, angle = (np.asarray(polar, np.float32) for polar in cv2.cartToPolar(across, down))
    lobes = np.cos((angle + np.float32(pose.turn)) * np.float32(look.lobes))
    outline = 1.0 + np.float32(look.lobe_depth) * lobes
    light, skin = lit_skin(rng, look, across, down, outline)
    light *= 1.0 + skin * np.float32(0.3 * detail)
    base = colour(part.hue + rng.normal(0.0, 0.015), rng.uniform(0.4, 0.75), 0.9)
    cover = coverage((outline - distance) * np.float32(radius), 2.5)
    window = planes[:, top:bottom, left:right]
    paint(window, base, cover, light)
    window += np.clip(light - 0.95, 0.0, 0.5) * cover  # what shines is white


def paint_shadow(planes: Floats, part: Part, pose: Pose) -> None:
    """The shadow an object throws on what it stands on, below its main part."""
    height, width = planes.shape[1:]
    foot = pose.y + 0.95 * pose.size / part.stretch
    reach = pose.size * part.stretch
    columns = (np.arange(width, dtype=np.float32) - pose.x) / (1.3 * reach)
    rows = (np.arange(height, dtype=np.float32) - foot) / (0.35 * reach)
    shadow = np.exp(-(rows**2)).reshape(-1, 1) * np.exp(-(columns**2))
    planes *= 1.0 - np.float32(0.6) * shadow.astype(np.float32)


def paint_objects(rng: np.random.Generator, planes: Floats, look: Look, detail: float) -> None:
    """One to three objects of the class, the farthest first."""
    height, width = planes.shape[1:]
    body = max(look.parts, key=lambda part: part.radius)
    for nearness in sorted(rng.uniform(0.3, 1.0, size=int(rng.integers(1, 4))).tolist()):
        pose = Pose(
            x=width * rng.uniform(0.15, 0.85),
            y=height * (0.42 + 0.25 * nearness),
            size=min(height, width) * (0.08 + 0.2 * nearness),
            turn=rng.normal(0.0, 0.25),
        )
        paint_shadow(planes, body, pose)
        for part in look.parts:
            paint_part(rng, planes, look, part, pose=pose, detail=detail)


def photographed(rng: np.random.Generator, planes: Floats, detail: float) -> NDArray[np.uint8]:
    """What a camera makes of the scene: exposure, a colour cast, darker corners, sensor noise."""
    height, width = planes.shape[1:]
    cast = rng.normal(1.0, 0.04, size=3) * rng.uniform(0.8, 1.15)
    across = np.linspace(-1.0, 1.0, width, dtype=np.float32) ** 2
    down = np.linspace(-1.0, 1.0, height, dtype=np.float32).reshape(-1, 1) ** 2
    planes *= 1.0 - np.float32(rng.uniform(0.0, 0.2)) * (across + down)
    grain = static(rng, height, width)
    channels = []
    for plane, exposure in zip(planes, cast, strict=True):
        # Noise in colour is coarser: a sensor has fewer pixels for each colour than for all.
        coarse = static(rng, -(-height // 2), -(-width // 2))
        levels = (grain + resized(coarse, height, width)) * np.float32(4.0 * detail)
        levels += plane * np.float32(exposure * 255.0)
        channels.append(cv2.convertScaleAbs(np.maximum(levels, 0.0)))
    return np.asarray(cv2.merge(channels), np.uint8)


# --- One file -------------------------------------------------------------------------------------


def jpeg(pixels: NDArray[np.uint8], quality: int, sampling: int) -> bytes:
    """JPEG bytes of an allowed size, at the quality asked for or the nearest that gives one.

    Three steps of quality never change the size tenfold, so the walk cannot step over the range.
    """
    options = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling, cv2.IMWRITE_JPEG_QUALITY]
    while 1 <= quality <= 100:
        encoded = cv2.imencode(".jpg", pixels, [*options, quality])[1].tobytes()
        if SMALLEST_BYTES <= len(encoded) <= LARGEST_BYTES:
            return encoded
        quality += 3 if len(encoded) < SMALLEST_BYTES else -3
    raise RuntimeError("no JPEG quality brings this picture to an allowed size")


def photo(seed: int, number: int, label: int) -> bytes:
    """The JPEG bytes of one photo: all its random numbers come from the seed and its number."""
    rng = np.random.default_rng((seed, number))
    look = class_look(label)
    shapes, shares = zip(*DIMENSIONS, strict=True)
    width, height = shapes[rng.choice(len(shapes), p=shares)]
    detail = float(np.clip(rng.lognormal(0.0, 0.35), 0.3, 1.9))
    backdrop = landscape if look.outdoors else close_up
    planes = backdrop(rng, look, height, width, detail)
    paint_objects(rng, planes, look, detail)
    pixels = photographed(rng, planes, detail)
    full_colour = rng.random() < 0.2
    sampling = (
        cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444
        if full_colour
        else cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420
    )
    return jpeg(pixels, int(rng.integers(93, 99)), sampling)


# --- The folder -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PhotoFile:
    """Where one photo goes, relative to the folder, and what it is made from."""

    path: str
    seed: int
    number: int
    label: int


def class_name(label: int) -> str:
    """apple, boat, ..., violin, apple2, boat2, ..."""
    round_, noun = divmod(label, len(NOUNS))
    return NOUNS[noun] if round_ == 0 else f"{NOUNS[noun]}{round_ + 1}"


def class_sizes(count: int, classes: int, seed: int) -> list[int]:
    """How many photos each class gets: one at least, and slightly uneven."""
    weights = np.random.default_rng(seed).uniform(0.85, 1.15, size=classes)
    shares = np.cumsum(weights) / np.sum(weights) * (count - classes)
    ends = [0, *(round(float(share)) for share in shares)]
    return [1 + end - start for start, end in itertools.pairwise(ends)]


def planned_files(count: int, classes: int, seed: int) -> list[PhotoFile]:
    """Every file of the folder, class by class."""
    labels_and_places = [
        (label, place)
        for label, size in enumerate(class_sizes(count, classes, seed))
        for place in range(size)
    ]
    return [
        PhotoFile(f"{class_name(label)}/{class_name(label)}_{place:05d}.jpg", seed, number, label)
        for number, (label, place) in enumerate(labels_and_places)
    ]


def holds_photos(folder: Path, files: list[PhotoFile]) -> bool:
    """Whether the folder has exactly these photos, judged by all names and the first photo.

    The first photo is made again and compared because the names alone can be those of another seed.
    """
    found = {path.relative_to(folder).as_posix() for path in folder.glob("*/*.jpg")}
    if found != {file.path for file in files}:
        return False
    first = files[0]
    return (folder / first.path).read_bytes() == photo(first.seed, first.number, first.label)


def write_photo(folder: Path, file: PhotoFile) -> int:
    """Make one photo and write it; how many bytes it has."""
    return (folder / file.path).write_bytes(photo(file.seed, file.number, file.label))


def prepare_worker() -> None:
    """One thread per process, and Ctrl-C left to the parent, which ends its workers in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(1)


def write_photos(folder: Path, files: list[PhotoFile], jobs: int) -> Generator[int, None, None]:
    """Write the files with this many processes, yielding the size of each when it is written."""
    if jobs == 1:
        yield from (write_photo(folder, file) for file in files)
        return
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=prepare_worker
    )
    try:
        write = functools.partial(write_photo, folder)
        yield from pool.map(write, files, chunksize=PHOTOS_PER_TASK)
    finally:
        pool.shutdown(cancel_futures=True)


def remove_leftover(partial: Path) -> None:
    """Remove what an interrupted run left."""
    if partial.is_dir() and not partial.is_symlink():
        shutil.rmtree(partial)
    else:
        partial.unlink(missing_ok=True)


def make_photos(folder: Path, *, count: int, classes: int, seed: int, jobs: int | None) -> None:
    """Make the folder, all of it or nothing; leave it alone when it already holds these photos.

    Raises FileExistsError when something else is there. `jobs` is the number of processes, by
    default one per processor.
    """
    if not 1 <= classes <= count:
        raise ValueError(f"{count} photos cannot fill {classes} classes")
    files = planned_files(count, classes, seed)
    if os.path.lexists(folder):
        if holds_photos(folder, files):
            return
        raise FileExistsError(
            f"{folder} exists and does not hold these {count} photos; remove it or name another"
        )
    partial = folder.with_name(folder.name + ".partial")
    remove_leftover(partial)
    for label in range(classes):
        (partial / class_name(label)).mkdir(parents=True)
    jobs = min(jobs or os.cpu_count() or 1, count)
    progress = tqdm(total=count, unit="photo", disable=None)  # None: only on a terminal
    with progress, contextlib.closing(write_photos(partial, files, jobs)) as written:
        for _ in written:
            progress.update()
    partial.rename(folder)


# --- The command ----------------------------------------------------------------------------------


def positive(text: str) -> int:
    """A number from 1 on, as argparse reads it."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def not_negative(text: str) -> int:
    """A number from 0 on, as argparse reads it."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is less than 0")
    return number


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; a wrong one ends the program with its usage and exit code 2."""
    parser = argparse.ArgumentParser(
        description="Make a folder of photo-like JPEGs in class folders."
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the folder to make")
    parser.add_argument("--count", type=positive, default=2000, help="how many photos (2000)")
    parser.add_argument("--classes", type=positive, default=20, help="how many classes (20)")
    parser.add_argument("--seed", type=not_negative, default=0, help="another seed, other photos")
    parser.add_argument("--jobs", type=positive, help="how many processes (one per processor)")
    options = parser.parse_args(arguments)
    if options.classes > options.count:
        parser.error(f"{options.count} photos cannot fill {options.classes} classes")
    return options


def summary(folder: Path, classes: int, seconds: float) -> str:
    """One line about a folder that was just made."""
    sizes = [path.stat().st_size for path in folder.glob("*/*.jpg")]
    return (
        f"{len(sizes)} photos in {classes} classes, {sum(sizes) / 1e6:.1f} MB, "
        f"{sum(sizes) / len(sizes) / 1e3:.1f} KB on average, made in {seconds:.1f} s"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command; its exit code."""
    options = parsed(arguments)
    folder: Path = options.folder
    was_there = os.path.lexists(folder)
    start = time.perf_counter()
    try:
        make_photos(
            folder,
            count=options.count,
            classes=options.classes,
            seed=options.seed,
            jobs=options.jobs,
        )
    except OSError as error:
        print(f"photos.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"photos.py: stopped; {folder} was not made", file=sys.stderr)
        return 130
    if was_there:
        print(f"{folder} already holds these {options.count} photos")
    else:
        print(summary(folder, options.classes, time.perf_counter() - start))
    return 0


if __name__ == "__main__":
    sys.exit(main())
