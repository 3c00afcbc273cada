"""Silence of everybody is not a lapse: after more than 5 s without a call, reclaim waits 5 s.

That grace is for leases that had not lapsed at the last call before the silence. A lease that had
lapsed by then is reclaimed at once, so a queue that is called every few minutes reclaims too.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conftest import Clock
from engine_support import Behind, take
from holdfast import LeaseLost, Queue
from holdfast.engine import calls

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


# ------------------------------------------------- calls more than five seconds apart


@pytest.mark.parametrize("every", [5.001, 6, 9, 30, HOUR])
@pytest.mark.parametrize("call", ["tidy", "lease", "lease and wait"])
def test_a_lapsed_lease_is_reclaimed_by_the_second_of_two_sparse_calls(
    queue: Queue, clock: Clock, every: float, call: str
) -> None:
    queue.add(b"", id="a")
    take(queue, 1)
    moved: dict[str, Callable[[], bool]] = {
        "tidy": lambda: queue.tidy().reclaimed == 1,
        "lease": lambda: queue.lease(30) is not None,
        "lease and wait": lambda: _waits(queue, clock),
    }
    clock.advance(every)
    assert not moved[call]()
    clock.advance(every)
    assert moved[call]()


def _waits(queue: Queue, clock: Clock) -> bool:
    """Ask twice, 1.5 s apart, as `lease(wait=1.5)` does."""
    if queue.lease(30):
        return True
    clock.advance(1.5)
    return queue.lease(30) is not None


@pytest.mark.parametrize("call", ["add", "pause", "register"])
def test_a_call_that_reclaims_nothing_counts_as_the_last_before_the_silence(
    queue: Queue, clock: Clock, call: str
) -> None:
    queue.add(b"", id="a", priority=60)
    take(queue, 1)
    clock.advance(60)
    if call == "add":
        queue.add(b"")
    elif call == "pause":
        queue.pause()
    else:
        queue.register()
    clock.advance(60)
    assert queue.tidy().reclaimed == 1


def test_only_what_had_lapsed_before_the_silence_is_reclaimed_during_the_grace(
    queue: Queue, clock: Clock
) -> None:
    queue.add_many([b"dead", b"living"])
    dead, living = take(queue, 1), take(queue, 10)
    clock.advance(8)
    queue.add(b"", priority=0)
    clock.advance(60)
    assert queue.tidy().reclaimed == 1
    clock.advance(4.9)
    assert queue.tidy().reclaimed == 0
    queue.extend(living, 30)
    with pytest.raises(LeaseLost):
        queue.extend(dead, 30)


def test_every_call_of_the_grace_protects_and_not_only_the_first(
    queue: Queue, clock: Clock
) -> None:
    queue.add(b"")
    lease = take(queue, 1)
    clock.advance(60)
    for _ in range(9):
        assert queue.tidy().reclaimed == 0
        clock.advance(0.5)
    queue.extend(lease, 30)


def test_a_lease_that_lapsed_within_the_second_of_the_last_call_is_protected(
    queue: Queue, clock: Clock
) -> None:
    queue.add(b"")
    lease = take(queue, 0.5)
    clock.advance(0.9)
    queue.add(b"", priority=0)  # Too soon after the lease to be written down.
    clock.advance(60)
    assert queue.tidy().reclaimed == 0
    queue.extend(lease, 30)


def test_a_failed_job_comes_back_from_a_failure_handler_that_is_gone(
    queue: Queue, clock: Clock
) -> None:
    queue.add(b"", id="a")
    queue.fail(take(queue), error="in vain")
    queue.lease(1, failed=True)
    clock.advance(8)
    assert queue.lease(30, failed=True) is None
    clock.advance(8)
    assert queue.lease(30, failed=True) is None  # It is taken back, and waits before it is tried.
    assert queue.counts().failed == 1
    clock.advance(10)
    assert queue.lease(30, failed=True)


def test_the_place_of_a_part_comes_back(queue: Queue, clock: Clock) -> None:
    with queue.request("r", limit=1) as request:
        request.add_many([b"0", b"1"])
    take(queue, 1)
    clock.advance(6)
    assert queue.lease(30) is None
    clock.advance(6)
    assert take(queue).id == "r/0"
    assert request.status().running == 1


def test_a_claim_comes_back(queue: Queue, clock: Clock) -> None:
    queue.add_many([b"0", b"1"])
    reader = queue.reader("r")
    reader.open()
    assert reader.claim(0, 2, claim_for=1).jobs == 2
    clock.advance(6)
    assert queue.lease(30) is None
    clock.advance(6)
    assert take(queue).data == b"0"


def test_all_chunks_of_a_claim_come_back_during_one_grace(queue: Queue, clock: Clock) -> None:
    queue.add_many([b"%d" % n for n in range(1500)])
    reader = queue.reader("r")
    reader.open()
    assert reader.claim(0, 1500, claim_for=1).jobs == 1500
    clock.advance(60)
    queue.add(b"")
    clock.advance(60)
    queue.tidy()
    assert queue.counts().ready == 1501


def test_what_a_dead_writer_staged_is_forgotten(queue: Queue, clock: Clock) -> None:
    queue.write("w").stage([b"x"], partition=0, attempt=0)
    for _ in range(2):
        clock.advance(2 * 24 * HOUR)
        queue.tidy()
    assert queue.counts().staged == 0


def test_a_request_that_is_open_for_too_long_fails(queue: Queue, clock: Clock) -> None:
    request = queue.request("r", open_for=10, limit=1)
    request.open()
    request.add_many([b"0", b"1"])
    take(queue, 1)
    for _ in range(3):
        clock.advance(8)
        queue.tidy()
    assert request.status().state == "failed"


def test_keep_tidy_takes_back_what_lapsed_however_seldom_it_looks(
    queue: Queue, clock: Clock
) -> None:
    """Each look of `keep_tidy(every=30)` is a tidy, 30 s after the one before."""
    queue.add_many([b"%d" % n for n in range(3)], max_lapses=None)
    for _ in range(5):
        while queue.lease(15):
            pass
        for _ in range(2):
            clock.advance(30)
            queue.tidy()
        assert queue.counts().ready == 3


def test_the_next_time_to_ask_is_when_something_may_be_reclaimed(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    queue.add_many([b"first", b"second"])
    take(queue, 1)
    take(queue, 10)
    clock.advance(6)

    def asks_again_in() -> float:
        granted = queue._run(calls.lease("t.1", 1000, 1))
        assert not granted.leases
        return granted.ask_again

    assert asks_again_in() == 1  # Until the end of the grace, but not more than a second.
    clock.advance(4.3)  # The grace ends 5 s after the first call.
    assert asks_again_in() == pytest.approx(0.7)
    clock.advance(0.7)
    assert take(queue, 1).data == b"first"
    clock.advance(60)
    assert queue.tidy().reclaimed == 0
    clock.advance(60)
    # Both had lapsed before this silence: nothing is left to wait for.
    assert len(queue.lease_many(2, 30)) == 2


def test_a_grace_after_an_outage_is_not_shortened_by_those_who_call_seldom(
    queue: Queue, clock: Clock
) -> None:
    queue.add(b"")
    lease = take(queue, 15)
    for _ in range(5):
        clock.advance(5)
        queue.extend(lease, 15)
    clock.advance(3 * HOUR)  # The server is down.
    assert queue.tidy().reclaimed == 0
    clock.advance(4.999)
    assert queue.tidy().reclaimed == 0
    queue.extend(lease, 15)
    assert queue.complete(lease)


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
