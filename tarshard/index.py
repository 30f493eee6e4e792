"""Pure: what a dataset consists of, as JSON both ways - the index and the shard tables.

The formats are described in ``docs/index-format.md``. ``index.json`` is at the
same time a wids index, a shard table is at the same time a webshart sidecar.
Text from file systems need not be UTF-8: in memory it is ``str`` with
surrogates (PEP 383), in JSON ``{"bytes": "<base64>"}``.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tarshard import ustar
from tarshard.errors import DatasetDamaged, InputUnusable
from tarshard.storage.local import is_inside

FORMAT = 1
"""The version of both formats. A reader refuses a newer one and reads every older one."""

INDEX_NAME = "index.json"
INDEX_LIMIT_BYTES = 256 * 1024**2
"""A million shards; what is larger is no index and must not fill the memory."""

SHARD_LIMIT_BYTES = 1024**4
"""A shard is smaller. What an index claims bounds the memory that planning an epoch takes."""

_LONGEST_NAME = 1024
"""Of a shard or member, in characters; names are shown in messages."""

_SHA256 = re.compile(r"[0-9a-f]{64}")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Member:
    """One file inside a tar."""

    offset: int
    """Where the member's bytes start, past its tar header."""
    size_bytes: int
    sha256: str | None
    """Of the member's bytes, in hex."""


@dataclass(frozen=True, slots=True)
class Sample:
    """An image with what belongs to it."""

    key: str
    """Unique in the dataset; the member names are ``key.extension``."""
    extension: str
    """Of the image member, by content: ``jpg``, ``png``, ..."""
    image: Member
    width: int | None
    """Pixels, as stored: before any orientation is applied. None if not known."""
    height: int | None
    label: int | None
    """Position in the index's ``classes``."""
    path: str | None
    """Where the image lay in the folder that was packed."""
    span: tuple[int, int]
    """The sample's bytes in the tar: from its first header to the next sample's."""
    others: Mapping[str, Member] = field(default_factory=dict)
    """The other members by extension, such as ``cls``."""

    @property
    def image_name(self) -> str:
        """The image member's name in the tar."""
        return f"{self.key}.{self.extension}"


@dataclass(frozen=True, slots=True)
class ShardTable:
    """The members of one shard."""

    filesize: int
    samples: tuple[Sample, ...]
    """In the order of the tar."""

    def to_json(self) -> bytes:
        """Return the table as a file's bytes: always the same for the same table."""
        files = [
            f"{_json(sample.image_name)}:{_json(_image_row(sample))}" for sample in self.samples
        ]
        samples = [_json(_sample_row(sample)) for sample in self.samples]
        return (
            f'{{"filesize":{self.filesize},"files":{{\n'
            + ",\n".join(files)
            + f'\n}},"tarshard":{{"format":{FORMAT},"samples":[\n'
            + ",\n".join(samples)
            + "\n]}}\n"
        ).encode("ascii")

    @classmethod
    def from_json(cls, content: bytes, *, name: str) -> "ShardTable":
        """Read a table, checking all of it; ``name`` is for messages.

        Raises `DatasetDamaged`.
        """
        table = _Node.parse(content, name)
        filesize = table.integer("filesize")
        images = table.mapping("files")
        block = table.mapping("tarshard")
        _refuse_newer(block)
        samples = []
        end = 0
        for row in block.rows("samples"):
            sample = _read_sample(row, images, end)
            end = sample.span[1]
            samples.append(sample)
        if end > filesize:
            raise table.fault(f"its samples end at byte {end:,} of {filesize:,}")
        if len({sample.key for sample in samples}) < len(samples):
            raise table.fault("two samples have the same key")
        return cls(filesize, tuple(samples))


@dataclass(frozen=True, slots=True)
class Shard:
    """One tar file, as the index lists it."""

    url: str
    """Its path, relative to the index."""
    nsamples: int
    filesize: int
    """Of the tar, in bytes."""
    sha256: str | None
    """Of the tar, in hex."""
    table_sha256: str | None
    """Of the shard table, in hex."""

    @property
    def table_name(self) -> str:
        """The shard table's path: beside the tar, with ``.json`` for ``.tar``."""
        return self.url.removesuffix(".tar") + ".json"


@dataclass(frozen=True)
class Index:
    """A dataset: its shards, its classes, how it was made."""

    shards: tuple[Shard, ...]
    classes: tuple[str, ...] = ()
    """Class names by number; the numbers never change."""
    seed: int = 0
    """Of the pack order."""
    order: str = "shuffled"
    skipped: Mapping[str, int] = field(default_factory=dict)
    """How many files were left out, by reason."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else was asked for and changes the bytes of shards."""
    created_by: str = ""

    @cached_property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(shard.nsamples for shard in self.shards)

    @cached_property
    def fingerprint(self) -> str:
        """What names the data: sha256 over a line for each shard, in hex."""
        lines = (
            f"{shard.url} {shard.nsamples} {shard.filesize} {shard.sha256 or '-'}\n"
            for shard in self.shards
        )
        return hashlib.sha256("".join(lines).encode("utf-8")).hexdigest()

    def to_json(self) -> bytes:
        """Return the index as a file's bytes: always the same for the same index."""
        shards = [
            _json(
                {
                    "url": shard.url,
                    "nsamples": shard.nsamples,
                    "filesize": shard.filesize,
                    "sha256": shard.sha256,
                    "table_sha256": shard.table_sha256,
                }
            )
            for shard in self.shards
        ]
        block = {
            "format": FORMAT,
            "samples": self.samples,
            "classes": [text_to_json(name) for name in self.classes],
            "seed": self.seed,
            "order": self.order,
            "skipped": dict(sorted(self.skipped.items())),
            "options": dict(sorted(self.options.items())),
            "created_by": self.created_by,
        }
        return (
            '{"__kind__":"wids-shard-index-v1","wids_version":1,"name":"tarshard","shardlist":[\n'
            + ",\n".join(shards)
            + f'\n],"tarshard":{_json(block)}}}\n'
        ).encode("ascii")

    @classmethod
    def from_json(cls, content: bytes, *, name: str = INDEX_NAME) -> "Index":
        """Read an index, checking all of it; ``name`` is for messages.

        Raises `DatasetDamaged`, or `InputUnusable` for an index of another tool
        or of a newer tarshard.
        """
        top = _Node.parse(content, name)
        if "tarshard" not in top.row:
            raise InputUnusable(
                f"{name} was not written by tarshard; pack the images with 'tarshard pack'"
            )
        block = top.mapping("tarshard")
        _refuse_newer(block)
        index = cls(
            shards=tuple(_read_shard(row) for row in top.rows("shardlist")),
            classes=tuple(block.texts("classes")),
            seed=block.integer("seed"),
            order=block.text("order"),
            skipped={
                reason: block.mapping("skipped").integer(reason)
                for reason in block.mapping("skipped").row
            },
            options=block.mapping("options").row,
            created_by=block.text("created_by"),
        )
        if len({shard.url for shard in index.shards}) < len(index.shards):
            raise top.fault("two shards have the same url")
        if index.samples != block.integer("samples"):
            raise block.fault(
                f"samples is {block.integer('samples'):,}, its shards have {index.samples:,}"
            )
        return index


@dataclass(frozen=True, slots=True)
class _Node:
    """A JSON object being read, with its place in the file for messages."""

    row: Row
    name: str
    place: str = ""

    @classmethod
    def parse(cls, content: bytes, name: str) -> "_Node":
        try:
            value = json.loads(content, parse_constant=_finite, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            raise DatasetDamaged(
                f"{name} is not JSON ({error}); it was damaged or is no index of tarshard"
            ) from error
        if not isinstance(value, dict):
            raise DatasetDamaged(f"{name} must hold a JSON object, not {type(value).__name__}")
        return cls(value, name)

    def fault(self, what: str) -> DatasetDamaged:
        where = f"{self.name}, {self.place}" if self.place else self.name
        return DatasetDamaged(f"{where}: {what}; restore the file or pack the dataset again")

    def _value(self, field_name: str) -> object:
        if field_name not in self.row:
            raise self.fault(f"{field_name} is missing")
        return self.row[field_name]

    def _wrong(self, field_name: str, expected: str) -> DatasetDamaged:
        shown = repr(self.row[field_name])
        shown = shown if len(shown) <= 80 else shown[:80] + "..."
        return self.fault(f"{field_name} must be {expected}, not {shown}")

    def integer(self, field_name: str) -> int:
        """Return a whole number of at least 0."""
        value = self._value(field_name)
        if type(value) is not int or not 0 <= value < 2**63:
            raise self._wrong(field_name, "a whole number of at least 0")
        return value

    def optional_integer(self, field_name: str) -> int | None:
        return None if self.row.get(field_name) is None else self.integer(field_name)

    def optional_sha256(self, field_name: str) -> str | None:
        value = self.row.get(field_name)
        if value is None:
            return None
        if not isinstance(value, str) or not _SHA256.fullmatch(value):
            raise self._wrong(field_name, "64 hex digits")
        return value

    def text(self, field_name: str) -> str:
        value = self._value(field_name)
        if not isinstance(value, str) or not _is_unicode(value):
            raise self._wrong(field_name, "a text")
        return value

    def optional_path(self, field_name: str) -> str | None:
        """Return text from a file system, which need not be UTF-8."""
        if self.row.get(field_name) is None:
            return None
        text = _to_text(self.row[field_name])
        if text is None:
            raise self._wrong(field_name, "a path")
        return text

    def texts(self, field_name: str) -> list[str]:
        value = self._value(field_name)
        texts = [_to_text(item) for item in value] if isinstance(value, list) else [None]
        if any(text is None for text in texts):
            raise self._wrong(field_name, "a list of texts")
        return [text for text in texts if text is not None]

    def mapping(self, field_name: str) -> "_Node":
        value = self._value(field_name)
        if not isinstance(value, dict):
            raise self._wrong(field_name, "an object")
        return _Node(value, self.name, f"{self.place}.{field_name}".lstrip("."))

    def rows(self, field_name: str) -> list["_Node"]:
        value = self._value(field_name)
        if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
            raise self._wrong(field_name, "a list of objects")
        place = f"{self.place}.{field_name}".lstrip(".")
        return [_Node(row, self.name, f"{place}[{n}]") for n, row in enumerate(value)]


def _finite(text: str) -> float:
    """Return a number; JSON has no other, though Python reads them."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number


def _refuse_newer(block: _Node) -> None:
    version = block.integer("format")
    if version < 1:
        raise block.fault(f"format must be at least 1, not {version}")
    if version > FORMAT:
        raise InputUnusable(
            f"{block.name} has format {version}, this tarshard reads up to {FORMAT}; "
            "upgrade with 'pip install -U tarshard'"
        )


def _read_shard(row: _Node) -> Shard:
    url = row.text("url")
    if not is_inside(url) or "\\" in url:
        raise row.fault(f"url {url[:_LONGEST_NAME]!r} leads out of the dataset's folder")
    if not url.isprintable() or len(url) > _LONGEST_NAME:
        raise row.fault(f"url {url[:_LONGEST_NAME]!r} is no name for a shard")
    nsamples, filesize = row.integer("nsamples"), row.integer("filesize")
    if filesize >= SHARD_LIMIT_BYTES:
        raise row.fault(f"filesize {filesize:,} is not less than {SHARD_LIMIT_BYTES:,}")
    if nsamples == 0 and filesize > ustar.RECORD_BYTES:
        raise row.fault(f"no samples in {filesize:,} bytes")
    # A sample takes at least a header and a block of data.
    if nsamples * 2 * ustar.BLOCK_BYTES > filesize:
        raise row.fault(f"{nsamples:,} samples do not fit into {filesize:,} bytes")
    return Shard(
        url=url,
        nsamples=nsamples,
        filesize=filesize,
        sha256=row.optional_sha256("sha256"),
        table_sha256=row.optional_sha256("table_sha256"),
    )


def _read_member(row: _Node, start: int, end: int) -> Member:
    member = Member(row.integer("offset"), row.integer("size"), row.optional_sha256("sha256"))
    if member.offset < start + ustar.BLOCK_BYTES or member.offset + member.size_bytes > end:
        raise row.fault(f"a member at byte {member.offset:,} is not inside its sample's span")
    return member


def _read_sample(row: _Node, images: _Node, start: int) -> Sample:
    span = row.row.get("span")
    if (
        not isinstance(span, list)
        or [type(edge) for edge in span] != [int, int]
        or not start <= span[0] < span[1] < 2**63
    ):
        raise row.fault(f"span must be two rising offsets from {start:,} on, not {str(span)[:80]}")
    key, extension = row.text("key"), row.text("ext")
    others = row.mapping("members")
    for name in (extension, *others.row):
        member = f"{key}.{name}"
        if (
            "/" in name
            or key[-1:] in {"", "/"}
            or not is_inside(member)
            or not member.isprintable()
            or len(member) > _LONGEST_NAME
        ):
            raise row.fault(f"{member[:_LONGEST_NAME]!r} is no name for a member")
    image = images.mapping(f"{key}.{extension}")
    return Sample(
        key=key,
        extension=extension,
        image=_read_member(image, *span),
        width=image.optional_integer("width"),
        height=image.optional_integer("height"),
        label=row.optional_integer("label"),
        path=row.optional_path("path"),
        span=(span[0], span[1]),
        others={name: _read_member(others.mapping(name), *span) for name in others.row},
    )


def _image_row(sample: Sample) -> dict[str, object]:
    row = _member_row(sample.image)
    if sample.width is not None and sample.height is not None:
        row |= {"width": sample.width, "height": sample.height}
    return row


def _member_row(member: Member) -> dict[str, object]:
    return {"offset": member.offset, "size": member.size_bytes, "sha256": member.sha256}


def _sample_row(sample: Sample) -> dict[str, object]:
    return {
        "key": sample.key,
        "ext": sample.extension,
        "span": list(sample.span),
        "label": sample.label,
        "path": None if sample.path is None else text_to_json(sample.path),
        "members": {name: _member_row(member) for name, member in sample.others.items()},
    }


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def text_to_json(text: str) -> str | dict[str, str]:
    """Return text for JSON; webshart refuses a file with a lone surrogate in it."""
    if _is_unicode(text):
        return text
    raw = text.encode("utf-8", "surrogateescape")
    return {"bytes": base64.b64encode(raw).decode("ascii")}


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _to_text(value: object) -> str | None:
    if isinstance(value, str):
        # A lone surrogate stands for no text; paths that are not UTF-8 are written as bytes.
        return value if _is_unicode(value) else None
    if isinstance(value, dict) and isinstance(value.get("bytes"), str):
        try:
            return base64.b64decode(value["bytes"], validate=True).decode(
                "utf-8", "surrogateescape"
            )
        except ValueError:
            return None
    return None
