"""Failed jobs wait for somebody's decision, or for their failure handler."""

from __future__ import annotations

import math

import pytest
import redis

from conftest import Clock
from engine_support import command_calls, take
from holdfast import Extended, Lease, NewJob, Queue


def failed_job(queue: Queue, id: str = "a", **options: int) -> None:
    queue.add(b"x", id=id, **options)  # type: ignore[arg-type]
    queue.fail(take(queue), error=f"{id} is broken")


def take_failed(queue: Queue, seconds: float = 30) -> Lease:
    lease = queue.lease(seconds, failed=True)
    assert lease is not None
    return lease


def test_a_failure_handler_gets_payload_job_and_error(queue: Queue) -> None:
    failed_job(queue, priority=70)
    lease = take_failed(queue)
    assert (lease.id, lease.data, lease.error, lease.failures) == ("a", b"x", "a is broken", 1)
    assert lease.failed
    assert queue.counts().leased == 1
    assert queue.lease(30, failed=True) is None


def test_only_failed_jobs_go_to_a_failure_handler(queue: Queue) -> None:
    queue.add(b"", id="ready")
    assert queue.lease(30, failed=True) is None
    lease = take(queue)
    assert not lease.failed
    failed_job(queue, "b")
    assert queue.lease(30) is None


def test_what_is_handled_is_gone(queue: Queue) -> None:
    failed_job(queue)
    assert queue.complete(take_failed(queue)) is True
    assert queue.show("a") is None


def test_a_handler_that_fails_is_asked_again_after_a_long_wait(queue: Queue, clock: Clock) -> None:
    failed_job(queue)
    queue.retry(take_failed(queue), error="no mail server")
    assert queue.lease(30, failed=True) is None
    clock.advance(9.9)
    assert queue.lease(30, failed=True) is None
    clock.advance(2.7)
    lease = take_failed(queue)
    assert (lease.facts.handlings, lease.failures, lease.error) == (1, 1, "a is broken")


def test_a_handler_may_say_when_it_wants_to_be_asked_again(queue: Queue, clock: Clock) -> None:
    failed_job(queue)
    queue.retry(take_failed(queue), error="later", after=3600)
    clock.advance(3599)
    assert queue.lease(30, failed=True) is None
    clock.advance(1)
    take_failed(queue)


def test_a_handler_is_asked_a_hundred_times_and_then_somebody_must_decide(
    queue: Queue, clock: Clock
) -> None:
    failed_job(queue)
    for _ in range(101):
        queue.retry(take_failed(queue), error="no", after=0)
    clock.advance(10**9)
    assert queue.lease(30, failed=True) is None
    [job] = queue.failed()
    assert job.at == math.inf
    assert "no failure handler gets it again" in queue.explain("a")
    assert queue.revive("a")
    assert take(queue).facts.handlings == 0


def test_what_a_handler_fails_waits_for_somebody(queue: Queue, clock: Clock) -> None:
    failed_job(queue)
    queue.fail(take_failed(queue), error="hopeless")
    clock.advance(10**9)
    assert queue.lease(30, failed=True) is None
    assert [job.id for job in queue.failed()] == ["a"]


def test_what_a_handler_releases_is_failed_as_before(queue: Queue, clock: Clock) -> None:
    failed_job(queue)
    queue.release(take_failed(queue))
    assert take_failed(queue).facts.handlings == 0
    assert queue.tidy(held_longer_than=0).reclaimed == 1


def test_a_handler_that_dies_costs_a_wait_and_no_lapse(queue: Queue, clock: Clock) -> None:
    failed_job(queue, max_lapses=0)
    take_failed(queue, 1)
    clock.advance(1)
    assert queue.tidy().reclaimed == 1
    [job] = queue.failed()
    assert (job.lapses, job.facts.handlings, job.at) == (0, 1, clock.ms / 1000 + 10)
    assert queue.lease(30, failed=True) is None


def test_a_handler_extends_its_lease(queue: Queue) -> None:
    failed_job(queue)
    lease = take_failed(queue)
    assert queue.extend(lease, 60) is Extended.HELD
    assert queue.extend_many([lease], 60) == [Extended.HELD]


def test_a_failed_job_cannot_be_revived_while_it_is_handled(queue: Queue) -> None:
    failed_job(queue)
    lease = take_failed(queue)
    assert queue.revive("a") is False
    queue.complete(lease)


def test_failed_jobs_keep_their_order_and_can_be_paged(queue: Queue, clock: Clock) -> None:
    for n in range(5):
        failed_job(queue, f"{n}")
        clock.advance(1)
    assert [job.id for job in queue.failed(2)] == ["0", "1"]
    assert [job.id for job in queue.failed(3, first=2)] == ["2", "3", "4"]
    assert [lease.id for lease in queue.lease_many(3, 30, failed=True)] == ["0", "1", "2"]


# ------------------------------------------------------------------ somebody's rule


def test_a_rule_drops_what_is_failed_for_too_long(queue: Queue, clock: Clock) -> None:
    failed_job(queue, "spent")
    queue.fail(take_failed(queue), error="no")
    failed_job(queue, "old")
    clock.advance(100)
    failed_job(queue, "new")
    assert queue.tidy(failed_longer_than=100).dropped == 0
    clock.advance(0.001)
    assert queue.tidy(failed_longer_than=100).dropped == 2
    assert [job.id for job in queue.failed()] == ["new"]
    clock.advance(100)
    assert queue.tidy(failed_longer_than=100).dropped == 1


def test_a_rule_leaves_what_its_handler_wants_to_have_again(queue: Queue, clock: Clock) -> None:
    failed_job(queue)
    queue.retry(take_failed(queue), error="later", after=3600)
    clock.advance(3600)
    assert queue.tidy(failed_longer_than=100).dropped == 0
    clock.advance(101)
    assert queue.tidy(failed_longer_than=100).dropped == 1


def test_without_a_rule_failed_jobs_stay(queue: Queue, clock: Clock) -> None:
    failed_job(queue)
    clock.advance(10**9)
    assert queue.tidy().dropped == 0
    assert queue.counts().failed == 1


def test_a_rule_drops_more_than_one_call_may(queue: Queue, clock: Clock) -> None:
    queue.add_many((NewJob(b"", id=f"{n}") for n in range(1500)), max_lapses=0)
    for _ in range(2):
        queue.release_many(queue.lease_many(1000, 30), lapsed="crashed")
    assert queue.counts().failed == 1500
    clock.advance(1)
    assert queue.tidy(failed_longer_than=0).dropped == 1500


# ---------------------------------------------------------------------- add again


def test_an_add_of_a_failed_id_says_so(queue: Queue) -> None:
    failed_job(queue)
    receipt = queue.add(b"y", id="a")
    assert (receipt.created, receipt.state, receipt.updated) == (False, "failed", False)
    assert queue.data("a") == b"x"


def test_an_update_of_a_failed_id_revives_it(queue: Queue) -> None:
    failed_job(queue)
    receipt = queue.add(b"y", id="a", on_conflict="update")
    assert (receipt.created, receipt.state, receipt.updated) == (False, "failed", True)
    lease = take(queue)
    assert (lease.data, lease.failures, lease.error, lease.failed) == (b"y", 0, None, False)


@pytest.mark.parametrize("settle", ["retry", "release", "fail", "lapse"])
def test_a_successor_takes_the_id_of_what_stays_failed(
    queue: Queue, clock: Clock, settle: str
) -> None:
    failed_job(queue)
    lease = take_failed(queue, 1)
    queue.add(b"new", id="a", on_conflict="update")
    if settle == "lapse":
        clock.advance(1)
        queue.tidy()
    elif settle == "release":
        queue.release(lease)
    else:
        getattr(queue, settle)(lease, error="no")
    [job] = queue.failed()
    assert job.id.startswith("a~")
    assert (job.data, job.error) == (b"x", "a is broken")
    assert take(queue).data == b"new"


def test_a_failure_that_is_dealt_with_is_a_failure_to_who_waits_for_the_result(
    queue: Queue,
) -> None:
    failed_job(queue, result_for=60, remember_for=60)
    queue.complete(take_failed(queue))
    outcome = queue.result("a")
    assert outcome is not None
    assert (outcome.kind, outcome.error) == ("failed", "a is broken")
    assert queue.add(b"", id="a")


def test_who_waits_for_failed_jobs_takes_no_wake_from_the_others(
    live_queue: Queue, client: redis.Redis
) -> None:
    live_queue.add(b"", id="ready")
    before = command_calls(client, "blpop")
    assert live_queue.lease(30, wait=0.05, failed=True) is None
    assert command_calls(client, "blpop") == before
    lease = live_queue.lease(30, wait=5)
    assert lease is not None
