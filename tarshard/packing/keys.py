"""Pure: gives every path a key that all readers of tar shards agree on, and an order.

Readers take a member's name up to its first dot as the key, skip names that
start with ``__``, and some truncate at 100 bytes or refuse other than ASCII.
A path that has such a name already keeps it; any other gets a safe spelling
and a piece of its hash.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence

KEY_LIMIT_BYTES = 72
"""With a dot and the longest extension a key stays well below a tar name's 100 bytes."""

_HASH_DIGITS = 10
_HASH_DIGITS_LIMIT = 60
_UNSAFE = re.compile(rb"[^A-Za-z0-9_\-/]")
_SPECIAL_START = re.compile(rb"(^|/)(?=[_-])")


def pack_order(paths: Sequence[bytes], *, order: str, seed: int) -> list[int]:
    r"""Return positions in ``paths`` in pack order.

    ``shuffled`` is ascending by sha256 of ``"{seed}\0"`` and the path, so a
    path's place among others does not depend on what else is in the folder;
    ``path`` is ascending by the path's bytes.
    """
    if order == "path":
        return sorted(range(len(paths)), key=lambda at: paths[at])
    start = hashlib.sha256(f"{seed}\0".encode())

    def rank(at: int) -> bytes:
        digest = start.copy()
        digest.update(paths[at])
        return digest.digest()

    return sorted(range(len(paths)), key=rank)


def assign_keys(paths: Sequence[bytes]) -> list[str]:
    """Return a key for each path: ASCII, without dots, unique among them."""
    plain = [_plain_key(path) for path in paths]
    digits = [
        _HASH_DIGITS if changed or len(safe) > KEY_LIMIT_BYTES else 0 for safe, changed in plain
    ]

    def key(at: int) -> bytes:
        return _hashed_key(plain[at][0], paths[at], digits[at]) if digits[at] else plain[at][0]

    keys = [key(at) for at in range(len(paths))]
    while clashes := _clashes(keys):
        for clash in clashes:
            # Whoever has the fewest digits of its hash gets more: mostly paths that
            # differ in their extension only, and have none yet.
            fewest = min(digits[at] for at in clash)
            for at in clash:
                if digits[at] == fewest:
                    digits[at] += _HASH_DIGITS
                    keys[at] = key(at)
    return [key.decode("ascii") for key in keys]


def _plain_key(path: bytes) -> tuple[bytes, bool]:
    stem = without_extension(path)
    safe = _SPECIAL_START.sub(rb"\1x", _UNSAFE.sub(b"_", stem))
    return safe, safe != stem


def without_extension(path: bytes) -> bytes:
    """Return the path without its last extension; a leading dot starts none."""
    folder, slash, name = path.rpartition(b"/")
    stem, dot, _ = name.rpartition(b".")
    return folder + slash + (stem if dot and stem else name)


def _hashed_key(safe: bytes, path: bytes, digits: int) -> bytes:
    if digits > _HASH_DIGITS_LIMIT:
        raise ValueError(f"the same path twice: {path!r}")
    digest = hashlib.sha256(path).hexdigest()[:digits].encode("ascii")
    return safe[: KEY_LIMIT_BYTES - 1 - digits] + b"-" + digest


def _clashes(keys: Sequence[bytes]) -> list[list[int]]:
    if len(set(keys)) == len(keys):
        return []
    places = defaultdict(list)
    for at, key in enumerate(keys):
        places[key].append(at)
    return [at for at in places.values() if len(at) > 1]
