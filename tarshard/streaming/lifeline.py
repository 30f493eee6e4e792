"""Ends worker processes when the main process is gone, however it went.

PyTorch's workers notice it only while they wait for work; one that is writing to a full
pipe waits for ever, and keeps the main process's output open. Here each worker waits for
the end of a pipe that only the main process could write to.
"""

import os
import signal
import threading
from multiprocessing.connection import Connection, Pipe

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_pipe: tuple[Connection, Connection] | None = None
_owner = 0


class Lifeline:
    """To be called in each worker when it starts, with its number."""

    def __init__(self) -> None:
        """Tie to this process the workers that will be started."""
        # One pipe for the process, or forked workers of two loaders would hold each other's.
        global _pipe, _owner
        if _pipe is None or _owner != os.getpid():
            _pipe, _owner = Pipe(duplex=False), os.getpid()
        self._reader = _pipe[0]

    def __call__(self, _worker: int) -> None:
        """Watch, in a thread; and leave Ctrl-C to the main process, which ends its workers."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        if _pipe is not None:
            # Forked: the end for writing came along.
            _pipe[1].close()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        try:
            self._reader.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)
