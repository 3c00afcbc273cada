"""Values as bytes: payloads and results, names of queues, and ids, which are made here.

bytes and str are stored as they are, everything else as JSON. `Json(value)` is for a value that
must come back as itself: a str becomes a JSON string too.

A new id has 20 characters, time first, so that ids sort by age: 8 characters of time (48 bits of
milliseconds), 8 random characters that are drawn once per process, and 4 that count up. The random
characters are drawn again after 16 million ids, and after a fork.
"""

from __future__ import annotations

import itertools
import math
import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.errors import CodecError, InvalidArgument

MAX_NAME_BYTES: Final = 512
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


# ------------------------------------------------------------------------ names and ids

_ALPHABET: Final = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_PAIRS: Final = tuple(a + b for a in _ALPHABET for b in _ALPHABET)
_IDS: Final = len(_PAIRS) ** 2
_LATER: Final = 2**42
"""Added to the time, so that no id begins with a dash: a command would take it for an option."""


def utf8_name(kind: str, name: object) -> bytes:
    """Return a queue name or an id as bytes; refuse a name that cannot be stored exactly."""
    if not isinstance(name, str):
        raise InvalidArgument(f"{kind} must be a str, not {type(name).__name__}")
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{kind} cannot be written as UTF-8: {name!a}") from None
    if not 1 <= len(raw) <= MAX_NAME_BYTES:
        raise InvalidArgument(f"{kind} must have 1 to {MAX_NAME_BYTES} bytes, not {len(raw)}")
    return raw


def _digits(value: int, pairs: int) -> str:
    digits = ""
    for _ in range(pairs):
        digits = _PAIRS[value & 4095] + digits
        value >>= 12
    return digits


def random_name() -> str:
    """Return 12 random characters (72 bits): the name of a holder or a caller."""
    return _digits(secrets.randbits(72), 6)


class _Maker:
    __slots__ = ("_count", "_ms", "_random", "_time")

    def __init__(self) -> None:
        self.draw()

    def draw(self) -> None:
        self._random = _digits(secrets.randbits(48), 4)
        self._count = itertools.count()
        self._ms = -1
        self._time = ""

    def new(self) -> str:
        number = next(self._count)
        if number >= _IDS:
            self.draw()
            return self.new()
        ms = time.time_ns() // 1_000_000
        prefix = self._time
        if ms != self._ms:
            prefix = self._time = _digits(ms + _LATER, 4)
            self._ms = ms
        return f"{prefix}{self._random}{_PAIRS[number >> 12]}{_PAIRS[number & 4095]}"


_maker = _Maker()
new_id = _maker.new
if hasattr(os, "register_at_fork"):  # Windows has none.
    os.register_at_fork(after_in_child=_maker.draw)
