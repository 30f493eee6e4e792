"""Pure: the tar format as tarshard writes and checks it, POSIX.1-1988 USTAR.

Every member has typeflag 0, mode 0644, owner 0, no names and time 0, so that a
header follows from name and size alone. Headers are made by the standard
library's ``tarfile``.
"""

import re
import tarfile

BLOCK_BYTES = 512
"""Headers take one block; data is padded to whole blocks."""

RECORD_BYTES = 10_240
"""A tar file is padded to whole records, as GNU tar does by default."""

NAME_BYTES = 100
"""The name field; some readers ignore the prefix field, so it stays empty."""

MEMBER_LIMIT_BYTES = 8 * 1024**3
"""The size field has 11 octal digits: a member must be smaller than this."""

_OCTAL = re.compile(rb"[0-7]+")
_SIZE_FIELD = slice(124, 136)
_MAGIC_FIELD = slice(257, 262)


def header(name: str, size_bytes: int) -> bytes:
    """Return the 512-byte header of a regular member."""
    if len(name.encode("ascii")) > NAME_BYTES:
        raise ValueError(f"a member name has at most {NAME_BYTES} bytes, got {name!r}")
    if not 0 <= size_bytes < MEMBER_LIMIT_BYTES:
        raise ValueError(
            f"a member is smaller than {MEMBER_LIMIT_BYTES:,} bytes, got {size_bytes:,}"
        )
    member = tarfile.TarInfo(name)
    member.size = size_bytes
    member.mode = 0o644
    return member.tobuf(tarfile.USTAR_FORMAT, encoding="ascii", errors="strict")


def padding(size_bytes: int) -> bytes:
    """Return the zeros that follow ``size_bytes`` bytes of data."""
    return bytes(-size_bytes % BLOCK_BYTES)


def member_bytes(size_bytes: int) -> int:
    """Return what a member takes in the tar: header, data and padding."""
    return BLOCK_BYTES + size_bytes + -size_bytes % BLOCK_BYTES


def end_of_archive(length_bytes: int) -> bytes:
    """Return the zeros that close a tar of ``length_bytes``: two blocks, then whole records."""
    return bytes(2 * BLOCK_BYTES + -(length_bytes + 2 * BLOCK_BYTES) % RECORD_BYTES)


def header_agrees(block: bytes | memoryview, name: str, size_bytes: int) -> bool:
    """Tell whether a header is of a member of that name and size.

    Only name, size and magic are compared: tars that other tools made differ in
    the rest.
    """
    expected_name = name.encode("utf-8", "surrogateescape").ljust(NAME_BYTES, b"\0")
    size_field = bytes(block[_SIZE_FIELD]).rstrip(b"\0 ").lstrip(b" ")
    return (
        len(block) == BLOCK_BYTES
        and block[:NAME_BYTES] == expected_name
        and _OCTAL.fullmatch(size_field) is not None
        and int(size_field, 8) == size_bytes
        and block[_MAGIC_FIELD] == b"ustar"
    )
