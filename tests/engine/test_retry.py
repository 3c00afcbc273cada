"""retry: a failure is counted, and the job waits; fail: there is no other try."""

from __future__ import annotations

import pytest

from conftest import Clock
from engine_support import Behind, take
from holdfast import Extended, InvalidArgument, Lease, LeaseLost, Queue
from holdfast.failures import retry_ms
from holdfast.job import Facts

# --------------------------------------------------------------------- how long


def longest(low: float, high: float) -> float:
    return high


def shortest(low: float, high: float) -> float:
    return low


@pytest.mark.parametrize(
    ("failures", "least", "most"),
    [(0, 2_000, 2_500), (1, 4_000, 5_000), (5, 64_000, 80_000), (8, 240_000, 300_000)],
)
def test_a_wait_doubles_with_each_failure_up_to_the_longest(
    failures: int, least: int, most: int
) -> None:
    facts = Facts(failures=failures)
    assert retry_ms(facts, shortest) == least
    assert retry_ms(facts, longest) == most


def test_no_wait_is_longer_than_the_longest_however_often_it_failed() -> None:
    for failures in (0, 1, 7, 8, 100, 10**6):
        for min_backoff_ms, max_backoff_ms in ((0, 0), (1, 1), (5000, 300), (1, 2**53 - 1)):
            facts = Facts(
                failures=failures, min_backoff_ms=min_backoff_ms, max_backoff_ms=max_backoff_ms
            )
            assert 0 <= retry_ms(facts, shortest) <= retry_ms(facts, longest) <= max_backoff_ms


def test_jobs_that_failed_together_do_not_come_back_together() -> None:
    assert len({retry_ms(Facts(failures=6)) for _ in range(50)}) > 10


def test_a_failure_handler_waits_for_longer() -> None:
    assert retry_ms(Facts(failed_at=1), shortest) == 10_000
    assert retry_ms(Facts(failed_at=1, handlings=50), longest) == 900_000


# ------------------------------------------------------------------------ retry


def fail_once(queue: Queue, clock: Clock) -> Lease:
    queue.retry(take(queue), error="why", after=1)
    clock.advance(1)
    return take(queue)


def test_a_job_is_tried_again_after_its_wait_and_knows_why(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a", min_backoff=10)
    queue.retry(take(queue), error=ValueError("no such thing"))
    assert queue.lease(30) is None
    clock.advance(9.9)
    assert queue.lease(30) is None
    clock.advance(2.6)
    lease = take(queue)
    assert (lease.id, lease.failures, lease.lapses) == ("a", 1, 0)
    assert lease.error == "ValueError: no such thing"


def test_the_time_that_the_handler_asks_for_is_exact(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a", min_backoff=100, max_backoff=100)
    queue.retry(take(queue), error="why", after=0.25)
    clock.advance(0.249)
    assert queue.lease(30) is None
    clock.advance(0.001)
    assert take(queue).id == "a"


def test_a_handler_may_ask_for_an_instant_of_the_servers_clock(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a")
    queue.retry(take(queue), error="why", at=clock() / 1000 + 5)
    clock.advance(4.999)
    assert queue.lease(30) is None
    clock.advance(0.001)
    queue.retry(take(queue), error="why", at=1)
    assert take(queue).failures == 2


def test_a_handler_asks_for_a_wait_or_an_instant(queue: Queue) -> None:
    queue.add(b"x")
    lease = take(queue)
    with pytest.raises(InvalidArgument, match="give after or at, not both"):
        queue.retry(lease, error="why", after=1, at=1)


@pytest.mark.parametrize("max_failures", [0, 1, 3])
def test_a_job_runs_once_more_than_it_may_fail(
    queue: Queue, clock: Clock, max_failures: int
) -> None:
    queue.add(b"x", id="a", max_failures=max_failures)
    runs = 0
    while (lease := queue.lease(30)) is not None:
        runs += 1
        queue.retry(lease, error=f"failure {runs}", after=0.001)
        clock.advance(0.001)
    assert runs == max_failures + 1
    [job] = queue.failed()
    assert (job.id, job.failures, job.error) == ("a", runs, f"failure {runs}")


def test_a_job_that_does_not_say_so_may_fail_ten_times(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a")
    runs = 0
    while (lease := queue.lease(30)) is not None:
        runs += 1
        queue.retry(lease, error="again", after=0.001)
        clock.advance(0.001)
    assert runs == 11


def test_a_job_that_is_tried_again_at_once_goes_behind_its_equals(queue: Queue) -> None:
    queue.add(b"x", id="a")
    queue.add(b"x", id="b")
    queue.retry(take(queue), error="why", after=0)
    assert [job.id for job in queue.peek(2)] == ["b", "a"]


def test_a_job_without_a_limit_never_fails(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a", max_failures=None)
    for _ in range(20):
        queue.release(fail_once(queue, clock))
    assert take(queue).failures == 20


def test_a_retried_job_keeps_its_priority_and_options(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a", priority=90, handler="h", timeout=5)
    queue.add(b"x", id="b", priority=50)
    lease = fail_once(queue, clock)
    assert (lease.id, lease.facts.handler, lease.facts.timeout_ms) == ("a", "h", 5000)


def test_failures_and_lapses_are_counted_apart(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a", max_failures=1, max_lapses=1)
    queue.retry(take(queue), error="why", after=0.001)
    clock.advance(0.001)
    queue.release(take(queue), lapsed="crashed")
    lease = take(queue)
    assert (lease.failures, lease.lapses) == (1, 1)
    queue.release(lease, lapsed="crashed again")
    assert [job.error for job in queue.failed()] == ["crashed again"]


def test_who_lost_the_lease_cannot_retry_or_fail(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a")
    lost = take(queue, 1)
    clock.advance(1)
    queue.tidy()
    for settle in (queue.retry, queue.fail):
        with pytest.raises(LeaseLost, match="the lease is over"):
            settle(lost, error="why")
    held = take(queue)
    with pytest.raises(LeaseLost):
        queue.retry(lost, error="why")
    assert held.lapses == 1
    assert queue.complete(held)


def test_a_retry_that_is_due_soon_wakes_a_sleeper(queue: Queue, behind: Behind) -> None:
    queue.add(b"x", id="a")
    lease = take(queue)
    behind("UNLINK", "wake")
    queue.retry(lease, error="why", after=0.5)
    assert behind("LLEN", "wake") == 1


@pytest.mark.parametrize("error", ["", None, 5, b"why"])
def test_a_reason_is_needed(queue: Queue, error: object) -> None:
    queue.add(b"x", id="a")
    lease = take(queue)
    for settle in (queue.retry, queue.fail):
        with pytest.raises(ValueError, match="error must be an exception or a str that says why"):
            settle(lease, error=error)  # type: ignore[arg-type]
    assert queue.extend(lease, 5) is Extended.HELD


def test_a_long_reason_is_cut(queue: Queue) -> None:
    queue.add(b"x", id="a")
    queue.fail(take(queue), error="ü" * 5000)
    [job] = queue.failed()
    assert job.error == "ü" * 2048


# ------------------------------------------------------------------------- fail


def test_a_job_that_is_failed_is_not_tried_again(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a", priority=70)
    queue.fail(take(queue), error="never mind")
    clock.advance(10**6)
    assert queue.lease(30) is None
    [job] = queue.failed()
    assert (job.state, job.data, job.error, job.priority) == ("failed", b"x", "never mind", 70)
    assert job.failures == 1


def test_a_failed_job_is_not_completed_by_who_failed_it(queue: Queue) -> None:
    queue.add(b"x", id="a")
    lease = take(queue)
    queue.fail(lease, error="why")
    assert queue.complete(lease) is False
    assert queue.counts().failed == 1


# ---------------------------------------------------------------------- revive


def test_a_revived_job_runs_as_if_it_never_had(queue: Queue) -> None:
    queue.add(b"x", id="a", handler="h", priority=80)
    queue.fail(take(queue), error="why")
    queue.add(b"y", id="b", priority=80)
    assert queue.revive("a") is True
    assert queue.revive("a") is False
    assert [take(queue).id, (lease := take(queue)).id] == ["b", "a"]
    assert (lease.failures, lease.error, lease.facts.handler) == (0, None, "h")


@pytest.mark.parametrize("state", ["ready", "delayed", "leased", "nobody"])
def test_only_what_failed_can_be_revived(queue: Queue, state: str, behind: Behind) -> None:
    queue.add(b"", id="leased")
    take(queue)
    queue.add(b"", id="ready")
    queue.add(b"", id="delayed", delay=60)
    counts = queue.counts()
    assert queue.revive(state) is False
    assert queue.counts() == counts


def test_a_revived_job_wakes_a_sleeper(queue: Queue, behind: Behind) -> None:
    queue.add(b"x", id="a")
    queue.fail(take(queue), error="why")
    behind("UNLINK", "wake")
    queue.revive("a")
    assert behind("LLEN", "wake") == 1
