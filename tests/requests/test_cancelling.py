"""Somebody's no to a whole request, to one part, or by a failure that ends it."""

from __future__ import annotations

import pytest

from conftest import Clock
from engine_support import Behind, ends_within, ids, take
from holdfast import Extended, JobNotFound, LeaseLost, Queue, WrongState
from request_support import counters, endings, fill, hearing, states, work_off


def test_what_waits_is_gone_and_what_runs_is_told_and_waited_for(
    queue: Queue, clock: Clock
) -> None:
    request = fill(queue.request("r"), 5, seal=False)
    request.add(b"", delay=60)
    held = queue.lease_many(2, 60)
    assert request.cancel()
    status = request.status()
    assert (status.state, status.sealed, status.ended) == ("stopping", True, False)
    assert counters(status) == {"total": 6, "cancelled": 4, "running": 2}
    assert (len(queue), queue.counts().leased) == (0, 2)
    assert queue.extend_many(held, 60) == [Extended.CANCELLED] * 2
    assert not queue.complete(held[0], b"too late")
    assert request.status().state == "stopping"
    assert not queue.complete(held[1])
    status = request.status()
    assert (status.state, counters(status)) == ("cancelled", {"total": 6, "cancelled": 6})
    assert status.ended_at == clock.ms / 1000
    assert [(part.state, part.result) for part in request.results()] == [("cancelled", None)] * 6
    clock.advance(60)
    assert queue.lease(60) is None


@pytest.mark.parametrize("end", ["complete", "retry", "fail", "release", "lapse", "fail_worker"])
def test_however_a_run_ends_it_ends_as_cancelled(queue: Queue, clock: Clock, end: str) -> None:
    request = fill(queue.request("r"), 1, seal=False)
    lease = take(queue, 30)
    request.cancel()
    with hearing(queue) as heard:
        match end:
            case "complete":
                assert not queue.complete(lease)
            case "retry":
                queue.retry(lease, error="why")
            case "fail":
                queue.fail(lease, error="why")
            case "release":
                queue.release(lease, after=60)
            case "lapse":
                clock.advance(30)
                queue.tidy(force=True)
            case _:
                queue.fail_worker(queue.holder)
    assert endings(heard) == ["r"]
    assert (request.status().state, states(request)) == ("cancelled", ["cancelled"])
    assert queue.counts().failed == 0
    assert not queue.complete(lease)


def test_who_leases_and_completes_in_one_call_is_told_no(queue: Queue) -> None:
    request = fill(queue.request("r"), 2)
    lease = take(queue)
    request.cancel()
    queue.add(b"", id="next")
    leases = queue.lease_many(9, 60, complete=[(lease, b"too late")])
    assert (ids(leases), leases.completed) == (["next"], [False])
    assert request.status().state == "cancelled"


def test_a_part_that_was_taken_back_and_cancelled_is_not_completed_late(queue: Queue) -> None:
    request = fill(queue.request("r"), 2, seal=False)
    late = queue.lease_many(2, 60)
    queue.fail_worker(queue.holder)
    queue.cancel("r/0")
    request.cancel()
    assert request.status().state == "cancelled"
    assert queue.complete_many(late) == [False, False]
    assert counters(request.status()) == {"total": 2, "cancelled": 2}


def test_thousands_of_parts_are_cancelled(queue: Queue) -> None:
    request = fill(queue.request("r"), 2500, seal=False)
    request.add_many([b""] * 10)
    running = queue.lease_many(5, 60)
    for lease in running[:3]:
        queue.retry(lease, error="why", after=60)
    with hearing(queue) as heard:
        assert request.cancel()
    assert counters(request.status()) == {"total": 2510, "cancelled": 2508, "running": 2}
    assert queue.counts().parked == queue.counts().delayed == 0
    assert sum(event.count for event in heard if event.kind == "cancelled") == 2508
    queue.release_many(running[3:])
    assert request.status().state == "cancelled"
    assert {part.state for part in request.results()} == {"cancelled"}


def test_thousands_of_parts_that_wait_for_their_time_are_cancelled(queue: Queue) -> None:
    request = queue.request("r")
    request.open()
    for n in range(3):
        request.add(b"", delay=60)
        request.add_many([b""] * 1000)
        request.add(b"", delay=60 * n)
    assert request.cancel()
    assert request.status().state == "cancelled"
    assert request.status().cancelled == 3006
    assert len(queue) == 0


def test_who_leases_goes_on_with_what_was_left_to_cancel(queue: Queue) -> None:
    """By one that is cut off after its first call: the rest is cleared away by whoever asks."""
    fill(queue.request("r", follow_up=b""), 2500)
    assert not ends_within(queue, 1, queue.request("r").cancel)
    assert len(queue) == 1500
    assert queue.request("r").status().state == "stopping"
    assert take(queue).id == "r/end/1"
    assert queue.request("r").status().state == "cancelled"
    assert queue.request("r").status().cancelled == 2500


def test_true_is_for_who_is_the_reason(queue: Queue) -> None:
    request = fill(queue.request("r"), 1)
    lease = take(queue)
    assert request.cancel()
    assert not request.cancel()
    queue.release(lease)
    assert not request.cancel()
    done = fill(queue.request("done"), 0)
    assert not done.cancel()
    assert done.status().state == "completed"
    with pytest.raises(JobNotFound):
        queue.request("nobody").cancel()


def test_a_cancelled_request_takes_no_more_parts(queue: Queue) -> None:
    request = fill(queue.request("r"), 1, seal=False)
    lease = take(queue)
    request.cancel()
    with pytest.raises(WrongState, match="sealed"):
        request.add(b"")
    with pytest.raises(WrongState, match="sealed"):
        queue.request("r").open()
    queue.complete(lease)
    with pytest.raises(WrongState, match="ended"):
        request.add(b"")
    assert request.status().total == 1


def test_one_part_can_be_cancelled(queue: Queue) -> None:
    request = fill(queue.request("r"), 4)
    running = take(queue)
    assert queue.cancel("r/0")
    assert not queue.cancel("r/0")
    assert queue.cancel("r/2")
    assert not queue.cancel("r/2")
    assert not queue.cancel("r/9")
    assert queue.extend(running, 60) is Extended.CANCELLED
    assert not queue.complete(running, b"too late")
    with pytest.raises(LeaseLost):
        queue.extend(running, 60)
    assert work_off(queue) == ["r/1", "r/3"]
    assert states(request) == ["cancelled", "done", "cancelled", "done"]
    status = request.status()
    assert (status.state, status.done, status.cancelled) == ("completed", 2, 2)


def test_cancelling_the_last_parts_ends_a_request(queue: Queue) -> None:
    fill(queue.request("r"), 3)
    fill(queue.request("s"), 1)
    with hearing(queue) as heard:
        assert queue.cancel_matching(b"0") == 2
        assert endings(heard) == []
        queue.cancel("r/1")
        queue.cancel("r/2")
    assert sorted(endings(heard)) == ["r", "s"]
    assert counters(queue.request("r").status()) == {"total": 3, "cancelled": 3}


def test_a_part_can_be_left_running(queue: Queue) -> None:
    request = fill(queue.request("r"), 1)
    lease = take(queue)
    assert not queue.cancel("r/0", running=False)
    assert queue.complete(lease)
    assert request.status().state == "completed"


def test_a_failed_part_that_is_cancelled_is_gone(queue: Queue) -> None:
    request = fill(queue.request("r"), 2)
    queue.fail(take(queue), error="why")
    assert queue.cancel("r/0")
    assert counters(request.status()) == {"total": 2, "cancelled": 1, "parked": 1}
    assert queue.counts().failed == 0
    assert work_off(queue) == ["r/1"]
    assert request.status().state == "completed"


def test_failed_parts_that_nobody_wanted_are_dropped_by_a_rule(queue: Queue, clock: Clock) -> None:
    request = fill(queue.request("r"), 2)
    queue.fail(take(queue), error="why")
    work_off(queue)
    clock.advance(61)
    assert queue.tidy(failed_longer_than=60).dropped == 1
    assert states(request) == ["cancelled", "done"]
    assert request.status().state == "failed"  # As it ended.


@pytest.mark.parametrize("how", ["fail", "retry", "lapsed", "lapse"])
def test_one_failure_ends_a_request_that_says_so(queue: Queue, clock: Clock, how: str) -> None:
    request = queue.request("r", on_failure="fail_fast", limit=2, follow_up=b"")
    request.open()
    request.add_many([b""] * 1500, max_failures=0, max_lapses=0)
    failing, running = queue.lease_many(2, 600)
    with hearing(queue) as heard:
        match how:
            case "fail":
                queue.fail(failing, error="why")
            case "retry":
                queue.retry(failing, error="why")
            case "lapsed":
                queue.release(failing, lapsed="why")
            case _:
                queue.extend(failing, 1)
                clock.advance(1)
                queue.tidy(force=True)
    status = request.status()
    why = "the lease lapsed" if how == "lapse" else "why"
    assert (status.state, status.reason) == ("stopping", f"r/0 failed: {why}")
    assert status.sealed
    assert endings(heard) == []
    assert queue.lease(60) is None  # Clears away what was too much for one call.
    assert counters(request.status()) == {
        "total": 1500,
        "failed": 1,
        "cancelled": 1498,
        "running": 1,
    }
    assert queue.extend(running, 60) is Extended.CANCELLED
    assert not queue.complete(running)
    assert (request.status().state, request.status().endings) == ("failed", 1)
    assert work_off(queue) == ["r/end/1"]
    assert [job.id for job in queue.failed()] == ["r/0"]


def test_the_first_failure_is_the_reason(queue: Queue) -> None:
    request = fill(queue.request("r", on_failure="fail_fast"), 3)
    one, two, three = queue.lease_many(3, 60)
    queue.fail(one, error="first")
    queue.fail(two, error="second")
    assert request.status().reason == "r/0 failed: first"
    assert states(request) == ["failed", "cancelled", "running"]
    queue.complete(three)
    assert request.status().state == "failed"


def test_a_retry_is_no_failure_yet(queue: Queue) -> None:
    request = fill(queue.request("r", on_failure="fail_fast"), 2)
    queue.retry(take(queue), error="why", after=60)
    assert request.status().state == "sealed"
    assert take(queue).id == "r/1"


def test_deleting_the_queue_deletes_its_requests(queue: Queue, behind: Behind) -> None:
    fill(queue.request("r", follow_up=b""), 5)
    queue.complete(take(queue), b"result")
    queue.add(b"", group="g")
    queue.delete()
    assert behind.everything() == {}
    assert queue.requests() == []
    assert fill(queue.request("r"), 1).status().total == 1
