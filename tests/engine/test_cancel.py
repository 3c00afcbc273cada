"""Somebody's no: a job that waits is gone, one that runs ends as cancelled."""

from __future__ import annotations

import pytest

from conftest import Clock
from engine_support import Behind, take
from holdfast import Extended, LeaseLost, NewJob, Queue
from holdfast.engine import calls

WAITING = ["ready", "delayed", "failed", "retried", "reclaimed"]


def one_of_each(queue: Queue, clock: Clock, **options: int) -> None:
    queue.add(b"x", id="failed", **options)  # type: ignore[arg-type]
    queue.fail(take(queue), error="why")
    queue.add(b"x", id="retried", **options)  # type: ignore[arg-type]
    queue.retry(take(queue), error="why", after=60)
    queue.add(b"x", id="reclaimed", **options)  # type: ignore[arg-type]
    queue.lease(1)
    clock.advance(1)
    queue.tidy()
    queue.add(b"x", id="delayed", delay=60, **options)  # type: ignore[arg-type]
    queue.add(b"x", id="ready", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("id", WAITING)
def test_a_job_that_waits_is_gone(queue: Queue, clock: Clock, behind: Behind, id: str) -> None:
    one_of_each(queue, clock)
    assert queue.cancel(id) is True
    assert queue.show(id) is None
    assert queue.cancel(id) is False
    for hash in ("jobs", "facts", "holds", "results", "next"):
        assert not behind("HEXISTS", hash, id)
    assert queue.add(b"", id=id)


@pytest.mark.parametrize("id", WAITING)
def test_who_waits_for_a_result_learns_that_it_was_cancelled(
    queue: Queue, clock: Clock, id: str
) -> None:
    one_of_each(queue, clock, result_for=60, remember_for=60)
    assert queue.cancel(id)
    outcome = queue.result(id)
    assert outcome is not None
    assert (outcome.kind, outcome.result, outcome.completed) == ("cancelled", None, False)
    # The id was to stay taken only if the job had completed.
    assert queue.add(b"", id=id)


def test_nobody_is_cancelled_by_an_id_that_nobody_has(queue: Queue) -> None:
    assert queue.cancel("nobody") is False
    queue.add(b"", id="done", result_for=60)
    queue.complete(take(queue))
    assert queue.cancel("done") is False
    outcome = queue.result("done")
    assert outcome is not None
    assert outcome.kind == "completed"


# ---------------------------------------------------------------------- running


def test_a_running_job_is_marked_and_its_holder_told(queue: Queue) -> None:
    queue.add_many([NewJob(b"", id="a"), NewJob(b"", id="b")])
    a, b = queue.lease_many(2, 60)
    assert queue.cancel("a") is True
    assert queue.cancel("a") is False
    assert queue.extend_many([a, b], 60) == [Extended.CANCELLED, Extended.HELD]
    assert queue.extend(a, 60) is Extended.CANCELLED
    assert "cancelled" in queue.explain("a")


@pytest.mark.parametrize(
    "settle",
    [
        *("complete", "complete many", "riding", "by force", "retry", "fail"),
        *("release", "later", "lapsed", "lapse", "recall"),
    ],
)
@pytest.mark.parametrize("kept", [0, 60])
def test_however_it_is_settled_it_ends_as_cancelled(
    queue: Queue, clock: Clock, settle: str, kept: int
) -> None:
    queue.add(b"x", id="a", max_lapses=0, max_failures=0, result_for=kept, remember_for=kept)
    lease = take(queue, 1)
    queue.cancel("a")
    match settle:
        case "complete":
            assert queue.complete(lease, b"result", add=[NewJob(b"", id="follow-up")]) is False
        case "complete many":
            assert queue.complete_many([(lease, b"result")]) == [False]
        case "riding":
            assert queue.lease_many(1, 30, complete=[(lease, b"result")]).completed == [False]
        case "by force":
            assert queue.complete("a", b"result", force=True) is False
        case "retry":
            queue.retry(lease, error="why")
        case "fail":
            queue.fail(lease, error="why")
        case "release":
            queue.release(lease)
        case "later":
            queue.release(lease, after=5)
        case "lapsed":
            queue.release(lease, lapsed="crashed")
        case "recall":
            assert queue.fail_worker(lease) == 1
        case _:
            clock.advance(1)
            assert queue.tidy().reclaimed == 1
    counts = queue.counts()
    assert (counts.waiting, counts.leased, counts.failed) == (0, 0, 0)
    assert queue.complete(lease) is False
    with pytest.raises(LeaseLost):
        queue.extend(lease, 5)
    job = queue.show("a")
    assert (job and job.facts.outcome) == ("cancelled" if kept else None)


def test_a_running_job_can_be_left_alone(queue: Queue) -> None:
    queue.add(b"", id="a")
    lease = take(queue)
    assert queue.cancel("a", running=False) is False
    assert queue.extend(lease, 5) is Extended.HELD
    assert queue.complete(lease) is True


def test_a_waiting_update_is_dropped_with_it_or_alone(queue: Queue) -> None:
    queue.add(b"", id="a")
    lease = take(queue)
    queue.add(b"new", id="a", on_conflict="update")
    assert queue.cancel("a", running=False) is True
    assert queue.cancel("a", running=False) is False
    queue.add(b"new", id="a", on_conflict="update")
    assert queue.cancel("a") is True
    assert queue.complete(lease) is False
    assert queue.show("a") is None


@pytest.mark.parametrize("on_conflict", ["ignore", "raise", "update"])
def test_what_is_added_under_a_cancelled_id_waits_until_the_run_is_over(
    queue: Queue, on_conflict: str
) -> None:
    queue.add(b"old", id="a")
    lease = take(queue)
    queue.cancel("a")
    receipt = queue.add(b"new", id="a", on_conflict=on_conflict, priority=70)  # type: ignore[arg-type]
    assert (receipt.created, receipt.updated, receipt.state) == (False, True, "leased")
    assert queue.lease(30) is None
    assert queue.complete(lease) is False
    granted = take(queue)
    assert (granted.id, granted.data) == ("a", b"new")


def test_a_cancelled_id_takes_one_job_and_is_then_taken(queue: Queue) -> None:
    queue.add(b"old", id="a")
    lease = take(queue)
    queue.cancel("a")
    receipts = queue.add_many([NewJob(b"1", id="a"), NewJob(b"2", id="a")])
    assert [receipt.updated for receipt in receipts] == [True, False]
    assert not queue.add(b"3", id="a").updated
    queue.release(lease)
    assert take(queue).data == b"1"


def test_a_failure_handler_can_be_cancelled(queue: Queue) -> None:
    queue.add(b"", id="a")
    queue.fail(take(queue), error="why")
    lease = queue.lease(30, failed=True)
    assert lease is not None
    assert queue.cancel("a")
    queue.retry(lease, error="no")
    assert queue.counts().failed == 0


# --------------------------------------------------------------------- by payload


def test_all_jobs_with_a_payload_are_cancelled(queue: Queue, clock: Clock) -> None:
    one_of_each(queue, clock)
    queue.add(b"other", id="other", priority=99)
    queue.add(b"x", id="leased", priority=98)
    _, lease = queue.lease_many(2, 60)
    queue.add(b"y", id="same length")
    assert queue.cancel_matching(b"x") == 6
    assert queue.cancel_matching(b"x") == 0
    assert queue.extend(lease, 5) is Extended.CANCELLED
    assert [job.id for job in queue.peek(10)] == ["same length"]
    assert queue.counts().leased == 2


def test_what_runs_can_be_left_alone_by_payload(queue: Queue) -> None:
    queue.add_many([b"x", b"x"])
    lease = take(queue)
    assert queue.cancel_matching(b"x", running=False) == 1
    assert queue.complete(lease)


def test_a_payload_is_encoded_as_add_does(queue: Queue) -> None:
    queue.add({"to": "a"})
    queue.add("text")
    assert queue.cancel_matching({"to": "a"}) == 1
    assert queue.cancel_matching("text") == 1


def test_a_long_queue_is_searched_whole(queue: Queue) -> None:
    queue.add_many(b"wanted" if n % 500 == 0 else b"%06d" % n for n in range(2501))
    queue.add_many([NewJob(b"wanted", delay=60)] * 2)
    assert queue.cancel_matching(b"wanted") == 8
    assert queue.counts().waiting == 2495


@pytest.mark.parametrize("group", [None, "g"])
def test_of_big_payloads_a_call_reads_a_few(queue: Queue, group: str | None) -> None:
    big = [b"%d" % (n % 2) + b"x" * 1024 * 1024 for n in range(20)]
    queue.add_many([NewJob(data, group=group) for data in big])
    queue.add_many([NewJob(b"", group=group)] * 2000)
    cancelled, place = queue._run(calls.cancel_matching(big[0], place=(3 if group else 4, 20)))
    assert 1 <= cancelled <= 4
    assert place == (3 if group else 4, 20 - 7)
    assert cancelled + queue.cancel_matching(big[0]) == 10
    assert queue.cancel_matching(big[1]) == 10
    assert queue.counts().waiting == 2000


def test_an_empty_payload_is_a_payload(queue: Queue) -> None:
    queue.add_many([b"", b"x", b""])
    assert queue.cancel_matching(b"") == 2


def test_an_update_that_waits_is_dropped_by_its_payload(queue: Queue) -> None:
    queue.add(b"old", id="a")
    lease = take(queue)
    queue.add(b"new", id="a", on_conflict="update", handler="h")
    assert queue.cancel_matching(b"other") == 0
    assert queue.cancel_matching(b"new") == 1
    assert queue.complete(lease) is True
    assert queue.show("a") is None


def test_an_update_with_another_payload_outlives_the_run_that_is_cancelled(queue: Queue) -> None:
    queue.add(b"old", id="a")
    lease = take(queue)
    queue.add(b"new", id="a", on_conflict="update")
    assert queue.cancel_matching(b"old") == 1
    assert queue.complete(lease) is False
    assert take(queue).data == b"new"
