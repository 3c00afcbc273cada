"""Turn exceptions into values that are stored, and compute the time of the next try. No I/O.

An exception may run foreign code: reading an attribute or its text may raise or lie. Nothing here
raises, and no stored value is ever turned into a class or an exception again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from holdfast import arguments
from holdfast.codec import MAX_ERROR_BYTES
from holdfast.escaping import logger

if TYPE_CHECKING:
    from holdfast.job import Facts

log = logger(__name__)

_LONGEST_NAME: Final = 128
_LONGEST_TYPE: Final = 512
_LONGEST_MESSAGE: Final = 1024

_to_json = msgspec.json.Encoder().encode


def packed(error: object, reason: bytes, without: Collection[str] = ()) -> bytes:
    """Return an exception's type, message and attributes as JSON; b"" if `error` is a text.

    Attributes of the instance are kept if they have a JSON form and fit; private ones (`_name`),
    and those in `without`, are left out. NaN and infinities are kept as text. `reason` is the text
    that is stored beside the JSON. An old client replaces only that text; its checksum, in the
    JSON, then shows that the JSON is out of date.
    """
    if not isinstance(error, BaseException):
        return b""
    parts = [
        b'{"of":%d' % crc32(reason),
        b'"type":' + _text(arguments.type_name(error), _LONGEST_TYPE),
        b'"message":' + _safely(lambda: _text(str(error), _LONGEST_MESSAGE), b'""'),
    ]
    kept: dict[str, bytes] = {}
    room = MAX_ERROR_BYTES - sum(map(len, parts)) - len(b',,,"attributes":{}}')
    for name, value in _attributes(error):
        if type(name) is not str or name in without or name in kept:
            continue
        one = _safely(lambda: _attribute(name, value), b"")  # noqa: B023
        if one and len(one) < room:
            kept[name] = one
            room -= len(one) + 1
    return b",".join([*parts, b'"attributes":{' + b",".join(kept.values()) + b"}}"])


def due(error: BaseException) -> bytes:
    """Return when an exception asks for the next try, as `arguments.due`; b"" if it does not ask.

    `retry_at` is a datetime with a time zone or seconds since the epoch; `retry_after` is seconds
    from now. Any other value is ignored, with a line in the log.
    """
    for name in ("retry_at", "retry_after"):
        try:
            value: Any = getattr(error, name, None)
            if value is None:
                continue
            after, at = (None, value) if name == "retry_at" else (value, None)
            return arguments.due(after, at, name)
        except BaseException as trouble:  # noqa: BLE001  # A property may raise anything.
            log.warning("%s of %s is ignored: %s", name, arguments.type_name(error), _said(trouble))
    return b""


def _said(trouble: BaseException) -> str:
    """Return the text of an exception on one line."""
    return ascii(_safely(lambda: str(trouble), "it cannot be read"))[1:-1]


def _attributes(error: BaseException) -> Iterator[tuple[object, object]]:
    found = _safely(lambda: list(vars(error).items()), list[tuple[str, Any]]())
    yield from found
    if issubclass(type(error), OSError):  # isinstance() would read `__class__`.
        for name in ("errno", "strerror", "filename"):
            value = _safely(lambda: getattr(error, name), None)  # noqa: B023
            if value is not None:
                yield name, value


def _attribute(name: str, value: object) -> bytes:
    """Return an attribute as JSON; b"" if it is not kept."""
    if name.startswith("_") or len(name) > _LONGEST_NAME:
        return b""
    if isinstance(value, str):
        if len(value) > MAX_ERROR_BYTES:
            return b""
        value = _clean(str(value))
    elif isinstance(value, bytes | bytearray | memoryview):
        return b""
    elif isinstance(value, float) and not math.isfinite(value):
        value = str(float(value))  # JSON has no such numbers.
    return _to_json(_clean(name)) + b":" + _to_json(value)


def _text(text: str, most: int) -> bytes:
    """Return a text as JSON, cut to at most `most` bytes."""
    cut = _clean(text[:most])
    while len(raw := _to_json(cut)) > most + 2:
        cut = cut[: len(cut) * most // len(raw)]
    return raw


def _clean(text: str) -> str:
    """Return a text that UTF-8 can hold."""
    return text.encode(errors="backslashreplace").decode()


def _safely(read: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return read()
    except BaseException:  # noqa: BLE001  # Foreign code may raise anything.
        return otherwise


# ------------------------------------------------------------- the time of the next try


@dataclass(frozen=True, slots=True)
class Handling:
    """How often a failure handler may try, and how long it waits in between."""

    max_failures: int = 100
    """-1 means any number of times."""
    min_backoff_ms: int = 10_000
    max_backoff_ms: int = 900_000


DEFAULT_HANDLING: Final = Handling()

_MOST_DOUBLINGS: Final = 60


def retry_ms(
    facts: Facts,
    spread: Callable[[float, float], float] = random.uniform,
    handling: Handling = DEFAULT_HANDLING,
) -> int:
    """Return how long a job waits after the run that just failed.

    The wait is `min(max_backoff, min_backoff · 2^failures)` and up to a quarter more, so that jobs
    that failed together do not come back together. At the longest wait, it is up to a fifth less
    instead. If the failure handler of the job failed, `handling` has the backoff.
    """
    if facts.failed_at is not None:
        return _wait(facts.handlings, handling.min_backoff_ms, handling.max_backoff_ms, spread)
    return _wait(facts.failures, facts.min_backoff_ms, facts.max_backoff_ms, spread)


def _wait(times: int, least: int, most: int, spread: Callable[[float, float], float]) -> int:
    wait = min(most, least * 2 ** min(times, _MOST_DOUBLINGS))
    longest = min(most, wait * 1.25)
    return min(most, round(spread(min(wait, longest * 0.8), longest)))
