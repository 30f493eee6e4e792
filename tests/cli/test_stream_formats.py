"""What ``tarshard stream`` writes, as the programs it is written for read it."""

import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import webdataset
from making import COMMAND, every_member, folder, image, no_hang, run
from PIL import Image

import tarshard

COUNT = 10
HEIGHT, WIDTH = 64, 48
SIZE = ["--size", f"{HEIGHT}x{WIDTH}"]

needs_ffmpeg = pytest.mark.skipif(not shutil.which("ffmpeg"), reason="ffmpeg is not installed")
needs_jq = pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of PNGs of one size, whose pixels `source` knows, in two classes."""
    root = tmp_path_factory.mktemp("exact")
    files: dict[str | bytes, bytes] = {
        f"{'ab'[n % 2]}/{n}.png": image(n, size=(WIDTH, HEIGHT), kind="PNG") for n in range(COUNT)
    }
    tarshard.pack(folder(root / "images", files), root / "packed", shards=2)
    return root / "packed"


def source(key: str) -> npt.NDArray[np.uint8]:
    """Return the pixels that were packed under a key of `exact`."""
    return np.asarray(Image.open(io.BytesIO(image(int(key[2:]), size=(WIDTH, HEIGHT), kind="PNG"))))


def gradient() -> bytes:
    """Return a smooth PNG, which JPEG can keep nearly as it is."""
    y, x = np.mgrid[:40, :56]
    buffer = io.BytesIO()
    Image.fromarray(np.stack([4 * x, 6 * y, 2 * x], axis=-1).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


MIXED: dict[str | bytes, bytes] = {
    **{f"{n}.jpg": image(n, size=(56, 40)) for n in range(7)},
    "3half.png": gradient(),
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of seven JPEGs with a PNG in their middle, `MIXED`."""
    root = tmp_path_factory.mktemp("mixed")
    tarshard.pack(folder(root / "images", MIXED), root / "packed", shards=2)
    return root / "packed"


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset whose third and fifth image of eight are cut short."""
    root = tmp_path_factory.mktemp("bad")
    files: dict[str | bytes, bytes] = {
        f"{n}.jpg": image(n, size=(48, 64))[: 900 if n in {2, 4} else None] for n in range(8)
    }
    tarshard.pack(folder(root / "images", files), root / "packed", shards=2)
    return root / "packed"


def piped(arguments: list[str | Path], consumer: list[str | Path]) -> bytes:
    """Run ``tarshard | consumer``, which must both succeed; return what the consumer wrote."""
    with (
        subprocess.Popen(
            [*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as producer,
        subprocess.Popen(
            list(map(str, consumer)),
            stdin=producer.stdout,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as other,
    ):
        assert producer.stdout is not None
        producer.stdout.close()
        got, said = other.communicate(timeout=60)
        assert producer.stderr is not None
        complaints = producer.stderr.read().decode()
    assert other.returncode == 0, said.decode()
    assert producer.returncode == 0, complaints
    assert "Traceback" not in complaints
    return got


def keys(packed: Path, *more: str) -> list[str]:
    """Return the keys in the order in which jsonl has them."""
    lines = run("stream", packed, "--format", "jsonl", *more).stdout.splitlines()
    return [json.loads(line)["key"] for line in lines]


@needs_ffmpeg
def test_ffmpeg_reads_rgb24(exact: Path, tmp_path: Path) -> None:
    """Frames piped into ffmpeg come out with the pixels that were packed, as video and as PNGs."""
    arguments: list[str | Path] = ["stream", exact, "--format", "rgb24", *SIZE, "--shuffle"]
    arguments += ["--workers", "1", "--batch-size", "3"]
    reading = ["ffmpeg", "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    reading += ["-s", f"{WIDTH}x{HEIGHT}", "-i", "-"]
    video = tmp_path / "lossless.mkv"
    piped(
        arguments,
        [*reading, tmp_path / "%d.png", "-c:v", "ffv1", "-pix_fmt", "bgr0", video],
    )
    raw = subprocess.run(
        ["ffmpeg", "-v", "error", "-i", video, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
        check=True,
        capture_output=True,
    ).stdout
    frames = np.frombuffer(raw, dtype=np.uint8).reshape(-1, HEIGHT, WIDTH, 3)
    order = keys(exact, "--shuffle", "--workers", "1", "--batch-size", "3")
    assert len(frames) == len(list(tmp_path.glob("*.png"))) == len(order) == COUNT
    for number, (frame, key) in enumerate(zip(frames, order, strict=True), 1):
        assert np.array_equal(frame, source(key))
        with Image.open(tmp_path / f"{number}.png") as picture:
            assert np.array_equal(np.asarray(picture), source(key))


@needs_ffmpeg
def test_ffmpeg_reads_mjpeg(mixed: Path, tmp_path: Path) -> None:
    """Ffmpeg finds every frame of an MJPEG stream."""
    piped(
        ["stream", mixed, "--format", "mjpeg"],
        ["ffmpeg", "-v", "error", "-f", "mjpeg", "-i", "-", tmp_path / "%d.png"],
    )
    assert len(list(tmp_path.glob("*.png"))) == len(MIXED)


def test_mjpeg_keeps_jpegs(mixed: Path) -> None:
    """JPEGs are in an MJPEG stream byte by byte; a PNG is there as a JPEG that looks like it."""
    got = run("stream", mixed, "--format", "mjpeg", "--workers", "1").stdout
    order = keys(mixed, "--workers", "1")
    at = order.index("3half")
    before = b"".join(MIXED[f"{key}.jpg"] for key in order[:at])
    after = b"".join(MIXED[f"{key}.jpg"] for key in order[at + 1 :])
    assert before
    assert after
    assert got.startswith(before)
    assert got.endswith(after)
    with Image.open(io.BytesIO(got[len(before) : len(got) - len(after)])) as made:
        assert (made.format, made.size) == ("JPEG", (56, 40))
        pixels = np.asarray(made, dtype=np.int64)
    with Image.open(io.BytesIO(gradient())) as original:
        assert np.abs(pixels - np.asarray(original, dtype=np.int64)).mean() < 2


def test_mjpeg_with_a_size(mixed: Path) -> None:
    """With a size every frame of an MJPEG stream has it."""
    got = run("stream", mixed, "--format", "mjpeg", "--workers", "1", *SIZE).stdout
    frames = [b"\xff\xd8\xff" + part for part in got.split(b"\xff\xd8\xff")[1:]]
    assert len(frames) == len(MIXED)
    assert {Image.open(io.BytesIO(frame)).size for frame in frames} == {(WIDTH, HEIGHT)}


def arrays(content: bytes) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield what repeated numpy.load gives."""
    file = io.BytesIO(content)
    while file.tell() < len(content):
        array: npt.NDArray[np.uint8] = np.load(file, allow_pickle=False)
        yield array


def test_npy_has_the_order_of_jsonl(exact: Path) -> None:
    """Repeated numpy.load gives each image once, in the order that jsonl has."""
    more = ["--workers", "1", "--shuffle", "--seed", "4", "--batch-size", "4"]
    got = list(arrays(run("stream", exact, "--format", "npy", *SIZE, *more).stdout))
    assert [array.shape for array in got] == [(n, 3, HEIGHT, WIDTH) for n in (4, 4, 2)]
    assert {array.dtype for array in got} == {np.dtype(np.uint8)}
    order = keys(exact, *more)
    assert len(order) == COUNT
    for picture, key in zip(np.concatenate(got), order, strict=True):
        assert np.array_equal(picture.transpose(1, 2, 0), source(key))


READ_ARRAYS = """
import sys, numpy

class Pipe:  # what can be sought in is left to NumPy, which would try it
    read = staticmethod(sys.stdin.buffer.read)

count = 0
while sys.stdin.buffer.peek(1):
    count += len(numpy.lib.format.read_array(Pipe()))
print(count)
"""


def test_npy_from_a_pipe(exact: Path) -> None:
    """A program that reads arrays from a pipe, which cannot be sought in, gets them all."""
    arguments: list[str | Path] = ["stream", exact, "--format", "npy", *SIZE, "--batch-size", "3"]
    assert piped(arguments, [sys.executable, "-c", READ_ARRAYS]) == b"10\n"


def test_npy_of_ranks(exact: Path) -> None:
    """Padding is in no array: the ranks together have each image once."""
    count = 0
    for rank in ("0", "1", "2"):
        more = ["--rank", rank, "--world-size", "3", "--batch-size", "2"]
        done = run("stream", exact, "--format", "npy", *SIZE, *more)
        count += sum(map(len, arrays(done.stdout)))
    assert count == COUNT


@needs_jq
def test_jq_reads_jsonl(exact: Path) -> None:
    """Jq reads each line; what it picks leads to the images' bytes."""
    got = piped(
        ["stream", exact, "--format", "jsonl"],
        ["jq", "-r", "select(.label == 1) | [.key, .shard, .offset, .size] | @tsv"],
    )
    rows = [line.split("\t") for line in got.decode().splitlines()]
    assert sorted(key for key, *_ in rows) == [f"b/{n}" for n in range(1, COUNT, 2)]
    for key, shard, offset, size in rows:
        content = (exact / shard).read_bytes()[int(offset) : int(offset) + int(size)]
        assert content == image(int(key[2:]), size=(WIDTH, HEIGHT), kind="PNG")


def test_gnu_tar_extracts(exact: Path, tmp_path: Path) -> None:
    """GNU tar extracts the stream from the pipe, without a word."""
    assert piped(["stream", exact, "--shuffle"], ["tar", "xvf", "-", "-C", tmp_path]) != b""
    for name, content in every_member(exact):
        assert (tmp_path / name).read_bytes() == content


def test_tarfile_reads_the_pipe(exact: Path) -> None:
    """Python's tarfile reads the pipe as a stream."""
    with subprocess.Popen(
        [*COMMAND, "stream", str(exact)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        got = []
        with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                got.append((member.name, file.read()))
    assert process.returncode == 0
    assert sorted(got) == sorted(every_member(exact))


def test_webdataset_reads_the_pipe(exact: Path) -> None:
    """The webdataset package starts the command itself, and reads every sample."""
    command = " ".join(f"'{part}'" for part in [*COMMAND, "stream", str(exact)])
    read = webdataset.WebDataset(f"pipe:{command} 2>/dev/null", shardshuffle=False)
    samples: list[dict[str, Any]] = list(read)
    assert sorted(sample["__key__"] for sample in samples) == sorted(
        f"{'ab'[n % 2]}/{n}" for n in range(COUNT)
    )
    for sample in samples:
        assert np.array_equal(
            np.asarray(Image.open(io.BytesIO(sample["png"]))), source(sample["__key__"])
        )
        assert sample["cls"] == str("ab".index(sample["__key__"][0])).encode()


def test_on_error_fail_names_the_image(bad: Path) -> None:
    """An image that cannot be decoded is exit code 4 and one sentence that names it."""
    done = run("stream", bad, "--format", "npy", "--size", "8", "--workers", "1", code=4)
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("tarshard: 2.jpg (shard-000000.tar, byte ")
    assert "on-error skip" in line


@pytest.mark.parametrize("form", ["npy", "rgb24", "mjpeg"])
def test_on_error_skip(bad: Path, tmp_path: Path, form: str) -> None:
    """Images that cannot be decoded are in no output; the report and the summary name them."""
    more: list[str | Path] = ["--size", "8", "--on-error", "skip", "--batch-size", "3", "--json"]
    more += ["--skip-report", tmp_path / "report", "--output", tmp_path / "out", "--format", form]
    result = json.loads(run("stream", bad, *more).stdout)
    content = (tmp_path / "out").read_bytes()
    count = {  # type: ignore[no-untyped-call]
        "npy": lambda: sum(map(len, arrays(content))),
        "rgb24": lambda: len(content) / (8 * 8 * 3),
        "mjpeg": lambda: content.count(b"\xff\xd8\xff"),
    }[form]()
    assert count == result["samples"] == 6
    assert (result["undecodable"], result["complaints"], result["padding"]) == (2, 0, 0)
    rows = [json.loads(line) for line in (tmp_path / "report").read_bytes().splitlines()]
    assert sorted(row["key"] for row in rows) == ["2", "4"]
    for row in rows:
        assert list(row) == ["key", "shard", "offset", "reason", "detail"]
        assert row["reason"] == "undecodable"
        place = f"{row['key']}.jpg ({row['shard']}, byte {row['offset']:,})"
        assert f"{place}: {row['detail']}" in result["first_problems"]
        start = (bad / row["shard"]).read_bytes()[row["offset"] : row["offset"] + 900]
        assert start == image(int(row["key"]), size=(48, 64))[:900]


def test_limit_counts_good_images(bad: Path) -> None:
    """``--limit`` counts the images that are delivered, not those that cannot be decoded."""
    more = ["--size", "8", "--on-error", "skip", "--workers", "1", "--limit", "4"]
    done = run("stream", bad, "--format", "npy", *more)
    assert sum(map(len, arrays(done.stdout))) == 4


def test_max_pixels(exact: Path) -> None:
    """``--max-pixels`` refuses what is larger, and says both numbers."""
    more = ["--format", "rgb24", "--size", "8", "--max-pixels"]
    assert len(run("stream", exact, *more, str(HEIGHT * WIDTH)).stdout) == COUNT * 192
    done = run("stream", exact, *more, str(HEIGHT * WIDTH - 1), code=4)
    assert b"more than the limit of 3,071" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "npy"], "add --size"),
        (["--format", "rgb24"], "add --size"),
        (["--format", "tar", "--size", "8"], "does not decode"),
        (["--format", "jsonl", "--size", "8"], "does not decode"),
        *[
            (["--format", "npy", f"--size={size}"], "size must be")
            for size in ("0", "0x5", "-1", "5x", "x5", "5x5x5", "5 x 5", "1.5", "", "\u0665", "big")
        ],
        (["--format", "npy", "--size", "1000000000"], "size"),
        (["--format", "npy", "--size", "8", "--max-pixels", "0"], "max_pixels must be at least 1"),
        (["--format", "npy", "--size", "8", "--fit", "crop"], "--fit"),
        (["--format", "gif"], "--format"),
        (["--format", "npy", "--size", "8", "--json"], "add --output"),
    ],
)
def test_values_that_cannot_be(
    exact: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    """A value that cannot be is exit code 2 and a sentence with what to do."""
    monkeypatch.setenv("NO_COLOR", "1")
    done = run("stream", exact, *arguments, code=2)
    assert message in done.stderr.decode()
    assert done.stdout == b""


@pytest.mark.parametrize("form", ["npy", "rgb24", "mjpeg"])
def test_no_binary_to_a_terminal(exact: Path, form: str) -> None:
    """Binary data is not written to a terminal; the message says what to do."""
    own, other = pty.openpty()
    try:
        done = subprocess.run(
            [*COMMAND, "stream", str(exact), "--format", form, "--size", "8"],
            stdout=other,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(other)
        os.close(own)
    assert done.returncode == 2
    assert b"writes binary data; pipe it, or add --output FILE" in done.stderr


def children(process: int) -> list[int]:
    """Return a command's worker processes."""
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return [child for child in found if is_tarshard(child)]


def is_tarshard(process: int) -> bool:
    """Tell a worker from the odd helper that a library starts while it is imported."""
    try:
        return b"tarshard" in Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of 20 MB, more than pipes and prefetching hold."""
    root = tmp_path_factory.mktemp("large")
    noise: dict[str | bytes, bytes] = {
        f"{n}.png": image(n, size=(840, 420), kind="PNG") for n in range(20)
    }
    tarshard.pack(folder(root / "images", noise), root / "packed", shards=2)
    return root / "packed"


@pytest.mark.parametrize("written", [1, 1_000_000])
@pytest.mark.parametrize("form", ["rgb24", "tar"])
def test_a_killed_worker_is_exit_code_6(large: Path, form: str, written: int) -> None:
    """Whatever the command does when a worker is killed, it ends with 6 and one sentence."""
    more = ["--size", "400"] if form == "rgb24" else []
    with (
        no_hang(60),
        subprocess.Popen(
            [
                *[*COMMAND, "stream", str(large), "--workers", "2", "--batch-size", "1"],
                *["--epochs", "5", "--format", form, *more],
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        assert process.stdout is not None
        process.stdout.read(written)
        while len(workers := children(process.pid)) < 2:
            assert process.poll() is None
        os.kill(workers[-1], signal.SIGKILL)
        _, said = process.communicate(timeout=30)
    assert b"Traceback" not in said, said.decode()
    assert process.returncode == 6
    assert said.startswith(b"tarshard: worker ")
    assert f"(process {workers[-1]})".encode() in said
    assert b"it was at " in said
    assert b"shard-00000" in said
