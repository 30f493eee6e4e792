"""``--output FILE``: a file that is there whole or not at all."""

import io
import json
import os
import signal
import stat
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest
from making import COMMAND, dataset, every_member, folder, image, no_hang, run

import tarshard
from tarshard.cli.output import opened
from tarshard.errors import CannotWrite


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of 12 photos in 2 shards."""
    return dataset(tmp_path_factory.mktemp("output"), 12, 2)


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset whose last image is cut short."""
    root = tmp_path_factory.mktemp("bad")
    files: dict[str | bytes, bytes] = {
        f"{n}.jpg": image(n, size=(48, 64))[: 900 if n == 7 else None] for n in range(8)
    }
    tarshard.pack(folder(root / "images", files), root / "packed", shards=2)
    return root / "packed"


def names(content: bytes) -> list[str]:
    """Return the names in a tar."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        return sorted(tar.getnames())


def test_a_file_is_what_the_pipe_gets(packed: Path, tmp_path: Path) -> None:
    """The file has the bytes that the pipe would get, replaces an old one, and is alone."""
    (tmp_path / "out").write_bytes(b"old" * 1_000_000)
    done = run("stream", packed, "--workers", "1", "--output", tmp_path / "out")
    assert done.stdout == b""
    assert (tmp_path / "out").read_bytes() == run("stream", packed, "--workers", "1").stdout
    assert os.listdir(tmp_path) == ["out"]


def test_a_file_and_a_summary(packed: Path, tmp_path: Path) -> None:
    """With ``--output`` the samples go to the file and ``--json`` to stdout."""
    more: list[str | Path] = ["--format", "jsonl", "--json", "--output", tmp_path / "out"]
    result = json.loads(run("stream", packed, *more).stdout)
    assert result["samples"] == len((tmp_path / "out").read_bytes().splitlines()) == 12
    assert result["first_problems"] == []


@pytest.mark.parametrize("old", [None, b"what was there before"])
def test_an_error_leaves_what_was_there(bad: Path, tmp_path: Path, old: bytes | None) -> None:
    """After an error there is no new file, no part of one, and the old one as it was."""
    if old:
        (tmp_path / "out").write_bytes(old)
    more: list[str | Path] = ["--format", "rgb24", "--size", "64", "--batch-size", "1"]
    run("stream", bad, *more, "--output", tmp_path / "out", code=4)
    assert os.listdir(tmp_path) == (["out"] if old else [])
    if old:
        assert (tmp_path / "out").read_bytes() == old


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_what_was_there(
    packed: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Ctrl-C and SIGTERM while the file grows remove it and keep the old one."""
    (tmp_path / "out").write_bytes(b"old")
    with (
        no_hang(60),
        subprocess.Popen(
            [
                *[*COMMAND, "stream", str(packed), "--epochs", "1000000"],
                *["--output", str(tmp_path / "out")],
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        while not any(path.stat().st_size for path in tmp_path.glob(".tarshard-*")):
            assert process.poll() is None
        process.send_signal(number)
        written, said = process.communicate(timeout=20)
    assert (process.returncode, written, said) == (code, b"", b"")
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out").read_bytes() == b"old"


def test_the_file_appears_at_the_end(tmp_path: Path) -> None:
    """While it is written the old file can be read; then the new one, which anybody may open."""
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with opened(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        assert len(os.listdir(tmp_path)) == 2
    assert path.read_bytes() == b"new"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError, BrokenPipeError])
def test_any_error_removes_the_part(tmp_path: Path, error: type[BaseException]) -> None:
    """However the block ends, no part is left behind."""
    with pytest.raises(CannotWrite if error is OSError else error), opened(tmp_path / "out"):
        raise error("test")
    assert os.listdir(tmp_path) == []


def test_a_fifo(packed: Path, tmp_path: Path) -> None:
    """A FIFO is written to, and stays one."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()), daemon=True)
    reader.start()
    run("stream", packed, "--output", fifo)
    reader.join(timeout=20)
    assert names(got[0]) == sorted(name for name, _ in every_member(packed))
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert os.listdir(tmp_path) == ["fifo"]


def test_dev_null(packed: Path) -> None:
    """/dev/null swallows it, and stays what it is."""
    before = os.listdir("/dev")
    run("stream", packed, "--output", "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert [name for name in os.listdir("/dev") if "partial" in name] == []
    assert "null" in before


def test_a_symbolic_link_stays(packed: Path, tmp_path: Path) -> None:
    """Through a symbolic link the file it leads to is written."""
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "out")
    (tmp_path / "there" / "out").write_bytes(b"old")
    run("stream", packed, "--output", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert len(names((tmp_path / "there" / "out").read_bytes())) == 24


@pytest.mark.parametrize("option", ["--output", "--skip-report"])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("folder", "is a directory"),
        ("missing/out", "no such file or directory"),
        ("file/out", "not a directory"),
        ("x" * 300, "file name too long"),
        ("/dev/full", "no space left on device"),
    ],
)
def test_paths_that_cannot_be_written(
    bad: Path, tmp_path: Path, option: str, path: str, message: str
) -> None:
    """What cannot be written is exit code 5 and a sentence with the path and the reason."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    more: list[str | Path] = ["--format", "npy", "--size", "8", "--on-error", "skip"]
    done = run("stream", bad, *more, option, tmp_path / path, code=5)
    [line] = done.stderr.decode().splitlines()
    assert line == f"tarshard: {tmp_path / path}: {message}"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert os.listdir(tmp_path / "folder") == []


def test_a_long_name_that_is_allowed(packed: Path, tmp_path: Path) -> None:
    """A name as long as names may be can be written."""
    path = tmp_path / ("x" * 255)
    run("stream", packed, "--output", path)
    assert len(names(path.read_bytes())) == 24


@pytest.mark.parametrize(
    "arguments",
    [
        ["--format", "tar"],
        ["--format", "jsonl"],
        ["--format", "rgb24", "--size", "300"],
        ["--json"],
    ],
)
def test_stdout_is_full(packed: Path, arguments: list[str]) -> None:
    """When stdout takes no more that is exit code 5 and one sentence."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "stream", str(packed), *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    assert done.stderr.decode().splitlines() == ["tarshard: stdout: no space left on device"]
    assert done.returncode == 5


def test_report_and_output_are_two_files(bad: Path, tmp_path: Path) -> None:
    """One path for samples and report is refused before anything is written."""
    more: list[str | Path] = ["--output", tmp_path / "one", "--skip-report", tmp_path / "one"]
    run("stream", bad, *more, code=2)
    assert os.listdir(tmp_path) == []


def test_an_empty_report(packed: Path, tmp_path: Path) -> None:
    """Without problems the report is there and empty, which replaces an old one."""
    (tmp_path / "report").write_bytes(b"old")
    run("stream", packed, "--json", "--size", "8", "--skip-report", tmp_path / "report")
    assert (tmp_path / "report").read_bytes() == b""
