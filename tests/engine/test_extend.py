from __future__ import annotations

import pytest

from conftest import Clock
from engine_support import take
from holdfast import Extended, LeaseLost, NewJob, Queue


def test_an_extended_lease_lapses_later_counted_from_now(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a")
    lease = take(queue, 2)
    clock.advance(1.5)
    queue.extend(lease, 2)
    clock.advance(1.999)
    assert queue.lease(1) is None
    clock.advance(0.001)
    assert take(queue).id == "a"


def test_a_lease_can_be_extended_to_lapse_sooner(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a")
    queue.extend(take(queue, 60), 1)
    clock.advance(1)
    assert take(queue).lapses == 1


def test_a_lapsed_lease_can_be_extended_until_somebody_takes_it_back(
    queue: Queue, clock: Clock
) -> None:
    queue.add(b"")
    lease = take(queue, 1)
    clock.advance(4)
    queue.extend(lease, 1)
    assert queue.lease(1) is None
    clock.advance(1)
    assert take(queue, 1).lapses == 1
    with pytest.raises(LeaseLost):
        queue.extend(lease, 1)


def test_extending_changes_neither_token_nor_order_nor_lapses(queue: Queue, clock: Clock) -> None:
    queue.add_many([NewJob(b"", id=id) for id in "ab"])
    lease = take(queue, 2)
    for _ in range(10):
        clock.advance(1)
        queue.extend(lease, 2)
    queue.release(lease)
    again = take(queue)
    assert (again.id, again.lapses) == ("a", 0)


def test_many_are_extended_in_one_call_and_each_is_answered_for_itself(
    queue: Queue, clock: Clock
) -> None:
    queue.add_many([NewJob(b"", id=id) for id in "abc"])
    lost = take(queue, 1)
    clock.advance(1)
    leases = queue.lease_many(3, 1)
    assert queue.extend_many([leases[0], lost, leases[2], leases[2]], 30) == [
        Extended.HELD,
        Extended.LOST,
        Extended.HELD,
        Extended.LOST,
    ]
    clock.advance(1)
    assert [lease.id for lease in queue.lease_many(9, 30)] == [leases[1].id]


def test_more_than_a_thousand_are_extended_in_several_calls(queue: Queue, clock: Clock) -> None:
    queue.add_many([b""] * 1100)
    leases = [lease for _ in range(2) for lease in queue.lease_many(1000, 1)]
    assert queue.extend_many(leases, 30) == [Extended.HELD] * 1100
    clock.advance(1)
    assert queue.lease(1) is None
