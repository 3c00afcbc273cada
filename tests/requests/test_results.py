"""What became of each part, in their order, as long as the request is kept."""

from __future__ import annotations

import pytest

from conftest import Clock
from engine_support import Behind, ids, take
from holdfast import JobNotFound, Part, Queue
from request_support import fill, parts_of, states

MB = 1024 * 1024


def test_parts_come_in_their_order_with_what_became_of_each(queue: Queue) -> None:
    request = queue.request("r")
    request.open()
    request.add_many([b""] * 5, max_failures=0)
    request.add(b"", delay=60)
    done, failed, cancelled, retried, running = queue.lease_many(5, 60)
    assert queue.complete(done, {"sum": 3})
    queue.fail(failed, error=ValueError("why"))
    queue.cancel(cancelled.id)
    queue.complete(cancelled, b"too late")
    queue.release(retried, lapsed="it crashed")
    assert parts_of(request) == [
        Part(0, "r/0", "done", b'{"sum":3}'),
        Part(1, "r/1", "failed", None, "ValueError: why"),
        Part(2, "r/2", "cancelled"),
        Part(3, "r/3", "waiting", None, "it crashed"),
        Part(4, running.id, "running"),
        Part(5, "r/5", "waiting"),
    ]
    assert next(request.results()).json() == {"sum": 3}
    assert list(request.results(first=4)) == parts_of(request)[4:]
    assert list(request.results(first=6)) == []


def test_a_part_without_a_result_has_none_and_an_empty_one_is_one(queue: Queue) -> None:
    request = fill(queue.request("r"), 2)
    none, empty = queue.lease_many(2, 30)
    queue.complete_many([none, (empty, b"")])
    assert [part.result for part in request.results()] == [None, b""]
    assert states(request) == ["done", "done"]


def test_results_are_kept_without_being_asked_for(queue: Queue) -> None:
    """However a part is completed."""
    request = fill(queue.request("r"), 4)
    one, two, three = queue.lease_many(3, 60)
    queue.complete(one, b"one")
    queue.complete_many([(two, b"two")])
    queue.lease_many(1, 60, complete=[(three, b"three")])
    queue.complete("r/3", b"by force", force=True)
    assert [part.result for part in request.results()] == [b"one", b"two", b"three", b"by force"]
    assert request.status().state == "completed"


def test_a_part_that_failed_and_was_handled_tells_why(queue: Queue) -> None:
    request = fill(queue.request("r"), 1)
    queue.fail(take(queue), error="why")
    handled = queue.lease(30, failed=True)
    assert handled
    assert parts_of(request) == [Part(0, "r/0", "running", None, "why")]
    queue.complete(handled, b"handled")
    assert parts_of(request) == [Part(0, "r/0", "failed", None, "why")]


def test_what_is_stored_meanwhile_can_be_read_meanwhile(queue: Queue) -> None:
    request = fill(queue.request("r"), 3)
    leases = queue.lease_many(3, 60)
    for lease in leases:
        queue.set_result(lease.id, b"so far")
    assert [part.result for part in request.results()] == [b"so far"] * 3
    assert queue.audit() == []
    queue.complete(leases[0])
    queue.complete(leases[1], b"in the end")
    queue.cancel(leases[2].id)
    queue.release(leases[2])
    assert parts_of(request) == [
        Part(0, "r/0", "done", b"so far"),
        Part(1, "r/1", "done", b"in the end"),
        Part(2, "r/2", "cancelled"),
    ]


def test_a_result_can_be_stored_as_long_as_the_request_is_kept(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    """From anywhere, also after the part has ended."""
    request = fill(queue.request("r", keep_for=60), 3)
    queue.complete(take(queue))
    queue.complete(take(queue), b"first")
    queue.cancel("r/2")
    for id in ("r/0", "r/1", "r/2"):
        queue.set_result(id, b"last")
    assert [part.result for part in request.results()] == [b"last"] * 3
    assert states(request) == ["done", "done", "cancelled"]
    assert queue.audit() == []
    with pytest.raises(JobNotFound):
        queue.set_result("r/3", b"")
    clock.advance(60)
    queue.tidy()
    with pytest.raises(JobNotFound):
        queue.set_result("r/0", b"")
    assert behind("HLEN", "results") == 0


def test_a_result_of_a_part_that_was_retried_is_that_of_its_last_run(
    queue: Queue, clock: Clock
) -> None:
    request = fill(queue.request("r"), 1)
    queue.retry(take(queue), error="why", after=5)
    assert parts_of(request) == [Part(0, "r/0", "waiting", None, "why")]
    clock.advance(5)
    queue.complete(take(queue), b"result")
    assert parts_of(request) == [Part(0, "r/0", "done", b"result")]


def test_a_late_result_of_a_part_that_was_taken_back_counts_once(
    queue: Queue, other: Queue
) -> None:
    request = fill(queue.request("r", limit=1), 1)
    late = take(queue)
    assert queue.fail_worker(queue.holder) == 1
    assert states(request) == ["waiting"]
    assert queue.complete(late, b"late")
    assert other.lease(30) is None
    assert parts_of(request) == [Part(0, "r/0", "done", b"late")]
    assert request.status().state == "completed"


def test_a_result_of_who_lost_its_part_does_not_count(queue: Queue, other: Queue) -> None:
    request = fill(queue.request("r"), 1)
    late = take(queue)
    queue.fail_worker(queue.holder)
    holder = take(other)
    assert not queue.complete(late, b"late")
    assert other.complete(holder, b"in time")
    assert parts_of(request) == [Part(0, "r/0", "done", b"in time")]


def test_thousands_of_parts_come_in_their_order(queue: Queue) -> None:
    request = fill(queue.request("r"), 2500)
    while leases := queue.lease_many(1000, 60):
        queue.complete_many((lease, lease.data) for lease in reversed(leases))
    found = parts_of(request)
    assert [part.number for part in found] == list(range(2500))
    assert [part.result for part in found] == [b"%d" % n for n in range(2500)]
    assert [part.id for part in request.results(first=2497)] == ["r/2497", "r/2498", "r/2499"]


def test_results_that_do_not_fit_into_one_reply_come_all_the_same(queue: Queue) -> None:
    request = fill(queue.request("r"), 20)
    for lease in queue.lease_many(20, 60):
        assert queue.complete(lease, lease.data.ljust(MB, b"."))
    expected = [(b"%d" % n).ljust(MB, b".") for n in range(20)]
    # Not compared by assert, which would print them.
    if [part.result for part in request.results()] != expected:
        pytest.fail("other results, or in another order")
    queue.delete()


def test_payloads_that_do_not_fit_into_one_lease_come_one_after_the_other(queue: Queue) -> None:
    """Parts that are not given out leave no place taken."""
    request = queue.request("r", limit=3)
    request.open()
    request.add_many(bytes(3 * MB) for _ in range(4))
    request.seal()
    first = queue.lease_many(9, 60)
    assert ids(first) == ["r/0", "r/1"]
    assert request.status().running == 2
    assert ids(queue.lease_many(9, 60)) == ["r/2"]
    assert queue.lease(60) is None
    queue.complete_many(first)
    assert ids(queue.lease_many(9, 60)) == ["r/3"]
    queue.delete()


def test_the_results_of_nobody_are_not_found(queue: Queue) -> None:
    with pytest.raises(JobNotFound):
        next(queue.request("nobody").results())
    queue.add(b"", group="g")
    with pytest.raises(JobNotFound):
        next(queue.request("g").results())
