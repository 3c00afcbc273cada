"""Encode payloads and decode them: bytes and str as they are, everything else as JSON.

`Json(value)` is for a value that must come back as itself: a str becomes a JSON string too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.errors import CodecError, InvalidArgument

MAX_PAYLOAD_BYTES: Final = 8 * 1024 * 1024
MAX_RESULT_BYTES: Final = 1024 * 1024
MAX_ERROR_BYTES: Final = 4096

JOB_FIELD: Final = "\0holdfast"
JOB_TAG: Final = "job"
"""The first field of a NewJob in JSON. It reveals a NewJob that was given as data by mistake."""
_JOB_MARK: Final = msgspec.json.encode({JOB_FIELD: JOB_TAG}).removesuffix(b"}")

_typing: Final = threading.Lock()
"""Held while msgspec sees a type: it crashes if two threads show it a new type at once."""

_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode

_NO_JSON: Final = (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError)
"""What the encoder raises for a value that has no JSON form."""


class Json:
    """A payload or result that is always stored as JSON: `lease.json()` returns the same value.

    Without `Json`, a str is stored as its bytes, so `queue.add("1")` is read as the number 1.
    `queue.add(Json("1"))` is read as the text. Use `Json` wherever a payload or a result can be
    given.

    Bytes, sets, keys other than str, NaN and infinity are refused, because JSON would change them.
    A tuple comes back as a list, a date as text and a dataclass as a dict.
    """

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Json({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, Json) else NotImplemented

    def __hash__(self) -> int:
        return hash((Json, self.value))


def encode(data: object) -> bytes:
    """Return the bytes of a payload."""
    raw = data if type(data) is bytes else _to_bytes("payload", data)
    if len(raw) > MAX_PAYLOAD_BYTES:
        raise InvalidArgument(
            f"payload has {len(raw)} bytes, more than {MAX_PAYLOAD_BYTES}: "
            "store it elsewhere and queue a reference to it"
        )
    return raw


def encode_result(result: object) -> bytes:
    """Return the bytes of a result."""
    raw = _to_bytes("result", result)
    if len(raw) > MAX_RESULT_BYTES:
        raise InvalidArgument(
            f"result has {len(raw)} bytes, more than {MAX_RESULT_BYTES}: "
            "store it elsewhere and keep a reference to it"
        )
    return raw


def decode_json(raw: bytes, id: str = "", what: str = "payload") -> Any:
    """Decode the JSON of a job; raise CodecError if it is not JSON."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        whose = f"{id}: the {what}" if id else what
        if not raw:
            raise CodecError(f"{whose} is empty, which is not JSON") from None
        raise CodecError(f"{whose} is not JSON: {error}") from None


def reader(of: Any) -> Callable[[bytes], Any]:
    """Return a function that reads JSON as a type. Raises TypeError for an unsupported type."""
    with _typing:
        return msgspec.json.Decoder(of).decode


def convert(value: object, to: Any) -> Any:
    """Convert decoded JSON to a type. Raises TypeError for an unsupported type."""
    with _typing:
        return msgspec.convert(value, to)


def _to_bytes(what: str, data: object) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise CodecError(f"{what} cannot be written as UTF-8: {error}") from None
    return _to_same_json(what, data.value) if isinstance(data, Json) else to_json(what, data)


def _to_same_json(what: str, value: object) -> bytes:
    """Return a value as JSON; refuse a value that would come back as something else."""
    try:
        raw = _to_json(value)
        if _from_json(raw) == value and _JOB_MARK not in raw:
            return raw
    except _NO_JSON:
        pass
    raw = to_json(what, value)
    _must_come_back(what, value)
    return raw


def _must_come_back(where: str, value: object) -> None:
    """Refuse bytes, sets and keys other than str in a value that can be written as JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise InvalidArgument(
            f"{where} is bytes, which JSON does not have, and would come back as text: give bytes "
            "alone and without json=, or make them text, for example with base64"
        )
    if isinstance(value, set | frozenset):
        raise InvalidArgument(
            f"{where} is a set, which JSON does not have, and would come back as a list: give a "
            "list"
        )
    if isinstance(value, dict):
        for key, one in value.items():
            if not isinstance(key, str):
                raise InvalidArgument(
                    f"{where} has the key {ascii(key)[:40]}, which would come back as text: make "
                    "all keys str"
                )
            _must_come_back(f"{where}[{ascii(key)[:40]}]", one)
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            _must_come_back(f"{where}[{number}]", one)
    elif not isinstance(value, str | int | float | msgspec.Raw | None):
        kept = msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview))
        _must_come_back(where, kept)


def to_json(what: str, data: object) -> bytes:
    """Return a value as JSON, also bytes (in base 64) and str; raise CodecError if that fails."""
    try:
        raw = _to_json(data)
        # The encoder writes NaN and infinity as null: they would be lost silently.
        finite = b"null" not in raw or _is_finite(data)
    except _NO_JSON as error:
        raise CodecError(f"{what} cannot be written as JSON: {error}") from None
    if _JOB_MARK in raw:
        raise InvalidArgument(
            "a NewJob is a job, not data: give it to add_many, to the add of a request or of a "
            "running job, or to complete(add=…)"
        )
    if not finite:
        raise CodecError(f"{what} cannot be written as JSON: NaN and infinity have no JSON form")
    return raw


def _is_finite(value: object) -> bool:
    """Return whether every float in a value is finite; `value` can be written as JSON."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value)) and all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_finite, value))
    if isinstance(value, str | bytes | int | None):
        return True
    return _is_finite(msgspec.to_builtins(value, builtin_types=()))
