"""OUT in every state it can be in, and what is left of it when a pack fails or is killed."""

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from making import Watching, everything, folder, image, no_hang, photos

import tarshard
from tarshard.errors import CannotWrite, SourceProblems, TarshardError, UsageError
from tarshard.index import Index

WORK = ".tarshard-work"
TEXT = b"only words, no pixels\n" * 40


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Give a folder of ten photos."""
    return folder(tmp_path / "in", photos(10))


@pytest.fixture
def undisturbed(tmp_path: Path, images: Path) -> dict[str, bytes]:
    """Give all files of three shards, as a pack that nothing disturbs makes them."""
    tarshard.pack(images, tmp_path / "undisturbed", shards=3)
    return everything(tmp_path / "undisturbed")


def shape(root: Path) -> dict[str, tuple[str, bytes]]:
    """Return everything below a folder, links and folders too: kind and content."""
    found: dict[str, tuple[str, bytes]] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", os.fsencode(os.readlink(path)))
        elif path.is_dir():
            found[name] = ("folder", b"")
        elif path.is_file():
            found[name] = ("file", path.read_bytes())
        else:
            found[name] = ("special", b"")
    return found


def is_whole(out: Path) -> bool:
    """Tell whether OUT has an index; if so, all that it lists must be there and right."""
    if not (out / "index.json").exists():
        return False
    for shard in Index.from_json((out / "index.json").read_bytes()).shards:
        assert hashlib.sha256((out / shard.url).read_bytes()).hexdigest() == shard.sha256
        table = (out / shard.table_name).read_bytes()
        assert hashlib.sha256(table).hexdigest() == shard.table_sha256
    return True


def test_missing_with_folders_above(
    tmp_path: Path, images: Path, undisturbed: dict[str, bytes]
) -> None:
    """OUT and what is missing above it is made."""
    tarshard.pack(images, tmp_path / "new/deeper/out", shards=3)
    assert everything(tmp_path / "new/deeper/out") == undisturbed


@pytest.mark.parametrize("by", ["empty folder", "link to an empty folder"])
def test_empty(tmp_path: Path, images: Path, undisturbed: dict[str, bytes], by: str) -> None:
    """An empty folder is taken, also through a link, which stays."""
    (tmp_path / "real").mkdir()
    out = tmp_path / "real"
    if by != "empty folder":
        out = tmp_path / "out"
        out.symlink_to("real")
    tarshard.pack(images, out, shards=3)
    assert everything(tmp_path / "real") == undisturbed
    assert out.is_symlink() == (by != "empty folder")


def other_file(out: Path) -> None:
    """Put a foreign file there."""
    folder(out, {"holiday.jpg": image(1)})


def other_shards(out: Path) -> None:
    """Put tars there that no index lists."""
    folder(out, {"shard-000000.tar": b"precious"})


def other_hidden(out: Path) -> None:
    """Put a hidden file there."""
    folder(out, {".git/config": b"precious"})


def other_folder(out: Path) -> None:
    """Put an empty folder there."""
    (out / "sub").mkdir(parents=True)


def a_file(out: Path) -> None:
    """Make OUT a file."""
    out.write_bytes(b"precious")


def a_pipe(out: Path) -> None:
    """Make OUT a pipe."""
    os.mkfifo(out)


def dangling(out: Path) -> None:
    """Make OUT a link to nothing."""
    out.symlink_to("nowhere")


def looped(out: Path) -> None:
    """Make OUT a link to itself."""
    out.symlink_to(out.name)


def below_a_file(out: Path) -> None:
    """Make OUT a link to below a file."""
    (out.parent / "file").write_bytes(b"precious")
    out.symlink_to("file/out")


def dataset_there(out: Path) -> None:
    """Put a dataset there."""
    tarshard.pack(folder(out.parent / "others", photos(4)), out, shards=2)


def other_index(out: Path) -> None:
    """Put the index of another tool there."""
    folder(out, {"index.json": b'{"version": 2, "shards": []}'})


TAKEN: list[Callable[[Path], None]] = [
    other_file, other_shards, other_hidden, other_folder, a_file, a_pipe, dangling, looped,
    below_a_file, other_index, dataset_there,
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "overwrite"),
    [(make, overwrite) for make in TAKEN for overwrite in (False, True)][:-1],
)
def test_taken(tmp_path: Path, images: Path, make: Callable[[Path], None], overwrite: bool) -> None:
    """An OUT with anything else in it is refused and left exactly as it was.

    Only a dataset of ours can be overwritten.
    """
    out = tmp_path / "out"
    make(out)
    before = shape(tmp_path)
    with no_hang(), pytest.raises(CannotWrite, match=str(out)):
        tarshard.pack(images, out, shards=3, overwrite=overwrite)
    assert shape(tmp_path) == before


@pytest.mark.parametrize("shards", [1, 3, 6])
def test_overwrite(tmp_path: Path, images: Path, shards: int) -> None:
    """Overwriting leaves the new dataset alone, whatever number of shards was there before."""
    tarshard.pack(images, tmp_path / "fresh", shards=shards)
    out = tmp_path / "out"
    (images / "notes.txt").write_bytes(TEXT)
    tarshard.pack(images, out, shards=3)
    assert (out / "skipped.jsonl").exists()
    (images / "notes.txt").unlink()
    tarshard.pack(images, out, shards=shards, overwrite=True)
    assert everything(out) == everything(tmp_path / "fresh")


def test_overwrite_where_nothing_is(
    tmp_path: Path, images: Path, undisturbed: dict[str, bytes]
) -> None:
    """Overwriting is no demand that something is there."""
    tarshard.pack(images, tmp_path / "out", shards=3, overwrite=True)
    assert everything(tmp_path / "out") == undisturbed


def test_overwrite_leaves_foreign_files_alone(
    tmp_path: Path, images: Path, undisturbed: dict[str, bytes]
) -> None:
    """Overwriting removes what the old index lists, and nothing else."""
    out = tmp_path / "out"
    tarshard.pack(images, out, shards=5)
    foreign = {"README.md": b"mine", "sub/shard-000004.tar": b"mine", "shard-000099.tar": b"mine"}
    folder(out, dict(foreign.items()))
    tarshard.pack(images, out, shards=3, overwrite=True)
    assert everything(out) == undisturbed | foreign


def strange_dataset(out: Path, url: str) -> None:
    """Put a dataset there whose index lists one more shard, at this url."""
    dataset_there(out)
    row = json.loads((out / "index.json").read_bytes())
    row["shardlist"].append(row["shardlist"][0] | {"url": url, "nsamples": 0})
    (out / "index.json").write_bytes(json.dumps(row).encode())


@pytest.mark.parametrize("url", ["away/precious.tar", "away/deeper/precious.tar"])
def test_overwrite_removes_nothing_outside(tmp_path: Path, images: Path, url: str) -> None:
    """An index from elsewhere cannot make us remove files through a link that leads out."""
    out = tmp_path / "out"
    names = ["precious.tar", "precious.json", "deeper/precious.tar", "deeper/precious.json"]
    away = folder(tmp_path / "away", dict.fromkeys(names, b"precious"))
    strange_dataset(out, url)
    (out / "away").symlink_to(away)
    before = everything(away)
    with contextlib.suppress(CannotWrite):  # to refuse is as good
        tarshard.pack(images, out, shards=3, overwrite=True)
    assert everything(away) == before


@pytest.mark.parametrize(
    "url", ["../precious.tar", "index.json", f"{WORK}/index.json", f"{WORK}/lock", "in.tar/x.tar"]
)
def test_overwrite_of_a_strange_index(
    tmp_path: Path, images: Path, undisturbed: dict[str, bytes], url: str
) -> None:
    """Whatever urls an old index lists, overwriting gives a whole dataset or is refused."""
    out = tmp_path / "out"
    (tmp_path / "precious.tar").write_bytes(b"precious")
    strange_dataset(out, url)
    before = everything(out)
    try:
        tarshard.pack(images, out, shards=3, overwrite=True)
    except CannotWrite:
        assert everything(out) == before
    else:
        assert everything(out) == undisturbed
    assert (tmp_path / "precious.tar").read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("in", "in"),
        ("in", "in/out"),
        ("in", "in/class0/out/deeper"),
        ("in/class0", "in"),
        ("in", "."),
        ("in", "link/out"),
        ("link", "in/out"),
        ("in", "in/../in/out"),
        ("link/class0", "in"),
        ("in/class0", "link"),
    ],
)
def test_one_inside_the_other(tmp_path: Path, images: Path, one: str, other: str) -> None:
    """OUT in IMAGES or IMAGES in OUT is refused, by whatever way it is written."""
    (tmp_path / "link").symlink_to(images)
    before = shape(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="lies inside"):
            tarshard.pack(tmp_path / one, tmp_path / other, shards=2, overwrite=overwrite)
    assert shape(tmp_path) == before


def test_beside_with_a_common_start(tmp_path: Path, images: Path) -> None:
    """``in-packed`` lies beside ``in``, not inside."""
    tarshard.pack(images, tmp_path / "in-packed", shards=3)
    assert is_whole(tmp_path / "in-packed")


def unfinished(images: Path, out: Path, *, step: int = 14, **options: Any) -> None:
    """Start a pack as a process that kills itself with SIGKILL after so many steps."""
    code = """if True:
        import json, os, sys
        from making import Watching
        import tarshard
        images, out, step, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
        kill = lambda number: number == step and os.kill(os.getpid(), 9)
        tarshard.pack(images, out, **json.loads(options), progress=Watching(at_step=kill))
    """
    done = subprocess.run(
        [sys.executable, "-c", code, images, out, str(step), json.dumps({"shards": 3} | options)],
        env=os.environ | {"PYTHONPATH": os.path.dirname(os.path.dirname(__file__))},
        timeout=60,
        check=False,
    )
    assert done.returncode == -9
    assert (out / WORK).is_dir()


@pytest.mark.parametrize("step", [10, 13, 17, 19])
@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_while_copying(
    tmp_path: Path, images: Path, undisturbed: dict[str, bytes], step: int, overwrite: bool
) -> None:
    """After kill -9 the old state is whole; the same command again finishes as if nothing was."""
    out = tmp_path / "out"
    if overwrite:
        dataset_there(out)
    before = everything(out)
    unfinished(images, out, step=step, overwrite=overwrite)
    assert is_whole(out) == overwrite
    left = {name: content for name, content in everything(out).items() if WORK not in name}
    assert left == before
    tarshard.pack(images, out, shards=3, overwrite=overwrite)
    assert everything(out) == undisturbed


OTHER_OPTIONS: dict[str, Any] = {
    "shards": 4, "seed": 1, "order": "path", "balance": "count", "labels": "none",
    "on_error": "skip",
}  # fmt: skip


@pytest.mark.parametrize("other", [*OTHER_OPTIONS, "bytes", "time", "more", "less"])
def test_unfinished_work_of_something_else(tmp_path: Path, images: Path, other: str) -> None:
    """Unfinished work of other options or sources is refused and kept for its own command."""
    out = tmp_path / "out"
    unfinished(images, out)
    options: dict[str, Any] = {"shards": 3}
    photo = images / "class0/photo000.jpg"
    status = photo.stat()
    if other == "bytes":
        photo.write_bytes(photo.read_bytes() + b"x")
        os.utime(photo, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif other == "time":
        os.utime(photo, ns=(0, 0))
    elif other == "more":
        (images / "class0/new.jpg").write_bytes(image(3))
    elif other == "less":
        photo.unlink()
    else:
        options[other] = OTHER_OPTIONS[other]
    before = without_lock(out)
    with pytest.raises(CannotWrite, match=r"unfinished pack.*repeat that command"):
        tarshard.pack(images, out, **options)
    assert without_lock(out) == before


def without_lock(out: Path) -> dict[str, tuple[str, bytes]]:
    """Return everything in OUT but the lock, which says only who held it last."""
    return {name: what for name, what in shape(out).items() if name != f"{WORK}/lock"}


def test_unfinished_work_in_a_copy_of_the_folder(
    tmp_path: Path, images: Path, undisturbed: dict[str, bytes]
) -> None:
    """Unfinished work is taken over from the same images wherever they lie now."""
    unfinished(images, tmp_path / "out")
    images.rename(tmp_path / "moved")
    tarshard.pack(tmp_path / "moved", tmp_path / "out", shards=3)
    assert everything(tmp_path / "out") == undisturbed


def test_work_folder_that_is_a_link(tmp_path: Path, images: Path) -> None:
    """A work folder that links elsewhere is not emptied: what lies there is not ours."""
    precious = folder(tmp_path / "precious", {"a.jpg": image(1), "b.txt": b"precious"})
    out = tmp_path / "out"
    out.mkdir()
    (out / WORK).symlink_to(precious)
    before = everything(precious)
    with contextlib.suppress(TarshardError):  # to refuse is as good
        tarshard.pack(images, out, shards=3)
    after = everything(precious)
    assert after | before == after


def test_work_folder_with_foreign_files(tmp_path: Path, images: Path) -> None:
    """A work folder that no pack of ours began is not emptied without a word."""
    out = tmp_path / "out"
    folder(out / WORK, {"precious.jpg": image(1), "sub/b.txt": b"precious"})
    before = shape(out)
    with pytest.raises(CannotWrite):
        tarshard.pack(images, out, shards=3)
    assert without_lock(out) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_locked_by_another_descriptor(tmp_path: Path, images: Path, overwrite: bool) -> None:
    """While somebody holds the lock, OUT is refused with who it is, and left alone."""
    out = tmp_path / "out"
    if overwrite:
        dataset_there(out)
    folder(out / WORK, {"lock": b"12345", "asked.json": b"{}", "shard-000000.tar": b"growing"})
    before = shape(out)
    with open(out / WORK / "lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CannotWrite, match=r"another tarshard pack \(process 12345\)"):
            tarshard.pack(images, out, shards=3, overwrite=overwrite)
    assert shape(out) == before


@pytest.mark.parametrize("step", [10, 15, 19])
def test_two_packs_at_once(
    tmp_path: Path, images: Path, undisturbed: dict[str, bytes], step: int
) -> None:
    """A second pack in the middle of the first is refused; the first ends undisturbed."""
    out = tmp_path / "out"
    refused: list[str] = []

    def second(number: int) -> None:
        if number == step:
            done = subprocess.run(
                [sys.executable, "-m", "tarshard", "pack", images, out, "--shards=3"],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 5
            refused.append(done.stderr)

    tarshard.pack(images, out, shards=3, progress=Watching(at_step=second))
    assert len(refused) == 1
    assert f"another tarshard pack (process {os.getpid()})" in refused[0]
    assert everything(out) == undisturbed


RACER = """
import os, shutil, sys
import tarshard

images, out, again = sys.argv[1:]
work = os.path.join(out, ".tarshard-work")

def hook(event, arguments):
    if event == "fcntl.flock":
        shutil.rmtree(work)
        if again == "again":
            os.mkdir(work)
            open(os.path.join(work, "lock"), "w").write("99999")

sys.addaudithook(hook)
try:
    tarshard.pack(images, out, shards=3)
except tarshard.CannotWrite as error:
    print(error)
"""


@pytest.mark.parametrize("again", ["gone", "again"])
def test_other_pack_ends_while_we_take_the_lock(tmp_path: Path, images: Path, again: str) -> None:
    """A lock that vanished between opening and locking is no lock; a third pack's is left alone.

    Python's audit hook takes the work folder away at that very moment, as an ending pack does.
    """
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", RACER, images, out, again],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "another tarshard pack" in done.stdout
    if again == "again":
        assert (out / WORK / "lock").read_bytes() == b"99999"


@contextlib.contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Let the system refuse to write files beyond a size, for a while."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Stopped(Exception):
    """What the program may raise in the middle, such as for Ctrl-C."""


def stop(step: int) -> Watching:
    """Return a progress that raises after so many steps."""

    def raise_stopped(number: int) -> None:
        if number == step:
            raise Stopped

    return Watching(at_step=raise_stopped)


def fail_by_text(images: Path, out: Path, *, overwrite: bool) -> None:
    """Fail because an image is none, which is found late."""
    (images / "class1/text.jpg").write_bytes(TEXT)
    with pytest.raises(SourceProblems):
        tarshard.pack(images, out, shards=3, overwrite=overwrite)


def fail_by_stop(images: Path, out: Path, *, overwrite: bool) -> None:
    """Fail because the caller stops it."""
    for step in (3, 10, 15, 19):
        with pytest.raises(Stopped):
            tarshard.pack(images, out, shards=3, overwrite=overwrite, progress=stop(step))


def fail_by_write(images: Path, out: Path, *, overwrite: bool, size: int) -> None:
    """Fail because the system writes no more than so many bytes to a file."""
    with largest_file(size), pytest.raises(CannotWrite, match=r"(?i)too large"):
        tarshard.pack(images, out, shards=3, overwrite=overwrite)


@pytest.mark.parametrize(
    "fail",
    [
        fail_by_text,
        fail_by_stop,
        # The lock, what was asked, the index, a table and a tar are so large in turn.
        *(
            pytest.param(partial(fail_by_write, size=n), id=str(n))
            for n in (0, 50, 700, 1500, 9000)
        ),
    ],
)
@pytest.mark.parametrize("state", ["missing", "empty", "dataset"])
def test_failed_pack_leaves_out_as_it_was(
    tmp_path: Path, images: Path, state: str, fail: Callable[..., None]
) -> None:
    """Whatever fails on the way, OUT is as it was, to the byte."""
    out = tmp_path / "out"
    if state == "empty":
        out.mkdir()
    elif state == "dataset":
        dataset_there(out)
    before = shape(out)
    fail(images, out, overwrite=state == "dataset")
    assert shape(out) == before
    assert out.exists() == (state != "missing")


@pytest.mark.parametrize("number", [0, 2, 4])
def test_commit_that_fails_in_the_middle(tmp_path: Path, images: Path, number: int) -> None:
    """When a file cannot be put in place, no index lies over a mixture, and a rerun can finish."""
    tarshard.pack(images, tmp_path / "fresh", shards=5)
    out = tmp_path / "out"
    dataset_there(out)
    in_the_way = out / f"shard-{number:06d}.tar"
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir()
    with pytest.raises(CannotWrite, match="directory"):
        tarshard.pack(images, out, shards=5, overwrite=True)
    assert not (out / "index.json").exists() or everything(out).keys() == {
        "index.json", "shard-000000.json", "shard-000001.json", "shard-000000.tar",
        "shard-000001.tar",
    } - {in_the_way.name}  # fmt: skip
    in_the_way.rmdir()
    tarshard.pack(images, out, shards=5, overwrite=True)
    assert everything(out) == everything(tmp_path / "fresh")


KILLER = """
import json, os, sys, warnings
import tarshard
from tarshard.packing import pack

images, old, base, overwrite = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
for point in range(500):
    out = os.path.join(base, f"{point:03d}")
    if overwrite:
        tarshard.pack(old, out, shards=5)
    child = os.fork()
    if not child:
        left = point

        def kill(event, arguments):
            global left
            if event in {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}:
                path = arguments[0]
                if isinstance(path, str | bytes) or hasattr(path, "__fspath__"):
                    if os.fsdecode(path).startswith((out, "shard-", "lock", "asked", "index")):
                        left -= 1
                        if left < 0:
                            os.kill(os.getpid(), 9)

        sys.addaudithook(kill)
        tarshard.pack(images, out, shards=3, overwrite=overwrite)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        print(point)
        break
    assert os.WTERMSIG(status) == 9, status
"""


@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_at_any_instant(
    tmp_path: Path, images: Path, undisturbed: dict[str, bytes], overwrite: bool
) -> None:
    """Killed before any single change to OUT: never an index over shards that are not whole.

    The same command again always gives what an undisturbed run gives. The process kills itself
    from Python's audit hook, before each file that it opens, renames or removes.
    """
    old = folder(tmp_path / "old", photos(8, classes=2))
    (base := tmp_path / "outs").mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLER, images, old, base, json.dumps(overwrite)],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    points = int(done.stdout)
    assert points > 25
    tarshard.pack(old, tmp_path / "old-packed", shards=5)
    old_files = everything(tmp_path / "old-packed")
    assert everything(base / f"{points:03d}") == undisturbed
    wrong = []
    halves = 0
    for point in range(points):
        out = base / f"{point:03d}"
        if is_whole(out):
            visible = {name: b for name, b in everything(out).items() if WORK not in name}
            assert visible in ([old_files, undisturbed] if overwrite else [undisturbed])
        elif any(out.glob("shard-*")):
            halves += 1
        if everything(out) == undisturbed and not overwrite:
            continue  # there was nothing left to do but to remove the empty work folder
        try:
            tarshard.pack(images, out, shards=3, overwrite=overwrite)
        except TarshardError as error:
            wrong.append(f"killed at {point}: {error}")
            continue
        if everything(out) != undisturbed:
            wrong.append(f"killed at {point}: {sorted(everything(out))}")
    assert halves >= 6, "not killed between the renames"
    assert wrong == []


@contextlib.contextmanager
def small_disk(at: Path, options: str) -> Iterator[Path]:
    """Give a file system of its own, or skip the test where none can be mounted."""
    at.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mount = ["mount", "-t", "tmpfs", "-o", options, "tarshard-test", str(at)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine mounts no tmpfs")
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


def needed_bytes(packed: Path) -> int:
    """Return what the samples of a dataset take, without the ends of tars and the tables."""
    dataset = tarshard.open_dataset(packed)
    return sum(dataset.table(shard).samples[-1].span[1] for shard in dataset.shards)


def test_disk_too_small(tmp_path: Path, images: Path, undisturbed: dict[str, bytes]) -> None:
    """A disk that cannot hold the dataset is refused at once, with both numbers."""
    assert undisturbed
    needed = needed_bytes(tmp_path / "undisturbed")
    with small_disk(tmp_path / "disk", f"size={needed // 4096 * 4096 - 8192}") as disk:
        with pytest.raises(CannotWrite, match=rf"needs {needed:,} bytes.*left; make room"):
            tarshard.pack(images, disk / "out", shards=3)
        assert os.listdir(disk) == []


@pytest.mark.parametrize("limit", ["bytes", *range(2, 11)])
@pytest.mark.parametrize("overwrite", [False, True])
def test_disk_full_on_the_way(
    tmp_path: Path,
    images: Path,
    undisturbed: dict[str, bytes],
    limit: str | int,
    overwrite: bool,
) -> None:
    """When bytes or files run out in the middle, OUT is as it was; with more room it goes on.

    Two or more files are in use before; each limit fails at another file of the new dataset.
    """
    needed = needed_bytes(tmp_path / "undisturbed")
    there = folder(tmp_path / "few", photos(2))
    with small_disk(tmp_path / "disk", "size=4m,nr_inodes=100") as disk:
        if overwrite:
            tarshard.pack(there, disk / "out", shards=1)
        used = sum(1 for _ in disk.rglob("*")) + 1
        if limit == "bytes":
            free = (needed + 4095) // 4096 * 4096 + 4096  # and a page for the lock
            taken = shutil.disk_usage(disk).used
            options = f"size={taken + free}"
        else:
            options = f"nr_inodes={used + int(limit) - 1}"
        remount = ["mount", "-o", f"remount,{options}", str(disk)]
        subprocess.run(remount, check=True)
        before = shape(disk)
        with pytest.raises(CannotWrite, match=r"no space left on device; make room"):
            tarshard.pack(images, disk / "out", shards=3, overwrite=overwrite)
        assert shape(disk) == before
        subprocess.run(["mount", "-o", "remount,size=4m,nr_inodes=100", str(disk)], check=True)
        tarshard.pack(images, disk / "out", shards=3, overwrite=overwrite)
        assert everything(disk / "out") == undisturbed


def test_killed_on_a_disk_with_room_for_one(tmp_path: Path) -> None:
    """What a killed pack left does not count as taken: the same command again finishes."""
    big: dict[str | bytes, bytes] = {f"{n}.jpg": image(n) + bytes(100_000) for n in range(10)}
    images = folder(tmp_path / "in", big)
    tarshard.pack(images, tmp_path / "undisturbed", shards=3)
    undisturbed = everything(tmp_path / "undisturbed")
    needed = sum(map(len, undisturbed.values()))
    with small_disk(tmp_path / "disk", f"size={needed + 100_000}") as disk:
        unfinished(images, disk / "out", step=19)
        assert shutil.disk_usage(disk).free < needed_bytes(tmp_path / "undisturbed")
        tarshard.pack(images, disk / "out", shards=3)
        assert everything(disk / "out") == undisturbed


def test_read_only(tmp_path: Path, images: Path) -> None:
    """A place that cannot be written is an error that names it."""
    with (
        small_disk(tmp_path / "disk", "size=1m,ro") as disk,
        pytest.raises(CannotWrite, match=r"disk/out: read-only file system"),
    ):
        tarshard.pack(images, disk / "out", shards=3)
    with pytest.raises(CannotWrite, match="/proc/out"):
        tarshard.pack(images, "/proc/out", shards=3)
