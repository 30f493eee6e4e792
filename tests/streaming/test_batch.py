"""What a batch says of its samples, and that it says the same after a journey."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tarshard.streaming.batch import Batch, Delivered, Problem


def facts(index: int, *, label: int = 0, size_bytes: int = 1, valid: bool = True) -> Delivered:
    """Return facts of a sample that differ with its index."""
    return Delivered(
        key=f"cat/{index}",
        label=label,
        shard="shard-000000.tar",
        member=f"cat/{index}.jpg",
        offset=512 + 2_048 * index,
        size_bytes=size_bytes,
        width=24,
        height=None,
        index=index,
        valid=valid,
    )


def batch(*contents: bytes) -> Batch:
    """Return a batch of these bytes; every second sample is padding without a class."""
    rows = [
        facts(at, label=at if at % 2 == 0 else -1, size_bytes=len(content), valid=at % 2 == 0)
        for at, content in enumerate(contents)
    ]
    return Batch(rows, [memoryview(content) for content in contents])


def test_columns() -> None:
    """Keys, labels, valid and index are the samples' facts, in the types that are promised."""
    made = batch(b"one", b"", b"three")
    assert len(made) == 3
    assert made.keys == ["cat/0", "cat/1", "cat/2"]
    assert torch.equal(made.labels, torch.tensor([0, -1, 2], dtype=torch.int64))
    assert torch.equal(made.valid, torch.tensor([True, False, True]))
    assert torch.equal(made.index, torch.tensor([0, 1, 2], dtype=torch.int64))
    assert (made.labels.dtype, made.valid.dtype, made.index.dtype) == (
        torch.int64,
        torch.bool,
        torch.int64,
    )


def test_empty_batch_has_typed_columns() -> None:
    """Without samples the columns are empty but keep their types."""
    made = Batch([], [])
    assert len(made) == 0
    assert made.keys == []
    assert [column.shape for column in (made.labels, made.valid, made.index)] == [(0,)] * 3
    assert made.labels.dtype == torch.int64
    assert made.valid.dtype == torch.bool


def same(left: Batch, right: Batch) -> bool:
    """Tell whether two batches have the same facts and bytes."""
    return list(left.samples) == list(right.samples) and list(map(bytes, left.data)) == list(
        map(bytes, right.data)
    )


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@given(contents=st.lists(st.binary(max_size=50), max_size=8))
def test_pickling(protocol: int, contents: list[bytes]) -> None:
    """A pickled batch comes back with the same facts and bytes, as facts with names, read-only."""
    made = batch(*contents)
    back = pickle.loads(pickle.dumps(made, protocol))  # noqa: S301  # our own bytes
    assert same(back, made)
    assert all(type(sample) is Delivered for sample in back.samples)
    assert all(view.readonly for view in back.data)
    assert torch.equal(back.labels, made.labels)


def test_pickling_facts_alone() -> None:
    """A batch without bytes, or whose columns were asked for before, can be pickled too."""
    made = Batch([facts(0), facts(1)], [])
    assert made.labels.tolist() == [0, 0]
    back = pickle.loads(pickle.dumps(made))  # noqa: S301  # our own bytes
    assert same(back, made)
    assert back.index.tolist() == [0, 1]


def test_pickling_takes_the_views_alone() -> None:
    """What a batch pickles is its samples' bytes, not the large buffer they are views of."""
    buffer = memoryview(bytes(1_000_000))
    made = Batch([facts(0, size_bytes=10)], [buffer[5:15]])
    assert len(pickle.dumps(made)) < 2_000


def test_deep_copy_owns_its_bytes() -> None:
    """A deep copy keeps its bytes when the buffer of the first is written over."""
    buffer = bytearray(b"abcdef")
    made = Batch([facts(0, size_bytes=3)], [memoryview(buffer)[1:4]])
    copied = copy.deepcopy(made)
    buffer[:] = b"------"
    assert bytes(copied.data[0]) == b"bcd"
    assert bytes(made.data[0]) == b"---"


@given(flags=st.lists(st.booleans(), max_size=12), count=st.integers(0, 14))
def test_beginning(flags: list[bool], count: int) -> None:
    """The beginning of a batch has so many valid samples or all, and the padding after them."""
    rows = [facts(at, valid=valid) for at, valid in enumerate(flags)]
    made = Batch(rows, [memoryview(bytes([at])) for at in range(len(rows))])
    begun = made.beginning(count)
    assert int(begun.valid.sum()) == min(count, sum(flags))
    assert begun.samples == rows[: len(begun)]
    assert [bytes(view) for view in begun.data] == [bytes([at]) for at in range(len(begun))]
    assert len(begun) == len(made) or made.samples[len(begun)].valid, "padding is not cut off"


def decoded(*, valid: tuple[bool, ...] = (True, True, False, True)) -> Batch:
    """Return a batch of images, with a problem for the third sample."""
    rows = [facts(at, valid=flag) for at, flag in enumerate(valid)]
    pixels = np.arange(len(rows) * 12, dtype=np.uint8).reshape(len(rows), 3, 2, 2)
    return Batch(rows, (), pixels, [Problem(rows[2], "cut short", is_fatal=True)])


def test_arrays_become_tensors() -> None:
    """Images that were given as an array are a tensor."""
    assert isinstance(decoded().images, torch.Tensor)
    assert decoded().images.dtype is torch.uint8


def test_pickling_images() -> None:
    """Images and problems come back as they were, and the images may be written to."""
    made = decoded()
    back = pickle.loads(pickle.dumps(made))  # noqa: S301  # our own bytes
    assert isinstance(back.images, torch.Tensor)
    assert torch.equal(back.images, made.images)
    assert list(back.problems) == list(made.problems)
    assert type(back.problems[0]) is Problem
    assert type(back.problems[0].sample) is Delivered
    back.images.add_(1)
    assert torch.equal(back.images, made.images + 1)


def test_pickling_a_list_of_images() -> None:
    """What a transform returned comes back as the list that it was."""
    made = Batch([facts(0), facts(1)], (), [{"a": 1}, np.ones(2)])
    back = pickle.loads(pickle.dumps(made))  # noqa: S301  # our own bytes
    assert back.images[0] == {"a": 1}
    assert back.images[1].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("count", "length", "problems"), [(0, 0, 0), (1, 1, 0), (2, 3, 1), (9, 4, 1)]
)
def test_beginning_of_images(count: int, length: int, problems: int) -> None:
    """The beginning has the images of its samples, and those problems that are theirs."""
    begun = decoded().beginning(count)
    assert len(begun) == len(begun.images) == length
    assert torch.equal(begun.images, decoded().images[:length])
    assert len(begun.problems) == problems


def test_repr_is_short() -> None:
    """A batch at the prompt is one line, not its pixels."""
    assert "\n" not in repr(decoded())
    assert len(repr(decoded())) < 100
