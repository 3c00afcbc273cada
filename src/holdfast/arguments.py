"""Convert Python values to wire values, and check every argument before anything is sent."""

from __future__ import annotations

import math
import traceback
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec import UNSET

from holdfast.codec import MAX_ERROR_BYTES, utf8_name
from holdfast.errors import InvalidArgument
from holdfast.job import Update

if TYPE_CHECKING:
    from holdfast.job import Duration, Instant, OnConflict

NEVER_MS: Final = 2**53 - 1
"""For ever, and the latest instant: the largest whole number that Lua holds exactly."""

_MOST_SECONDS: Final = NEVER_MS // 1000

DEFAULT_PRIORITY: Final = 50

# Tuples, since a union in a check is made anew each time.
_NUMBER: Final = (int, float)
_LISTS: Final = (list, tuple)
NO_LIMIT: Final = -1


def shown(value: object) -> str:
    """Return any value for an error message: short, and on one line."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "a huge number"
    return ascii(value)[:100]


def duration_ms(name: str, value: Duration, *, least: int = 0, forever: bool = False) -> int:
    """Return a duration in whole milliseconds; a duration above 0 is at least 1."""
    if type(value) is int and least <= value <= _MOST_SECONDS:
        return value * 1000
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, _NUMBER):
        raise InvalidArgument(
            f"{name} must be seconds (int, float or timedelta), not {type(value).__name__}"
        )
    if forever and value == math.inf:
        return NEVER_MS
    if not least / 1000 <= value <= _MOST_SECONDS and not 0 < value < 0.001:
        above = "more than 0" if least else "0 or more"
        raise InvalidArgument(
            f"{name} must be {above} seconds and less than 285,000 years, not {shown(value)}"
        )
    # 32.709 * 1000 is a little more than 32709.
    return math.ceil(round(value * 1000, 6)) or int(value > 0)


def seconds_or_none(name: str, value: Duration | None) -> float | None:
    """Return a duration in seconds, more than 0; None if none is given."""
    return None if value is None else duration_ms(name, value, least=1) / 1000


def optional_ms(name: str, value: Duration | None, *, least: int = 0) -> int | None:
    """Return a duration in whole milliseconds; None if none is given."""
    return None if value is None else duration_ms(name, value, least=least)


def seconds(name: str, value: Duration | None, otherwise: float) -> float:
    """Return a duration in seconds, which may be infinite; `otherwise` if none is given."""
    return otherwise if value is None else duration_ms(name, value, forever=True) / 1000


def instant_ms(name: str, value: Instant) -> int:
    """Return an instant in milliseconds since the epoch."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgument(
                f"{name} must have a time zone: use datetime.now(timezone.utc) or seconds"
            )
        value = value.timestamp()
    if isinstance(value, timedelta):
        raise InvalidArgument(f"{name} must be a datetime or seconds since the epoch: see delay")
    return duration_ms(name, value)


def due(delay: Duration | None, at: Instant | None, name: str = "delay") -> bytes:
    """Return when a job may run: b"" is now, `+ms` from now, `ms` at that time."""
    if delay is not None:
        if at is not None:
            raise InvalidArgument(f"give {name} or at, not both")
        return b"+%d" % duration_ms(name, delay)
    return b"" if at is None else b"%d" % instant_ms("at", at)


def whole(name: str, value: object, least: int, most: int) -> int:
    """Return a whole number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{name} must be an int, not {type(value).__name__}")
    if not least <= value <= most:
        raise InvalidArgument(f"{name} must be {least} to {most}, not {shown(value)}")
    return value


def priority(value: object) -> int:
    """Return a priority: 0 to 99, higher runs sooner."""
    return whole("priority", value, 0, 99)


def flag(name: str, value: object) -> bool:
    """Return True or False; refuse values that are only truthy or falsy."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be True or False, not {shown(value)}")
    return value


def reason(name: str, value: object) -> bytes:
    """Return why a run ended as it did: the bounded text that is stored with the job."""
    if isinstance(value, BaseException):
        value = _described(value)
    if not isinstance(value, str) or not value:
        raise InvalidArgument(
            f"{name} must be an exception or a str that says why, not {shown(value)}"
        )
    raw = value.encode(errors="backslashreplace")
    return raw[:MAX_ERROR_BYTES].decode(errors="ignore").encode()


def _described(error: BaseException) -> str:
    """Return an exception as at the end of a traceback, or less if its text cannot be read."""
    name = type_name(error)
    with suppress(BaseException):  # Methods of its class may raise anything.
        return "".join(traceback.format_exception_only(error)).strip() or name
    with suppress(BaseException):
        return f"{name}: {error}"
    return name


def type_name(error: BaseException) -> str:
    """Return the name of an exception's class, with its module unless that is `builtins`.

    Both are read from the type itself, because a metaclass may hide them, or raise.
    """
    name = _read_of_type("__qualname__", error) or "Exception"
    module = _read_of_type("__module__", error)
    if module.startswith("holdfast."):
        module = "holdfast"  # Users import it from there, wherever it is defined.
    return name if module in ("", "builtins") else f"{module}.{name}"


def _read_of_type(attribute: str, error: BaseException) -> str:
    with suppress(AttributeError):  # `__module__` can be deleted.
        value = vars(type)[attribute].__get__(type(error))
        if type(value) is str:
            return value
    return ""


def several(name: str, values: object) -> Iterable[Any]:
    """Return an iterable of values; refuse a single value."""
    if isinstance(values, _LISTS):
        return values
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise InvalidArgument(f"{name} must be a list or another iterable, not {shown(values)}")
    return values


def limit(name: str, value: object) -> int:
    """Return how often something may happen; None means any number of times."""
    return NO_LIMIT if value is None else whole(name, value, 0, 2**31)


def _name(name: str, value: object) -> str | None:
    if value is not None:
        utf8_name(name, value)
    return cast("str | None", value)


def group(value: object) -> str | None:
    """Return the name of a group; refuse a name that belongs to the follow-up of a request."""
    named = _name("group", value)
    if named is not None and named.endswith("/end"):
        raise InvalidArgument(
            f"group must not end in '/end', as follow-ups of requests do: {shown(value)}"
        )
    return named


def _timeout(value: Any) -> int | None:
    return None if value is None else duration_ms("timeout", value, least=1)


# option -> its name on the wire, how to check it, and the default that is not stored
_OPTIONS: Final[Mapping[str, tuple[str, Any, object]]] = {
    "handler": ("handler", lambda v: _name("handler", v), None),
    "timeout": ("timeout_ms", _timeout, None),
    "max_failures": ("max_failures", lambda v: limit("max_failures", v), 10),
    "max_lapses": ("max_lapses", lambda v: limit("max_lapses", v), 3),
    "min_backoff": ("min_backoff_ms", lambda v: duration_ms("min_backoff", v), 2_000),
    "max_backoff": ("max_backoff_ms", lambda v: duration_ms("max_backoff", v), 300_000),
    "result_for": ("result_for_ms", lambda v: duration_ms("result_for", v, forever=True), 0),
    "remember_for": ("remember_for_ms", lambda v: duration_ms("remember_for", v, forever=True), 0),
    "keep": ("keep", lambda v: flag("keep", v), False),
    "group": ("group", group, None),
    "group_limit": ("group_limit", lambda v: limit("group_limit", v), UNSET),
}


def options(given: Mapping[str, Any]) -> tuple[int, bytes]:
    """Return priority and packed options; b"" if all are the defaults."""
    if not given:
        return DEFAULT_PRIORITY, b""
    # With the type, because True == 1, but only 1 is accepted as a number.
    named = tuple([(option, type(value), value) for option, value in given.items()])
    try:
        return _pack_options(named)
    except TypeError:  # A value cannot be hashed: the check says which.
        return _pack_options.__wrapped__(named)


@lru_cache(maxsize=256)
def _pack_options(given: tuple[tuple[str, type, Any], ...]) -> tuple[int, bytes]:
    rank = DEFAULT_PRIORITY
    packed: dict[str, object] = {}
    for option, _, value in given:
        if option == "priority":
            rank = priority(value)
            continue
        if not isinstance(option, str):
            raise InvalidArgument("the names of options must be str")
        if option not in _OPTIONS:
            if option in ("delay", "at", "id"):
                raise InvalidArgument(
                    f"{option} is given for each job by itself: NewJob(data, {option}=…)"
                )
            known = ", ".join(sorted((*_OPTIONS, "priority")))
            raise InvalidArgument(f"unknown option {shown(option)}: a job may have {known}")
        wire, check, default = _OPTIONS[option]
        checked = check(value)
        if checked != default:
            packed[wire] = checked
    if "group_limit" in packed and "group" not in packed:
        raise InvalidArgument("group_limit needs a group: name it with group=")
    return rank, msgspec.msgpack.encode(packed) if packed else b""


_DUE: Final[Mapping[bool | str, bytes]] = {True: b"=", False: b"-", "later": b">", "earlier": b"<"}


def update_words(on_conflict: OnConflict) -> bytes:
    """Return how jobs whose id is taken are changed; b"" if they are not."""
    if on_conflict == "update":
        on_conflict = Update()
    return how(on_conflict) if isinstance(on_conflict, Update) else b""


def how(update: Update) -> bytes:
    """Return what an update replaces: the four letters of `update_of`, then names of options."""
    data = flag("Update.data", update.data)
    limits, only = _replaced(update.limits)
    counts = data if update.counts is None else flag("Update.counts", update.counts)
    due: object = update.due
    if not isinstance(due, bool | str) or due not in _DUE:
        raise InvalidArgument(
            f"Update.due must be True, False, 'later' or 'earlier', not {shown(due)}"
        )
    return b"%d%b%d%d%b" % (data, _DUE[due], limits, counts, only)


def _replaced(limits: object) -> tuple[bool, bytes]:
    """Return whether an update replaces all options, or else the wire names of those it does."""
    if isinstance(limits, bool):
        return limits, b""
    if isinstance(limits, str | bytes) or not isinstance(limits, Collection):
        raise InvalidArgument(
            f"Update.limits must be True, False or a list of options, not {shown(limits)}"
        )
    known = {"priority": "priority"} | {name: wire for name, (wire, *_) in _OPTIONS.items()}
    del known["group_limit"]  # It belongs to the group, and comes with it.
    names = []
    for option in limits:
        if not isinstance(option, str) or option not in known:
            raise InvalidArgument(
                f"unknown option {shown(option)} in Update.limits: an update may replace "
                f"{', '.join(sorted(known))} (with group, also group_limit)"
            )
        names.append(f" {known[option]}")
    return False, "".join(sorted(set(names))).encode()
