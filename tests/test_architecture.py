"""The layout: which module may import which, and who may import a large library."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tarshard

ROOT = Path(tarshard.__file__).parent

# From the bottom up. A part may import those below it; packing and streaming share a
# level and are strangers.
LEVELS: list[tuple[str, ...]] = [
    ("errors", "progress"),
    ("checks",),
    ("ustar", "storage", "imaging"),
    ("index",),
    ("dataset",),
    ("packing", "streaming"),
    ("cli",),
    ("__main__",),
]

HOMES = {
    "torch": "streaming",
    "cv2": "imaging/opencv.py",
    "typer": "cli",
    "rich": "cli",
    "tqdm": "cli/progress.py",
}

MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
CORE = [module for module in MODULES if module.parts[0] != "cli"]
LAYERED = [module for module in MODULES if module != Path("__init__.py")]
"""All but the public names, which come from everywhere, on first use."""


def part_of(module: Path) -> str:
    """Return the part a module belongs to: a package or a single module."""
    return module.parts[0].removesuffix(".py")


def imports(module: Path) -> Iterator[str]:
    """Yield what a module imports anywhere in it, as dotted names."""
    for node in ast.walk(ast.parse((ROOT / module).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def level_of(part: str) -> int:
    """Return how high a part stands."""
    return next(height for height, parts in enumerate(LEVELS) if part in parts)


@pytest.mark.parametrize("module", LAYERED, ids=str)
def test_imports_point_down(module: Path) -> None:
    """A module imports only its own part and parts on lower levels."""
    part = part_of(module)
    for name in imports(module):
        if name.startswith("tarshard."):
            other = name.split(".")[1]
            if other in {"__version__", part}:
                continue
            assert level_of(other) < level_of(part), f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_large_libraries_have_one_home(module: Path) -> None:
    """torch, cv2, typer, rich and tqdm are imported in their homes only."""
    for name in imports(module):
        home = HOMES.get(name.split(".")[0])
        assert home is None or str(module).startswith(home), f"{module} imports {name}"


@pytest.mark.parametrize("module", CORE, ids=str)
def test_the_core_neither_prints_nor_exits(module: Path) -> None:
    """Outside of cli nothing prints or exits, but for workers whose main process is gone.

    Only ranks reads the environment.
    """
    tree = ast.parse((ROOT / module).read_text("utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"print", "exit", "quit", "SystemExit"}
    assert module == Path("streaming/lifeline.py") or "_exit" not in attributes
    assert not attributes & {"exit", "stdout", "stderr"}
    assert module == Path("streaming/ranks.py") or not attributes & {"environ", "getenv"}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_every_file_says_what_it_is(module: Path) -> None:
    """Each module starts with a docstring of one sentence on its first line."""
    docstring = ast.get_docstring(ast.parse((ROOT / module).read_text("utf-8")))
    assert docstring
    assert docstring.splitlines()[0].endswith((".", ";"))


def test_no_pickle_and_no_eval() -> None:
    """Nothing that runs code from data is used: no pickle, eval, exec or shell."""
    for module in MODULES:
        tree = ast.parse((ROOT / module).read_text("utf-8"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & {"eval", "exec"}, module
        assert not {"pickle", "marshal", "shelve", "subprocess"} & set(imports(module)), module


def test_imports_are_found_at_all() -> None:
    """The tests above look at real imports: the known ones are among what they see."""
    assert "torch.distributed" in set(imports(Path("streaming/ranks.py")))
    assert "cv2" in set(imports(Path("imaging/opencv.py")))
    assert set(map(part_of, MODULES)) - {"__init__"} == {p for level in LEVELS for p in level}
    assert sys.version_info >= (3, 11)
