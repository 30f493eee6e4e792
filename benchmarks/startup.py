"""How long ``tarshard --help`` takes, against a bare typer app with the same commands.

    python benchmarks/startup.py [--runs 20]

The two run in turn; the figure is the median of the ratios of neighbouring runs.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BARE = '''
import typer

app = typer.Typer()

@app.command()
def pack(images: str, out: str, shards: int = 1) -> None:
    """Pack."""

@app.command()
def stream(dataset: str) -> None:
    """Stream."""

app()
'''


def seconds(command: list[str]) -> float:
    """Return how long a whole process takes."""
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(BARE)
        ours = [str(Path(sys.executable).parent / "tarshard"), "--help"]
        theirs = [sys.executable, str(bare), "--help"]
        seconds(ours), seconds(theirs)
        pairs = [(seconds(ours), seconds(theirs)) for _ in range(runs)]
    ratios = [ours / theirs for ours, theirs in pairs]
    print(
        f"tarshard --help / bare typer app --help: {statistics.median(ratios):.2f} "
        f"(median of {runs}; {min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
