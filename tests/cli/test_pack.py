"""``tarshard pack`` as people and scripts use it."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from making import COMMAND, dataset, everything, folder, image, photos, run


def test_packs_and_says_what_it_did(tmp_path: Path) -> None:
    """A pack ends with shards, samples, bytes, imbalance, skips by reason and time, on stderr."""
    images = folder(tmp_path / "my images", photos(12) | {"notes.txt": b"x", ".hidden.jpg": b"x"})
    done = run("pack", images, tmp_path / "out", "--shards", "3")
    shown = done.stderr.decode()
    assert not done.stdout
    for word in ("samples", "12", "shards", "bytes", "imbalance", "time", "MB/s", "3 classes"):
        assert word in shown
    assert "1 hidden, 1 not-an-image" in shown


def test_json_is_the_result(tmp_path: Path) -> None:
    """``--json`` prints one JSON object on stdout with the figures of the index."""
    images = folder(tmp_path / "images", photos(12) | {"notes.txt": b"x"})
    done = run("pack", images, tmp_path / "out", "--shards", "3", "--json")
    result = json.loads(done.stdout)
    index = json.loads((tmp_path / "out" / "index.json").read_bytes())
    assert result["samples"] == index["tarshard"]["samples"] == 12
    assert result["shards"] == len(index["shardlist"]) == 3
    assert result["size_bytes"] == sum(row["filesize"] for row in index["shardlist"])
    assert result["skipped"] == index["tarshard"]["skipped"] == {"not-an-image": 1}
    assert result["labels"] == "folder"


def test_says_which_labels_auto_came_to(tmp_path: Path) -> None:
    """With images outside of class folders ``auto`` means none, and the command says so."""
    images = folder(tmp_path / "images", photos(3) | {"loose.jpg": image(9)})
    shown = run("pack", images, tmp_path / "out", "--shards", "1").stderr.decode()
    assert "none, as not every image lies in a folder" in shown


def bad_inputs(root: Path) -> list[tuple[list[str | Path], int, str]]:
    """Return command lines with exit code and a part of the message."""
    good = folder(root / "good", photos(4))
    folder(root / "empty", {})
    folder(root / "texts", {"a.txt": b"text", "b/c.md": b"more"})
    folder(root / "fake", photos(4) | {"class0/fake.jpg": b"no image at all"})
    folder(root / "taken", {"mine.txt": b"keep me"})
    folder(root / "loose", {"a.jpg": image()})
    (root / "file").write_bytes(b"keep me")
    packed = dataset(root / "other", 4, 2)
    out = root / "out"
    return [
        ([root / "missing", out, "--shards", "2"], 3, "does not exist"),
        ([root / "file", out, "--shards", "2"], 3, "is no folder"),
        ([root / "empty", out, "--shards", "2"], 3, "no images in"),
        ([root / "texts", out, "--shards", "2"], 3, "2 not-an-image"),
        ([root / "fake", out, "--shards", "2"], 3, "class0/fake.jpg"),
        ([root / "loose", out, "--shards", "1", "--labels", "folder"], 3, "a.jpg"),
        ([good, out, "--shards", "0"], 2, "at least 1"),
        ([good, out, "--shards", "5"], 2, "has 4; use --shards 4"),
        ([good, out, "--shards", "2", "--seed", "-1"], 2, "seed"),
        ([good, good / "out", "--shards", "2"], 2, "lies inside"),
        ([good, root, "--shards", "2"], 2, "lies inside"),
        ([good, good, "--shards", "2"], 2, "lies inside"),
        ([good, root / "taken", "--shards", "2"], 5, "other files (mine.txt)"),
        ([good, root / "file", "--shards", "2"], 5, "is a file"),
        ([good, root / "file" / "out", "--shards", "2"], 5, "cannot write"),
        ([good, packed, "--shards", "2"], 5, "--overwrite"),
    ]


@pytest.mark.parametrize("number", range(16))
def test_bad_input_is_one_clear_message(tmp_path: Path, number: int) -> None:
    """Bad input ends with its exit code and a sentence; nothing is written, nothing lost."""
    arguments, code, message = bad_inputs(tmp_path)[number]
    before = everything(tmp_path)
    done = run("pack", *arguments, code=code)
    assert message in done.stderr.decode()
    assert everything(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_the_list_of_bad_inputs_is_tested_whole(tmp_path: Path) -> None:
    """The parametrised test above goes through every bad input."""
    assert len(bad_inputs(tmp_path)) == 16


def test_skip_leaves_out_and_reports(tmp_path: Path) -> None:
    """With ``--on-error skip`` a file that only looks like an image is left out and reported."""
    images = folder(tmp_path / "images", photos(6) | {"class0/fake.jpg": b"no image"})
    run("pack", images, tmp_path / "out", "--shards", "2", "--on-error", "skip")
    [row] = map(json.loads, (tmp_path / "out" / "skipped.jsonl").read_text().splitlines())
    assert (row["path"], row["reason"]) == ("class0/fake.jpg", "not-an-image")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_signal_in_the_middle(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Ctrl-C and SIGTERM end a pack quietly and leave OUT as it was; a rerun works after any."""
    images = folder(tmp_path / "images", photos(8))
    # The real command, held after its first shard, so that the signal is sure to come in between.
    script = (
        "import os, sys\n"
        "from tarshard.packing import pack as module\n"
        "write = module.write_shard\n"
        "def slow(*args, **kwargs):\n"
        "    written = write(*args, **kwargs)\n"
        "    print('written', flush=True)\n"
        "    sys.stdin.read()\n"
        "    return written\n"
        "module.write_shard = slow\n"
        "from tarshard.cli.entry import main\n"
        "main()\n"
    )
    arguments = ["pack", str(images), str(tmp_path / "out"), "--shards", "2"]
    with subprocess.Popen(
        [COMMAND[0], "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    assert process.returncode == code
    assert b"Traceback" not in said
    if number != signal.SIGKILL:
        assert not (tmp_path / "out").exists()
    run(*arguments)
    run("pack", images, tmp_path / "undisturbed", "--shards", "2")
    assert everything(tmp_path / "out") == everything(tmp_path / "undisturbed")


def test_out_through_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """OUT is judged where it leads to, not by a way that is made only later."""
    images = folder(tmp_path / "images", photos(4))
    precious = folder(tmp_path / "precious", {"shard-000000.tar": b"precious"})
    run("pack", images, tmp_path / "new" / ".." / "precious", "--shards", "2", code=5)
    assert everything(precious) == {"shard-000000.tar": b"precious"}
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("work", [{}, {"lock": b""}])
def test_a_work_folder_of_nobody_does_not_hide_other_files(
    tmp_path: Path, work: dict[str | bytes, bytes]
) -> None:
    """Other files in OUT are refused although there is a work folder in which no pack began."""
    images = folder(tmp_path / "images", photos(4))
    out = folder(tmp_path / "out", {"shard-000000.tar": b"precious"})
    folder(out / ".tarshard-work", work)
    before = everything(out)
    run("pack", images, out, "--shards", "2", code=5)
    assert everything(out) == before


@pytest.mark.parametrize("value", [2**63, 2**64, 10**30])
def test_a_seed_that_no_index_can_hold(tmp_path: Path, value: int) -> None:
    """A seed too large for the index is refused before anything is written."""
    images = folder(tmp_path / "images", photos(4))
    run("pack", images, tmp_path / "out", "--shards", "2", "--seed", str(value), code=2)
    assert not (tmp_path / "out").exists()


def test_names_are_shown_without_control_characters(tmp_path: Path) -> None:
    """A file's name cannot send commands to the terminal, nor begin a new line."""
    images = folder(tmp_path / "images", {"ev\x1b[31mil\n.jpg": b"no image", "a.jpg": image()})
    said = run("pack", images, tmp_path / "out", "--shards", "1", code=3).stderr.decode()
    assert "\x1b" not in said
    assert "ev\\x1b[31mil\\n.jpg" in said


def test_folders_that_all_link_to_each_other(tmp_path: Path) -> None:
    """A web of links ends, each image is packed and what is not followed is reported."""
    names = "abcdefgh"
    images = folder(tmp_path / "images", {f"{name}/{name}.jpg": image() for name in names})
    for name in names:
        for other in names:
            (images / name / f"to-{other}").symlink_to(images / other)
    run("pack", images, tmp_path / "out", "--shards", "1", "--labels", "none")
    [shard] = (tmp_path / "out").glob("*.tar")
    assert shard.stat().st_size > 8 * 1536
    assert b"more than 3 links" in (tmp_path / "out" / "skipped.jsonl").read_bytes()


def test_without_stderr_it_works_all_the_same(tmp_path: Path) -> None:
    """With stderr closed or full the work is done and stdout holds the data only."""
    images = folder(tmp_path / "images", photos(4))
    for number, redirection in enumerate(("2>&-", "2>/dev/full")):
        out = tmp_path / f"out{number}"
        command = [*COMMAND, "pack", str(images), str(out), "--shards", "1", "--json"]
        done = subprocess.run(
            ["bash", "-c", f'"$@" {redirection}', "bash", *command],
            capture_output=True,
            check=True,
            timeout=60,
        )
        assert json.loads(done.stdout)["samples"] == 4
        assert (out / "index.json").exists()
