"""Which rank this process is, alone and under a real launcher."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from making import dataset

from tarshard.errors import UsageError
from tarshard.streaming import ranks


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_alone() -> None:
    """Without anything given or announced the process is the only one."""
    assert ranks.resolve(None, None) == (0, 1)


@pytest.mark.parametrize("announced", [None, "1", "8"])
def test_explicit_ranks_win(announced: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the caller says is taken, whatever the environment announces."""
    if announced:
        monkeypatch.setenv("WORLD_SIZE", announced)
    assert ranks.resolve(2, 3) == (2, 3)
    assert ranks.resolve(0, 1) == (0, 1)


@pytest.mark.parametrize(("rank", "world_size"), [(0, None), (None, 2), (None, 1)])
def test_half_given(rank: int | None, world_size: int | None) -> None:
    """One of rank and world size without the other is an error, not a guess."""
    with pytest.raises(UsageError, match="rank and world size together, or neither"):
        ranks.resolve(rank, world_size)


def test_announced_but_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher's WORLD_SIZE without a process group is an error that says what to do."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match=r"WORLD_SIZE is 4 .* init_process_group"):
        ranks.resolve(None, None)


def test_announced_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that announces one process needs no process group."""
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert ranks.resolve(None, None) == (0, 1)


SCRIPT = """\
import json, sys
import torch.distributed as dist
from tarshard import Loader, Stream, UsageError
from tarshard.streaming import ranks

packed, out = sys.argv[1:]
try:
    Stream(packed)
except UsageError as error:
    refused = str(error)
dist.init_process_group("gloo")
try:
    rows = {"rank": ranks.resolve(None, None), "explicit": ranks.resolve(0, 5), "refused": refused}
    for tail in ("uneven", "pad", "drop", None):
        stream = Stream(packed, batch_size=2, tail=tail)
        rows[f"stream {tail}"] = [[b.index.tolist(), b.valid.tolist()] for b in stream]
    loader = Loader(packed, batch_size=2, workers=2)
    rows["loader"] = [[b.index.tolist(), b.valid.tolist()] for b in loader]
    loader.close()
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, rows)
    if dist.get_rank() == 0:
        with open(out, "w") as file:
            json.dump(gathered, file)
finally:
    dist.destroy_process_group()
"""


def test_torchrun(tmp_path: Path) -> None:
    """Two processes of torchrun share a dataset exactly, by their process group alone."""
    packed = dataset(tmp_path, 7, 3)
    script, out = tmp_path / "train.py", tmp_path / "out.json"
    script.write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node", "2", script, packed, out],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    gathered = json.loads(out.read_text())
    assert [rows["rank"] for rows in gathered] == [[0, 2], [1, 2]]
    assert [rows["explicit"] for rows in gathered] == [[0, 5], [0, 5]]
    assert all("init_process_group" in rows["refused"] for rows in gathered)

    def valid(what: str) -> list[int]:
        return [
            index
            for rows in gathered
            for indices, flags in rows[what]
            for index, is_valid in zip(indices, flags, strict=True)
            if is_valid
        ]

    for what in ("stream uneven", "stream pad", "stream None", "loader"):
        assert sorted(valid(what)) == list(range(7)), what
    assert gathered[0]["stream None"] == gathered[0]["stream pad"], "several ranks are padded"
    assert [len(rows["loader"]) for rows in gathered] == [2, 2]
    assert len(set(valid("stream drop"))) == len(valid("stream drop")) == 4
