"""Leases taken back before they lapse: of one worker, or held for too long; and who works here."""

from __future__ import annotations

import pytest

from conftest import Clock
from engine_support import Behind, take
from holdfast import InvalidArgument, LeaseLost, NewJob, Queue


def test_all_that_a_worker_holds_is_given_back_at_once(
    queue: Queue, other: Queue, clock: Clock
) -> None:
    queue.add_many(NewJob(b"", id=f"{n}") for n in range(6))
    lost = queue.lease_many(3, 3600)
    kept = other.lease_many(2, 3600)
    assert other.fail_worker(queue.holder) == 3
    assert queue.counts().ready == 4
    for lease in lost:
        with pytest.raises(LeaseLost):
            queue.extend(lease, 5)
    assert other.complete_many(kept) == [True, True]
    # Until a job is given out again, its last holder may still complete it.
    assert queue.complete(lost[0]) is True
    assert [lease.id for lease in other.lease_many(9, 60)] == ["1", "2", "5"]


@pytest.mark.parametrize("how", ["holder", "lease", "info"])
def test_a_worker_is_named_by_holder_lease_or_entry(queue: Queue, how: str) -> None:
    queue.register(queues=["some"])
    queue.add(b"", id="a")
    lease = take(queue)
    [info] = queue.workers()
    worker = {"holder": queue.holder, "lease": lease, "info": info}[how]
    assert queue.fail_worker(worker) == 1  # type: ignore[arg-type]
    assert queue.workers() == []


def test_a_failed_worker_counts_as_a_lapse(queue: Queue) -> None:
    queue.add(b"", id="a", max_lapses=1)
    queue.fail_worker(take(queue))
    lease = take(queue)
    assert (lease.lapses, lease.error) == (1, "its worker failed")
    queue.fail_worker(lease)
    assert queue.counts().failed == 1


def test_a_holder_whose_name_begins_alike_is_another(queue: Queue) -> None:
    queue.add(b"", id="a")
    take(queue)
    assert queue.fail_worker(queue.holder[:-1]) == 0
    assert queue.fail_worker("nobody") == 0


def test_more_than_one_call_takes_back(queue: Queue, other: Queue) -> None:
    queue.add_many([b""] * 2500)
    for _ in range(2):
        queue.lease_many(1000, 3600)
    other.lease_many(500, 3600)
    assert other.fail_worker(queue.holder) == 2000
    assert queue.counts().leased == 500


def test_a_worker_that_failed_wakes_a_sleeper(queue: Queue, behind: Behind) -> None:
    queue.add(b"", id="a")
    lease = take(queue)
    behind("UNLINK", "wake")
    queue.fail_worker(lease)
    assert behind("LLEN", "wake") == 1


def test_what_is_held_for_too_long_is_taken_back_whatever_its_lease_says(
    queue: Queue, clock: Clock
) -> None:
    queue.add_many([NewJob(b"", id="old"), NewJob(b"", id="new")])
    old = take(queue, 3600)
    clock.advance(2)
    take(queue, 3600)
    queue.extend(old, 7200)
    clock.advance(3)
    assert queue.tidy(held_longer_than=5).reclaimed == 0
    clock.advance(0.001)
    assert queue.tidy(held_longer_than=5).reclaimed == 1
    lease = take(queue)
    assert (lease.id, lease.lapses, lease.error) == ("old", 1, "held for too long")


def test_it_does_not_wait_after_a_silence(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a")
    take(queue, 3600)
    clock.advance(100)
    assert queue.tidy(held_longer_than=50).reclaimed == 1


def test_longer_than_nothing_are_all_also_those_of_this_millisecond(
    queue: Queue, clock: Clock
) -> None:
    queue.add_many([b"", b""])
    queue.lease_many(2, 600)
    assert queue.tidy(held_longer_than=0).reclaimed == 2


@pytest.mark.parametrize("worker", ["", None, 5, b"holder"])
def test_a_worker_must_be_named(queue: Queue, worker: object) -> None:
    with pytest.raises(InvalidArgument):
        queue.fail_worker(worker)  # type: ignore[arg-type]


# -------------------------------------------------------------------- directory


def test_workers_are_listed_with_what_they_tell(queue: Queue, other: Queue, clock: Clock) -> None:
    assert queue.workers() == []
    queue.register(alive_for=60, queues=["a", "b"])
    other.register(alive_for=30)
    clock.advance(30)
    found = {worker.holder: worker for worker in queue.workers()}
    assert found[queue.holder].alive
    assert not found[other.holder].alive
    assert found[queue.holder].about["queues"] == ["a", "b"]
    assert found[queue.holder].about["pid"] > 0
    assert found[queue.holder].alive_until == clock.ms / 1000 + 30


def test_workers_that_are_long_gone_are_forgotten(queue: Queue, other: Queue, clock: Clock) -> None:
    other.register(alive_for=30)
    for _ in range(130):
        clock.advance(5)
        queue.register(alive_for=30)
    assert [worker.holder for worker in queue.workers()] == [queue.holder]


def test_an_entry_that_somebody_spoiled_is_passed_over(queue: Queue, behind: Behind) -> None:
    queue.register()
    behind("HSET", "workers", "x", "garbage")
    behind("HSET", "workers", "y", b"17 \xc1")
    assert [worker.holder for worker in queue.workers()] == [queue.holder]


def test_what_is_told_is_plain_and_short(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="plain"):
        queue.register(some=object())
    with pytest.raises(InvalidArgument, match="4096"):
        queue.register(some="x" * 5000)
