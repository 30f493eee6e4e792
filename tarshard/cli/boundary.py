"""Where errors, signals and closed pipes become a message and an exit code."""

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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

_EXIT_CODES: dict[type[TarshardError], int] = {
    UsageError: USAGE,
    InputUnusable: INPUT,
    MissingLibrary: INPUT,
    DatasetDamaged: DAMAGED,
    CannotWrite: WRITE,
    WorkerFailed: WORKER,
}


class _Terminated(BaseException):
    """SIGTERM or SIGHUP arrived."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def boundary() -> Iterator[None]:
    """Run a command's work; end the program as its exit codes say if that fails.

    Imports that take long stay outside: in here Ctrl-C is an exception.
    """
    before = {number: signal.getsignal(number) for number in _HANDLERS}
    for number, handler in _HANDLERS.items():
        # What the caller told us to ignore stays ignored.
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, handler)
    code = 0
    try:
        yield
    except TarshardError as error:
        with suppress(OSError):
            print(f"tarshard: {error}", file=sys.stderr, flush=True)
        code = next(code for kind, code in _EXIT_CODES.items() if isinstance(error, kind))
    except BrokenPipeError:
        pass  # Whoever read our output has enough.
    except KeyboardInterrupt:
        code = CTRL_C
    except _Terminated as signalled:
        code = 128 + signalled.number
    finally:
        if code:
            # PyTorch's clean-up stumbles over workers that are gone already, and Python tells.
            sys.unraisablehook = lambda _problem: None
        _end_workers()
        for number, earlier in before.items():
            signal.signal(number, earlier)
    if code:
        raise typer.Exit(code)


def _raise_interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    # Once is enough: a second signal must not interrupt the cleaning up.
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _raise_terminated(number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    raise _Terminated(number)


_HANDLERS = {
    signal.SIGINT: _raise_interrupt,
    signal.SIGTERM: _raise_terminated,
    signal.SIGHUP: _raise_terminated,
}


def _end_workers() -> None:
    # PyTorch would wait up to 5 s for a worker that is in the middle of a slow read,
    # and takes a worker's end for an accident.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for worker in multiprocessing.active_children():
        worker.kill()
