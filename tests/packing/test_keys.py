"""Keys and pack order, held against values worked out from the rules by another script."""

import hashlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tarshard.packing.keys import assign_keys, pack_order, without_extension

BYTE_PARTS = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.text(alphabet="aA_-. é1", min_size=1, max_size=8).map(str.encode),
    st.sampled_from([b"photo.jpg", b"photo.png", b"_x", b"-x", b"...", b"y" * 90]),
).filter(lambda part: not {0, ord("/")} & set(part) and part not in {b".", b".."})
PATHS = st.lists(BYTE_PARTS, min_size=1, max_size=4).map(b"/".join)
PATH_SETS = st.lists(PATHS, min_size=1, max_size=12, unique=True)

GOLDEN_KEYS = {
    b"cat/17.jpg": "cat/17",
    b"A-b_C/Dog9.JPEG": "A-b_C/Dog9",
    b"no_extension": "no_extension",
    b"a b.jpg": "a_b-1f97f74b93",
    b"a.b.c.jpg": "a_b_c-e7c577a6e3",
    b"_a/-b.jpg": "x_a/x-b-cf4c3e0d89",
    b"__x.jpg": "x__x-ac0c2260fc",
    b"\xff\xfe.jpg": "x__-da680a20ce",
    b"caf\xc3\xa9/x.jpg": "caf__/x-597d5fd5d1",
    b".jpg": "x_jpg-d912c70acf",
    b"k/...": "k/x__-9f50e3c864",
    b"y" * 72 + b".jpg": "y" * 72,
    b"y" * 73 + b".jpg": "y" * 61 + "-b04f78705a",
    b"x" * 300 + b".jpg": "x" * 61 + "-aac810c56a",
}


def hashed(safe: str, path: bytes) -> str:
    """Spell a key that has to be hashed, as interface.md says it."""
    return f"{safe[:61]}-{hashlib.sha256(path).hexdigest()[:10]}"


@pytest.mark.parametrize(("path", "key"), GOLDEN_KEYS.items())
def test_golden_key(path: bytes, key: str) -> None:
    """A path's key is what the written rule gives, for ever."""
    assert assign_keys([path]) == [key]


def test_keys_do_not_depend_on_each_other() -> None:
    """Paths that do not collide have the key that each has alone, in any company and order."""
    paths = list(GOLDEN_KEYS)
    assert assign_keys(paths) == list(GOLDEN_KEYS.values())
    assert assign_keys(paths[::-1]) == list(GOLDEN_KEYS.values())[::-1]


@pytest.mark.parametrize(
    ("paths", "keys"),
    [
        ([b"1.jpg", b"1.png"], ["1-4c468b3b16", "1-9461eefa9b"]),
        ([b"a/b.jpg", b"a_b.jpg"], ["a/b", "a_b"]),
        ([b"a b.jpg", b"a_b.jpg"], ["a_b-1f97f74b93", "a_b"]),
        ([b"A.jpg", b"a.jpg"], ["A", "a"]),
        ([b"a.jpg", b"a/b.jpg"], ["a", "a/b"]),
        ([b"\xff.jpg", b"\xfe.jpg"], [hashed("x_", b"\xff.jpg"), hashed("x_", b"\xfe.jpg")]),
        (
            [b"z" * 80 + end for end in (b"1.jpg", b"2.jpg")],
            [hashed("z" * 80, b"z" * 80 + end) for end in (b"1.jpg", b"2.jpg")],
        ),
        (
            [b"1.jpg", b"1.png", b"1.webp", b"2.jpg"],
            [hashed("1", b"1" + end) for end in (b".jpg", b".png", b".webp")] + ["2"],
        ),
    ],
)
def test_collisions(paths: list[bytes], keys: list[str]) -> None:
    """All paths that would share a key get a hash, and no other path does."""
    assert assign_keys(paths) == keys
    assert assign_keys(paths[::-1]) == keys[::-1]


def test_a_path_that_is_another_ones_hashed_key() -> None:
    """A path named like the hashed key of another cannot take that key from it."""
    paths = [b"a b.jpg", b"a_b-1f97f74b93.jpg", b"a_b-1f97f74b93.png"]
    keys = assign_keys(paths)
    assert keys[0] == "a_b-1f97f74b93"
    assert keys[1:] == [hashed("a_b-1f97f74b93", path) for path in paths[1:]]


def test_same_path_twice_is_a_mistake() -> None:
    """No end of hashing can tell a path from itself, so it is refused and not looped over."""
    with pytest.raises(ValueError, match="same path twice"):
        assign_keys([b"a.jpg", b"a.jpg"])


@given(PATH_SETS)
@example([b"a b", b"a.b", b"a_b", b"a_b.jpg", b"a_b-0"])
def test_every_set_of_paths_gets_safe_keys(paths: list[bytes]) -> None:
    """Keys are unique, dot-free, short ASCII of few letters, and never start with _ or -."""
    keys = assign_keys(paths)
    assert len(keys) == len(set(keys)) == len(paths)
    for key in keys:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_\-/]{0,71}", key), key
        assert "//" not in key


@given(PATH_SETS)
def test_safe_paths_keep_their_spelling(paths: list[bytes]) -> None:
    """A short safe path with a stem and a hash of its own has its stem as its key."""
    stems = [without_extension(path) for path in paths]
    for path, stem, key in zip(paths, stems, assign_keys(paths), strict=True):
        safe = re.fullmatch(rb"(?![_-])[A-Za-z0-9_\-/]{1,72}", stem) and not re.search(
            rb"/[_-]", stem
        )
        if safe and stems.count(stem) == 1 and not re.search(rb"-[0-9a-f]{10}$", stem):
            assert key == stem.decode()
        elif not safe:
            assert key.endswith("-" + hashlib.sha256(path).hexdigest()[:10])


@given(PATH_SETS.flatmap(lambda paths: st.tuples(st.just(paths), st.permutations(paths))))
def test_keys_do_not_depend_on_the_order_of_paths(both: tuple[list[bytes], list[bytes]]) -> None:
    """Each path has the same key, however the list is arranged."""
    paths, moved = both
    assert dict(zip(paths, assign_keys(paths), strict=True)) == dict(
        zip(moved, assign_keys(moved), strict=True)
    )


@pytest.mark.parametrize(
    ("path", "stem"),
    [
        (b"a.jpg", b"a"),
        (b"a.tar.gz", b"a.tar"),
        (b"d.x/a", b"d.x/a"),
        (b".jpg", b".jpg"),
        (b"d/.jpg", b"d/.jpg"),
        (b"a.", b"a"),
        (b"a", b"a"),
    ],
)
def test_without_extension(path: bytes, stem: bytes) -> None:
    """Only the last extension of the file's own name goes."""
    assert without_extension(path) == stem


@pytest.mark.parametrize(
    ("order", "seed", "positions"),
    [
        ("shuffled", 0, [4, 1, 0, 2, 3]),
        ("shuffled", 7, [3, 1, 2, 0, 4]),
        ("path", 0, [1, 2, 0, 4, 3]),
    ],
)
def test_golden_pack_order(order: str, seed: int, positions: list[int]) -> None:
    """The pack order is what the written rule gives, for ever."""
    paths = [b"b/2.jpg", b"a/1.jpg", b"a/3.png", b"\xff.jpg", b"c d.jpg"]
    assert pack_order(paths, order=order, seed=seed) == positions


@given(PATH_SETS, st.integers(0, 2**70))
def test_pack_order_follows_the_rule(paths: list[bytes], seed: int) -> None:
    """Shuffled is ascending by sha256 of seed, NUL and path."""
    ranks = [hashlib.sha256(str(seed).encode() + b"\0" + path).hexdigest() for path in paths]
    order = pack_order(paths, order="shuffled", seed=seed)
    assert [ranks[at] for at in order] == sorted(ranks)
    assert sorted(order) == list(range(len(paths)))
