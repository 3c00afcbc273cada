"""What is due is found by one field of `meta`: at once if we wrote it, else within a second.

`tend_at` is never later than any time in delayed, leased, ended and terms that this release wrote
(the model looks after every call). Releases before it write times and know nothing of the field.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from conftest import Clock
from engine_support import Behind, command_calls, ids, opened, take
from holdfast import Queue
from holdfast.engine import calls

HOUR = 3600


def is_promoted(queue: Queue, id: str) -> bool:
    """Ask for one job where there always is another."""
    return ids(queue.lease_many(1, HOUR)) == [id]


@pytest.fixture
def busy(queue: Queue) -> Queue:
    """A queue that has something ready, and whose sets were just looked at."""
    queue.add_many([b""] * 9, priority=0)
    take(queue, HOUR)
    take(queue, HOUR)
    return queue


def older(behind: Behind, clock: Clock, id: str, due_in: float) -> None:
    """Delay a job as release 0.1 does."""
    behind("HSET", "jobs", id, b"")
    behind("ZADD", "delayed", clock.ms + int(1000 * due_in), id)


# ------------------------------------------------------------------- what others write


@pytest.mark.parametrize("due_in", [0, 0.001, 0.5, 1])
def test_a_job_that_an_older_release_delays_is_found_within_a_second(
    busy: Queue, clock: Clock, behind: Behind, due_in: float
) -> None:
    older(behind, clock, "a", due_in)
    clock.advance(1)
    assert is_promoted(busy, "a")


def test_a_lease_that_an_older_release_shortens_lapses_within_a_second(
    busy: Queue, clock: Clock, behind: Behind
) -> None:
    busy.add(b"", id="a", priority=99)
    take(busy, HOUR)
    behind("ZADD", "leased", clock.ms + 1, "a")
    clock.advance(1)
    assert is_promoted(busy, "a")


def test_who_finds_nothing_is_told_when_a_job_of_an_older_release_is_due_and_finds_it_then(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    assert queue.lease(HOUR) is None
    older(behind, clock, "a", 0.05)
    granted = queue._run(calls.lease("t.1", 1000, 1))
    assert (ids(granted.leases), granted.ask_again) == ([], 0.05)
    clock.advance(0.05)
    assert take(queue).id == "a"


def test_who_finds_nothing_is_told_when_a_lease_of_an_older_release_lapses_and_finds_it_then(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    queue.add(b"", id="a")
    take(queue, HOUR)
    behind("ZADD", "leased", clock.ms + 50, "a")
    granted = queue._run(calls.lease("t.1", 1000, 1))
    assert (ids(granted.leases), granted.ask_again) == ([], 0.05)
    clock.advance(0.05)
    assert take(queue).id == "a"


def test_a_tidy_looks_at_once(busy: Queue, clock: Clock, behind: Behind) -> None:
    older(behind, clock, "a", 0)
    assert busy.tidy().promoted == 1


@pytest.mark.parametrize("back", [0.001, 1, HOUR])
def test_a_clock_that_was_set_back_makes_the_next_call_look(
    busy: Queue, clock: Clock, behind: Behind, back: float
) -> None:
    clock.advance(-back)
    older(behind, clock, "a", 0)
    assert is_promoted(busy, "a")


@pytest.mark.parametrize("garbage", ["garbage", "nan", "-nan", "inf", "-inf", "-1", "1e300", ""])
def test_garbage_in_the_field_hides_nothing(
    busy: Queue, clock: Clock, spoiled: Behind, garbage: str
) -> None:
    spoiled("HSET", "meta", "tend_at", garbage)
    older(spoiled, clock, "a", 0)
    assert is_promoted(busy, "a")
    assert float(spoiled("HGET", "meta", "tend_at")) <= clock.ms + 1000


# --------------------------------------------------------------------- what we write

SOON = 0.05


def _retried(queue: Queue) -> None:
    queue.add(b"", id="a", priority=99)
    queue.retry(take(queue), error="why", after=SOON)


def _released(queue: Queue) -> None:
    queue.add(b"", id="a", priority=99)
    queue.release(take(queue), after=SOON)


def _lapsing(queue: Queue) -> None:
    queue.add(b"", id="a", priority=99)
    take(queue, SOON)


def _extended_for_a_moment(queue: Queue) -> None:
    queue.add(b"", id="a", priority=99)
    queue.extend(take(queue, HOUR), SOON)


def _part(queue: Queue) -> None:
    opened(queue, "a", 0, priority=99).add(b"", delay=SOON)


WRITERS: dict[str, Callable[[Queue], object]] = {
    "add": lambda queue: queue.add(b"", id="a", delay=SOON, priority=99),
    "add to a group": lambda queue: queue.add(b"", id="a", delay=SOON, priority=99, group="g"),
    "add a part": _part,
    "retry": _retried,
    "release": _released,
    "lease": _lapsing,
    "extend": _extended_for_a_moment,
}


@pytest.mark.parametrize("way", WRITERS)
def test_what_is_due_in_a_moment_is_found_then_however_lately_the_sets_were_looked_at(
    busy: Queue, clock: Clock, way: str
) -> None:
    WRITERS[way](busy)
    clock.advance(SOON - 0.001)
    assert not is_promoted(busy, "a")
    clock.advance(0.001)
    assert is_promoted(busy, "a/0" if way == "add a part" else "a")


def test_an_ending_is_forgotten_on_time(busy: Queue, clock: Clock) -> None:
    busy.add(b"", id="a", priority=99, result_for=SOON)
    busy.complete(take(busy))
    clock.advance(SOON)
    take(busy)
    assert busy.counts().ended == 0


def test_a_request_that_is_open_for_too_long_fails_on_time(busy: Queue, clock: Clock) -> None:
    request = busy.request("r", open_for=SOON)
    request.open()
    clock.advance(SOON)
    take(busy)
    assert request.status().state == "failed"


def test_a_time_that_a_repair_gives_is_found_at_once(busy: Queue, spoiled: Behind) -> None:
    busy.add(b"", id="a", delay=HOUR, priority=99)
    spoiled("ZADD", "delayed", 2**60, "a")
    assert [done.what for done in busy.repair()] == ["given a new time"]
    assert is_promoted(busy, "a")


# --------------------------------------------------------------------------- the price


def test_a_lease_looks_at_no_set_while_nothing_is_due(
    busy: Queue, clock: Clock, client: redis.Redis
) -> None:
    """Once a second it does."""

    def looks() -> int:
        before = command_calls(client, "zrange") + command_calls(client, "zcount")
        take(busy, HOUR)
        return command_calls(client, "zrange") + command_calls(client, "zcount") - before

    busy.add(b"", delay=HOUR)
    clock.advance(0.999)
    assert looks() == 0
    clock.advance(0.001)
    assert looks() == 4
    assert looks() == 0
