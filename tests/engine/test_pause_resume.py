from __future__ import annotations

from conftest import Clock
from engine_support import take
from holdfast import Queue


def test_a_paused_queue_grants_nothing_until_it_is_resumed(queue: Queue) -> None:
    queue.add(b"x")
    queue.pause()
    assert queue.counts().paused
    assert queue.lease(30) is None
    assert queue.lease_many(10, 30) == []
    queue.resume()
    assert not queue.counts().paused
    assert take(queue).data == b"x"


def test_pausing_and_resuming_twice_is_as_once(queue: Queue) -> None:
    queue.add(b"x")
    queue.pause()
    queue.pause()
    queue.resume()
    assert queue.lease(30)
    queue.resume()
    assert not queue.counts().paused


def test_an_empty_queue_can_be_paused_before_anything_is_added(queue: Queue) -> None:
    queue.pause()
    queue.add(b"x")
    assert queue.lease(30) is None


def test_what_is_leased_goes_on_while_the_queue_is_paused(queue: Queue, clock: Clock) -> None:
    queue.add_many([b""] * 4)
    one, two, three, four = queue.lease_many(4, 2)
    queue.pause()
    queue.extend(one, 30)
    assert queue.complete(two)
    queue.release(three)
    clock.advance(2)
    assert queue.tidy().reclaimed == 1
    assert queue.complete(four)
    assert (queue.counts().ready, queue.counts().leased) == (1, 1)


def test_jobs_can_be_added_while_the_queue_is_paused(queue: Queue) -> None:
    queue.pause()
    assert queue.add(b"1")
    queue.resume()
    assert take(queue).data == b"1"


def test_a_paused_queue_does_not_lose_its_order(queue: Queue) -> None:
    queue.add(b"1", priority=10)
    queue.pause()
    queue.add(b"2", priority=90)
    queue.resume()
    assert [lease.data for lease in queue.lease_many(9, 30)] == [b"2", b"1"]


def test_what_ends_with_a_lease_of_a_paused_queue_is_counted_in_its_request(
    queue: Queue, clock: Clock
) -> None:
    with queue.request("r", limit=3) as request:
        request.add_many([b"x"] * 3)
    done, *_ = queue.lease_many(2, 60)
    queue.lease(1)
    clock.advance(1)
    queue.pause()
    assert queue.lease_many(1, 60, complete=[(done, b"result")]) == []
    status = request.status()
    assert (status.done, status.running, status.parked) == (1, 1, 1)
    assert queue.audit() == []
