"""Makes real tiny images, folders and datasets, and runs the command, for all tests."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

import tarshard

COMMAND = [sys.executable, "-m", "tarshard"]


def image(seed: int = 0, *, size: tuple[int, int] = (24, 16), kind: str = "JPEG") -> bytes:
    """Return an image file's bytes; each seed has its own pixels; size is (width, height)."""
    width, height = size
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def folder(root: Path, files: Mapping[str | bytes, bytes]) -> Path:
    """Write files below a folder, which is made; return it."""
    root.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        whole = os.path.join(os.fsencode(root), os.fsencode(path))
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, "wb") as file:
            file.write(content)
    return root


def photos(count: int, classes: int = 3) -> dict[str | bytes, bytes]:
    """Return so many JPEGs of differing sizes in class folders, for `folder`."""
    return {
        f"class{n % classes}/photo{n:03d}.jpg": image(n, size=(16 + 8 * (n % 5), 16 + n % 7))
        for n in range(count)
    }


def dataset(root: Path, count: int, shards: int) -> Path:
    """Pack so many photos into so many shards; return the dataset's folder."""
    tarshard.pack(folder(root / "images", photos(count)), root / "packed", shards=shards)
    return root / "packed"


def run(
    *arguments: str | Path,
    code: int = 0,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[bytes]":
    """Run ``tarshard`` as a process of its own; it must end with this exit code."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        input=stdin,
        env=os.environ | {"COLUMNS": "200", **(env or {})},
        timeout=120,
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


def everything(root: Path) -> dict[str, bytes]:
    """Return all files below a folder: relative path and content."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def every_member(packed: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of all members of all shards, as Python's tarfile reads them."""
    import tarfile

    for shard in sorted(packed.glob("*.tar")):
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                yield member.name, file.read()


@contextmanager
def no_hang(seconds: int = 5) -> Iterator[None]:
    """Fail, rather than wait for ever, when a system call does not return."""

    def fail(_number: int, _frame: object) -> None:
        raise AssertionError(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Watching:
    """A progress that does something at a phase or a step, in the middle of the work."""

    at_phase: Callable[[str], object] = lambda _name: None
    at_step: Callable[[int], object] = lambda _number: None
    """Called with the number of steps before, over all phases."""
    steps: int = 0

    def phase(
        self,
        name: str,
        *,
        items: int | None = None,  # noqa: ARG002
        size_bytes: int | None = None,  # noqa: ARG002
    ) -> None:
        """Begin a phase."""
        self.at_phase(name)

    def advance(self, items: int = 0, size_bytes: int = 0) -> None:  # noqa: ARG002
        """Count a step."""
        self.steps += 1
        self.at_step(self.steps - 1)

    def finish(self) -> None:
        """End."""
