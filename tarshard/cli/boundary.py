"""Where errors, signals and closed pipes become a message and an exit code."""

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

from tarshard.errors import (
    CannotWrite,
    DatasetDamaged,
    InputUnusable,
    MissingLibrary,
    TarshardError,
    UsageError,
    WorkerFailed,
)

USAGE = 2
INPUT = 3
DAMAGED = 4
WRITE = 5
WORKER = 6
CTRL_C = 130
TERMINATED = 143

_EXIT_CODES: dict[type[TarshardError], int] = {
    UsageError: USAGE,
    InputUnusable: INPUT,
    MissingLibrary: INPUT,
    DatasetDamaged: DAMAGED,
    CannotWrite: WRITE,
    WorkerFailed: WORKER,
}


class _Terminated(BaseException):
    """SIGTERM arrived."""


@contextmanager
def boundary() -> Iterator[None]:
    """Run a command's work; end the program as its exit codes say if that fails.

    Imports that take long stay outside: in here Ctrl-C is an exception.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if before[signal.SIGINT] is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _raise_terminated)
    code = 0
    try:
        yield
    except TarshardError as error:
        print(f"tarshard: {error}", file=sys.stderr)
        code = next(code for kind, code in _EXIT_CODES.items() if isinstance(error, kind))
    except BrokenPipeError:
        pass  # Whoever read our output has enough.
    except KeyboardInterrupt:
        code = CTRL_C
    except _Terminated:
        code = TERMINATED
    finally:
        _end_workers()
        for number, handler in before.items():
            signal.signal(number, handler)
    if code:
        raise typer.Exit(code)


def _raise_terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    # Once is enough: a second signal must not interrupt the cleaning up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated


def _end_workers() -> None:
    # PyTorch would wait up to 5 s for a worker that is in the middle of a slow read,
    # and takes a worker's end for an accident.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for worker in multiprocessing.active_children():
        worker.terminate()
