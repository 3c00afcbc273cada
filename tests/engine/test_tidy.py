from __future__ import annotations

import pytest

from conftest import Clock
from engine_support import Behind, ids, take
from holdfast import NewJob, Queue, Tidied


def test_there_is_nothing_to_tidy_in_an_empty_queue(queue: Queue) -> None:
    assert queue.tidy() == Tidied(0, 0, 0)


def test_one_call_promotes_reclaims_and_prunes(queue: Queue, clock: Clock) -> None:
    queue.add(b"", result_for=2)
    queue.complete(take(queue), b"result")
    queue.add(b"")
    take(queue, 2)
    queue.add(b"", delay=2)
    clock.advance(1.999)
    assert queue.tidy() == Tidied(0, 0, 0)
    clock.advance(0.001)
    assert queue.tidy() == Tidied(promoted=1, reclaimed=1, pruned=1)
    assert queue.tidy() == Tidied(0, 0, 0)
    counts = queue.counts()
    assert (counts.ready, counts.delayed, counts.leased, counts.ended) == (2, 0, 0, 0)


def test_tidying_goes_on_until_nothing_is_left(queue: Queue, clock: Clock) -> None:
    queue.add_many([b""] * 1200, result_for=2)
    queue.complete_many([lease for _ in range(2) for lease in queue.lease_many(1000, 30)])
    queue.add_many([b""] * 1100)
    for _ in range(2):
        queue.lease_many(1000, 2)
    queue.add_many([NewJob(b"", delay=2)] * 2000)
    clock.advance(2)
    assert queue.tidy() == Tidied(promoted=2000, reclaimed=1100, pruned=1200)


# ---------------------------------------------------------------------- reclaim


def test_a_reclaimed_job_has_the_rank_it_had(queue: Queue, clock: Clock) -> None:
    queue.add_many([NewJob(b"", id="low", priority=10), NewJob(b"", id="a"), NewJob(b"", id="b")])
    queue.lease_many(3, 1)
    queue.add(b"", id="c")
    clock.advance(1)
    assert ids(queue.lease_many(9, 30)) == ["a", "b", "c", "low"]


def test_a_queue_may_put_what_it_reclaims_behind_its_equals(queue: Queue, clock: Clock) -> None:
    back = Queue(queue.name, queue.server, requeue="back", clock=clock)
    back.add_many([NewJob(b"", id="a", priority=70), NewJob(b"", id="b", priority=70)])
    back.add(b"", id="low", priority=10)
    take(back, 1)
    clock.advance(1)
    assert back.tidy().reclaimed == 1
    assert ids(back.lease_many(9, 30)) == ["b", "a", "low"]


@pytest.mark.parametrize(("max_lapses", "deliveries"), [(None, 20), (0, 1), (1, 2), (3, 4), (7, 8)])
def test_lapses_are_counted_and_then_the_job_is_failed(
    queue: Queue, clock: Clock, max_lapses: int | None, deliveries: int
) -> None:
    queue.add(b"", max_lapses=max_lapses)
    for lapses in range(deliveries):
        assert take(queue, 1).lapses == lapses
        clock.advance(1)
    if max_lapses is None:
        assert take(queue).lapses == 20
    else:
        assert queue.lease(1) is None
        assert queue.counts().failed == 1


def test_a_job_that_does_not_say_has_four_deliveries(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="poison")
    deliveries = 0
    while queue.lease(1):
        deliveries += 1
        clock.advance(1)
    assert deliveries == 4
    assert queue.counts().failed == 1


def test_a_failed_job_keeps_payload_priority_and_reason(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    queue.add(b"payload", id="a", priority=90, max_lapses=0, handler="h")
    take(queue, 1)
    clock.advance(1)
    assert queue.tidy().reclaimed == 1
    assert behind("HGET", "jobs", "a") == b"payload"
    assert behind.facts("a") == {
        "handler": "h",
        "max_lapses": 0,
        "lapses": 1,
        "error": "the lease lapsed",
        "failed_at": clock.ms,
        "priority": 90,
    }


def test_a_reclaimed_job_tells_its_next_holder_what_happened(queue: Queue, clock: Clock) -> None:
    queue.add(b"")
    take(queue, 1)
    clock.advance(1)
    lease = take(queue)
    assert (lease.lapses, lease.failures, lease.facts.error) == (1, 0, "the lease lapsed")


def test_the_lapses_of_a_completed_job_are_forgotten(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a")
    take(queue, 1)
    clock.advance(1)
    queue.complete(take(queue))
    queue.add(b"", id="a")
    assert take(queue).lapses == 0


# ------------------------------------------------------------------------ prune


def test_only_endings_are_pruned(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="ready")
    queue.add(b"", id="delayed", delay=10**8)
    queue.add(b"", id="leased", priority=90)
    take(queue, 10**8)
    queue.add(b"", id="failed", priority=90, max_lapses=0)
    queue.release(take(queue), lapsed="crashed")
    queue.add(b"", id="ended", priority=90, remember_for=1)
    queue.complete(take(queue))
    clock.advance(10**7)
    assert queue.tidy(force=True) == Tidied(0, 0, 1)
    counts = queue.counts()
    assert (counts.ready, counts.delayed, counts.leased, counts.failed) == (1, 1, 1, 1)


def test_asking_for_work_is_the_maintenance(queue: Queue, clock: Clock, behind: Behind) -> None:
    queue.add(b"", id="ended", result_for=1, keep=True)
    queue.complete(take(queue), b"result")
    queue.add(b"", id="lapsed")
    take(queue, 1)
    queue.add(b"", id="due", delay=1)
    clock.advance(1)
    assert ids(queue.lease_many(9, 30)) == ["lapsed", "due"]
    assert queue.counts().ended == 0
    assert behind("EXISTS", "results") == 0


def test_a_paused_queue_is_maintained_too(queue: Queue, clock: Clock) -> None:
    queue.add(b"", delay=1)
    queue.pause()
    clock.advance(1)
    assert queue.lease(30) is None
    assert queue.counts().ready == 1


@pytest.mark.parametrize("how", ["one by one", "many", "retried", "released", "updated"])
def test_what_is_due_at_the_same_time_comes_in_the_order_it_was_added(
    queue: Queue, clock: Clock, how: str
) -> None:
    names = [f"{(7 * n) % 20:02}" for n in range(20)]
    at = clock.ms / 1000 + 60
    if how == "many":
        queue.add_many([NewJob(b"", id=name, at=at) for name in names], handler="h")
    elif how in ("one by one", "updated"):
        for name in names:
            queue.add(b"", id=name, at=at if how == "one by one" else at + 5)
        for name in sorted(names) if how == "updated" else ():
            queue.add(b"x", id=name, at=at, on_conflict="update")
    else:
        queue.add_many([NewJob(b"", id=name) for name in names])
        for lease in sorted(queue.lease_many(20, 30), key=lambda lease: lease.id):
            if how == "retried":
                queue.retry(lease, error="why", after=60)
            else:
                queue.release(lease, after=60)
    clock.advance(60)
    queue.tidy(force=True)
    assert [job.id for job in queue.peek(20)] == names
    assert all(job.facts.handler == ("h" if how == "many" else None) for job in queue.peek(20))
