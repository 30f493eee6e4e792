"""The documents: what they show must run, what they name must be there."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from making import dataset, folder, photos, run

from tarshard.index import Index, ShardTable
from tarshard.packing.skips import Reason

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> Iterator[str]:
    """Yield the fenced blocks of a language in all documents."""
    for document in DOCUMENTS:
        yield from re.findall(rf"```{language}\n(.*?)```", document.read_text("utf-8"), re.DOTALL)


COMMANDS = [
    line.removeprefix("$ ")
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("$ ")
]


def environment() -> dict[str, str]:
    """Return an environment in which ``tarshard`` is this one."""
    scripts = Path(sys.executable).parent
    assert (scripts / "tarshard").exists()
    return os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}", "COLUMNS": "200"}


def test_commands_shown_run(tmp_path: Path) -> None:
    """The commands shown with a prompt, in their sequence, run as they stand and succeed."""
    assert {"tarshard pack", "tarshard stream"} <= {
        " ".join(command.split()[:2]) for command in COMMANDS
    }
    folder(tmp_path / "photos", photos(24))
    for command in COMMANDS:
        done = subprocess.run(
            ["bash", "-c", f"{command}\nexit ${{PIPESTATUS[0]}}"],
            cwd=tmp_path,
            env=environment(),
            check=False,
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0, (command, done.stderr.decode())


def test_python_shown_runs(tmp_path: Path) -> None:
    """The Python blocks run as they stand, without a warning."""
    folder(tmp_path / "photos", photos(24))
    for script in [*blocks("python")]:
        subprocess.run(
            [sys.executable, "-W", "error", "-c", script], cwd=tmp_path, check=True, timeout=60
        )
    assert (tmp_path / "packed" / "index.json").exists()


def test_make_commands_exist() -> None:
    """Each ``make`` target that a document names is in the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for document in DOCUMENTS:
        named = re.findall(
            r"^make ([a-z]+)|`make ([a-z]+)", document.read_text("utf-8"), re.MULTILINE
        )
        assert {first or second for first, second in named} <= targets


def test_ci_runs_the_commands_of_the_readme() -> None:
    """CI calls the two commands that the README gives to a newcomer."""
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    for command in ("make demo", "make test"):
        assert f"```sh\n{command}\n```" in readme
        assert f"\n{command}\n" in script


def test_links_lead_somewhere() -> None:
    """Each relative link in a document is a file or folder here."""
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text("utf-8")):
            assert (document.parent / target).exists(), f"{document}: {target}"


def test_every_option_is_known_and_every_command_documented() -> None:
    """Options that the README shows exist; each command has a place in it."""
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = "".join(run(command, "--help").stdout.decode() for command in ("pack", "stream"))
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", readme)):
        assert option in shown, option
    for command in ("pack", "stream"):
        assert f"tarshard {command} " in readme


def test_exit_codes_of_readme_and_help_agree() -> None:
    """The README lists the same exit codes as ``--help``."""
    readme = (ROOT / "README.md").read_text("utf-8")
    section = readme[readme.index("## Exit codes") :]
    listed = set(
        re.findall(r"\d+", " ".join(re.findall(r"^\| (\d[\d, ]*) \|", section, re.MULTILINE)))
    )
    epilog = run("--help").stdout.decode()
    said = set(re.findall(r"\b(\d+) (?=done|usage|input|damaged|cannot|worker|Ctrl|SIG)", epilog))
    assert listed == said == {"0", "2", "3", "4", "5", "6", "129", "130", "143"}


def test_every_field_and_reason_is_described(tmp_path: Path) -> None:
    """The format's page names every field that is written, and every reason for a skip."""
    page = (ROOT / "docs" / "index-format.md").read_text("utf-8")
    packed = dataset(tmp_path, 4, 1)
    Index.from_json((packed / "index.json").read_bytes())
    ShardTable.from_json((packed / "shard-000000.json").read_bytes(), name="table")
    for name in ("index.json", "shard-000000.json"):
        for field in field_names(json.loads((packed / name).read_bytes())):
            assert re.search(rf"[`.\[]{re.escape(field)}[`\[.]", page), field
    for reason in Reason:
        assert f"`{reason.value}`" in page


def field_names(value: object, depth: int = 0) -> Iterator[str]:
    """Yield the names of fields in JSON, without member names and option names."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if "/" not in name and name != "cls":
                yield name
            if name not in {"options", "skipped"}:
                yield from field_names(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from field_names(inner, depth + 1)
