"""The wake: at most one token, pushed whenever there may be something to lease."""

from __future__ import annotations

import pytest

from conftest import Clock
from engine_support import Behind, take
from holdfast import NewJob, Queue


def awake(behind: Behind) -> bool:
    """Take the token, and say whether there was one."""
    tokens = behind("LLEN", "wake")
    assert tokens <= 1
    behind("UNLINK", "wake")
    return bool(tokens)


def test_adding_wakes(queue: Queue, behind: Behind) -> None:
    queue.add(b"")
    assert awake(behind)
    queue.add_many([b""] * 3)
    assert awake(behind)


def test_however_much_is_added_there_is_one_token(queue: Queue, behind: Behind) -> None:
    for _ in range(5):
        queue.add_many([b""] * 10)
    assert behind("LLEN", "wake") == 1


def test_adding_nothing_new_wakes_nobody(queue: Queue, behind: Behind) -> None:
    queue.add(b"", id="a")
    awake(behind)
    queue.add(b"", id="a")
    assert not awake(behind)


@pytest.mark.parametrize(("delay", "wakes"), [(0.5, True), (0.999, True), (1, False), (60, False)])
def test_a_delayed_job_wakes_where_sleepers_would_oversleep_it(
    queue: Queue, behind: Behind, delay: float, wakes: bool
) -> None:
    queue.add(b"", delay=delay)
    assert awake(behind) == wakes


@pytest.mark.parametrize(("after", "wakes"), [(None, True), (0.5, True), (1, False)])
def test_releasing_wakes(queue: Queue, behind: Behind, after: float | None, wakes: bool) -> None:
    queue.add(b"")
    lease = take(queue)
    awake(behind)
    queue.release(lease, after=after)
    assert awake(behind) == wakes


def test_promoting_and_reclaiming_wake(queue: Queue, clock: Clock, behind: Behind) -> None:
    queue.add(b"", delay=2)
    clock.advance(2)
    queue.tidy()
    assert awake(behind)
    take(queue, 2)
    clock.advance(2)
    queue.tidy()
    assert awake(behind)


def test_what_is_failed_by_a_lapse_wakes_nobody(queue: Queue, clock: Clock, behind: Behind) -> None:
    queue.add(b"", max_lapses=0)
    take(queue, 1)
    awake(behind)
    clock.advance(1)
    assert queue.tidy().reclaimed == 1
    assert not awake(behind)


def test_follow_ups_wake(queue: Queue, behind: Behind) -> None:
    queue.add(b"")
    lease = take(queue)
    awake(behind)
    queue.complete(lease, add=[b""])
    assert awake(behind)


def test_a_lease_that_leaves_something_behind_wakes_the_next(queue: Queue, behind: Behind) -> None:
    queue.add_many([b""] * 3)
    awake(behind)
    take(queue)
    assert awake(behind)
    take(queue)
    assert awake(behind)
    take(queue)
    assert not awake(behind)


def test_a_lease_that_finds_nothing_wakes_nobody(queue: Queue, behind: Behind) -> None:
    queue.add(b"", delay=60)
    awake(behind)
    assert queue.lease(30) is None
    assert not awake(behind)


def test_a_paused_queue_wakes_nobody_until_it_is_resumed(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    queue.add(b"")
    lease = take(queue)
    queue.pause()
    awake(behind)
    queue.add_many([b"", NewJob(b"", delay=1)])
    queue.release(lease)
    clock.advance(1)
    queue.tidy()
    queue.lease(30)
    assert not awake(behind)
    queue.resume()
    assert awake(behind)


def test_resuming_an_empty_queue_wakes_nobody(queue: Queue, behind: Behind) -> None:
    queue.pause()
    queue.resume()
    assert not awake(behind)


def test_settling_wakes_nobody(queue: Queue, behind: Behind) -> None:
    queue.add_many([b"", b""])
    one, two = queue.lease_many(2, 30)
    awake(behind)
    queue.extend(one, 30)
    queue.complete(one)
    queue.complete(two)
    assert not awake(behind)


def test_the_first_job_of_a_group_is_granted_in_the_call_that_makes_it(
    queue: Queue, behind: Behind
) -> None:
    queue.add(b"old", id="a")
    lease = take(queue)
    queue.add(b"new", id="a", on_conflict="update", group="g")
    [successor] = queue.lease_many(1, 30, complete=[lease])
    assert (successor.id, successor.data) == ("a", b"new")


def test_the_follow_up_of_a_request_that_was_open_for_too_long_is_granted_at_once(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    queue.request("r", open_for=1, follow_up=NewJob(b"over", group="g")).open()
    clock.advance(1)
    assert take(queue).data == b"over"
