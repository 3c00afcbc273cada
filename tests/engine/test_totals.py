from __future__ import annotations

from conftest import Clock
from engine_support import Behind, take
from holdfast import NewJob, Queue, Totals


def test_a_new_queue_has_done_nothing_and_that_writes_nothing(queue: Queue, behind: Behind) -> None:
    assert queue.totals() == Totals(0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert behind.everything() == {}


def test_what_happened_is_counted(queue: Queue, clock: Clock) -> None:
    queue.add_many([NewJob(b"", id=f"job-{n}") for n in range(6)])
    queue.add(b"", id="later", delay=1)
    queue.add(b"", id="job-0")  # It is there.
    queue.complete(take(queue))
    queue.retry(take(queue), error="why", after=1)
    queue.release(take(queue))
    queue.fail(take(queue), error="why")
    queue.revive("job-2")
    queue.cancel("job-5")
    lapsing = queue.lease(1)
    assert lapsing
    for _ in range(3):  # Nobody is silent for long.
        clock.advance(2)
        queue.tidy()
    totals = queue.totals()
    assert totals == Totals(
        added=7,
        leased=5,
        completed=1,
        retried=1,
        released=1,
        reclaimed=1,
        failed=1,
        cancelled=1,
        revived=1,
    )


def test_what_is_moved_about_is_not_added_again(queue: Queue, clock: Clock) -> None:
    queue.add(b"", delay=1)
    clock.advance(1)
    queue.tidy()
    queue.retry(take(queue), error="why", after=1)
    clock.advance(1)
    queue.tidy()
    with queue.request("r", limit=1) as request:
        request.add_many([b"x"] * 3)
    while lease := queue.lease(60):
        queue.complete(lease)
    assert queue.totals().added == 4


def test_a_deleted_queue_begins_anew(queue: Queue) -> None:
    queue.add(b"")
    queue.delete()
    assert queue.totals().added == 0
