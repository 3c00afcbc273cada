"""Schedules: each tick is made once, however many make them and whatever the clock does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Clock
from holdfast import AsyncQueue, InvalidArgument, NewJob, Queue, QueueFull, Schedule, Server
from holdfast.client.schedules import (
    AHEAD_MS,
    LATE_MS,
    Missed,
    every,
    make,
    overdue,
    plan,
    tick_id,
)
from holdfast.codec import MAX_PAYLOAD_BYTES
from holdfast.engine import calls
from support import TestServer

MINUTE = 60_000
DAY = 86_400_000


@pytest.fixture
def clock() -> Clock:
    """A clock that shows midnight, at which everything ticks."""
    clock = Clock()
    clock.ms -= clock.ms % DAY
    return clock


def schedule(interval: str = "1m", missed: Missed = "skip") -> Schedule:
    return Schedule("s", NewJob(b""), missed, every(interval))


def planned(one: Schedule, now: int, last: int | None) -> list[int]:
    return [tick for tick, _ in plan(one, now, last).ticks]


# ---------------------------------------------------------------------- what to make: pure


def test_a_schedule_begins_with_the_tick_after_it_was_first_seen() -> None:
    begun = plan(schedule(), 10 * MINUTE + 5, None)
    assert (begun.ticks, begun.last) == ([], 10 * MINUTE + 5)
    assert planned(schedule(), 11 * MINUTE, begun.last) == [11 * MINUTE]


@pytest.mark.parametrize(
    ("now", "count"),
    [(0, 0), (MINUTE, 0), (MINUTE * 3 // 2, 0), (MINUTE * 3 // 2 + 1, 1), (10 * MINUTE, 9)],
)
def test_ticks_that_are_too_late_to_make_are_counted(now: int, count: int) -> None:
    assert overdue(every("1m"), 0, now, 100) == count
    assert overdue(every("1m"), 0, now, 5) == min(5, count)


def test_a_tick_is_made_a_little_ahead() -> None:
    tick = 11 * MINUTE
    early = plan(schedule(), tick - AHEAD_MS - 1, 10 * MINUTE)
    assert (early.ticks, early.last, early.look_at) == ([], 10 * MINUTE, tick - AHEAD_MS)
    made = plan(schedule(), tick - AHEAD_MS, 10 * MINUTE)
    assert (made.ticks, made.last) == ([(tick, MINUTE)], tick)
    assert made.look_at == tick + MINUTE - AHEAD_MS
    assert planned(schedule(), tick - AHEAD_MS, tick) == []


def test_of_a_short_interval_one_tick_stands_ahead() -> None:
    made = plan(schedule("1s"), 60_000, 60_000)
    assert (made.ticks, made.look_at) == ([(61_000, 1000)], 61_000)


def test_a_tick_that_is_a_little_late_is_made() -> None:
    tick = 60 * MINUTE
    assert planned(schedule("1h"), tick + LATE_MS, 0) == [tick]
    assert planned(schedule("1h"), tick + LATE_MS + 1, 0) == []
    assert planned(schedule("10s"), tick + 5_000, tick - 10_000) == [tick, tick + 10_000]
    assert planned(schedule("10s"), tick + 5_001, tick - 10_000) == [tick + 10_000]


def test_ticks_that_were_missed_are_skipped_or_all_made() -> None:
    now = 10 * MINUTE + 40_000
    assert planned(schedule(), now, 5 * MINUTE) == []
    every_one = plan(schedule(missed="all"), now, 5 * MINUTE)
    assert [tick // MINUTE for tick, _ in every_one.ticks] == [6, 7, 8, 9, 10]
    assert (every_one.last, every_one.look_at) == (10 * MINUTE, 11 * MINUTE - AHEAD_MS)


def test_more_than_one_call_may_make_are_made_in_several() -> None:
    one = schedule("1s", "all")
    first = plan(one, 5_000_000, 0, most=1000)
    assert (len(first.ticks), first.last, first.look_at) == (1000, 1_000_000, 5_000_000)
    assert planned(one, 5_000_000, first.last)[0] == 1_001_000


def test_a_year_of_silence_is_skipped_at_no_cost() -> None:
    calls = 0
    rhythm = every("1s")

    def counted(after: int) -> int | None:
        nonlocal calls
        calls += 1
        return rhythm(after)

    plan(Schedule("s", NewJob(b""), "skip", counted), 365 * 86_400_000, 0)
    assert calls < 100


def test_a_clock_that_was_set_back_does_not_silence_a_schedule() -> None:
    far = 99 * 365 * 86_400_000
    again = plan(schedule(), 10 * MINUTE, far)
    assert (again.ticks, again.last) == ([], 10 * MINUTE)
    # By less than it makes ticks ahead: the tick is made, and waits for its time.
    assert plan(schedule(), 10 * MINUTE, 10 * MINUTE + AHEAD_MS).last == 10 * MINUTE + AHEAD_MS


def test_what_never_ticks_again_has_nothing_to_do() -> None:
    only = Schedule("s", NewJob(b""), "skip", lambda after: 500 if after < 500 else None)
    assert plan(only, 400, 300).ticks == [(500, 2**53 - 1)]
    assert plan(only, 600, 500) == plan(only, 700, 500)
    assert plan(only, 600, 500).look_at is None


@given(
    st.lists(st.integers(0, 300_000), max_size=40),
    st.sampled_from(["1s", "7s", "1m", "3m"]),
    st.sampled_from(["skip", "all"]),
)
def test_whoever_looks_whenever_no_tick_is_made_twice_and_all_makes_all(
    waits: list[int], interval: str, missed: Missed
) -> None:
    one, now, last = schedule(interval, missed), 1_000_000, 1_000_000
    made: list[int] = []
    for wait in waits:
        now += wait
        wanted = plan(one, now, last)
        assert all(last < tick <= now + AHEAD_MS for tick, _ in wanted.ticks)
        made += [tick for tick, _ in wanted.ticks]
        assert wanted.last is not None
        last = wanted.last
        assert wanted.look_at is not None
        assert wanted.look_at > now
    assert made == sorted(set(made))
    if missed == "all" and made:
        step = every(interval)(0)
        assert made == list(range(made[0], made[-1] + 1, step or 1))
        assert made[-1] > now - (step or 0)


# ------------------------------------------------------------------------------- the jobs


def test_a_tick_is_a_job_that_is_due_then(queue: Queue, clock: Clock) -> None:
    clock.ms = round(datetime(2026, 11, 16, 9, 27, tzinfo=UTC).timestamp() * 1000)
    queue.every("5m", {"n": 1}, name="refresh", priority=90, handler="h")
    assert queue.tick() == []
    clock.advance(170)
    [receipt] = queue.tick()
    assert receipt.id == "refresh@2026-11-16T09:30:00Z"
    job = queue.show(receipt.id)
    assert job
    assert (job.state, job.priority, job.facts.handler, job.json()) == (
        "delayed",
        90,
        "h",
        {"n": 1},
    )
    assert job.at == datetime(2026, 11, 16, 9, 30, tzinfo=UTC).timestamp()
    assert queue.lease(30) is None
    clock.advance(10)
    lease = queue.lease(30)
    assert lease
    assert lease.id == receipt.id
    assert queue.tick() == []


def test_an_id_is_remembered_for_two_intervals(queue: Queue, clock: Clock) -> None:
    queue.every("5m", name="refresh")
    queue.every("5m", name="other", remember_for=1)
    queue.tick()
    clock.advance(300)
    queue.tick()
    for lease in queue.lease_many(9, 30):
        kept = lease.facts.remember_for_ms
        assert kept == (600_000 if lease.id.startswith("refresh") else 1000)
        queue.complete(lease)
    clock.advance(2)
    queue.tidy()
    # The clock is set back, and the same tick comes again.
    clock.advance(-200)
    assert queue.tick() == []
    clock.advance(198)
    assert [receipt.id.partition("@")[0] for receipt in queue.tick()] == ["other"]


def test_a_part_of_a_second_is_in_the_id() -> None:
    assert tick_id("s", 1_500) == "s@1970-01-01T00:00:01.500Z"
    assert tick_id("s", 2_000) == "s@1970-01-01T00:00:02Z"


def test_any_number_of_schedulers_make_one_job_per_tick(
    test_server: TestServer, queue: Queue, clock: Clock
) -> None:
    """Eight threads, each with a server of its own, on a clock that runs under their feet."""
    made: list[str] = []
    barrier = threading.Barrier(8)

    def run() -> None:
        own = Queue(queue.name, Server(test_server.queue_url), clock=clock)
        own.every("1s", name="s")
        own.every("3s", name="t", missed="all")
        with own:
            for step in range(40):
                if barrier.wait() == 0 and step:
                    clock.advance(0.5)
                barrier.wait()
                made.extend(receipt.id for receipt in own.tick())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == len(set(made))
    clock.advance(3)
    assert sorted(made) == sorted(lease.id for lease in queue.lease_many(1000, 30))
    assert sum(id.startswith("s@") for id in made) >= 20
    assert sum(id.startswith("t@") for id in made) >= 7


def test_who_was_frozen_between_looking_and_making_makes_nothing(
    queue: Queue, other: Queue, clock: Clock
) -> None:
    """Hours later the jobs of those ticks are done and forgotten: they are not made again."""
    for one in (queue, other):
        one.every("1m", name="s", missed="all", remember_for=0)
    queue.tick()
    clock.advance(60)
    frozen = make(queue.schedules["s"], queue._entries.many)
    making = frozen.send(queue._run(next(frozen)))
    for _ in range(60):
        clock.advance(60)
        other.tick()
        other.complete_many(other.lease_many(1000, 30))
    before = other.counts()
    looked = queue._run(making)
    assert looked.receipts is None
    assert other.counts() == before
    assert before.waiting <= 1


def test_who_was_too_late_goes_on_from_what_the_other_made(queue: Queue) -> None:
    queue.every("1m", name="s", missed="all")
    making = make(queue.schedules["s"], queue._entries.many)
    next(making)
    first = making.send(calls.Ticks(20 * MINUTE, 15 * MINUTE))
    then = making.send(calls.Ticks(20 * MINUTE, 18 * MINUTE))
    assert [first.args[1], then.args[1]] == [b"%d" % (15 * MINUTE), b"%d" % (18 * MINUTE)]
    assert b"s@1970-01-01T00:18:00Z" in first.args
    assert b"s@1970-01-01T00:18:00Z" not in then.args
    assert b"s@1970-01-01T00:19:00Z" in then.args


def test_what_was_missed_is_made_up_for_where_all_is_said(queue: Queue, clock: Clock) -> None:
    queue.every("1m", name="all", missed="all")
    queue.every("1m", name="skip")
    queue.tick()
    clock.advance(30)
    assert queue.tick() == []
    clock.advance(90 * 60)
    made = [receipt.id.partition("@")[0] for receipt in queue.tick()]
    assert (made.count("all"), made.count("skip")) == (90, 1)
    assert len(queue.lease_many(1000, 30)) == 91


def test_thousands_of_missed_ticks_are_made_in_several_calls(queue: Queue, clock: Clock) -> None:
    queue.every("1s", name="all", missed="all")
    queue.tick()
    clock.advance(2500)
    assert len(queue.tick()) == 2500
    assert len(queue) == 2501


def test_a_large_payload_makes_smaller_calls(queue: Queue, clock: Clock) -> None:
    queue.every("1s", b"x" * (MAX_PAYLOAD_BYTES // 2), name="large", missed="all")
    queue.tick()
    clock.advance(5)
    assert len(queue.tick()) == 5
    queue.delete()


def test_two_releases_with_two_intervals_share_a_name(
    queue: Queue, other: Queue, clock: Clock
) -> None:
    queue.every("1m", name="s")
    other.every("2m", name="s")
    queue.tick()
    made = []
    for _ in range(20):
        clock.advance(30)
        made += [*queue.tick(), *other.tick()]
    assert len({receipt.id for receipt in made}) == len(made) == 10


def test_a_tick_may_wait_for_the_one_before_it(queue: Queue, clock: Clock) -> None:
    queue.every("1m", name="s", group="s", group_limit=1)
    queue.tick()
    for _ in range(3):
        clock.advance(60)
        queue.tick()
    assert len(queue.lease_many(9, 600)) == 1
    assert queue.counts().parked >= 1


def test_a_full_server_says_so_and_no_tick_is_lost(queue: Queue, clock: Clock, client: Any) -> None:
    queue.every("1m", name="s", missed="all")
    queue.tick()
    clock.advance(60)
    client.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(QueueFull):
            queue.tick()
    finally:
        client.config_set("maxmemory", "0")
    assert queue.tick()


# --------------------------------------------------------------------------- declaring them


def test_a_schedule_tells_when_its_next_tick_is(queue: Queue) -> None:
    daily = queue.cron("0 3 * * *", name="daily", tz="Europe/Berlin")
    found = daily.after(datetime(2026, 7, 1, tzinfo=UTC))
    assert found == datetime(2026, 7, 1, 1, tzinfo=UTC)
    assert queue.schedules == {"daily": daily}
    with pytest.raises(InvalidArgument, match="must have a time zone"):
        daily.after(datetime(2026, 7, 1))  # noqa: DTZ001


def test_a_schedule_has_the_name_of_its_handler(queue: Queue, clock: Clock) -> None:
    @queue.handler(priority=90)
    def refresh(what: str) -> None: ...

    refresh.every("5m", "cache")
    queue.every("5m", refresh.new("other"), name="refresh another")
    queue.cron("* * * * *", handler="h")
    assert list(queue.schedules) == ["refresh", "refresh another", "h"]
    queue.tick()
    clock.advance(300)
    jobs = {receipt.id.partition("@")[0]: queue.show(receipt.id) for receipt in queue.tick()}
    told = {name: (job.priority, job.facts.handler, job.data) for name, job in jobs.items() if job}
    assert told == {
        "refresh": (90, "refresh", b'{"what":"cache"}'),
        "refresh another": (90, "refresh", b'{"what":"other"}'),
        "h": (50, "h", b""),
    }


def test_a_handler_can_have_a_cron_expression(queue: Queue) -> None:
    @queue.handler
    def refresh() -> None: ...

    assert refresh.cron("0 3 * * *").after(0) == datetime(1970, 1, 1, 3, tzinfo=UTC)
    with pytest.raises(InvalidArgument, match="named 'refresh' already"):
        refresh.every("5m")
    with pytest.raises(InvalidArgument, match="unexpected keyword"):
        refresh.every("5m", what="x")  # type: ignore[call-overload]


def test_a_handler_says_when_and_under_which_name(queue: Queue) -> None:
    @queue.handler
    def refresh(what: str = "all") -> None: ...

    nightly = refresh.cron("0 3 * * *", tz="Europe/Berlin")
    prices = refresh.cron("@daily", "prices", name="prices", tz="Europe/Berlin", missed="all")
    often = refresh.every("5m", what="rates", name="rates", missed="all")
    instant = datetime(2026, 7, 1, tzinfo=UTC)
    assert nightly.after(instant) == datetime(2026, 7, 1, 1, tzinfo=UTC)
    assert prices.after(instant) == datetime(2026, 7, 1, 22, tzinfo=UTC)
    assert [one.missed for one in (nightly, prices, often)] == ["skip", "all", "all"]
    assert [one.job.data for one in (prices, often)] == [b'{"what":"prices"}', b'{"what":"rates"}']
    assert list(queue.schedules) == ["refresh", "prices", "rates"]
    with pytest.raises(InvalidArgument, match="tz 'x' is unknown"):
        refresh.cron("@daily", name="x", tz="x")
    with pytest.raises(InvalidArgument, match="unexpected keyword argument 'tz'"):
        refresh.every("5m", name="x", tz="UTC")
    with pytest.raises(InvalidArgument, match="'skip' or 'all'"):
        refresh.every("5m", name="x", missed="some")  # type: ignore[call-overload]


def test_what_the_function_itself_takes_is_its_argument(queue: Queue) -> None:
    @queue.handler
    def greet(name: str, tz: str = "UTC") -> None: ...

    @queue.handler
    def anything(**given: str) -> None: ...

    found = [
        greet.cron("@daily", name="ann", tz="x"),
        anything.every("5m", name="ann", missed="often"),
    ]
    assert [one.name for one in found] == ["greet", "anything"]
    assert [one.job.data for one in found] == [
        b'{"name":"ann","tz":"x"}',
        b'{"name":"ann","missed":"often"}',
    ]


def test_both_shells_say_when_and_under_which_name(test_server: TestServer, queue: Queue) -> None:
    aqueue = AsyncQueue(queue.name, test_server.queue_url)

    @aqueue.handler
    async def refresh(what: str = "all") -> None: ...

    nightly = refresh.cron("@daily", tz="Europe/Berlin")
    often = refresh.every("@hourly", what="rates", name="rates", missed="all")
    assert nightly.after(datetime(2026, 7, 1, tzinfo=UTC)) == datetime(2026, 7, 1, 22, tzinfo=UTC)
    assert (often.name, often.missed, often.job.data) == ("rates", "all", b'{"what":"rates"}')
    assert list(aqueue.schedules) == ["refresh", "rates"]


Declare = Callable[[Queue], object]
REFUSED: dict[str, tuple[Declare, str]] = {
    "no name": (lambda q: q.every("5m", b"x"), "use name="),
    "an empty name": (lambda q: q.every("5m", name=""), "name must have 1 to 512 bytes"),
    "a name that is none": (lambda q: q.every("5m", name=5), "name must be a str"),  # type: ignore[arg-type]
    "a long name": (lambda q: q.every("5m", name="x" * 481), "at most 480 bytes"),
    "the same name": (
        lambda q: (q.every("5m", name="s"), q.every("5m", name="s")),
        "named 's' already",
    ),
    "an id": (lambda q: q.every("5m", NewJob(b"", id="x"), name="s"), "no id and no time"),
    "a delay": (lambda q: q.every("5m", NewJob(b"", delay=5), name="s"), "no id and no time"),
    "a time": (lambda q: q.every("5m", NewJob(b"", at=5), name="s"), "no id and no time"),
    "options twice": (
        lambda q: q.every("5m", NewJob(b""), name="s", priority=5),
        "its own options",
    ),
    "what to do about missed ones": (
        lambda q: q.every("5m", name="s", missed="some"),  # type: ignore[arg-type]
        "'skip' or 'all'",
    ),
    "a bad option": (lambda q: q.every("5m", name="s", priority=100), "priority must be"),
    "an unknown option": (lambda q: q.every("5m", name="s", colour=1), "unknown option"),  # type: ignore[call-arg]
    "a bad option of a job": (
        lambda q: q.every("5m", NewJob(b"", priority=100), name="s"),
        "priority must be",
    ),
    "no payload": (lambda q: q.every("5m", {1, object()}, name="s"), "cannot be written as JSON"),
    "too much": (lambda q: q.every("5m", b"x" * (MAX_PAYLOAD_BYTES + 1), name="s"), "payload has"),
    "no interval": (lambda q: q.every("x", name="s"), "interval must be"),
    "no expression": (lambda q: q.cron("x", name="s"), "not a cron expression"),
    "no zone": (lambda q: q.cron("* * * * *", name="s", tz="x"), "tz 'x' is unknown"),
}


@pytest.fixture
def undeclared(queue: Queue) -> Iterator[Queue]:
    yield queue
    assert list(queue.schedules) in ([], ["s"])


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_scheduled_is_refused_when_it_is_declared(
    undeclared: Queue, what: str
) -> None:
    declare, message = REFUSED[what]
    with pytest.raises(ValueError, match=message):
        declare(undeclared)
