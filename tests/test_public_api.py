"""What ``import tarshard`` offers, and what it does not load."""

import subprocess
import sys
from importlib.metadata import requires, version

import pytest

import tarshard

NAMES = {
    "Batch",
    "CannotWrite",
    "Dataset",
    "DatasetDamaged",
    "Delivered",
    "Image",
    "ImageUndecodable",
    "Images",
    "InputUnusable",
    "Loader",
    "MissingLibrary",
    "PackResult",
    "Problem",
    "Sample",
    "ShardCorrupt",
    "SourceProblems",
    "Stream",
    "TarshardError",
    "UsageError",
    "WorkerFailed",
    "__version__",
    "open_dataset",
    "pack",
}


def test_the_public_names() -> None:
    """The public names are these, and each of them exists and is documented."""
    assert set(tarshard.__all__) == NAMES
    assert set(tarshard._HOMES) == NAMES - {"__version__"}
    assert dir(tarshard) == sorted(NAMES)
    for name in NAMES - {"__version__"}:
        assert getattr(tarshard, name).__doc__, name


def test_other_names_are_an_attribute_error() -> None:
    """A name that is not there fails as in any module."""
    with pytest.raises(AttributeError, match="nonsense"):
        tarshard.nonsense  # noqa: B018


def test_every_error_is_a_tarshard_error() -> None:
    """One except clause catches everything that is raised on purpose."""
    errors = [value for value in map(tarshard.__getattr__, tarshard._HOMES) if is_error(value)]
    assert len(errors) == 10
    assert all(issubclass(error, tarshard.TarshardError) for error in errors)


def is_error(value: object) -> bool:
    """Tell whether a public name is an exception."""
    return isinstance(value, type) and issubclass(value, BaseException)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import tarshard", {"torch", "cv2", "numpy", "typer", "rich", "tqdm"}),
        ("from tarshard import pack", {"torch", "cv2", "typer", "rich", "tqdm"}),
        ("from tarshard import open_dataset", {"torch", "cv2", "typer", "rich", "tqdm"}),
        ("from tarshard import Loader", {"cv2", "typer", "rich", "tqdm"}),
    ],
)
def test_importing_loads_no_more_than_needed(statement: str, absent: set[str]) -> None:
    """Importing a name does not load the large libraries that it can do without."""
    script = f"import sys; {statement}; print(*set(sys.modules) & {absent!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    loaded = set(done.stdout.decode().split())
    # PyTorch itself may load some of them.
    if "Loader" in statement:
        without = "import sys, torch.utils.data, torch.distributed; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", without], capture_output=True, check=True)
        loaded -= set(done.stdout.decode().split())
    assert not loaded


def test_the_version_is_the_installed_one() -> None:
    """The package's version is that of its metadata, and it is typed."""
    assert version("tarshard") == tarshard.__version__
    assert any(line.startswith("opencv-python>=4.12") for line in requires("tarshard") or [])
