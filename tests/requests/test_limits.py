"""A limit is never passed, changes at the next lease, and every place is freed once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pytest

from conftest import Clock
from engine_support import ids, take
from holdfast import Lease, LeaseLost, Queue, WrongState
from request_support import fill, work_off
from seeds.crowd import race
from support import DEADLINE


def test_no_more_parts_run_than_the_limit_says(queue: Queue) -> None:
    request = fill(queue.request("r", limit=3), 10)
    assert len(queue.lease_many(2, 60)) == 2
    [third] = queue.lease_many(1000, 60)
    assert queue.lease(60) is None
    assert request.status().running == 3
    queue.complete(third)
    assert ids(queue.lease_many(1000, 60)) == ["r/3"]


def test_no_limit_is_none(queue: Queue) -> None:
    fill(queue.request("r"), 1500)
    assert len(queue.lease_many(1000, 60)) == 1000
    assert len(queue.lease_many(1000, 60)) == 500


def test_many_workers_never_pass_the_limit(live_queue: Queue) -> None:
    """Counted by the workers themselves: a part is counted from its lease to its settle."""
    limit, total = 3, 150
    request = fill(live_queue.request("r", limit=limit), total)
    running: set[str] = set()
    most: list[int] = []
    lock = threading.Lock()

    def work() -> None:
        deadline = time.monotonic() + DEADLINE
        while not request.status().ended and time.monotonic() < deadline:
            leases = live_queue.lease_many(2, 60, wait=0.01)
            with lock:
                running.update(ids(leases))
                most.append(len(running))
            with lock:
                running.difference_update(ids(leases))
            live_queue.complete_many(leases)

    race(*[work] * 6)
    assert 1 <= max(most) <= limit
    assert request.status().done == total


ENDS: dict[str, Callable[[Queue, Lease, Clock], object]] = {
    "complete": lambda queue, lease, clock: queue.complete(lease),
    "complete_by_force": lambda queue, lease, clock: queue.complete(lease.id, force=True),
    "retry": lambda queue, lease, clock: queue.retry(lease, error="why"),
    "retry_at_once": lambda queue, lease, clock: queue.retry(lease, error="why", after=0),
    "fail": lambda queue, lease, clock: queue.fail(lease, error="why"),
    "release": lambda queue, lease, clock: queue.release(lease),
    "release_later": lambda queue, lease, clock: queue.release(lease, after=60),
    "release_lapsed": lambda queue, lease, clock: queue.release(lease, lapsed="crashed"),
    "cancel": lambda queue, lease, clock: [queue.cancel(lease.id), queue.complete(lease)],
    "fail_worker": lambda queue, lease, clock: queue.fail_worker(lease),
    "tidy": lambda queue, lease, clock: queue.tidy(held_longer_than=0.5),
    "lapse": lambda queue, lease, clock: [
        clock.advance(60),  # type: ignore[func-returns-value]
        queue.tidy(force=True),
    ],
}


@pytest.mark.parametrize("kind", ENDS)
def test_whatever_ends_a_lease_frees_its_place_once(
    queue: Queue, other: Queue, clock: Clock, kind: str
) -> None:
    request = fill(queue.request("r", limit=2), 9)
    held = take(queue, 3600)
    lease = take(other, 30)
    clock.advance(1)
    queue.extend(held, 3600)
    if kind == "tidy":
        queue.complete(held)
        held = take(queue, 3600)
    assert queue.lease(30) is None
    ENDS[kind](other, lease, clock)
    assert request.status().running == 1
    # Whatever comes late frees nothing.
    for late in (
        lambda: other.complete(lease),
        lambda: other.release(lease),
        lambda: other.retry(lease, error="late"),
        lambda: other.fail(lease, error="late"),
        lambda: other.fail_worker(lease),
        lambda: queue.tidy(force=True),
    ):
        with contextlib.suppress(LeaseLost):
            late()
        assert request.status().running == 1
    assert len(queue.lease_many(9, 30)) == 1
    assert queue.lease(30) is None


def test_a_worker_that_is_killed_frees_its_places_once(queue: Queue, clock: Clock) -> None:
    """Its leases lapse; a late complete counts, as nobody else had the part, and frees nothing."""
    request = fill(queue.request("r", limit=2), 5)
    dead = queue.lease_many(2, 30)
    clock.advance(30)
    assert queue.lease(30) is None  # After a silence the living may extend.
    clock.advance(5)
    assert ids(queue.lease_many(9, 30)) == ["r/0", "r/1"]
    assert queue.complete_many(dead) == [False, False]
    assert request.status().running == 2
    clock.advance(36)
    queue.tidy(force=True)
    assert request.status().running == 0
    assert ids(queue.lease_many(9, 30)) == ["r/0", "r/1"]


def test_a_late_complete_of_a_part_that_waits_again_frees_no_place_of_others(
    queue: Queue, other: Queue
) -> None:
    request = fill(queue.request("r", limit=1), 3)
    late = take(queue)
    other.fail_worker(queue.holder)
    queue.add(b"", id="plain")
    request.set_limit(0)
    assert take(other).id == "plain"
    request.set_limit(1)
    assert queue.complete(late)
    assert request.status().running == 0
    assert request.status().done == 1
    assert ids(other.lease_many(9, 30)) == ["r/1"]


@pytest.mark.parametrize("waiting", [True, False])
def test_a_higher_limit_is_effective_at_the_next_lease(queue: Queue, waiting: bool) -> None:
    request = fill(queue.request("r", limit=1), 5)
    take(queue)
    if waiting:
        queue.add_many([b""] * 3, priority=10)
    request.set_limit(3)
    assert ids(queue.lease_many(2, 30)) == ["r/1", "r/2"]
    request.set_limit(None)
    assert ids(queue.lease_many(2, 30)) == ["r/3", "r/4"]
    assert request.status().limit is None


def test_a_lower_limit_kills_nothing_and_lets_nothing_start(queue: Queue) -> None:
    request = fill(queue.request("r", limit=4), 9)
    leases = queue.lease_many(4, 60)
    request.set_limit(2)
    assert (request.status().limit, request.status().running) == (2, 4)
    assert [int(held) for held in queue.extend_many(leases, 60)] == [1] * 4
    for lease in leases[:2]:
        assert queue.complete(lease)
        assert queue.lease(60) is None
    assert queue.complete(leases[2])
    assert ids(queue.lease_many(9, 60)) == ["r/4"]


def test_a_limit_of_zero_holds_a_request_up(queue: Queue) -> None:
    request = fill(queue.request("r"), 2)
    lease = take(queue)
    request.set_limit(0)
    assert queue.complete(lease)
    assert queue.lease(60) is None
    request.set_limit(1)
    assert take(queue).id == "r/1"
    held_up = fill(queue.request("s", limit=0), 1)
    assert queue.lease(60) is None
    held_up.set_limit(1)
    assert take(queue).id == "s/0"


def test_a_limit_that_is_changed_before_there_are_parts_holds(queue: Queue) -> None:
    request = queue.request("r", limit=5)
    request.open()
    request.set_limit(1)
    fill(request, 3)
    assert len(queue.lease_many(9, 60)) == 1


def test_a_part_that_waits_for_its_time_has_no_place(queue: Queue, clock: Clock) -> None:
    fill(queue.request("r", limit=1), 2)
    queue.retry(take(queue), error="why", after=5)
    other = take(queue, 60)
    assert other.id == "r/1"
    clock.advance(5)
    assert queue.lease(60) is None
    queue.complete(other)
    assert take(queue).id == "r/0"


def test_the_lease_of_a_failure_handler_counts(queue: Queue, clock: Clock) -> None:
    request = fill(queue.request("r", limit=1), 3)
    queue.fail(take(queue), error="why")
    second = take(queue)
    assert queue.lease(60, failed=True) is None
    queue.complete(second)
    clock.advance(1)
    handled = queue.lease(60, failed=True)
    assert handled
    assert (handled.id, handled.failed, handled.request) == ("r/0", True, "r")
    assert request.status().running == 1
    assert queue.lease(60) is None
    queue.retry(handled, error="not yet", after=60)
    assert request.status().running == 0
    assert take(queue).id == "r/2"


def test_a_failed_job_behind_one_of_a_full_request_is_handled(queue: Queue) -> None:
    fill(queue.request("r", limit=1), 3)
    for _ in range(2):
        queue.fail(take(queue), error="why")
    take(queue)
    queue.add(b"", id="plain")
    queue.fail(take(queue), error="why")
    handled = queue.lease(60, failed=True, wait=DEADLINE)
    assert handled
    assert handled.id == "plain"


def test_a_full_request_holds_up_nobody(queue: Queue) -> None:
    """However many of its parts wait, and however high its priority is."""
    fill(queue.request("full", priority=99, limit=1), 2000)
    take(queue)
    queue.add(b"", id="plain", priority=0)
    fill(queue.request("low", priority=1), 1)
    assert ids(queue.lease_many(9, 60)) == ["low/0", "plain"]


def test_a_full_request_is_not_looked_through(queue: Queue, clock: Clock) -> None:
    """A hundred of them stand in front, and the one behind is found in one call."""
    for n in range(100):
        fill(queue.request(f"full {n}", priority=90, limit=1), 2)
    assert len(queue.lease_many(1000, 60)) == 100
    fill(queue.request("low", priority=1), 1)
    assert take(queue).id == "low/0"


def test_pausing_the_queue_pauses_requests(queue: Queue) -> None:
    request = fill(queue.request("r", limit=1), 2)
    queue.pause()
    assert queue.lease(60) is None
    request.set_limit(2)
    assert queue.lease(60) is None
    queue.resume()
    assert ids(queue.lease_many(9, 60)) == ["r/0", "r/1"]


@pytest.mark.parametrize("sealed", [True, False])
def test_what_is_settled_while_the_queue_is_paused_counts(queue: Queue, sealed: bool) -> None:
    """Also in the lease call that is granted nothing."""
    request = fill(queue.request("r", limit=1, follow_up=b""), 1 if sealed else 2)
    lease = take(queue)
    queue.pause()
    assert queue.lease_many(1, 60, complete=[(lease, b"result")]).completed == [True]
    status = request.status()
    assert (status.done, status.running, status.ended) == (1, 0, sealed)
    assert next(request.results()).result == b"result"
    queue.resume()
    assert len(work_off(queue)) == (1 if sealed else 2)


def test_what_lapses_while_the_queue_is_paused_is_taken_back(queue: Queue, clock: Clock) -> None:
    request = fill(queue.request("r", limit=1), 1)
    take(queue, 30)
    queue.pause()
    clock.advance(30)
    queue.lease(30)
    clock.advance(5)
    assert queue.lease(30) is None
    assert (request.status().running, request.status().parked) == (0, 1)
    queue.resume()
    assert take(queue).lapses == 1


def test_a_limit_can_be_changed_by_anybody_at_any_time(live_queue: Queue) -> None:
    request = fill(live_queue.request("r", limit=1), 200, seal=False)

    def change() -> None:
        for n in range(100):
            request.set_limit([0, 1, 5, None][n % 4])
            request.set_priority(n % 100)
        request.set_limit(2)
        request.seal()

    def work() -> None:
        deadline = time.monotonic() + DEADLINE
        while not request.status().ended and time.monotonic() < deadline:
            live_queue.complete_many(live_queue.lease_many(3, 60, wait=0.01))

    race(change, work, work)
    assert (request.status().state, request.status().done) == ("completed", 200)


def test_a_request_that_has_ended_says_that_it_cannot_be_changed(queue: Queue) -> None:
    request = queue.request("r", limit=2)
    request.open()
    request.seal()
    assert request.status().ended
    with pytest.raises(WrongState, match="r: this request has ended: its limit cannot be changed"):
        request.set_limit(None)
    with pytest.raises(WrongState, match="has ended: its priority cannot be changed any more"):
        request.set_priority(3)
    with pytest.raises(WrongState, match="use another id"):
        request.add("a")
