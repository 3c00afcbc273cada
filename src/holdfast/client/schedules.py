"""Schedules: decide which ticks are due. Each tick is one job. No I/O.

A schedule is declared in the program, which any number of processes may run. The server stores only
its last tick. A process must present that to make the next tick, so each tick is made once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, Literal, TypeAlias

from msgspec import UNSET
from msgspec.structs import replace

from holdfast import arguments
from holdfast.codec import MAX_NAME_BYTES, utf8_name
from holdfast.engine import calls
from holdfast.engine.call import Entry
from holdfast.engine.library import MAX_BYTES, MAX_JOBS
from holdfast.engine.walks import Flow
from holdfast.errors import InvalidArgument
from holdfast.job import Duration, Instant, NewJob, Receipt

Missed: TypeAlias = Literal["skip", "all"]

AHEAD_MS: Final = 10_000
"""How long before its tick a job is added, at most one interval, so that it runs in time."""

LATE_MS: Final = 60_000
"""A tick that was not made counts as missed after this time, or half an interval if less."""

MAX_SCHEDULE_BYTES: Final = MAX_NAME_BYTES - 32
"""The longest name of a schedule: the ids of its jobs contain it."""


@dataclass(frozen=True)
class Schedule:
    """A job and the times to add it. Made by `queue.every` and `queue.cron`."""

    name: str
    job: NewJob
    missed: Missed
    rhythm: Rhythm = field(repr=False)

    rule: str = ""
    """The interval or the cron expression and its time zone, as `rhythm_of` reads it."""

    def after(self, instant: Instant) -> datetime | None:
        """Return the first tick after an instant, or None."""
        tick = self.rhythm(arguments.instant_ms("instant", instant))
        return None if tick is None else datetime.fromtimestamp(tick / 1000, UTC)


@dataclass(frozen=True)
class Plan:
    """The ticks to make at one moment."""

    ticks: list[tuple[int, int]]
    """The ticks to make, each with the time until the next one."""
    last: int | None
    """The last tick once these are made."""
    look_at: int | None
    """When to plan again, or None."""


def plan(schedule: Schedule, now: int, last: int | None, most: int = MAX_JOBS) -> Plan:
    """Decide which ticks to make."""
    if last is None or last > now + AHEAD_MS:
        # It is new; or the clock was set back, and waiting until it catches up would skip ticks.
        return Plan([], now, now)
    every_one = schedule.missed == "all"
    made: list[tuple[int, int]] = []
    tick = schedule.rhythm(last if every_one else max(last, now - LATE_MS - 1))
    while tick is not None:
        following = schedule.rhythm(tick)
        interval = arguments.NEVER_MS if following is None else following - tick
        look_at = tick - min(AHEAD_MS, interval)
        if look_at > now or len(made) == most:
            return Plan(made, made[-1][0] if made else last, max(look_at, now))
        if every_one or tick >= now - min(LATE_MS, interval // 2):
            made.append((tick, interval))
        tick = following
    return Plan(made, made[-1][0] if made else last, None)


def overdue(rhythm: Rhythm, last: int, now: int, most: int) -> int:
    """Count the ticks since the last that was made and that are too late to make, up to `most`."""
    count, tick = 0, rhythm(last)
    while tick is not None and tick < now and count < most:
        following = rhythm(tick)
        interval = arguments.NEVER_MS if following is None else following - tick
        if tick >= now - min(LATE_MS, interval // 2):
            break
        count, tick = count + 1, following
    return count


@dataclass(frozen=True)
class Ticked:
    """The result of making ticks."""

    receipts: list[Receipt]
    again_in: float | None
    """Seconds until the next tick can be made; None if there is none."""


Encode: TypeAlias = Callable[[Iterable[NewJob]], Iterator[Entry]]


def make(schedule: Schedule, encode: Encode) -> Flow[Ticked]:
    """Make the ticks that are due, as many as fit into one call."""
    looked: calls.Ticks = yield calls.tick(schedule.name)
    while True:
        most = min(MAX_JOBS, MAX_BYTES // max(1, len(schedule.job.data)))
        wanted = plan(schedule, looked.now, looked.last, most)
        again_in = None if wanted.look_at is None else (wanted.look_at - looked.now) / 1000
        if wanted.last is None or wanted.last == looked.last:
            return Ticked([], again_in)
        entries = [*_entries(schedule, wanted.ticks, encode)]
        answer: calls.Ticks = yield calls.tick(schedule.name, looked.last, wanted.last, entries)
        if answer.receipts:
            return Ticked(answer.receipts, again_in)
        # Another process made the ticks first, or the start of a new schedule was recorded.
        looked = answer if answer.receipts is None else calls.Ticks(answer.now, wanted.last)


def _entries(
    schedule: Schedule, ticks: Iterable[tuple[int, int]], encode: Encode
) -> Iterator[Entry]:
    for tick, interval in ticks:
        job = replace(schedule.job, id=tick_id(schedule.name, tick))
        if job.remember_for is UNSET:
            job = replace(job, remember_for=min(2 * interval, arguments.NEVER_MS // 2) / 1000)
        [entry] = encode([job])
        yield replace(entry, due=b"%d" % tick)


def tick_id(name: str, tick: int) -> str:
    """Return the id of the job for a tick."""
    at = datetime.fromtimestamp(tick // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    part = f".{tick % 1000:03}" if tick % 1000 else ""
    return f"{name}@{at}{part}Z"


def made(
    rhythm: Rhythm,
    rule: str,
    data: object,
    name: str | None,
    missed: Missed,
    options: Mapping[str, Any],
) -> Schedule:
    """Return a schedule, checked."""
    if isinstance(data, NewJob):
        if options:
            raise InvalidArgument("a NewJob has its own options: give them there")
        job = data
    else:
        arguments.options(options)
        job = NewJob(data, **options)
    if job.id is not None or job.delay is not None or job.at is not None:
        raise InvalidArgument("the job of a schedule has no id and no time: each tick sets them")
    if name is None and isinstance(job.handler, str):
        name = job.handler
    if name is None:
        raise InvalidArgument("a schedule needs a name, which its jobs' ids contain: use name=")
    if len(utf8_name("name", name)) > MAX_SCHEDULE_BYTES:
        raise InvalidArgument(f"the name of a schedule has at most {MAX_SCHEDULE_BYTES} bytes")
    if missed not in ("skip", "all"):
        raise InvalidArgument(f"missed must be 'skip' or 'all', not {arguments.shown(missed)}")
    return Schedule(name, job, missed, rhythm, rule)


def declare(known: dict[str, Schedule], schedule: Schedule, encode: Encode) -> Schedule:
    """Register a schedule with a queue. Refuse a job that could not be added at its ticks."""
    name = schedule.name
    if name in known:
        raise InvalidArgument(
            f"the queue has a schedule named {name!r} already: use name= to tell them apart"
        )
    [entry] = encode([schedule.job])
    job = replace(schedule.job, data=entry.payload)
    declared = known[name] = dataclasses.replace(schedule, job=job)
    return declared


# ------------------------------------------------------------------------ when the ticks are
# At an interval, or by a cron expression. Instants are milliseconds since the epoch, so all
# processes compute the same ticks.


Rhythm: TypeAlias = Callable[[int], int | None]
"""Returns the first tick after an instant; None if there is none within fifty years."""

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
    """Tick at multiples of an interval since the epoch, or by a cron nickname in UTC."""
    if isinstance(interval, str) and interval.lstrip().startswith("@"):
        return cron(interval, UTC)
    ms = _interval_ms(interval)
    return lambda after: (after // ms + 1) * ms


def every_rule(interval: str | Duration) -> str:
    """Return the text of an interval that `every` accepts."""
    if not isinstance(interval, str):
        seconds = f"{_interval_ms(interval) / 1000:.3f}".rstrip("0").rstrip(".")
        return f"every {seconds}s"
    text = " ".join(interval.split())
    return f"{text} UTC" if text.startswith("@") else f"every {text}"


def cron_rule(expression: str, tz: str | tzinfo) -> str:
    """Return the text of a cron expression that `cron` accepts, and its time zone."""
    return f"{' '.join(expression.split())} {tz}"


def rhythm_of(rule: str) -> Rhythm:
    """Return the rhythm of a rule. Refuses a rule with a time zone of the program's own."""
    if rule.startswith("every "):
        return every(rule.removeprefix("every "))
    expression, _, tz = rule.rpartition(" ")
    return cron(expression, tz)


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
    """Tick by a cron expression, in the local time of a time zone.

    When the clock is put forward, a skipped time ticks right after the gap. When it is put back, a
    repeated time ticks once. With `*` in minutes or hours, clock changes have no effect.
    """
    from cronsim import CronSim, CronSimError  # noqa: PLC0415  # Not always needed.

    zone = _zone(tz)
    try:
        if expression.lstrip().startswith("@"):
            expression = _meant(expression)
        CronSim(expression, _EPOCH)
    except CronSimError as error:
        raise InvalidArgument(
            f"{arguments.shown(expression)} is not a cron expression ({error}): "
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
                # In a repeated hour it may find the first occurrence, which is over.
                if found > ms:
                    return found
        except OverflowError:  # After the year 9999.
            pass
        return None

    if after(0) is None:
        raise InvalidArgument(f"{arguments.shown(expression)} never matches")
    return after


def _meant(nickname: str) -> str:
    """Return the cron expression of a nickname."""
    known = _NICKNAMES.get(nickname.strip().lower())
    if known is None:
        raise InvalidArgument(
            f"{arguments.shown(nickname)} is not a nickname of a cron expression: there are "
            f"{', '.join(_NICKNAMES)}; for an interval pass text such as '5m' to `every`"
        )
    return known


def _zone(tz: str | tzinfo) -> tzinfo:
    from zoneinfo import ZoneInfo  # noqa: PLC0415  # Not always needed.

    if isinstance(tz, tzinfo):
        return tz
    if not isinstance(tz, str):
        raise InvalidArgument(f"tz must be a name or a tzinfo, not {arguments.shown(tz)}")
    try:
        return ZoneInfo(tz)
    except (LookupError, ValueError, OSError):
        raise InvalidArgument(
            f"tz {arguments.shown(tz)} is unknown: give a name such as 'Europe/Berlin'; "
            "if the system has no time zone data, `pip install tzdata`"
        ) from None
