from __future__ import annotations

import pytest

from conftest import Clock
from engine_support import Behind, take
from holdfast import Counts, LeaseLost, Queue


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
