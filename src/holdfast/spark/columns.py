"""Check the columns of a write, and convert its rows to jobs.

Columns are checked when the write is planned, values in its tasks. Both are checked before any of
them is sent, and an error names the column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
from msgspec import UNSET, UnsetType
from pyspark.sql import types

from holdfast import codec
from holdfast.arguments import shown
from holdfast.codec import utf8_name
from holdfast.errors import CodecError, InvalidArgument
from holdfast.job import Row

_TEXT: Final = (types.StringType,)
_WHOLE: Final = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_NUMBER: Final = (*_WHOLE, types.FloatType, types.DoubleType)

_TYPES: Final[dict[str, tuple[tuple[type[types.DataType], ...], str]]] = {
    "value": ((types.BinaryType, types.StringType, types.StructType), "binary, string or a struct"),
    "id": (_TEXT, "a string"),
    "priority": (_WHOLE, "a whole number"),
    "delay": (_NUMBER, "a number of seconds"),
    "due_at": ((types.TimestampType,), "a timestamp"),
    "request": (_TEXT, "a string"),
}
"""column -> the types that it may have, and their names"""

COLUMNS: Final = tuple(_TYPES)
DEFAULTS: Final = {"priority": UNSET}
"""Values of missing columns; None for the others."""


def check_columns(schema: types.StructType) -> None:
    """Refuse columns that cannot be converted to jobs."""
    names = schema.fieldNames()
    if "value" not in names:
        raise InvalidArgument(
            f"column 'value' is missing, the payload of a job; the columns are {_list(names)}. "
            "To combine them: select(struct('*').alias('value'))"
        )
    for field in schema.fields:
        if field.name not in _TYPES:
            raise InvalidArgument(
                f"unknown column {shown(field.name)}: a job has {_list(COLUMNS)}; "
                "drop it, or put it into a struct named 'value'"
            )
        allowed, named = _TYPES[field.name]
        if names.count(field.name) > 1:
            raise InvalidArgument(f"column {field.name!r} appears more than once")
        if not isinstance(field.dataType, allowed):
            raise InvalidArgument(
                f"column {field.name!r} must be {named}, not {field.dataType.simpleString()[:100]}"
            )
    for one, other in (("delay", "due_at"), ("id", "request")):
        if one in names and other in names:
            raise InvalidArgument(f"give column {one!r} or column {other!r}, not both")


def _list(names: Iterable[str]) -> str:
    return ", ".join(shown(name) for name in names)


def jobs_of(batch: pa.RecordBatch) -> Iterator[bytes | Row]:
    """Return payloads if a batch has no other column than 'value', else rows to stage."""
    payloads = _payloads(batch.column("value"))
    if batch.num_columns == 1:
        return iter(payloads)
    names = set(batch.schema.names)
    columns = [
        _values(name, batch.column(name)) if name in names else repeat(DEFAULTS.get(name))
        for name in COLUMNS[1:]
    ]
    return map(_row, payloads, *columns)


def _row(  # In the order of COLUMNS.
    payload: bytes,
    id: str | None,
    priority: int | UnsetType,
    delay: float | None,
    due_at: float | None,
    request: str | None,
) -> Row:
    return Row(payload, id, delay, due_at, priority, request=request)


def _payloads(column: pa.Array) -> list[bytes]:
    if column.null_count:
        raise InvalidArgument("column 'value' has a null: a job needs a payload")
    if pa.types.is_struct(column.type):
        return [_json(value) for value in column.to_pylist(maps_as_pydicts="strict")]
    # Cast to bytes, so that text is not converted to str in between.
    kind = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    payloads: list[bytes] = (
        column.cast(kind) if not pa.types.is_binary(column.type) else column
    ).to_pylist()
    return payloads


def _json(value: object) -> bytes:
    try:
        return codec.encode(value)
    except CodecError as error:
        raise InvalidArgument(f"column 'value': {error}") from None


def _values(name: str, column: pa.Array) -> list[Any]:
    check = _CHECKS[name]
    if name == "due_at":
        # Arrow's microseconds since the epoch: no datetime is made for each value.
        return [None if at is None else check(at / 1_000_000) for at in _integers(column)]
    return [check(value) for value in column.to_pylist()]


def _integers(column: pa.Array) -> list[int | None]:
    values: list[int | None] = column.cast(pa.int64()).to_pylist()
    return values


def _id(value: str | None) -> str:
    if value is None:
        raise InvalidArgument("column 'id' has a null: give every job an id, or drop the column")
    utf8_name("column 'id'", value)
    return value


def _request(value: str | None) -> str | None:
    if value is not None:
        utf8_name("column 'request'", value)
    return value


def _priority(value: int | None) -> int | UnsetType:
    if value is None:
        return UNSET
    if not 0 <= value <= 99:
        raise InvalidArgument(f"column 'priority' must be 0 to 99, not {value}")
    return value


def _delay(value: float | None) -> float | None:
    if value is not None and not 0 <= value <= 10**9:
        raise InvalidArgument(
            f"column 'delay' must be seconds, from 0 to a billion, not {shown(value)}"
        )
    return value


def _due_at(value: float) -> float:
    if value < 0:
        raise InvalidArgument("column 'due_at' is before 1970")
    return value


_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "id": _id,
    "priority": _priority,
    "delay": _delay,
    "due_at": _due_at,
    "request": _request,
}
