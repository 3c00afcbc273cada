"""When the ticks of a schedule are: every so many seconds, or by a cron expression. Pure.

All instants are milliseconds since the epoch, so everybody means the same tick.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, TypeAlias

from holdfast import arguments
from holdfast.errors import InvalidArgument
from holdfast.job import Duration

Rhythm: TypeAlias = Callable[[int], int | None]
"""Returns the first tick after an instant; none when there is none in fifty years."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_INTERVAL: Final = re.compile(r"(?:\d+(?:\.\d+)?\s*[smhdw]\s*)+")
_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_LONGEST_MS: Final = 100 * 366 * 86_400_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def every(interval: str | Duration) -> Rhythm:
    """Tick at the multiples of an interval since the epoch; or as a nickname says, in UTC."""
    if isinstance(interval, str) and interval.lstrip().startswith("@"):
        return cron(interval, UTC)
    ms = _interval_ms(interval)
    return lambda after: (after // ms + 1) * ms


def _interval_ms(interval: str | Duration) -> int:
    seconds = _seconds(interval) if isinstance(interval, str) else interval
    ms = arguments.duration_ms("interval", seconds)
    if not 1000 <= ms <= _LONGEST_MS:
        raise InvalidArgument(
            f"interval must be at least 1 second and at most 100 years, "
            f"not {arguments.shown(interval)}"
        )
    return ms


def _seconds(text: str) -> float:
    if not _INTERVAL.fullmatch(text):
        raise InvalidArgument(
            "interval must be seconds, a timedelta, or text such as '30s', '5m', '1h 30m' or '1d', "
            f"not {arguments.shown(text)}"
        )
    parts = re.findall(r"([\d.]+)\s*([smhdw])", text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def cron(expression: str, tz: str | tzinfo) -> Rhythm:
    """Tick when a cron expression says so, by the clocks on the wall of a time zone.

    Where these are put forward, a time that is left out comes right after; where they are put
    back, a time that comes twice counts once. With `*` in minutes or hours it is as if the clock
    was never touched.
    """
    from cronsim import CronSim, CronSimError  # noqa: PLC0415  # Only for those who need it.

    zone = _zone(tz)
    try:
        if expression.lstrip().startswith("@"):
            expression = _meant(expression)
        CronSim(expression, _EPOCH)
    except CronSimError as error:
        raise InvalidArgument(
            f"{arguments.shown(expression)} is no cron expression ({error}): "
            "give minute, hour, day of the month, month, day of the week, as in '0 3 * * mon-fri'"
        ) from None
    except AttributeError:
        raise InvalidArgument(
            f"a cron expression must be a str, not {arguments.shown(expression)}"
        ) from None

    def after(ms: int) -> int | None:
        try:
            start = (_EPOCH + timedelta(milliseconds=ms)).astimezone(zone)
            for tick in CronSim(expression, start):
                found = (tick.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
                # In an hour that comes twice it may find the first one, which is over.
                if found > ms:
                    return found
        except OverflowError:  # After the year 9999.
            pass
        return None

    if after(0) is None:
        raise InvalidArgument(f"{arguments.shown(expression)} never comes true")
    return after


def _meant(nickname: str) -> str:
    """Return the cron expression that a nickname stands for."""
    known = _NICKNAMES.get(nickname.strip().lower())
    if known is None:
        raise InvalidArgument(
            f"{arguments.shown(nickname)} is no nickname of a cron expression: there are "
            f"{', '.join(_NICKNAMES)}; for an interval give text such as '5m' to `every`"
        )
    return known


def _zone(tz: str | tzinfo) -> tzinfo:
    from zoneinfo import ZoneInfo  # noqa: PLC0415  # Only for those who need it.

    if isinstance(tz, tzinfo):
        return tz
    if not isinstance(tz, str):
        raise InvalidArgument(f"tz must be a name or a tzinfo, not {arguments.shown(tz)}")
    try:
        return ZoneInfo(tz)
    except (LookupError, ValueError, OSError):
        raise InvalidArgument(
            f"tz {arguments.shown(tz)} is not known here: give a name such as 'Europe/Berlin'; "
            "where the system has no time zones, `pip install tzdata`"
        ) from None
