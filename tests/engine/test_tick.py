"""tick: who has seen the last tick of a schedule may make the next."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from conftest import Clock
from engine_support import Behind, pack
from holdfast import Queue, Receipt
from holdfast.engine import calls
from holdfast.engine.call import Entry
from holdfast.engine.calls import Ticks


def entry(id: str, due: int, **options: object) -> Entry:
    packed = pack(**options) if options else b""
    return Entry(id, b"x", False, 50, b"%d" % due, packed, "group" in options)


def tick(queue: Queue, seen: int | None, at: int, entries: Sequence[Entry] = ()) -> Ticks:
    return queue._run(calls.tick("s", seen, at, entries))


def test_the_first_to_have_seen_the_last_tick_makes_the_next(queue: Queue, clock: Clock) -> None:
    now = clock.ms
    assert tick(queue, None, 100) == Ticks(now, None, [])
    assert tick(queue, 100, 200, [entry("a", 150), entry("b", 200)]) == Ticks(
        now, 100, [Receipt("a"), Receipt("b")]
    )
    assert tick(queue, 100, 200, [entry("c", 200)]) == Ticks(now, 200)
    assert tick(queue, None, 200, [entry("c", 200)]) == Ticks(now, 200)
    assert [lease.id for lease in queue.lease_many(9, 30)] == ["a", "b"]


def test_to_look_changes_nothing(queue: Queue, clock: Clock, behind: Behind) -> None:
    assert queue._run(calls.tick("s")) == Ticks(clock.ms, None)
    assert behind("HKEYS", "meta") == [b"layout", b"seen"]
    tick(queue, None, 100)
    clock.advance(1)
    assert queue._run(calls.tick("s")) == Ticks(clock.ms, 100)
    assert behind("HGET", "meta", "tick s") == b"100"


def test_the_last_tick_may_be_set_back(queue: Queue, clock: Clock) -> None:
    tick(queue, None, 2**53 - 1)
    assert tick(queue, 2**53 - 1, 100).receipts == []
    assert tick(queue, 100, 101).last == 100


def test_schedules_do_not_know_of_each_other(queue: Queue) -> None:
    for name in ("s", "s s", "\0ü", "x" * 512):
        assert queue._run(calls.tick(name, None, 7)).last is None
        assert queue._run(calls.tick(name)).last == 7


def test_an_id_that_is_taken_is_left_alone(queue: Queue, clock: Clock) -> None:
    queue.add(b"other", id="a")
    made = tick(queue, None, 100, [entry("a", 100), entry("b", 100)])
    assert made.receipts == [Receipt("a", False, "ready"), Receipt("b")]
    assert queue.data("a") == b"other"


def test_a_tick_may_be_of_a_group(queue: Queue, clock: Clock) -> None:
    jobs = [entry(id, clock.ms, group="g", group_limit=1) for id in "ab"]
    tick(queue, None, 100, jobs)
    assert len(queue.lease_many(9, 30)) == 1
    [group] = queue.groups()
    assert (group.name, group.limit) == ("g", 1)


def test_a_tick_wakes_a_worker_when_it_is_due(queue: Queue, clock: Clock, behind: Behind) -> None:
    tick(queue, None, 100, [entry("a", clock.ms + 5000)])
    assert behind("LLEN", "wake") == 0
    tick(queue, 100, 200, [entry("b", clock.ms + 500)])
    assert behind("LLEN", "wake") == 1


@pytest.mark.parametrize("garbage", ["", "x", "1.5", "-1"])
def test_a_memory_that_is_none_is_written_anew(
    queue: Queue, clock: Clock, behind: Behind, garbage: str
) -> None:
    tick(queue, None, 100)
    behind("HSET", "meta", "tick s", garbage)
    assert tick(queue, None, 100).receipts == []
    assert behind("HGET", "meta", "tick s") == b"100"


def test_a_queue_that_is_deleted_has_no_memory(queue: Queue) -> None:
    tick(queue, None, 100)
    queue.delete()
    assert queue._run(calls.tick("s")).last is None


# ------------------------------------------------------------- schedules that are gone

DAY = 86_400


def test_a_schedule_that_nobody_asks_for_in_a_hundred_days_is_forgotten(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    tick(queue, None, clock.ms)
    clock.advance(100 * DAY - 0.001)
    queue.tidy()
    assert queue._run(calls.tick("t")).last is None
    assert behind("HEXISTS", "meta", "tick s")
    clock.advance(0.001)
    queue.tidy()
    assert not behind("HEXISTS", "meta", "tick s")
    assert behind("HLEN", "ledger") == behind("ZCARD", "staging") == 0
    assert tick(queue, clock.ms - 100 * DAY * 1000, clock.ms).receipts is None


def test_thousands_of_schedules_that_are_gone_leave_nothing(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    for n in range(200):
        queue._run(calls.tick(f"s{n}", None, clock.ms))
    clock.advance(101 * DAY)
    queue.tidy()
    assert [field for field in behind("HKEYS", "meta") if field.startswith(b"tick")] == []


def test_a_schedule_that_somebody_looks_at_is_kept_however_seldom_it_ticks(
    queue: Queue, clock: Clock
) -> None:
    first = clock.ms
    tick(queue, None, first)
    for _ in range(10):
        clock.advance(99 * DAY)
        assert queue._run(calls.tick("s")).last == first
        queue.tidy()


def test_a_schedule_that_an_older_release_ticks_is_kept(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    """It writes the tick, and not that it was there."""
    tick(queue, None, clock.ms)
    clock.advance(60 * DAY)
    behind("HSET", "meta", "tick s", clock.ms)
    clock.advance(60 * DAY)
    queue.tidy()
    assert behind("HEXISTS", "meta", "tick s")
    clock.advance(40 * DAY)
    queue.tidy()
    assert not behind("HEXISTS", "meta", "tick s")


def test_a_tick_that_an_older_release_left_is_forgotten_after_somebody_looked(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    behind("HSET", "meta", "tick s", clock.ms)
    assert queue._run(calls.tick("s")).last == clock.ms
    clock.advance(100 * DAY)
    queue.tidy()
    assert not behind("HEXISTS", "meta", "tick s")
