"""Workers whose main process is gone, however it went."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from making import dataset

SCRIPT = """
import itertools, sys
from tarshard import Loader

if __name__ == "__main__":
    # Two loaders, both begun: forked workers inherit what the others hold.
    loaders = [
        Loader(sys.argv[1], batch_size=1, workers=2, start_method=sys.argv[2]) for _ in range(2)
    ]
    running = [iter(loader) for loader in loaders]
    for iterator in running:
        next(iterator)
    print("running", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_end_with_the_main_process(tmp_path: Path, method: str) -> None:
    """After ``kill -9`` of the main process its workers end by themselves."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, tmp_path / "script.py", dataset(tmp_path, 30, 2), method],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        os.kill(process.pid, signal.SIGKILL)
        # Workers hold the pipe as well: its end is the end of the last of them.
        assert process.stdout.read() == b""
    assert process.returncode == -signal.SIGKILL
