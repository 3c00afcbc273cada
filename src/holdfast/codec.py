"""Payloads to bytes and back: bytes and str as they are, everything else as JSON."""

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

_typing: Final = threading.Lock()
"""msgspec crashes when two threads look at a type for the first time at once."""

_to_json = msgspec.json.Encoder().encode


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


def decode_json(raw: bytes) -> Any:
    """Decode JSON; say clearly when it is none."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"payload is not JSON: {error}") from None


def reader(of: Any) -> Callable[[bytes], Any]:
    """Return what reads JSON as values of a type. Raises TypeError where there is no such thing."""
    with _typing:
        return msgspec.json.Decoder(of).decode


def convert(value: object, to: Any) -> Any:
    """Return what came as JSON as a value of a type; TypeError where there is no such thing."""
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
    return to_json(what, data)


def to_json(what: str, data: object) -> bytes:
    """Return a value as JSON, also bytes (in base 64) and str; say clearly when it has none."""
    try:
        raw = _to_json(data)
        # The encoder writes NaN and infinity as null, which would lose them without a word.
        finite = b"null" not in raw or _is_finite(data)
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise CodecError(f"{what} cannot be written as JSON: {error}") from None
    if not finite:
        raise CodecError(f"{what} cannot be written as JSON: NaN and infinity have no JSON form")
    return raw


def _is_finite(value: object) -> bool:
    """Tell whether every float in a value is a number; `value` can be written as JSON."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value)) and all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_finite, value))
    if isinstance(value, str | bytes | int | None):
        return True
    return _is_finite(msgspec.to_builtins(value, builtin_types=()))
