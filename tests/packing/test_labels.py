"""Labels: the first folder of a path is the class, numbered by bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarshard.errors import SourceProblems
from tarshard.packing.labels import Labels, cls_content, label_images

FOLDERS = st.binary(min_size=1, max_size=5).filter(lambda name: b"/" not in name)


@pytest.mark.parametrize("mode", ["auto", "folder"])
def test_first_folder_is_the_class(mode: str) -> None:
    """Only the first folder counts, and classes are sorted by their bytes."""
    paths = [b"b/x.jpg", b"a/deep/x.jpg", b"B/x.jpg", b"\xff/x.jpg", b"a/y.jpg"]
    assert label_images(paths, mode) == Labels(
        "folder", (b"B", b"a", b"b", b"\xff"), (2, 1, 0, 3, 1)
    )


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_without_classes(mode: str) -> None:
    """One image outside of a folder makes ``auto`` mean none."""
    assert label_images([b"a/x.jpg", b"x.jpg"], mode) == Labels("none")


def test_none_is_none_even_with_folders() -> None:
    """``none`` asked is none given, though every image lies in a folder."""
    assert label_images([b"a/x.jpg", b"b/x.jpg"], "none") == Labels("none")


def test_folder_names_every_loose_image() -> None:
    """``folder`` refuses images that lie in none, and names them all."""
    with pytest.raises(SourceProblems, match="2 images lie in no class folder") as caught:
        label_images([b"a/x.jpg", b"x.jpg", b"\xff.jpg"], "folder")
    assert caught.value.problems == ("x.jpg", "\\xff.jpg")


@given(st.lists(FOLDERS, min_size=1, max_size=20))
def test_a_number_leads_back_to_the_folder(folders: list[bytes]) -> None:
    """Every image's number is the place of its folder in the sorted classes."""
    labels = label_images([folder + b"/x.jpg" for folder in folders], "auto")
    assert labels.numbers is not None
    assert [labels.classes[number] for number in labels.numbers] == folders
    assert list(labels.classes) == sorted(set(folders))


@pytest.mark.parametrize(("number", "content"), [(0, b"0"), (7, b"7"), (1000, b"1000")])
def test_cls_content(number: int, content: bytes) -> None:
    """A label is written as ASCII digits without a newline."""
    assert cls_content(number) == content
