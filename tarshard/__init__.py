"""Pack image folders into balanced tar shards and stream them into training.

The public names are listed in ``__all__`` and load on first use, so that
``import tarshard`` imports neither torch nor OpenCV.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tarshard.dataset import Dataset, open_dataset
    from tarshard.errors import (
        CannotWrite,
        DatasetDamaged,
        ImageUndecodable,
        InputUnusable,
        MissingLibrary,
        ShardCorrupt,
        SourceProblems,
        TarshardError,
        UsageError,
        WorkerFailed,
    )
    from tarshard.index import Sample
    from tarshard.packing.pack import PackResult, pack
    from tarshard.streaming.batch import Batch, Delivered, Problem
    from tarshard.streaming.dataset import Stream
    from tarshard.streaming.images import Image, Images
    from tarshard.streaming.loader import Loader

_HOMES = {
    "Batch": "tarshard.streaming.batch",
    "CannotWrite": "tarshard.errors",
    "Dataset": "tarshard.dataset",
    "DatasetDamaged": "tarshard.errors",
    "Delivered": "tarshard.streaming.batch",
    "Image": "tarshard.streaming.images",
    "ImageUndecodable": "tarshard.errors",
    "Images": "tarshard.streaming.images",
    "InputUnusable": "tarshard.errors",
    "Loader": "tarshard.streaming.loader",
    "MissingLibrary": "tarshard.errors",
    "PackResult": "tarshard.packing.pack",
    "Problem": "tarshard.streaming.batch",
    "Sample": "tarshard.index",
    "ShardCorrupt": "tarshard.errors",
    "SourceProblems": "tarshard.errors",
    "Stream": "tarshard.streaming.dataset",
    "TarshardError": "tarshard.errors",
    "UsageError": "tarshard.errors",
    "WorkerFailed": "tarshard.errors",
    "open_dataset": "tarshard.dataset",
    "pack": "tarshard.packing.pack",
}

__all__ = [
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
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  (PEP 562 wants it so)
    if name not in _HOMES:
        raise AttributeError(f"module 'tarshard' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
