"""Silence of everybody is not a lapse: after more than 5 s without a call, reclaim waits 5 s."""

from __future__ import annotations

import pytest

from conftest import Clock
from engine_support import take
from holdfast import LeaseLost, Queue

HOUR = 3600


def test_after_exactly_five_seconds_of_silence_what_lapsed_is_reclaimed_at_once(
    queue: Queue, clock: Clock
) -> None:
    queue.add(b"")
    take(queue, 1)
    clock.advance(5)
    assert queue.tidy().reclaimed == 1


def test_after_a_longer_silence_holders_have_five_seconds_more(queue: Queue, clock: Clock) -> None:
    queue.add(b"")
    take(queue, 1)
    clock.advance(5.001)
    assert queue.tidy().reclaimed == 0
    assert queue.lease(30) is None
    clock.advance(4.999)
    assert queue.lease(30) is None
    clock.advance(0.001)
    assert take(queue).lapses == 1


def test_whoever_extends_in_that_time_keeps_the_lease(queue: Queue, clock: Clock) -> None:
    queue.add_many([b"living", b"dead"])
    living, dead = queue.lease_many(2, 1)
    clock.advance(2 * HOUR)
    assert queue.lease(30) is None
    clock.advance(4.9)
    queue.extend(living, 30)
    clock.advance(0.1)
    assert take(queue).data == b"dead"
    queue.extend(living, 30)
    with pytest.raises(LeaseLost):
        queue.extend(dead, 30)


@pytest.mark.parametrize("call", ["add", "extend", "complete", "pause"])
def test_any_changing_call_breaks_the_silence(queue: Queue, clock: Clock, call: str) -> None:
    queue.add_many([b"", b""])
    lapsing = take(queue, 1)
    other = take(queue, HOUR)
    clock.advance(4)
    if call == "add":
        queue.add(b"")
    elif call == "extend":
        queue.extend(other, HOUR)
    elif call == "complete":
        queue.complete(other)
    else:
        queue.pause()
    clock.advance(4)
    assert queue.tidy().reclaimed == 1
    with pytest.raises(LeaseLost):
        queue.release(lapsing)


def test_force_does_not_wait(queue: Queue, clock: Clock) -> None:
    queue.add(b"")
    take(queue, 1)
    clock.advance(HOUR)
    assert queue.tidy(force=True).reclaimed == 1


def test_force_does_not_take_what_has_not_lapsed(queue: Queue, clock: Clock) -> None:
    queue.add(b"")
    take(queue, 2 * HOUR)
    clock.advance(HOUR)
    assert queue.tidy(force=True).reclaimed == 0


def test_promoting_and_pruning_do_not_wait(queue: Queue, clock: Clock) -> None:
    queue.add(b"", remember_for=60)
    queue.complete(take(queue))
    queue.add(b"", delay=60)
    clock.advance(HOUR)
    tidied = queue.tidy()
    assert (tidied.promoted, tidied.pruned) == (1, 1)


def test_a_second_silence_gives_the_time_again(queue: Queue, clock: Clock) -> None:
    queue.add(b"")
    take(queue, 1)
    for _ in range(3):
        clock.advance(HOUR)
        assert queue.tidy().reclaimed == 0
    clock.advance(5)
    assert queue.tidy().reclaimed == 1


def test_those_who_keep_calling_are_not_held_up(queue: Queue, clock: Clock) -> None:
    queue.add(b"")
    take(queue, 60)
    for _ in range(59):
        clock.advance(1)
        assert queue.lease(30) is None
    clock.advance(1)
    assert take(queue).lapses == 1


# --------------------------------------------------------- when the clock is set


def test_a_clock_set_forward_costs_no_lease_that_is_extended(queue: Queue, clock: Clock) -> None:
    queue.add(b"")
    lease = take(queue, 15)
    for _ in range(20):
        clock.advance(2 * HOUR)
        assert queue.lease(15) is None
        clock.advance(4)
        queue.extend(lease, 15)
    assert queue.complete(lease)


def test_a_clock_set_back_makes_leases_lapse_later_by_the_jump(queue: Queue, clock: Clock) -> None:
    queue.add(b"")
    take(queue, 1)
    clock.advance(-2 * HOUR)
    assert queue.lease(1) is None
    clock.advance(2 * HOUR)
    assert queue.lease(1) is None
    clock.advance(5)
    assert take(queue).lapses == 1


def test_a_clock_set_back_does_not_stop_the_queue(queue: Queue, clock: Clock) -> None:
    queue.add(b"")
    take(queue, 1)
    clock.advance(10)
    assert queue.lease(1) is None  # Holders have time to extend until 5 s from here …
    clock.advance(-2 * HOUR)
    queue.add(b"new", priority=90)
    assert take(queue, 1).data == b"new"
    clock.advance(1)
    again = take(queue, 1)  # … which must not keep this one for two hours.
    assert (again.data, again.lapses) == (b"new", 1)
    assert queue.complete(again)


def test_a_clock_that_goes_to_and_fro_loses_nothing(queue: Queue, clock: Clock) -> None:
    queue.add_many([b"%d" % n for n in range(20)], max_lapses=None)
    for step in (1, -HOUR, 2 * HOUR, -5, 7, -1, 6, -HOUR, 30, -30):
        queue.lease_many(7, 2)
        clock.advance(step)
        queue.tidy()
    counts = queue.counts()
    assert counts.ready + counts.leased == 20
