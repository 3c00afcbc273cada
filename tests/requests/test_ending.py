"""A request ends once, in the call that decides it; a follow-up is added there, and told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conftest import Clock
from engine_support import Behind, command_calls, ids, take
from holdfast import InvalidArgument, Lease, NewJob, Queue
from holdfast.engine import request_calls
from holdfast.engine.call import Entry
from request_support import counters, endings, fill, hearing, states, work_off

LAST: dict[str, Callable[[Queue, Lease, Clock], object]] = {
    "complete": lambda queue, lease, clock: queue.complete(lease),
    "complete_many": lambda queue, lease, clock: queue.complete_many([lease, lease]),
    "complete_by_force": lambda queue, lease, clock: queue.complete(lease.id, force=True),
    "lease": lambda queue, lease, clock: queue.lease_many(1, 30, complete=[lease]),
    "fail": lambda queue, lease, clock: queue.fail(lease, error="why"),
    "retry": lambda queue, lease, clock: queue.retry(lease, error="why"),
    "release_lapsed": lambda queue, lease, clock: queue.release(lease, lapsed="crashed"),
    "tidy": lambda queue, lease, clock: lapse(clock, queue.tidy),
    "lease_after_a_lapse": lambda queue, lease, clock: lapse(clock, lambda: queue.lease(30)),
    "fail_worker": lambda queue, lease, clock: queue.fail_worker(queue.holder),
    "cancel_part": lambda queue, lease, clock: queue.cancel(lease.id) and queue.complete(lease),
}


def lapse(clock: Clock, ask: Callable[[], object]) -> None:
    """Let a lease lapse, and ask until the silence is over."""
    clock.advance(60)
    ask()
    clock.advance(5)
    ask()


@pytest.mark.parametrize("kind", LAST)
def test_whatever_settles_the_last_part_ends_it_once(queue: Queue, clock: Clock, kind: str) -> None:
    request = queue.request("r", follow_up=NewJob(b"follow-up", priority=99))
    request.open()
    request.add(b"", max_failures=0, max_lapses=0)
    request.seal()
    lease = take(queue, 60)
    with hearing(queue) as heard:
        LAST[kind](queue, lease, clock)
    assert endings(heard) == ["r"]
    assert (request.status().ended, request.status().endings) == (True, 1)
    job = queue.show("r/end/1")
    assert job
    assert (job.data, job.priority) == (b"follow-up", 99)
    # Whatever comes late ends nothing again.
    with hearing(queue) as heard:
        assert not queue.complete(lease)
        queue.tidy(force=True)
        request.seal()
    assert endings(heard) == []
    assert queue.show("r/end/2") is None


@pytest.mark.parametrize("kind", ["seal", "cancel", "open_for"])
def test_it_ends_once_without_a_part_too(queue: Queue, clock: Clock, kind: str) -> None:
    request = queue.request("r", follow_up=b"follow-up", open_for=60)
    request.open()
    with hearing(queue) as heard:
        match kind:
            case "seal":
                request.seal()
            case "cancel":
                request.cancel()
            case _:
                clock.advance(60)
                queue.tidy()
        request.seal()
        request.cancel()
    assert endings(heard) == ["r"]
    assert ids(queue.lease_many(9, 30)) == ["r/end/1"]


def test_nothing_is_added_before_the_end(queue: Queue) -> None:
    fill(queue.request("r", follow_up=b"follow-up"), 2)
    first, second = queue.lease_many(2, 30)
    queue.complete(first)
    assert len(queue) == 0
    queue.complete(second)
    assert [lease.data for lease in queue.lease_many(9, 30)] == [b"follow-up"]


def test_the_call_that_ends_it_can_lease_the_follow_up(queue: Queue) -> None:
    fill(queue.request("r", follow_up={"merge": "r"}), 1)
    [follow_up] = queue.lease_many(5, 30, complete=[take(queue)])
    assert (follow_up.id, follow_up.json(), follow_up.request) == ("r/end/1", {"merge": "r"}, None)


def test_a_follow_up_has_what_it_says_about_itself(queue: Queue, clock: Clock) -> None:
    job = NewJob(b"", priority=70, handler="h", max_failures=2, result_for=60, group="g")
    fill(queue.request("r", follow_up=job), 0)
    assert [group.name for group in queue.groups()] == ["g"]
    lease = take(queue)
    assert (lease.facts.handler, lease.facts.max_failures) == ("h", 2)
    shown = queue.show("r/end/1")
    assert shown
    assert shown.priority == 70
    queue.complete(lease, b"result")
    outcome = queue.result("r/end/1")
    assert outcome
    assert outcome.result == b"result"


def test_the_delay_of_a_follow_up_begins_when_it_is_added(queue: Queue, clock: Clock) -> None:
    request = fill(queue.request("r", follow_up=NewJob(b"", delay=60)), 0, seal=False)
    clock.advance(3600)
    request.seal()
    clock.advance(59.999)
    assert queue.lease(30) is None
    clock.advance(0.001)
    assert take(queue).id == "r/end/1"


def test_a_follow_up_that_is_never_due_stays_so_when_the_clock_is_set_back(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    never = Entry("-", b"", False, 50, b"+%d" % (2**53 - 1), b"")
    queue._run(request_calls.open_request("r", follow_up=never))
    clock.advance(-1)
    queue.request("r").seal()
    assert behind("ZSCORE", "delayed", "r/end/1") == 2**53 - 1


def test_a_follow_up_can_be_added_at_a_time(queue: Queue, clock: Clock) -> None:
    fill(queue.request("r", follow_up=NewJob(b"", at=clock.ms / 1000 + 60)), 0)
    clock.advance(59.999)
    assert queue.lease(30) is None
    clock.advance(0.001)
    assert take(queue).id == "r/end/1"


def test_not_all_follow_ups_that_are_still_there_are_asked(queue: Queue, behind: Behind) -> None:
    queue.add_many([NewJob(b"", id=f"r/end/{n}", priority=0) for n in range(1, 3000)])
    request = fill(queue.request("r", follow_up=b"next"), 0, seal=False)
    before = command_calls(behind.client, "zscore")
    request.seal()
    assert command_calls(behind.client, "zscore") - before < 150
    lease = take(queue)
    assert lease.data == b"next"
    assert int(lease.id.removeprefix("r/end/")) >= 3000


@pytest.mark.parametrize("keep", [True, False])
def test_a_request_of_an_id_that_was_used_before_has_a_follow_up_again(
    queue: Queue, clock: Clock, keep: bool
) -> None:
    """Also where the one before is still remembered."""
    for n in range(2):
        job = NewJob(b"%d" % n, result_for=3600, keep=keep)
        fill(queue.request("r", keep_for=60, follow_up=job), 0)
        lease = take(queue)
        assert (lease.id, lease.data) == ("r/end/1", b"%d" % n)
        assert queue.audit() == []
        queue.complete(lease, lease.data)
        outcome = queue.result("r/end/1")
        assert outcome
        assert outcome.result == b"%d" % n
        clock.advance(60)
        queue.tidy()


def test_a_follow_up_is_small(queue: Queue) -> None:
    """As a thousand of them may be added in one call."""
    most = 8 * 1024 * 1024 // 1000
    fill(queue.request("r", follow_up=bytes(most)), 0)
    assert take(queue).data == bytes(most)
    with pytest.raises(InvalidArgument, match=f"at most {most} bytes, not {most + 1}"):
        queue.request("s", follow_up=bytes(most + 1))
    with pytest.raises(InvalidArgument, match="give no id"):
        queue.request("s", follow_up=NewJob(b"", id="mine"))


def test_a_thousand_requests_end_in_one_call(queue: Queue) -> None:
    requests = [queue.request(f"r{n}", follow_up=bytes(8000)) for n in range(1000)]
    for request in requests:
        fill(request, 1)
    leases = queue.lease_many(1000, 60)
    with hearing(queue) as heard:
        assert queue.complete_many(leases) == [True] * 1000
    assert [event.count for event in heard if event.kind == "ended"] == [1000]
    assert {status.state for status in queue.requests()} == {"completed"}
    assert len(queue) == 1000


# ------------------------------------------------------------------------------ open for


def test_a_request_that_is_open_for_too_long_fails_and_says_so(queue: Queue, clock: Clock) -> None:
    request = fill(queue.request("r", open_for=60), 3, seal=False)
    running = take(queue, 600)
    clock.advance(59.999)
    queue.tidy()
    assert request.status().state == "open"
    clock.advance(0.001)
    assert queue.lease(30) is None  # Whoever asks for work finds it.
    status = request.status()
    assert (status.state, status.reason) == ("stopping", "open for too long")
    assert counters(status) == {"total": 3, "cancelled": 2, "running": 1}
    assert not queue.complete(running)
    assert (request.status().state, request.status().reason) == ("failed", "open for too long")


def test_a_producer_that_goes_on_has_as_long_again(queue: Queue, clock: Clock) -> None:
    fill(queue.request("r", open_for=60), 1, seal=False)
    clock.advance(59)
    again = queue.request("r", open_for=60)
    again.open()
    clock.advance(59)
    queue.tidy()
    assert again.status().state == "open"
    clock.advance(1)
    queue.tidy()
    assert again.status().state == "failed"


def test_who_goes_on_without_a_word_about_time_leaves_it_as_it_is(
    queue: Queue, clock: Clock
) -> None:
    queue.request("r", open_for=60).open()
    queue.request("r").open()
    clock.advance(60)
    queue.tidy()
    assert queue.request("r").status().state == "failed"


def test_what_is_sealed_in_time_has_all_the_time(queue: Queue, clock: Clock) -> None:
    request = fill(queue.request("r", open_for=60), 1)
    clock.advance(3600)
    queue.tidy()
    assert request.status().state == "sealed"
    assert work_off(queue) == ["r/0"]
    assert request.status().state == "completed"


# -------------------------------------------------------------------------------- revive


def test_a_part_that_is_revived_opens_its_request_again(queue: Queue, clock: Clock) -> None:
    request = fill(queue.request("r", follow_up=b""), 2)
    queue.fail(take(queue), error="why")
    with hearing(queue) as heard:
        queue.complete(take(queue), b"one")
    assert endings(heard) == ["r"]
    assert work_off(queue) == ["r/end/1"]
    assert request.status().state == "failed"
    clock.advance(10)
    with hearing(queue) as heard:
        assert queue.revive("r/0")
        assert not queue.revive("r/1")
    assert endings(heard) == []
    status = request.status()
    assert (status.state, status.ended_at, status.endings) == ("sealed", None, 1)
    assert counters(status) == {"total": 2, "done": 1, "parked": 1}
    with hearing(queue) as heard:
        queue.complete(take(queue), b"zero")
    assert endings(heard) == ["r"]
    status = request.status()
    assert (status.state, status.endings) == ("completed", 2)
    assert status.ended_at == clock.ms / 1000
    assert [part.result for part in request.results()] == [b"zero", b"one"]
    assert work_off(queue) == ["r/end/2"]


def test_a_request_that_is_open_again_is_kept(queue: Queue, clock: Clock) -> None:
    """And as long as any after its last end."""
    request = fill(queue.request("r", keep_for=60), 2)
    queue.fail(take(queue), error="why")
    queue.complete(take(queue), b"one")
    queue.revive("r/0")
    clock.advance(600)
    queue.tidy()
    assert states(request) == ["waiting", "done"]
    work_off(queue)
    clock.advance(59)
    queue.tidy()
    assert [part.result for part in request.results()] == [None, b"one"]
    clock.advance(1)
    queue.tidy()
    assert queue.requests() == []


@pytest.mark.parametrize("again", ["completed", "failed"])
def test_a_part_that_failed_everything_is_revived(queue: Queue, again: str) -> None:
    """What its failure has cancelled stays cancelled."""
    request = fill(queue.request("r", on_failure="fail_fast", follow_up=b""), 3)
    queue.fail(take(queue), error="why")
    assert (request.status().state, request.status().reason) == ("failed", "r/0 failed: why")
    assert work_off(queue) == ["r/end/1"]
    assert queue.revive("r/0")
    assert (request.status().state, request.status().reason) == ("sealed", None)
    assert counters(request.status()) == {"total": 3, "cancelled": 2, "parked": 1}
    with hearing(queue) as heard:
        if again == "failed":
            queue.fail(take(queue), error="still")
        else:
            queue.complete(take(queue))
    assert endings(heard) == ["r"]
    status = request.status()
    assert (status.endings, status.state) == (2, again)
    assert status.reason == ("r/0 failed: still" if again == "failed" else None)
    assert work_off(queue) == ["r/end/2"]


def test_a_failed_part_of_a_cancelled_request_can_be_revived(queue: Queue) -> None:
    request = fill(queue.request("r"), 3)
    queue.fail(take(queue), error="why")
    request.cancel()
    assert request.status().state == "cancelled"
    assert queue.revive("r/0")
    assert request.status().state == "sealed"
    assert work_off(queue) == ["r/0"]
    assert request.status().endings == 2


def test_nothing_is_revived_while_its_request_is_being_stopped(queue: Queue) -> None:
    request = fill(queue.request("r"), 3)
    queue.fail(take(queue), error="why")
    running = take(queue)
    request.cancel()
    assert not queue.revive("r/0")
    queue.release(running)
    assert request.status().state == "cancelled"
    assert queue.revive("r/0")
    assert work_off(queue) == ["r/0"]


def test_parts_are_revived_at_the_end_of_their_request_as_if_they_had_never_run(
    queue: Queue,
) -> None:
    request = queue.request("r", limit=1)
    request.open()
    request.add_many([b""] * 3, max_failures=0)
    queue.retry(take(queue), error="why")
    assert queue.revive("r/0")
    for id in ("r/1", "r/2", "r/0"):
        lease = take(queue)
        assert (lease.id, lease.failures) == (id, 0)
        queue.complete(lease)


def test_one_tidy_forgets_however_many_have_ended(queue: Queue, clock: Clock) -> None:
    for n in range(250):
        queue.request(f"r{n}", keep_for=1).open()
        queue.request(f"r{n}").seal()
    clock.advance(10)
    assert queue.tidy().tended == 250
    assert queue.requests() == []


def test_the_follow_up_of_an_earlier_request_of_this_name_is_not_in_the_way(
    queue: Queue, clock: Clock
) -> None:
    for payload in (b"first", b"second"):
        with queue.request("r", keep_for=0, follow_up=payload):
            pass
        clock.advance(10)
        queue.tidy()
    assert [lease.id for lease in queue.lease_many(9, 30)] == ["r/end/1", "r/end/2"]
