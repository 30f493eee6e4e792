"""Where the command begins: Ctrl-C ends it at once, until there is something to clean up."""

import os
import signal
import sys


def main() -> None:
    """Run the command line."""
    # Importing takes a while, and a KeyboardInterrupt in the middle of it may be swallowed
    # or printed. Where Ctrl-C is ignored, as for background jobs, it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    if sys.stderr is None:
        # Closed by the caller: a file opened later must not take its place.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        sys.stderr = os.fdopen(2, "w")

    from tarshard.cli.app import app

    app()
