"""Schedules: which ticks are to be made now, each as one job. No I/O.

A schedule is declared in the program, by any number of processes that run it. The server knows one
thing about it: the last tick that was made. Who knows that too may make the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, Literal, TypeAlias

from msgspec import UNSET
from msgspec.structs import replace

from holdfast import arguments
from holdfast.engine import calls
from holdfast.engine.call import Entry
from holdfast.engine.scripts import MAX_BYTES, MAX_JOBS
from holdfast.engine.walks import Flow
from holdfast.errors import InvalidArgument
from holdfast.job import Duration, Instant, NewJob, Receipt
from holdfast.names import MAX_NAME_BYTES, utf8_name

Missed: TypeAlias = Literal["skip", "all"]

AHEAD_MS: Final = 10_000
"""A job is added so long before its tick, at most an interval, to run when it is time."""

LATE_MS: Final = 60_000
"""A tick that nobody made is missed after so long, or half an interval."""

MAX_SCHEDULE_BYTES: Final = MAX_NAME_BYTES - 32
"""The longest name of a schedule, since its jobs are named after it."""


@dataclass(frozen=True)
class Schedule:
    """When to add which job: made by `queue.every` and `queue.cron`."""

    name: str
    job: NewJob
    missed: Missed
    rhythm: Rhythm = field(repr=False)

    def after(self, instant: Instant) -> datetime | None:
        """Return its first tick after an instant, or none."""
        tick = self.rhythm(arguments.instant_ms("instant", instant))
        return None if tick is None else datetime.fromtimestamp(tick / 1000, UTC)


@dataclass(frozen=True)
class Plan:
    """What to do at one moment."""

    ticks: list[tuple[int, int]]
    """The ticks to make, each with the time until the next one."""
    last: int | None
    """The last tick that is made then."""
    look_at: int | None
    """When there is something to do again."""


def plan(schedule: Schedule, now: int, last: int | None, most: int = MAX_JOBS) -> Plan:
    """Decide which ticks are to be made."""
    if last is None or last > now + AHEAD_MS:
        # It begins; or the clock was set back, and it must not be silent until it is there again.
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


@dataclass(frozen=True)
class Ticked:
    """What became of a schedule."""

    receipts: list[Receipt]
    again_in: float | None
    """Seconds until there is something to do again; none when there never is."""


Encode: TypeAlias = Callable[[Iterable[NewJob]], Iterator[Entry]]


def make(schedule: Schedule, encode: Encode) -> Flow[Ticked]:
    """Make the ticks that are to be made, as many as one call may."""
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
        # Somebody else was first; or it begins, and now that is known.
        looked = answer if answer.receipts is None else calls.Ticks(answer.now, wanted.last)


def make_all(schedules: Iterable[Schedule], encode: Encode) -> Flow[list[Receipt]]:
    """Make all ticks that are to be made; return what was added."""
    receipts: list[Receipt] = []
    for schedule in schedules:
        ticked = yield from make(schedule, encode)
        receipts += ticked.receipts
        while ticked.receipts and ticked.again_in == 0:
            ticked = yield from make(schedule, encode)
            receipts += ticked.receipts
    return [receipt for receipt in receipts if receipt]


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


def declare(
    known: dict[str, Schedule],
    rhythm: Rhythm,
    data: object,
    name: str | None,
    missed: Missed,
    options: Mapping[str, Any],
    encode: Encode,
) -> Schedule:
    """Let a queue know a schedule; refuse what could not be added at its ticks."""
    if isinstance(data, NewJob):
        if options:
            raise InvalidArgument("a NewJob has its own options: give them there")
        job = data
    else:
        arguments.options(options)
        job = NewJob(data, **options)
    if job.id is not None or job.delay is not None or job.at is not None:
        raise InvalidArgument("the job of a schedule has no id and no time: its ticks have")
    if name is None and isinstance(job.handler, str):
        name = job.handler
    if name is None:
        raise InvalidArgument("a schedule needs a name, which its jobs bear too: say name=")
    if len(utf8_name("name", name)) > MAX_SCHEDULE_BYTES:
        raise InvalidArgument(f"the name of a schedule has at most {MAX_SCHEDULE_BYTES} bytes")
    if missed not in ("skip", "all"):
        raise InvalidArgument(f"missed must be 'skip' or 'all', not {arguments.shown(missed)}")
    if name in known:
        raise InvalidArgument(
            f"the queue has a schedule named {name!r} already: say name= to tell them apart"
        )
    [entry] = encode([job])
    schedule = known[name] = Schedule(name, replace(job, data=entry.payload), missed, rhythm)
    return schedule


# ------------------------------------------------------------------------ when the ticks are
# Every so many seconds, or by a cron expression. All instants are milliseconds since the epoch, so
# all processes mean the same tick.


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
