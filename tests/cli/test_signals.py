"""Ctrl-C, SIGTERM and a closed pipe at many instants: the code, silence, and nothing left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from making import folder, image, no_hang

import tarshard

SERVER = """
import json, os, signal, sys
import tarshard.cli.app, tarshard.cli.output, tarshard.cli.progress, tarshard.cli.show
import tarshard.streaming.loader, tarshard.streaming.sinks

def child(job):
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path, flags in ((0, "/dev/null", os.O_RDONLY), (1, job["stdout"], os.O_WRONLY),
                                (2, job["stderr"], os.O_WRONLY | os.O_CREAT)):
        file = os.open(path, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.environ["TMPDIR"] = job["tmp"]
    import tempfile
    tempfile.tempdir = None
    sys.argv = ["tarshard", *job["arguments"]]
    sys.stdout = os.fdopen(1, "w")
    import tarshard.cli.app
    tarshard.cli.app.app()

replies = os.fdopen(os.dup(1), "w", buffering=1)
while line := sys.stdin.readline():
    job = json.loads(line)
    pid = os.fork()
    if not pid:
        replies.close()
        child(job)
    replies.write(f"{pid}\\n")
    replies.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\\n")
"""
"""Runs commands as forks of a process that has imported all that takes long."""


def wait_for_group(group: int) -> None:
    """Wait until no process of a group is left, nor one that was not waited for."""
    with suppress(ProcessLookupError):
        while True:
            os.killpg(group, 0)


@dataclass
class Run:
    """A command that runs."""

    pid: int
    stdout: int
    server: "subprocess.Popen[str]"
    stderr: Path

    def read(self, count: int) -> int:
        """Read so many bytes of its output, or up to its end; return how many there were."""
        left = count
        while left and (part := os.read(self.stdout, min(left, 65_536))):
            left -= len(part)
        return count - left

    def wait_for_a_worker(self) -> None:
        """Wait until a worker process is there."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        while not children.read_text():
            pass

    def signal(self, number: int, *, group: bool) -> None:
        """Send a signal to it, or as a terminal does to its workers as well."""
        (os.killpg if group else os.kill)(self.pid, number)

    def end(self) -> tuple[int, str]:
        """Wait for its end; return exit code and stderr."""
        assert self.server.stdout is not None
        code = int(self.server.stdout.readline())
        return code, self.stderr.read_text()

    def wait_until_all_are_gone(self) -> None:
        """Wait until no process of its group is left."""
        wait_for_group(self.pid)


class Commands:
    """Starts commands."""

    def __init__(self, server: "subprocess.Popen[str]", root: Path) -> None:
        self._server = server
        self._root = root
        self._started: list[int] = []

    @property
    def tmp(self) -> Path:
        """The folder that is the commands' TMPDIR."""
        return self._root / "tmp"

    def start(self, *arguments: str | Path) -> Run:
        """Start a command, whose output goes to a pipe."""
        number = len(self._started)
        fifo, stderr = (self._root / f"{number}.{name}" for name in ("stdout", "stderr"))
        os.mkfifo(fifo)
        job = {
            "arguments": list(map(str, arguments)),
            "stdout": str(fifo),
            "stderr": str(stderr),
            "tmp": str(self.tmp),
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        stdout = os.open(fifo, os.O_RDONLY)
        self._started.append(int(self._server.stdout.readline()))
        return Run(self._started[-1], stdout, self._server, stderr)

    def end(self) -> None:
        """End those that a failed test left."""
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    """Return what starts commands."""
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        commands = Commands(server, tmp_path)
        yield commands
        commands.end()
        assert server.stdin is not None
        server.stdin.close()
        server.wait(timeout=20)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of 4 MB in two shards."""
    root = tmp_path_factory.mktemp("signals")
    noise: dict[str | bytes, bytes] = {
        f"{n}.png": image(n, size=(420, 280), kind="PNG") for n in range(12)
    }
    tarshard.pack(folder(root / "images", noise), root / "packed", shards=2)
    return root / "packed"


def shared() -> set[str]:
    """Return PyTorch's files of shared memory whose process is gone."""
    return {
        name
        for name in os.listdir("/dev/shm")  # noqa: S108  (that is where they are)
        if name.startswith("torch_") and not Path(f"/proc/{name.split('_')[1]}").exists()
    }


TOTAL = 12 * 420 * 280 * 3
"""About so many bytes are written, in either form."""

INSTANTS = [1, 10_000, *(TOTAL * part // 18 for part in range(1, 18)), TOTAL - 400_000]
"""After so many bytes."""

FORMS = {
    "tar": ["--format", "tar"],
    "rgb24": ["--format", "rgb24", "--size", "280x420"],
}


def interrupt(number: int, *, group: bool) -> Callable[[Run], object]:
    """Return what sends a signal and reads on to the end of the output, which all writers hold."""

    def act(command: Run) -> None:
        command.signal(number, group=group)
        command.read(10**9)

    return act


ENDS: dict[str, tuple[Callable[[Run], object], int]] = {
    "Ctrl-C": (interrupt(signal.SIGINT, group=True), 130),
    "SIGINT": (interrupt(signal.SIGINT, group=False), 130),
    "SIGTERM": (interrupt(signal.SIGTERM, group=False), 143),
    "SIGTERM for all": (interrupt(signal.SIGTERM, group=True), 143),
    "closed pipe": (lambda command: os.close(command.stdout), 0),
}


def at_instants(
    commands: Commands, packed: Path, end: str, form: str, instants: Sequence[int | None]
) -> list[object]:
    """End a command after so many bytes; return what was not as it must be.

    None is for as soon as there is a worker.
    """
    act, expected = ENDS[end]
    faults: list[object] = []
    before = shared()
    for instant in instants:
        with no_hang(20):
            command = commands.start(
                "stream", packed, *FORMS[form], "--workers", "2", "--batch-size", "1"
            )
            if instant is None:
                command.wait_for_a_worker()
            else:
                command.read(instant)
            act(command)
            code, said = command.end()
            command.wait_until_all_are_gone()
        if end != "closed pipe":
            os.close(command.stdout)
        left = sorted(os.listdir(commands.tmp))
        is_silent = said == "" or (code == 0 and said.startswith("Streamed "))
        if (code, is_silent, left) != (expected, True, []):
            faults.append((instant, code, said[:600], left))
    if shared() - before:
        faults.append(shared() - before)
    return faults


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("end", ["Ctrl-C", "SIGTERM", "closed pipe"])
def test_ends_at_any_instant(commands: Commands, packed: Path, end: str, form: str) -> None:
    """At each of 20 instants, ten for each form, it ends with its code, silent, without a rest."""
    instants = INSTANTS[0 if form == "tar" else 1 :: 2]
    assert at_instants(commands, packed, end, form, instants) == []


@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM for all"])
def test_signals_to_one_or_all(commands: Commands, packed: Path, end: str) -> None:
    """SIGINT to the command alone, and SIGTERM to its workers too, end it just the same."""
    assert at_instants(commands, packed, end, "rgb24", [1, TOTAL // 3, TOTAL // 2]) == []


@pytest.mark.parametrize("end", ENDS)
def test_ends_while_workers_begin(commands: Commands, packed: Path, end: str) -> None:
    """While workers are being started it ends as at any other time; no signal gets lost."""
    assert at_instants(commands, packed, end, "tar", [None] * 4) == []


SCRIPT = """
import json, os, signal, sys
from tarshard import Loader

def main(dataset, method, workers):
    loader = Loader(
        dataset, batch_size=1, workers=int(workers), start_method=method, size=(280, 420)
    )
    try:
        for batch in loader:
            sys.stdout.buffer.write(batch.images.numpy().tobytes())
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        loader.close()
        sys.exit(0)
    except KeyboardInterrupt:
        loader.close()
        sys.exit(130)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM", "closed pipe"])
def test_a_script_with_a_loader_ends(packed: Path, tmp_path: Path, end: str, method: str) -> None:
    """However workers are started, a script's end is theirs, and nothing is left behind."""
    (tmp_path / "script.py").write_text(SCRIPT)
    # Not in tmp_path: sockets' paths must be short.
    tmp = Path(tempfile.mkdtemp())
    before = shared()
    # Spawned workers each import PyTorch, which takes long.
    workers, instants = ("2", (1, TOTAL // 2)) if method == "fork" else ("1", (TOTAL // 2,))
    for instant in instants:
        command: Any = [sys.executable, tmp_path / "script.py", packed, method, workers]
        with (
            no_hang(40),
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=os.environ | {"TMPDIR": str(tmp)},
            ) as process,
        ):
            assert process.stdout is not None
            assert process.stderr is not None
            assert len(process.stdout.read(instant)) == instant
            if end == "closed pipe":
                process.stdout.close()
            else:
                process.send_signal(getattr(signal, end))
                process.stdout.read()
            # Workers hold stderr: its end is the end of all of them.
            said = process.stderr.read()
        assert process.returncode == {"SIGINT": 130, "SIGTERM": -15, "closed pipe": 0}[end]
        # Where SIGTERM ends a script at once, Python's resource tracker tells of its semaphores.
        assert said == b"" or end == "SIGTERM", said.decode()
        with no_hang(20):
            wait_for_group(process.pid)
        if end != "SIGTERM":
            assert os.listdir(tmp) == []
    shutil.rmtree(tmp)
    assert shared() == before
