"""``tarshard stream`` as people and pipes use it."""

import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from making import COMMAND, dataset, every_member, folder, image, photos, run

import tarshard


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of 30 photos in 3 shards."""
    return dataset(tmp_path_factory.mktemp("with space"), 30, 3)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of 64 MB, more than pipes and prefetching hold."""
    root = tmp_path_factory.mktemp("large")
    noise: dict[str | bytes, bytes] = {
        f"{n}.png": image(n, size=(840, 420), kind="PNG") for n in range(60)
    }
    tarshard.pack(folder(root / "images", noise), root / "packed", shards=2)
    return root / "packed"


def members(content: bytes) -> list[tuple[str, bytes]]:
    """Return name and bytes of a tar's members."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        files = [(member.name, tar.extractfile(member)) for member in tar]
        return [(name, file.read()) for name, file in files if file is not None]


@pytest.mark.parametrize("workers", ["0", "1", "3"])
def test_a_pipe_gets_a_tar_with_everything(packed: Path, workers: str) -> None:
    """Into a pipe goes a tar with every member of every shard, byte by byte, once."""
    done = run("stream", packed, "--workers", workers, "--batch-size", "4")
    assert sorted(members(done.stdout)) == sorted(every_member(packed))


def test_one_worker_keeps_the_order_of_the_index(packed: Path) -> None:
    """Unshuffled with one worker the tar has the members in the order of the shards."""
    done = run("stream", packed, "--workers", "1")
    assert members(done.stdout) == list(every_member(packed))


def test_shuffle_seed_and_epoch_change_the_order(packed: Path) -> None:
    """The order repeats for the same seed and epoch, and differs for others."""

    def keys(*more: str) -> list[str]:
        lines = run("stream", packed, "--workers", "1", "--format", "jsonl", *more).stdout
        return [json.loads(line)["key"] for line in lines.splitlines()]

    once = keys("--shuffle")
    assert once == keys("--shuffle", "--seed", "0", "--epoch", "0")
    others = [keys(), keys("--shuffle", "--seed", "1"), keys("--shuffle", "--epoch", "1")]
    assert all(sorted(other) == sorted(once) and other != once for other in others)
    both = keys("--shuffle", "--epochs", "2")
    assert both == once + others[2]


def test_ranks_share_the_dataset(packed: Path) -> None:
    """Ranks together deliver each sample once; padding is marked in jsonl and left out of tar."""
    rows: list[dict[str, object]] = []
    tar_members = []
    for rank in ("0", "1", "2", "3"):
        ranked: list[str | Path] = [
            "stream",
            packed,
            "--rank",
            rank,
            "--world-size",
            "4",
            "--workers",
            "2",
        ]
        lines = run(*ranked, "--format", "jsonl").stdout.splitlines()
        rows += map(json.loads, lines)
        assert len(lines) == 8
        tar_members += members(run(*ranked).stdout)
    valid = [row["key"] for row in rows if row["valid"]]
    assert len(valid) == len(set(valid)) == 30
    assert sorted(tar_members) == sorted(every_member(packed))


@pytest.mark.parametrize("limit", [0, 1, 7, 30, 99])
def test_limit_is_exact(packed: Path, limit: int) -> None:
    """``--limit`` delivers exactly so many samples, or all there are."""
    done = run("stream", packed, "--limit", str(limit), "--format", "jsonl", "--batch-size", "4")
    assert len(done.stdout.splitlines()) == min(limit, 30)


def test_json_is_a_summary_and_no_samples(packed: Path) -> None:
    """``--json`` prints one object on stdout: how much came and how long it took."""
    result = json.loads(run("stream", packed, "--json", "--shuffle", "--batch-size", "8").stdout)
    images = sum(len(data) for name, data in every_member(packed) if name.endswith(".jpg"))
    assert (result["samples"], result["batches"], result["size_bytes"]) == (30, 4, images)
    assert 0 < result["first_batch_seconds"] <= result["seconds"]


def on_terminal(arguments: list[str]) -> tuple[int, str]:
    """Run a command with stdout and stderr on a real terminal; return exit code and output."""
    own, other = pty.openpty()
    with subprocess.Popen([*COMMAND, *arguments], stdout=other, stderr=other) as process:
        os.close(other)
        shown = b""
        while True:
            try:
                part = os.read(own, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
    os.close(own)
    return process.returncode, shown.decode()


def test_a_terminal_gets_a_summary_and_no_binary(packed: Path) -> None:
    """On a terminal no tar is written; rates and a summary are shown."""
    code, shown = on_terminal(["stream", str(packed)])
    assert code == 0
    assert "images/s" in shown
    assert "\0" not in shown


def test_a_terminal_gets_jsonl_when_asked(packed: Path) -> None:
    """Text may be asked for on a terminal; a tar is refused."""
    code, shown = on_terminal(["stream", str(packed), "--format", "jsonl"])
    assert code == 0
    assert len(re.findall('"key"', shown)) == 30
    code, shown = on_terminal(["stream", str(packed), "--format", "tar"])
    assert code == 2
    assert "pipe it" in shown


@pytest.mark.parametrize("consumer", ["head -c 100", "tar tf - | head -1"])
def test_a_closed_pipe_ends_it_quietly(large: Path, consumer: str) -> None:
    """When the reader of the pipe has enough, stream ends with code 0 and says nothing."""
    done = subprocess.run(
        [
            "bash",
            "-c",
            f'"$@" | {consumer} >/dev/null; echo ${{PIPESTATUS[0]}}',
            "bash",
            *COMMAND,
            *("stream", str(large), "--workers", "2", "--batch-size", "4"),
        ],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == b"0\n"
    assert b"stream" not in done.stderr.replace(b"stdout", b"")
    assert b"Error" not in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_leaves_nothing(
    large: Path, number: signal.Signals, code: int
) -> None:
    """Ctrl-C and SIGTERM end it with their code, silently, and no worker stays behind."""
    with subprocess.Popen(
        [*COMMAND, "stream", str(large), "--workers", "2", "--batch-size", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert len(process.stdout.read(100_000)) == 100_000
        process.send_signal(number)
        # Workers hold the pipe too: the end of the output is the end of all of them.
        _, said = process.communicate(timeout=20)
    assert process.returncode == code
    assert said == b""
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def edited_index(change: Callable[[dict[str, object]], object]) -> Callable[[Path], object]:
    """Return a damage: the index with something changed."""

    def damage(packed: Path) -> None:
        index = json.loads((packed / "index.json").read_bytes())
        change(index)
        (packed / "index.json").write_text(json.dumps(index))

    return damage


def set_url(url: str) -> Callable[[Path], object]:
    """Return a damage: the first shard's url is another."""

    def change(index: dict[str, object]) -> None:
        shards = index["shardlist"]
        assert isinstance(shards, list)
        shards[0]["url"] = url

    return edited_index(change)


def set_format(index: dict[str, object]) -> None:
    """Claim a newer format."""
    block = index["tarshard"]
    assert isinstance(block, dict)
    block["format"] = 99


DAMAGES: list[tuple[Callable[[Path], object], int, str]] = [
    (shutil.rmtree, 3, "does not exist"),
    (lambda packed: (packed / "index.json").unlink(), 3, "holds no index.json"),
    (lambda packed: (packed / "index.json").write_bytes(b"{]"), 4, "is not JSON"),
    (lambda packed: (packed / "index.json").write_bytes(b"[]"), 4, "must hold a JSON object"),
    (edited_index(lambda index: index.pop("tarshard")), 3, "not written by tarshard"),
    (edited_index(set_format), 3, "format 99"),
    (set_url("../x"), 4, "'../x' leads out"),
    (set_url("/etc/passwd"), 4, "'/etc/passwd' leads out"),
    (lambda packed: (packed / "shard-000001.tar").unlink(), 4, "shard-000001.tar is missing"),
    (lambda packed: (packed / "shard-000001.json").unlink(), 4, "shard-000001.json is missing"),
    (lambda packed: os.truncate(packed / "shard-000001.tar", 5000), 4, "has 5,000 bytes"),
    (lambda packed: os.truncate(packed / "shard-000001.json", 50), 4, "sha256 differs"),
]


@pytest.mark.parametrize(("damage", "code", "message"), DAMAGES)
def test_a_damaged_dataset_is_one_clear_message(
    packed: Path, tmp_path: Path, damage: Callable[[Path], object], code: int, message: str
) -> None:
    """Damage ends the stream with its exit code and a sentence that names the file."""
    copy = tmp_path / "copy"
    shutil.copytree(packed, copy)
    damage(copy)
    done = run("stream", copy, "--workers", "1", code=code)
    assert message in done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rank", "3", "--world-size", "2"], "rank must be from 0 to 1"),
        (["--rank", "0"], "together"),
        (["--world-size", "0", "--rank", "0"], "world size"),
        (["--batch-size", "0"], "batch size"),
        (["--workers", "-1"], "workers"),
        (["--seed", "-1"], "seed"),
        (["--tail", "drop", "--batch-size", "64"], "1 ranks x batch size 64 = 64"),
    ],
)
def test_values_that_cannot_be(packed: Path, arguments: list[str], message: str) -> None:
    """A value that cannot be is exit code 2 and a sentence with the value."""
    assert message in run("stream", packed, *arguments, code=2).stderr.decode()


def test_an_announced_world_is_not_guessed(packed: Path) -> None:
    """With WORLD_SIZE in the environment and no rank given it refuses to duplicate the data."""
    done = run("stream", packed, code=2, env={"WORLD_SIZE": "2"})
    assert "WORLD_SIZE is 2" in done.stderr.decode()


def test_photos_are_real(packed: Path) -> None:
    """The dataset that these tests stream holds the photos that were packed."""
    images = {data for name, data in every_member(packed) if name.endswith(".jpg")}
    assert images == set(photos(30).values())


def test_few_descriptors_are_enough(tmp_path: Path) -> None:
    """Under ``ulimit -n 64`` a dataset of 100 shards streams whole, with several workers."""
    packed = dataset(tmp_path, 100, 100)
    done = subprocess.run(
        ["bash", "-c", 'ulimit -n 64; "$@"', "bash", *COMMAND, "stream", packed, "--workers", "3"],
        capture_output=True,
        check=True,
        timeout=100,
    )
    assert sorted(members(done.stdout)) == sorted(every_member(packed))


@pytest.mark.parametrize("option", ["--workers", "--epoch", "--seed"])
def test_numbers_that_no_machine_has(packed: Path, option: str) -> None:
    """A huge number is a usage error, not a thousand processes or a traceback."""
    assert b"at most" in run("stream", packed, option, str(10**30), code=2).stderr


def test_hangup_ends_it(large: Path) -> None:
    """When the terminal goes away it ends, with its workers."""
    with subprocess.Popen(
        [*COMMAND, "stream", str(large), "--workers", "2", "--batch-size", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert len(process.stdout.read(100_000)) == 100_000
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=20)
    assert process.returncode == 129
