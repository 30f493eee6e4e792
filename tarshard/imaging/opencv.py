"""OpenCV, imported in this one place, with a remedy when it cannot be loaded."""

import re
from types import ModuleType

from tarshard.errors import MissingLibrary

_SYSTEM_LIBRARY = re.compile(r"([\w+-]+\.so[.\d]*)")


def load_opencv() -> ModuleType:
    """Return the module ``cv2``; raises `MissingLibrary` with what to install.

    The wheel ``opencv-python`` needs libraries of a desktop system, which slim
    containers lack; ``opencv-python-headless`` does not.
    """
    try:
        import cv2
    except ImportError as error:
        raise MissingLibrary(_remedy(str(error))) from error
    return cv2


def _remedy(said: str) -> str:
    library = _SYSTEM_LIBRARY.search(said)
    if library is None:
        return f"OpenCV cannot be imported ({said}); install it with 'pip install opencv-python'"
    return (
        f"OpenCV cannot be loaded: the system library {library[1]} is missing or unusable "
        f"({said}). "
        "Install it ('apt-get install libgl1 libglib2.0-0' on Debian and Ubuntu, 'dnf install "
        "mesa-libGL glib2' on Fedora), or take the build that needs no desktop: "
        "'pip uninstall -y opencv-python && pip install opencv-python-headless'"
    )
