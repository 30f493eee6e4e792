"""A packed dataset in a folder: its facts, and the shard tables when they are asked for."""

import errno
import hashlib
import os
from pathlib import Path

from tarshard.errors import InputUnusable, ShardCorrupt, TarshardError
from tarshard.index import INDEX_LIMIT_BYTES, INDEX_NAME, Index, Shard, ShardTable
from tarshard.storage.local import LocalFile, LocalFolder

_TABLE_LIMIT_BYTES = 1024**3
"""Two million samples in one shard."""


class Dataset:
    """A packed dataset; holds the index, opens shards, keeps nothing open itself."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read and check ``index.json``.

        Raises `InputUnusable` when there is no usable dataset, `DatasetDamaged`
        when its index does not say what it must.
        """
        self.path = Path(path)
        self._folder = LocalFolder(self.path)
        self.index = Index.from_json(self._read_index(), name=str(self.path / INDEX_NAME))

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return self.index.samples

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards, as the index lists them."""
        return self.index.shards

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a sample's label is a position in it."""
        return self.index.classes

    @property
    def fingerprint(self) -> str:
        """What names the data: sha256 in hex, the same wherever the dataset lies."""
        return self.index.fingerprint

    def __repr__(self) -> str:
        return (
            f"<Dataset {str(self.path)!r}: {self.samples:,} samples, {len(self.shards):,} shards>"
        )

    def open_shard(self, shard: Shard) -> LocalFile:
        """Open a tar; raises `ShardCorrupt` when it is missing or has another size."""
        try:
            file = self._folder.open(shard.url)
        except OSError as error:
            raise _unreadable(shard, shard.url, error) from error
        if file.size_bytes != shard.filesize:
            file.close()
            raise ShardCorrupt(
                f"{shard.url} has {file.size_bytes:,} bytes, the index says {shard.filesize:,}; "
                "copy it again or pack the dataset again",
                shard=shard.url,
            )
        return file

    def table(self, shard: Shard) -> ShardTable:
        """Read and check a shard's table; raises `DatasetDamaged`."""
        name = shard.table_name
        try:
            content = self._folder.read(name, limit_bytes=_TABLE_LIMIT_BYTES)
        except OSError as error:
            raise _unreadable(shard, name, error) from error
        if shard.table_sha256 not in {None, hashlib.sha256(content).hexdigest()}:
            raise ShardCorrupt(
                f"{name} is not the table that the index was written with (its sha256 differs); "
                "copy it again or pack the dataset again",
                shard=shard.url,
            )
        table = ShardTable.from_json(content, name=name)
        if len(table.samples) != shard.nsamples or table.filesize != shard.filesize:
            raise ShardCorrupt(
                f"{name} lists {len(table.samples):,} samples in {table.filesize:,} bytes, "
                f"the index {shard.nsamples:,} in {shard.filesize:,}; pack the dataset again",
                shard=shard.url,
            )
        if any(s.label is not None and s.label >= len(self.classes) for s in table.samples):
            raise ShardCorrupt(
                f"{name} has a label that is none of the {len(self.classes):,} classes of the "
                "index; pack the dataset again",
                shard=shard.url,
            )
        return table

    def _read_index(self) -> bytes:
        try:
            return self._folder.read(INDEX_NAME, limit_bytes=INDEX_LIMIT_BYTES)
        except FileNotFoundError as error:
            if not self.path.is_dir():
                raise InputUnusable(
                    f"{self.path} does not exist; give a folder that 'tarshard pack' wrote"
                ) from error
            raise InputUnusable(
                f"{self.path} holds no {INDEX_NAME}; give a folder that 'tarshard pack' wrote"
            ) from error
        except OSError as error:
            if self.path.is_file():
                raise InputUnusable(
                    f"{self.path} is a file; give the folder that 'tarshard pack' wrote"
                ) from error
            raise InputUnusable(f"{self.path / INDEX_NAME}: {error.strerror}") from error


def open_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Open a packed dataset and return its facts; see `Dataset`."""
    return Dataset(path)


def _unreadable(shard: Shard, name: str, error: OSError) -> TarshardError:
    said = (error.strerror or str(error)).lower()
    if isinstance(error, FileNotFoundError):
        said = "is missing; copy it again or pack the dataset again"
    elif error.errno in _NOT_OF_THE_FILE:
        return InputUnusable(f"{name} cannot be opened: {said}")
    return ShardCorrupt(f"{name} {said}", shard=shard.url)


_NOT_OF_THE_FILE = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM}
"""What may be wrong although the file is as it was packed."""
