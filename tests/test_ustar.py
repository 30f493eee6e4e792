"""The tar blocks, as Python's tarfile reads them and as POSIX writes them down."""

import io
import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tarshard import ustar

NAMES = st.text(alphabet="abcXYZ019_-/.", min_size=1, max_size=100).filter(
    lambda name: not name.endswith("/")
)
SIZES = st.one_of(st.integers(0, 2000), st.integers(0, ustar.MEMBER_LIMIT_BYTES - 1))

GOLDEN = (
    b"cat/17.jpg".ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"00000001750\0"
    b"00000000000\0" + b"007450\0 " + b"0" + bytes(100) + b"ustar\x0000" + bytes(64)
    + bytes(16 + 167)
)  # fmt: skip


def test_golden_header() -> None:
    """A header is, byte for byte, what POSIX.1-1988 says for these fields, for ever."""
    assert len(GOLDEN) == 512
    fields = GOLDEN[:148] + b" " * 8 + GOLDEN[156:]
    assert GOLDEN[148:156] == b"%06o\0 " % sum(fields)
    assert ustar.header("cat/17.jpg", 1000) == GOLDEN


@given(NAMES, SIZES)
def test_header_is_read_back(name: str, size: int) -> None:
    """Any name and size come back from tarfile, with no owner, time or type of their own."""
    block = ustar.header(name, size)
    member = tarfile.TarInfo.frombuf(block, "ascii", "strict")
    assert (member.name, member.size, member.type) == (name, size, tarfile.REGTYPE)
    assert (member.mode, member.uid, member.gid, member.mtime) == (0o644, 0, 0, 0)
    assert (member.uname, member.gname, member.linkname) == ("", "", "")
    assert len(block) == ustar.BLOCK_BYTES
    assert ustar.header_agrees(block, name, size)
    assert ustar.header_agrees(memoryview(block), name, size)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("n" * 101, 1),
        ("a", -1),
        ("a", ustar.MEMBER_LIMIT_BYTES),
        ("é", 1),
    ],
)
def test_header_refuses_what_does_not_fit(name: str, size: int) -> None:
    """A name over 100 bytes or not ASCII, and a size of 8 GiB or below 0, is an error."""
    with pytest.raises(ValueError, match=r"at most 100|smaller than|ascii"):
        ustar.header(name, size)


@pytest.mark.parametrize(("size", "fill"), [(0, 0), (1, 511), (511, 1), (512, 0), (513, 511)])
def test_padding(size: int, fill: int) -> None:
    """Data is filled with zeros to whole blocks."""
    assert ustar.padding(size) == bytes(fill)
    assert ustar.member_bytes(size) == 512 + size + fill


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=8))
def test_archive_equals_the_one_of_tarfile(contents: list[bytes]) -> None:
    """Headers, padding and end make the same bytes as the standard library's tarfile."""
    ours = b""
    theirs = io.BytesIO()
    with tarfile.open(fileobj=theirs, mode="w:", format=tarfile.USTAR_FORMAT) as tar:
        for number, content in enumerate(contents):
            member = tarfile.TarInfo(f"{number}.jpg")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            before = len(ours)
            ours += ustar.header(f"{number}.jpg", len(content)) + content
            ours += ustar.padding(len(content))
            assert len(ours) - before == ustar.member_bytes(len(content))
    ours += ustar.end_of_archive(len(ours))
    assert ours == theirs.getvalue()


@given(st.integers(0, 10**6).map(lambda blocks: blocks * ustar.BLOCK_BYTES))
def test_end_of_archive(length: int) -> None:
    """Two blocks of zeros or more fill the last record, and no record more."""
    end = ustar.end_of_archive(length)
    assert (length + len(end)) % 10_240 == 0
    assert 1024 <= len(end) < 1024 + 10_240
    assert not any(end)


@pytest.mark.parametrize(
    ("start", "field"),
    [
        (0, b"dog/17.jpg"),
        (10, b"x"),
        (124, b"00000001751\0"),
        (124, b"            "),
        (124, b"\x80" + bytes(11)),
        (124, b"-0000001750\0"),
        (124, b"00000001799\0"),
        (257, b"ustaR"),
        (257, bytes(5)),
    ],
)
def test_header_that_disagrees(start: int, field: bytes) -> None:
    """Another name, size or magic is noticed, whatever stands there."""
    block = bytearray(GOLDEN)
    block[start : start + len(field)] = field
    assert not ustar.header_agrees(bytes(block), "cat/17.jpg", 1000)


@given(st.binary(max_size=1024), st.integers(0, 504), st.binary(min_size=1, max_size=16))
@example(b"", 124, b"8")
def test_any_bytes_are_an_answer(noise: bytes, start: int, patch: bytes) -> None:
    """Whatever lies where a header should be, the answer is yes or no and never an exception."""
    patched = (GOLDEN[:start] + patch + GOLDEN[start + len(patch) :])[:512]
    for block in (noise, patched):
        agrees = ustar.header_agrees(block, "cat/17.jpg", 1000)
        assert not agrees or (block[:10] == b"cat/17.jpg" and len(block) == 512)


@pytest.mark.parametrize(
    "field", [b"00000001750 ", b"    1750    ", b"0001750\0\0\0\0\0", b"1750\0       "]
)
def test_other_spellings_of_the_size_agree(field: bytes) -> None:
    """Tars of other tools, with spaces or NULs around the size, agree too."""
    block = GOLDEN[:124] + field + GOLDEN[136:]
    assert ustar.header_agrees(block, "cat/17.jpg", 1000)


@pytest.mark.parametrize("length", [0, 511, 513])
def test_a_block_cut_short_does_not_agree(length: int) -> None:
    """A header is one whole block."""
    assert not ustar.header_agrees((GOLDEN + GOLDEN)[:length], "cat/17.jpg", 1000)


def test_a_name_that_is_not_ascii_agrees_with_no_header() -> None:
    """A name that no header of ours can hold does not pass for another one."""
    assert not ustar.header_agrees(ustar.header("?.jpg", 5), "é.jpg", 5)
