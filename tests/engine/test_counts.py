from __future__ import annotations

from conftest import Clock
from engine_support import Behind, take
from holdfast import Counts, NewJob, Queue


def test_an_empty_queue_counts_nothing_and_writes_nothing(queue: Queue, behind: Behind) -> None:
    assert queue.counts() == Counts(0, 0, 0, 0, 0, 0, paused=False)
    assert len(queue) == 0
    assert behind.everything() == {}


def test_every_job_is_counted_where_it_stands(queue: Queue, behind: Behind) -> None:
    queue.add(b"", max_lapses=0)
    queue.release(take(queue), lapsed="crashed")
    queue.add_many([b"", b""], remember_for=60)
    queue.complete_many(queue.lease_many(2, 30))
    queue.add_many([b""] * 3)
    queue.lease_many(3, 30)
    queue.add_many([NewJob(b"", delay=60)] * 4)
    queue.add_many([b""] * 5)
    before = behind.everything()
    counts = queue.counts()
    assert counts == Counts(ready=5, delayed=4, leased=3, parked=0, failed=1, ended=2, paused=False)
    assert counts.waiting == len(queue) == 9
    assert behind.everything() == before


def test_what_is_due_is_delayed_until_somebody_promotes_it(queue: Queue, clock: Clock) -> None:
    queue.add(b"", delay=1)
    clock.advance(1)
    assert queue.counts().delayed == 1
    queue.tidy()
    assert queue.counts().ready == 1


def test_a_queue_is_something_also_when_it_is_empty(queue: Queue) -> None:
    assert queue
