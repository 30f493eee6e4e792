"""What C code prints to stderr is caught, belongs to its block, and costs no descriptors."""

import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from tarshard.imaging.decode import Decoder, Undecodable
from tarshard.imaging.noise import Noise


def say(text: str) -> None:
    """Print as a C library does: to the descriptor, past `sys.stderr`."""
    os.write(2, text.encode())


def open_descriptors() -> int:
    """How many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )


PRELUDE = """
import os
import cv2, numpy as np
from tarshard.imaging.decode import Decoder, Undecodable
jpeg = cv2.imencode(".jpg", np.zeros((40, 40, 3), np.uint8))[1].tobytes()
png = cv2.imencode(".png", np.zeros((40, 40, 3), np.uint8))[1].tobytes()
scan = jpeg.index(b"\\xff\\xda") + 14
odd_jpeg = jpeg[:scan] + b"\\x55" * 40 + jpeg[scan:]
broken_png = png[:60] + b"\\x55" + png[61:]
"""


def test_catches_what_is_printed() -> None:
    """What is written to descriptor 2 in a block comes back from `take`, once."""
    noise = Noise()
    with noise.caught():
        say("from C\n")
    assert noise.take() == "from C\n"
    assert noise.take() == ""


def test_quiet_block() -> None:
    """A block that prints nothing leaves nothing to take."""
    noise = Noise()
    with noise.caught():
        pass
    assert noise.take() == ""


def test_several_blocks_add_up() -> None:
    """What is not taken is kept and goes on with the next block."""
    noise = Noise()
    for text in ("one ", "two ", "three"):
        with noise.caught():
            say(text)
    assert noise.take() == "one two three"


def test_longer_then_shorter() -> None:
    """Nothing is left in the file of a longer message when a shorter one follows."""
    noise = Noise()
    for text in ("a long message", "short", "x"):
        with noise.caught():
            say(text)
        assert noise.take() == text


def test_printed_outside_is_not_caught(capfd: pytest.CaptureFixture[str]) -> None:
    """Before, between and after blocks stderr is what it was."""
    noise = Noise()
    say("before ")
    with noise.caught():
        say("inside ")
    say("between ")
    with noise.caught():
        say("inside ")
    say("after")
    assert capfd.readouterr().err == "before between after"
    assert noise.take() == "inside inside "


def test_exception_inside(capfd: pytest.CaptureFixture[str]) -> None:
    """An exception comes through, stderr is back, and what was printed before is kept."""
    noise = Noise()

    def fail() -> None:
        with noise.caught():
            say("then it failed")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    say("loose")
    assert capfd.readouterr().err == "loose"
    assert noise.take() == "then it failed"


@pytest.mark.parametrize("depth", [2, 5, 40])
def test_nested(depth: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Blocks within blocks of the same object lose nothing, and leave stderr as it was."""
    noise = Noise()

    def go(level: int) -> None:
        if level < depth:
            with noise.caught():
                say(f"in {level} ")
                go(level + 1)
                say(f"out {level} ")

    go(0)
    levels = range(depth)
    inward = "".join(f"in {level} " for level in levels)
    outward = "".join(f"out {level} " for level in reversed(levels))
    assert noise.take() == inward + outward
    say("loose")
    assert capfd.readouterr().err == "loose"


def test_nested_objects() -> None:
    """Of two objects the inner one gets what is printed in its block, the outer one the rest."""
    outer, inner = Noise(), Noise()
    with outer.caught():
        say("a")
        with inner.caught():
            say("b")
        say("c")
    assert (outer.take(), inner.take()) == ("ac", "b")


def test_limit_of_size() -> None:
    """Of a flood the first 64 KB of a block are kept, and the next block starts afresh."""
    noise = Noise()
    with noise.caught():
        for number in range(20_000):
            say(f"line {number:6}\n")
    text = noise.take()
    assert len(text) == 65_536
    assert text.startswith("line      0\nline      1\n")
    with noise.caught():
        say("next")
    assert noise.take() == "next"


def test_bytes_that_are_no_text() -> None:
    """Bytes that are not UTF-8 are replaced; nothing is raised."""
    noise = Noise()
    with noise.caught():
        os.write(2, b"caf\xe9 \xff")
    assert noise.take() == "caf\N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}"


def test_output_of_a_child_process() -> None:
    """A child process started in a block prints into it too."""
    noise = Noise()
    with noise.caught():
        subprocess.run(["sh", "-c", "echo child >&2"], check=True)
    assert noise.take() == "child\n"


def test_blocks_leak_no_descriptor() -> None:
    """A thousand blocks, half of them failing, leave as many descriptors open as before."""
    noise = Noise()
    before = open_descriptors()
    for number in range(1000):
        try:
            with noise.caught():
                say("x")
                if number % 2:
                    raise ValueError
        except ValueError:
            pass
        assert noise.take() == "x"
    assert open_descriptors() == before


def test_decoding_leaks_no_descriptor() -> None:
    """A thousand decodes, two thirds of them failing, leave as many descriptors open as before."""
    decoder = Decoder()
    pixels = np.arange(300, dtype=np.uint8).reshape(10, 10, 3)
    png = cv2.imencode(".png", pixels)[1].tobytes()
    tiff = cv2.imencode(".tiff", pixels)[1].tobytes()
    decoder.decode(png)
    before = open_descriptors()
    failures = 0
    for number in range(1000):
        data = (png, png[:-30], tiff[: len(tiff) // 2])[number % 3]
        try:
            decoder.decode(data)
        except Undecodable:
            failures += 1
    assert failures == 666
    assert open_descriptors() == before


def test_noise_may_be_dropped() -> None:
    """A `Noise` that nobody needs any more closes its file and warns of nothing."""
    script = """
import gc
from tarshard.imaging.noise import Noise
Noise()
gc.collect()
"""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_nothing_is_printed_by_decoding() -> None:
    """Decoders that complain print nothing to stderr or stdout of the process."""
    done = run(
        PRELUDE
        + """
decoder = Decoder()
_, complaint = decoder.decode(odd_jpeg)
assert "Corrupt JPEG data" in complaint, complaint
try:
    decoder.decode(broken_png)
except Undecodable as error:
    assert "libpng" in str(error), error
else:
    raise SystemExit("broken PNG was decoded")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_stderr_works_after_decoding() -> None:
    """What the program itself prints to stderr between decodes is there, in order, alone."""
    done = run(
        PRELUDE
        + """
decoder = Decoder()
for number in range(3):
    decoder.decode(odd_jpeg)
    os.write(2, b"%d " % number)
"""
    )
    assert (done.returncode, done.stderr) == (0, "0 1 2 ")


def test_complaint_belongs_to_its_image() -> None:
    """An image gets no complaint of the one before it, be that decoded or refused."""
    done = run(
        PRELUDE
        + """
decoder = Decoder()
found = []
for data in (odd_jpeg, jpeg, broken_png, jpeg, odd_jpeg, png):
    try:
        found.append(bool(decoder.decode(data)[1]))
    except Undecodable:
        found.append(None)
assert found == [True, False, None, False, True, False], found
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_process_without_stderr() -> None:
    """A process whose stderr is closed, as a daemon's may be, can decode."""
    script = (
        PRELUDE
        + """
pixels, complaint = Decoder().decode(odd_jpeg)
print(pixels.shape)
"""
    )
    done = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" 2>&-', sys.executable, script],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "(40, 40, 3)\n")
