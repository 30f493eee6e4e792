"""Loading OpenCV, and what is said when that fails."""

import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tarshard.imaging.opencv import load_opencv

SCRIPT = """
from tarshard.errors import MissingLibrary
from tarshard.imaging.opencv import load_opencv
try:
    load_opencv()
except MissingLibrary as error:
    print(error)
"""


def said(**env: str) -> str:
    """Return what a fresh process prints when it loads OpenCV."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, check=True, env=os.environ | env
    )
    return done.stdout.decode()


def test_loads_the_real_library() -> None:
    """The module that comes back decodes images."""
    assert callable(load_opencv().imdecode)
    assert said() == ""


def test_a_missing_system_library_names_its_remedy(tmp_path: Path) -> None:
    """When libGL cannot be loaded the message names the system package and the headless build."""
    if "opencv-python" not in packages_distributions()["cv2"]:
        pytest.skip("opencv-python-headless needs no libGL")
    (tmp_path / "libGL.so.1").write_bytes(b"no library")
    message = said(LD_LIBRARY_PATH=str(tmp_path))
    assert "libGL.so.1" in message
    assert "apt-get install libgl1" in message
    assert "pip install opencv-python-headless" in message


def test_a_missing_package_names_its_remedy(tmp_path: Path) -> None:
    """Without OpenCV at all the message says what to install."""
    (tmp_path / "cv2.py").write_text("raise ModuleNotFoundError(\"No module named 'cv2'\")")
    assert "pip install opencv-python" in said(PYTHONPATH=str(tmp_path))
