from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conftest import Clock
from engine_support import Behind, take
from holdfast import Counts, HoldfastError, InvalidArgument, LeaseLost, Queue


def test_nothing_remains_of_a_deleted_queue(queue: Queue, clock: Clock, behind: Behind) -> None:
    queue.add(b"", id="ended", result_for=60, keep=True)
    queue.complete(take(queue), b"result")
    queue.add(b"", id="failed", max_lapses=0)
    queue.release(take(queue), lapsed="crashed")
    queue.add_many([b"", b""], handler="h")
    take(queue)
    queue.add(b"", delay=60)
    queue.pause()
    assert len(behind.everything()) >= 10
    queue.delete()
    assert behind.everything() == {}
    assert queue.counts() == Counts(0, 0, 0, 0, 0, 0, paused=False)


def test_deleting_what_is_not_there_is_no_error(queue: Queue, behind: Behind) -> None:
    queue.delete()
    queue.delete()
    assert behind.everything() == {}


def test_a_deleted_queue_can_be_used_again(queue: Queue) -> None:
    queue.add(b"old", id="a")
    queue.delete()
    assert queue.add(b"new", id="a")
    assert take(queue).data == b"new"


def test_leases_of_a_deleted_queue_are_lost_also_when_the_id_is_back(queue: Queue) -> None:
    queue.add(b"", id="a")
    old = take(queue)
    queue.delete()
    assert queue.complete(old) is False
    with pytest.raises(LeaseLost):
        queue.extend(old, 30)
    queue.add(b"", id="a")
    new = take(queue)
    assert queue.complete(old) is False
    assert queue.complete(new) is True


def test_whatever_type_a_key_has_it_is_deleted(queue: Queue, behind: Behind) -> None:
    for name in behind.keys:
        if name != "meta":
            behind("SET", name, "foreign")
    queue.delete()
    assert behind.everything() == {}


def test_another_queue_is_not_touched(queue: Queue, clock: Clock) -> None:
    other = Queue(queue.name + "2", queue.server, clock=clock)
    other.add(b"x")
    queue.add(b"x")
    queue.delete()
    assert other.counts().ready == 1
    other.delete()


# ------------------------------------------------------------------- only when it is idle


def test_a_queue_that_nobody_uses_any_more_is_cleared_away(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    queue.add(b"")
    queue.complete(take(queue))
    clock.advance(3600)
    assert behind.everything() != {}
    assert queue.delete(idle_for=3600) is True
    assert behind.everything() == {}
    assert queue.delete(idle_for=3600) is True


def test_to_look_whether_a_queue_is_idle_does_not_use_it(queue: Queue, clock: Clock) -> None:
    queue.add(b"")
    queue.complete(take(queue))
    for _ in range(9):
        clock.advance(1000)
        assert queue.delete(idle_for=9500) is False
    clock.advance(1000)
    assert queue.delete(idle_for=9500) is True


def leave_a_failed_job(queue: Queue) -> None:
    queue.add(b"")
    queue.fail(take(queue), error="why")


def use_it(queue: Queue) -> None:
    queue.add(b"")
    queue.complete(take(queue))


LEFT: dict[str, Callable[[Queue], object]] = {
    "a job": lambda queue: queue.add(b""),
    "a delayed job": lambda queue: queue.add(b"", delay=9999),
    "a lease": lambda queue: queue.add(b"") and queue.lease(9999),
    "a failed job": leave_a_failed_job,
    "a result": lambda queue: queue.add(b"", result_for=9999) and queue.complete(take(queue), b"x"),
    "an id": lambda queue: queue.add(b"", remember_for=9999) and queue.complete(take(queue)),
    "a request": lambda queue: queue.request("r").open(),
    "a write": lambda queue: queue.write("w").stage([b"x"], partition=0, attempt=0),
    "a reader": lambda queue: queue.reader("r").open(),
    "a pause": lambda queue: queue.pause(),
}


@pytest.mark.parametrize("left", LEFT)
def test_whatever_is_left_in_an_idle_queue_keeps_it(
    queue: Queue, clock: Clock, behind: Behind, left: str
) -> None:
    LEFT[left](queue)
    clock.advance(3600)
    before = behind.everything()
    assert queue.delete(idle_for=1) is False
    assert behind.everything() == before
    queue.delete()


def test_a_queue_that_was_used_since_is_kept(queue: Queue, clock: Clock) -> None:
    use_it(queue)
    clock.advance(3599)
    assert queue.delete(idle_for=3600) is False
    use_it(queue)
    clock.advance(3599)
    assert queue.delete(idle_for=3600) is False


def test_a_foreign_key_is_no_reason_to_clear_away(spoiled: Behind, queue: Queue) -> None:
    spoiled("SET", "ready", "foreign")
    with pytest.raises(HoldfastError):
        queue.delete(idle_for=0)
    assert spoiled.everything() != {}


@pytest.mark.parametrize("idle", [-1, float("nan"), "1h", True])
def test_how_long_it_was_idle_is_a_duration(queue: Queue, idle: Any) -> None:
    with pytest.raises(InvalidArgument, match="idle_for"):
        queue.delete(idle_for=idle)
