"""Makes Ctrl-C what it is on a terminal, for all tests."""

import signal

# Where tests run in the background SIGINT may be ignored, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
