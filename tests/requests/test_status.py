"""How far a request is can be asked at any time, and as long as it is kept after its end."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from conftest import Clock
from engine_support import Behind, take
from holdfast import JobNotFound, Queue, RequestStatus, WrongState
from holdfast.engine import calls
from request_support import counters, fill, work_off


def test_every_stage_is_told(queue: Queue, clock: Clock) -> None:
    opened = clock.ms / 1000
    request = queue.request("r", priority=80, limit=3)
    request.open()
    assert request.status() == RequestStatus(
        "r", "open", priority=80, limit=3, opened_at=opened, asked_at=opened
    )
    clock.advance(1)
    request.add_many([b""] * 5)
    request.add(b"", delay=60)
    assert counters(request.status()) == {"total": 6, "parked": 5, "delayed": 1}
    assert request.status().first_at is None
    clock.advance(1)
    done, failed, retried = queue.lease_many(9, 60)
    status = request.status()
    assert counters(status) == {"total": 6, "running": 3, "parked": 2, "delayed": 1}
    assert (status.first_at, status.last_at) == (opened + 2, None)
    clock.advance(1)
    queue.complete(done)
    assert request.status().last_at == opened + 3
    clock.advance(1)
    queue.fail(failed, error="why")
    queue.retry(retried, error="why", after=10)
    queue.cancel("r/3")
    status = request.status()
    assert counters(status) == {
        "total": 6,
        "done": 1,
        "failed": 1,
        "cancelled": 1,
        "parked": 1,
        "delayed": 2,
    }
    assert (status.settled, status.sealed, status.ended) == (3, False, False)
    assert (status.first_at, status.last_at) == (opened + 2, opened + 4)
    request.seal()
    status = request.status()
    assert (status.state, status.sealed, status.ended) == ("sealed", True, False)
    clock.advance(57)
    assert work_off(queue) == ["r/4", "r/2", "r/5"]
    status = request.status()
    assert counters(status) == {"total": 6, "done": 4, "failed": 1, "cancelled": 1}
    assert (status.state, status.ended, status.endings) == ("failed", True, 1)
    assert (status.ended_at, status.opened_at) == (clock.ms / 1000, opened)
    assert status.asked_at == clock.ms / 1000


def test_a_failed_part_makes_it_failed_and_the_others_run(queue: Queue) -> None:
    request = fill(queue.request("r"), 3)
    queue.fail(take(queue), error="why")
    assert request.status().state == "sealed"
    assert work_off(queue) == ["r/1", "r/2"]
    status = request.status()
    assert (status.state, status.done, status.failed) == ("failed", 2, 1)
    assert status.reason is None


def test_a_failure_that_was_dealt_with_stays_a_failure(queue: Queue) -> None:
    request = fill(queue.request("r"), 1)
    queue.fail(take(queue), error="why")
    handled = queue.lease(30, failed=True)
    assert handled
    assert queue.complete(handled)
    status = request.status()
    assert (status.state, counters(status)) == ("failed", {"total": 1, "failed": 1})
    assert queue.counts().failed == 0


def test_the_rate_is_that_of_the_parts_done_since_the_first_was_given_out(
    queue: Queue, clock: Clock
) -> None:
    request = fill(queue.request("r"), 10, seal=False)
    assert (request.status().rate, request.status().ends_at) == (None, None)
    clock.advance(100)
    leases = queue.lease_many(4, 60)
    queue.complete(leases[0])
    assert request.status().rate is None  # In no time.
    clock.advance(2)
    queue.complete_many(leases[1:])
    assert request.status().rate == 2
    assert request.status().ends_at is None  # As long as more may come.
    request.seal()
    assert request.status().ends_at == clock.ms / 1000 + 3
    clock.advance(2)
    assert request.status().rate == 1
    assert request.status().ends_at == clock.ms / 1000 + 6
    queue.cancel("r/9")
    assert request.status().ends_at == clock.ms / 1000 + 5
    work_off(queue)
    ended = clock.ms / 1000
    clock.advance(60)
    status = request.status()
    assert (status.ends_at, status.ended_at, status.rate) == (ended, ended, 9 / 4)


def test_a_request_that_nobody_finished_has_no_end_in_sight(queue: Queue, clock: Clock) -> None:
    request = fill(queue.request("r"), 2)
    take(queue)
    clock.advance(5)
    assert request.status().ends_at is None
    assert request.status().rate is None


@pytest.mark.parametrize("keep_for", [60, 60.0, timedelta(minutes=1)])
def test_status_and_results_are_kept_for_a_while_and_then_forgotten(
    queue: Queue, clock: Clock, behind: Behind, keep_for: timedelta | float
) -> None:
    request = fill(queue.request("r", keep_for=keep_for), 3)
    queue.complete(take(queue), b"result")
    queue.cancel("r/1")
    work_off(queue)
    clock.advance(59.999)
    assert queue.lease(30) is None
    assert request.status().state == "completed"
    assert [part.result for part in request.results()] == [b"result", None, None]
    clock.advance(0.001)
    assert queue.lease(30) is None  # Whoever asks for work forgets.
    with pytest.raises(JobNotFound, match="ended and is forgotten"):
        request.status()
    with pytest.raises(JobNotFound):
        list(request.results())
    assert queue.requests() == []
    assert behind.everything().keys() <= {"meta", "calls", "wake"}


def test_a_request_is_kept_for_a_day_if_it_does_not_say_otherwise(
    queue: Queue, clock: Clock
) -> None:
    request = fill(queue.request("r"), 0)
    clock.advance(86_399)
    queue.tidy()
    assert request.status().state == "completed"
    clock.advance(1)
    assert queue.tidy().tended > 0
    assert queue.requests() == []


def test_a_request_can_be_kept_for_ever(queue: Queue, clock: Clock) -> None:
    request = fill(queue.request("r", keep_for=math.inf), 0)
    clock.advance(1e9)
    queue.tidy()
    assert request.status().state == "completed"


def test_a_request_that_is_not_to_be_kept_is_gone_after_ten_seconds(
    queue: Queue, clock: Clock
) -> None:
    request = fill(queue.request("r", keep_for=0), 1)
    work_off(queue)
    clock.advance(10)
    queue.tidy()
    with pytest.raises(JobNotFound):
        request.status()


def test_thousands_of_parts_are_forgotten(queue: Queue, clock: Clock, behind: Behind) -> None:
    fill(queue.request("r", keep_for=60), 2500)
    while leases := queue.lease_many(1000, 60):
        queue.complete_many((lease, b"result") for lease in leases)
    fill(queue.request("cancelled", keep_for=60), 1200).cancel()
    clock.advance(60)
    queue.tidy()
    assert queue.requests() == []
    assert behind.everything().keys() <= {"meta", "calls", "wake"}


def test_a_part_that_is_forgotten_stays_forgotten(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    """In the middle of thousands: nothing is stored for it that nobody would remove."""
    fill(queue.request("r", keep_for=60), 2500)
    while leases := queue.lease_many(1000, 60):
        queue.complete_many((lease, b"result") for lease in leases)
    clock.advance(60)
    queue._run(calls.tidy())
    assert queue.result("r/2499") is not None
    with pytest.raises(JobNotFound):
        queue.set_result("r/0", b"too late")
    assert queue.add(b"", id="r/0", handler="h")
    queue.tidy()
    assert queue.requests() == []
    assert take(queue).facts.handler == "h"
    assert behind("HLEN", "results") == 0


@pytest.mark.parametrize("seal", [True, False])
def test_an_id_is_taken_as_long_as_its_request_is_kept(
    queue: Queue, clock: Clock, seal: bool
) -> None:
    request = fill(queue.request("r", keep_for=60), 1)
    if not seal:
        request.cancel()
    work_off(queue)
    with pytest.raises(WrongState, match="r: this request has ended and is remembered"):
        queue.request("r").open()
    with pytest.raises(WrongState, match="has ended"):
        request.add(b"")
    with pytest.raises(WrongState, match="has ended"):
        request.set_limit(1)
    with pytest.raises(WrongState, match="has ended"):
        request.set_priority(1)
    clock.advance(60)
    queue.tidy()
    again = fill(queue.request("r"), 2)
    assert work_off(queue) == ["r/0", "r/1"]
    assert (again.status().state, again.status().endings) == ("completed", 1)


def test_a_request_that_is_sealed_is_not_opened_again(queue: Queue) -> None:
    fill(queue.request("r"), 1)
    with pytest.raises(WrongState, match="sealed"):
        queue.request("r").open()
    with pytest.raises(WrongState, match="sealed"), queue.request("r"):
        pytest.fail("the block must not begin")
    assert queue.request("r").status().state == "sealed"


def test_parts_that_failed_keep_their_request(queue: Queue, clock: Clock) -> None:
    """Somebody still has to decide about them."""
    request = fill(queue.request("r", keep_for=60), 2)
    queue.fail(take(queue), error="why")
    queue.complete(take(queue), b"result")
    for _ in range(3):
        clock.advance(600)
        queue.tidy()
    assert request.status().state == "failed"
    assert [part.state for part in request.results()] == ["failed", "done"]
    assert [part.result for part in request.results()] == [None, b"result"]
    assert queue.cancel("r/0")
    clock.advance(60)
    queue.tidy()
    assert queue.requests() == []


def test_a_failure_that_is_being_handled_keeps_its_request(queue: Queue, clock: Clock) -> None:
    request = fill(queue.request("r", keep_for=60), 1)
    queue.fail(take(queue), error="why")
    handled = queue.lease(3600, failed=True)
    assert handled
    clock.advance(600)
    queue.tidy(force=True)
    assert request.status().state == "failed"
    assert queue.complete(handled)
    clock.advance(60)
    queue.tidy()
    assert queue.requests() == []


def test_a_request_with_nothing_in_it_ends_when_it_is_sealed(queue: Queue) -> None:
    request = queue.request("r")
    request.open()
    assert request.status().state == "open"
    request.seal()
    assert (request.status().state, request.status().total) == ("completed", 0)
    assert list(request.results()) == []


def test_it_does_not_end_before_it_is_sealed(queue: Queue) -> None:
    request = fill(queue.request("r"), 2, seal=False)
    assert len(work_off(queue)) == 2
    assert (request.status().state, request.status().endings) == ("open", 0)
    request.seal()
    assert (request.status().state, request.status().endings) == ("completed", 1)


def test_nobody_knows_of_it_in_another_queue(queue: Queue) -> None:
    fill(queue.request("r"), 1)
    elsewhere = Queue(f"{queue.name} elsewhere", queue.server)
    with pytest.raises(JobNotFound):
        elsewhere.request("r").status()
