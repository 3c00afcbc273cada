"""Orders, plans and parts: the values that are kept of a request."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from holdfast import arguments
from holdfast.client.status import RequestStatus
from holdfast.errors import InvalidArgument
from holdfast.spark.pipeline.formats import Format

Mode: TypeAlias = Literal["error", "overwrite", "append"]
# Values from a queue or from staging must look like this: see foreign.py.
Run: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{0,16}\Z")]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
Moment: TypeAlias = Annotated[float, Meta(ge=-1e12, le=1e12)]  # A clock may be put back.
FileName: TypeAlias = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._%~-]{0,254}\Z")]
Attempt: TypeAlias = Annotated[
    str, Meta(pattern=r"\A([0-9]{5,10}|finish)\.[A-Za-z0-9._%~-]{1,100}\Z")
]

_LARGEST_PART: Final = 2**60
MANY_PARTS: Final = 10_000
MOST_PARTS: Final = 1_000_000
_LONGEST_NAME: Final = 100
_MOST_BYTES: Final = 255
"""What file systems take as the name of a file."""
GONE: Final = ".gone"
"""A staging directory gets this behind its name before it is removed."""
_UNITS: Final = {"": 1, "b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40}
_ENDINGS: Final[dict[str, Format]] = {
    "parquet": "parquet",
    "csv": "csv",
    "tsv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "txt": "text",
    "log": "text",
    "orc": "orc",
}


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A request, as it was submitted."""

    id: str
    transform: str
    params: dict[str, Any] = {}
    input: Annotated[list[str], Meta(min_length=1)]
    output: str
    format: Format
    options: dict[str, str] = {}
    """How to read, as Spark's reader takes them."""
    schema: str | None = None
    output_format: Format
    output_options: dict[str, str] = {}
    mode: Mode = "error"
    part_size: Annotated[int, Meta(ge=1, le=_LARGEST_PART)]
    finish: str | None = None
    finish_params: dict[str, Any] = {}
    partial: bool = False
    """Whether to publish what there is when parts have failed."""
    priority: Annotated[int, Meta(ge=0, le=99)] = 50
    limit: Count | None = None
    max_failures: Annotated[int, Meta(ge=0, le=1000)] = 3
    run: Run = ""
    """Which request of this id it is, once it is planned: an id may be used again."""

    def option(self, name: str) -> str | None:
        """Return an option for reading. In its name case does not count, as Spark has it."""
        return next((v for key, v in self.options.items() if key.lower() == name.lower()), None)

    def has(self, name: str) -> bool:
        """Tell whether an option for reading is switched on."""
        return (self.option(name) or "").lower() == "true"

    @property
    def staging(self) -> str:
        """Where attempts are written."""
        return staging_of(self.output, self.id, self.run)


class Plan(msgspec.Struct, frozen=True):
    """An order with what the input looks like: fixed once, before the first part."""

    order: Order
    schema: str
    """Of the input, as JSON."""
    output: str
    """The schema of what each part writes, as JSON."""
    whole_files: bool
    """Whether files are not divided, as the transform asks for their names."""
    settings: dict[str, str]
    """Session settings that change results."""
    code: str
    """A fingerprint of the code of its transforms."""
    spark: str
    """The version of Spark."""
    constants: dict[str, str] = {}
    """Digests of the constants and functions in the plan of the transform, by what they are."""
    tables: str = ""
    """A digest of the other tables that it reads, with their files; "" if parts may differ."""
    python: str = ""
    """The version of Python of the planner."""
    zone: str = ""
    """Its local time zone."""
    runs_python: bool = False
    """Whether the transform calls functions of Python."""
    in_files: str | None = None
    """The schema of the files, as JSON, where a directory such as `day=1` replaces one of their
    columns. Without it Spark would take that column out of what a part reads."""


class Blocks(msgspec.Struct, frozen=True, tag="blocks"):
    """Some row groups of a Parquet file, from the first on up to another."""

    first: Count
    after: Count


class Bytes(msgspec.Struct, frozen=True, tag="bytes"):
    """The lines of a file that begin between two places."""

    start: Count
    end: Count


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """What a file was at one moment: another length or time means another content."""

    size: int
    modified_ms: int


class Slice(msgspec.Struct, frozen=True):
    """What one part reads: whole files, or a piece of one."""

    files: list[str]
    size: int = 0
    base: str | None = None
    """The directory under which partition columns stand in the names of directories."""
    piece: Blocks | Bytes | None = None
    stamps: list[Stamp] = []
    """What each file was when the request was planned."""


class PartData(msgspec.Struct, frozen=True):
    """The payload of a part."""

    staging: str
    slice: Slice


class Target(msgspec.Struct, frozen=True):
    """The payload of the job that publishes."""

    output: str


class Done(msgspec.Struct, frozen=True):
    """What a part came to: its result."""

    attempt: Attempt
    """The directory that it wrote."""
    files: list[FileName]
    rows_in: Count
    rows_out: Count
    began_at: Moment
    seconds: Moment
    worker: Annotated[str, Meta(max_length=1000)]
    tries: Count = 1


class Published(msgspec.Struct, frozen=True):
    """What a request came to: the result of the job that published it."""

    state: Literal["done", "failed", "cancelled"]
    output: str = ""
    rows: Count = 0
    files: Count = 0
    rows_in: Count = 0
    """Rows that its parts read,"""
    rows_out: Count = 0
    """and wrote: a finish reads these."""


# Made before there are threads: msgspec may crash when two make the first of a type at once.
read_order = msgspec.json.Decoder(Order).decode
read_part_data = msgspec.json.Decoder(PartData).decode
read_target = msgspec.json.Decoder(Target).decode
read_done = msgspec.json.Decoder(Done).decode
read_published = msgspec.json.Decoder(Published).decode


def size_of(value: object) -> int:
    """Return a size in bytes: a number, or `"128 MB"`."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?b|)\s*", value.lower())
        if found:
            value = int(float(found[1]) * _UNITS[found[2]])
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST_PART:
        raise InvalidArgument(
            f"part_size must be bytes, or such as '128 MB', not {arguments.shown(value)}"
        )
    return value


def format_of(name: str, given: object, paths: list[str]) -> Format:
    """Return a format: as given, or as the names of files tell."""
    if given is None:
        endings = {_ending(path) for path in paths}
        if len(endings) == 1 and (told := endings.pop()) in _ENDINGS:
            return _ENDINGS[told]
        raise InvalidArgument(
            f"{name} must be given where file names do not tell it: one of {_formats()}"
        )
    for known in get_args(Format):
        if given == known:
            return known  # type: ignore[no-any-return]
    raise InvalidArgument(f"{name} must be one of {_formats()}, not {arguments.shown(given)}")


def many_parts(count: int) -> str | None:
    """Return a warning for a request with very many parts."""
    if count <= MANY_PARTS:
        return None
    return f"more than {MANY_PARTS:,} parts, each a job for Spark: a greater part_size is faster"


def too_many_parts(part_size: int) -> InvalidArgument:
    """Return the error for a request with too many parts to ever end."""
    return InvalidArgument(
        f"part_size={part_size} makes more than {MOST_PARTS:,} parts of this input, each a job for "
        "Spark: submit it with a greater part_size"
    )


def safe(text: str) -> str:
    """Return text as it may stand in the name of a file, each different from all others."""
    name = re.sub(r"[^A-Za-z0-9._-]", lambda found: f"%{found[0].encode().hex()}", text)
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:60]}~{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def run_of(status: RequestStatus) -> str:
    """Return which request of its id this is: no two are opened at the same time."""
    return f"{round(status.opened_at * 1000):x}"


def staging_of(output: str, id: str, run: str) -> str:
    """Return where a request writes: beside its output, where Spark does not look."""
    parent, _, name = output.rpartition("/")
    return f"{parent}/.{name}.{safe(id)}.{run}"


def check_output_name(output: str, id: str) -> None:
    """Refuse an output whose name, or that of its staging directory, no file system would take."""
    *above, last = output.split("/")
    added = len(f"{staging_of('', id, 'f' * 16)}{GONE}") - len("/")
    for name, most in (*((name, _MOST_BYTES) for name in above), (last, _MOST_BYTES - added)):
        if (size := len(name.encode())) > most:
            raise InvalidArgument(
                f"output {arguments.shown(name)} is too long: it has {size} bytes, and may have "
                f"{most} in a request with this id"
            )


def is_a_file(output: str) -> InvalidArgument:
    """Return the error for an output that no mode can replace or add to."""
    return InvalidArgument(
        f"output {output} is a file: name a directory, or remove the file and submit it again"
    )


def _ending(path: str) -> str:
    name = path.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"\.(gz|bz2|zst|snappy|lz4|deflate)$", "", name).rpartition(".")[2].strip("*")


def _formats() -> str:
    return ", ".join(get_args(Format))
