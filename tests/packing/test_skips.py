"""The skip report: a JSON line for each file, whatever its name."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarshard.packing.skips import Reason, Skip, counts, report

SKIPS = st.lists(
    st.builds(
        Skip, st.binary(min_size=1, max_size=20), st.sampled_from(Reason), st.text(max_size=20)
    ),
    max_size=10,
    unique_by=lambda skip: skip.path,
)


def path_of(row: dict[str, object]) -> bytes:
    """Return the path that a row names, as bytes."""
    path = row["path"]
    if isinstance(path, dict):
        return base64.b64decode(path["bytes"], validate=True)
    assert isinstance(path, str)
    return path.encode()


@given(SKIPS)
def test_report_says_everything_sorted_by_path(skips: list[Skip]) -> None:
    """Every skip is one row of ASCII with path, reason and detail, ascending by path bytes."""
    lines = report(skips).decode("ascii").split("\n")
    assert lines.pop() == ""
    rows = [json.loads(line) for line in lines]
    assert [list(row) for row in rows] == [["path", "reason", "detail"]] * len(skips)
    assert [(path_of(row), row["reason"], row["detail"]) for row in rows] == [
        (skip.path, skip.reason.value, skip.detail)
        for skip in sorted(skips, key=lambda skip: skip.path)
    ]


@given(SKIPS)
def test_report_does_not_depend_on_the_order_found(skips: list[Skip]) -> None:
    """The same skips give the same report and the same counts."""
    assert report(skips) == report(skips[::-1])
    assert list(counts(skips).items()) == list(counts(skips[::-1]).items())
    assert sum(counts(skips).values()) == len(skips)


@pytest.mark.parametrize(
    ("path", "written"),
    [
        (b"a/b.txt", '"a/b.txt"'),
        (b"caf\xc3\xa9", '"caf\\u00e9"'),
        (b"caf\xe9", '{"bytes": "Y2Fm6Q=="}'),
        (b'"\n', '"\\"\\n"'),
    ],
)
def test_path_in_the_report(path: bytes, written: str) -> None:
    """A path that is not UTF-8 is stored as base64, any other as text."""
    line = report([Skip(path, Reason.HIDDEN, "is hidden")]).decode()
    assert line == f'{{"path": {written}, "reason": "hidden", "detail": "is hidden"}}\n'


def test_reasons_are_a_fixed_list() -> None:
    """Reasons are part of the file format: none goes or changes its spelling."""
    assert {
        "hidden", "system", "not-an-image", "broken-link", "link-loop", "link-outside",
        "special-file", "unreadable", "vanished", "changed", "too-large",
    } <= {reason.value for reason in Reason}  # fmt: skip


def test_counts_are_by_reason() -> None:
    """Counts are by reason, sorted, without zeros."""
    skips = [
        Skip(b"c", Reason.SYSTEM, ""),
        Skip(b"a", Reason.HIDDEN, ""),
        Skip(b"b", Reason.SYSTEM, ""),
    ]
    assert list(counts(skips).items()) == [("hidden", 1), ("system", 2)]


def test_a_skip_reads_as_a_sentence() -> None:
    """For people a skip is its path and what is wrong, also when the path is not UTF-8."""
    assert str(Skip(b"a/\xff.jpg", Reason.NOT_AN_IMAGE, "is empty")) == "a/\\xff.jpg: is empty"
