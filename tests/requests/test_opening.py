"""A request is opened, filled while workers already run its parts, and sealed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from conftest import Clock
from engine_support import Behind, ids, take
from holdfast import JobNotFound, Lease, Queue, WrongState
from request_support import counters, fill, states, work_off


def test_nothing_is_sent_before_it_is_opened(queue: Queue, behind: Behind) -> None:
    request = queue.request("r")
    assert behind.everything() == {}
    with pytest.raises(JobNotFound, match="r: no request has this id"):
        request.add(b"")
    with pytest.raises(JobNotFound):
        request.status()
    assert queue.requests() == []


def test_open_says_how_many_parts_there_are(queue: Queue) -> None:
    assert queue.request("r").open() == 0
    fill(queue.request("r"), 3, seal=False)
    assert queue.request("r").open() == 3


def test_parts_are_named_after_the_request_and_their_number(queue: Queue) -> None:
    request = queue.request("a/b {ü}\n\0")
    request.open()
    receipts = [request.add(b"first"), request.add({"second": 2}), request.add("third")]
    assert [receipt.id for receipt in receipts] == [f"{request.id}/{n}" for n in range(3)]
    assert all(receipts)
    leases = queue.lease_many(9, 30)
    assert ids(leases) == [f"{request.id}/{n}" for n in range(3)]
    assert [lease.data for lease in leases] == [b"first", b'{"second":2}', b"third"]


def test_a_lease_tells_the_request_that_its_job_is_a_part_of(queue: Queue) -> None:
    queue.add(b"", id="plain")
    queue.add(b"", id="grouped", group="g")
    fill(queue.request("r"), 1)
    assert {lease.id: lease.request for lease in queue.lease_many(9, 30)} == {
        "plain": None,
        "grouped": None,
        "r/0": "r",
    }


def test_a_request_without_an_id_gets_one_of_its_own(queue: Queue) -> None:
    requests = [queue.request(), queue.request()]
    for request in requests:
        fill(request, 1)
    assert len({request.id for request in requests}) == 2
    assert work_off(queue) == [f"{request.id}/0" for request in requests]


def test_many_parts_are_added_from_a_generator(queue: Queue) -> None:
    request = queue.request("r")
    request.open()
    assert request.add(b"first").id == "r/0"
    assert request.add_many(b"%d" % n for n in range(1, 2501)) == 2500
    assert request.add_many([]) == 0
    assert request.add(b"last").id == "r/2501"
    assert counters(request.status()) == {"total": 2502, "parked": 2502}
    assert queue.data("r/2500") == b"2500"


def test_workers_run_parts_while_more_of_them_are_added(queue: Queue) -> None:
    """A generator is taken as it goes: what it has brought is there before it brings the next."""
    request = queue.request("r")
    request.open()
    seen: list[int] = []

    def pieces() -> Iterator[bytes]:
        for n in range(2600):
            if n % 1000 == 500:
                seen.append(len(queue.lease_many(1000, 60)))
            yield b"%d" % n

    assert request.add_many(pieces()) == 2600
    assert seen == [0, 1000, 1000]
    assert counters(request.status()) == {"total": 2600, "running": 2000, "parked": 600}
    assert request.status().state == "open"


def test_a_generator_is_not_taken_into_memory(queue: Queue) -> None:
    request = queue.request("r")
    request.open()
    tracemalloc.start()
    try:
        request.add_many(bytes(8192) for _ in range(6000))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 35_000_000  # Of 49 MB, 8 MB go into a call, and are packed there.
    assert request.status().total == 6000
    queue.delete()


def test_a_part_may_wait_for_its_time(queue: Queue, clock: Clock) -> None:
    request = queue.request("r")
    request.open()
    request.add(b"", delay=10)
    request.add(b"", at=clock.ms / 1000 + 5)
    request.add(b"")
    request.seal()
    assert counters(request.status()) == {"total": 3, "delayed": 2, "parked": 1}
    assert work_off(queue) == ["r/2"]
    clock.advance(5)
    assert work_off(queue) == ["r/1"]
    clock.advance(5)
    assert work_off(queue) == ["r/0"]
    assert request.status().state == "completed"


def test_a_part_may_have_options_of_its_own(queue: Queue) -> None:
    request = queue.request("r")
    request.open()
    request.add(b"", handler="h", timeout=5, max_failures=1, max_lapses=2)
    request.add_many([b"", b""], min_backoff=1, max_backoff=9)
    first, second, third = (lease.facts for lease in queue.lease_many(9, 30))
    assert (first.handler, first.timeout_ms) == ("h", 5000)
    assert (first.max_failures, first.max_lapses) == (1, 2)
    assert (second.min_backoff_ms, second.max_backoff_ms) == (1000, 9000)
    assert (third.min_backoff_ms, third.max_failures) == (1000, 10)


def test_parts_of_a_higher_priority_go_before_the_others_of_their_request(queue: Queue) -> None:
    request = queue.request("r")
    request.open()
    request.add_many([b"", b""])
    request.add(b"", priority=90)
    request.add(b"", priority=10)
    request.add(b"")
    assert work_off(queue, 2) == ["r/2", "r/0", "r/1", "r/4", "r/3"]


def test_the_block_opens_and_seals(queue: Queue) -> None:
    with queue.request("r") as request:
        request.add(b"")
        assert request.status().state == "open"
        assert not request.status().sealed
    assert request.status().state == "sealed"
    assert request.status().sealed
    with pytest.raises(WrongState, match="r: this request is sealed"):
        request.add(b"")
    work_off(queue)
    assert request.status().state == "completed"


class Interrupted(BaseException):
    """As little of an `Exception` as a KeyboardInterrupt is."""


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Interrupted, GeneratorExit])
def test_an_exception_in_the_block_cancels(queue: Queue, error: type[BaseException]) -> None:
    held: list[Lease] = []

    def produce() -> None:
        with queue.request("r") as request:
            request.add_many([b"", b""])
            held.append(take(queue))
            raise error

    with pytest.raises(error):
        produce()
    request = queue.request("r")
    assert request.status().state == "stopping"
    assert queue.complete_many(held) == [False]
    assert request.status().state == "cancelled"
    assert states(request) == ["cancelled", "cancelled"]


@pytest.mark.parametrize(("go_on", "error"), [(False, ZeroDivisionError), (True, WrongState)])
def test_a_request_that_failed_meanwhile_takes_no_more_parts(
    queue: Queue, go_on: bool, error: type[Exception]
) -> None:
    """And whatever its producer raises is what is raised."""

    def produce() -> None:
        with queue.request("r", on_failure="fail_fast") as request:
            request.add(b"")
            queue.fail(take(queue), error="why")
            if not go_on:
                raise ZeroDivisionError
            request.add(b"")

    with pytest.raises(error, match="has ended" if go_on else None):
        produce()
    status = queue.request("r").status()
    assert (status.state, counters(status)) == ("failed", {"total": 1, "failed": 1})


def test_an_exception_in_the_block_leaves_a_request_alone_that_another_has_sealed(
    queue: Queue,
) -> None:
    def produce() -> None:
        with queue.request("r") as request:
            request.add(b"")
            queue.request("r").seal()
            request.add(b"")

    with pytest.raises(WrongState):
        produce()
    assert queue.request("r").status().state == "sealed"
    assert work_off(queue) == ["r/0"]


def test_sealing_twice_is_sealing_once(queue: Queue) -> None:
    request = fill(queue.request("r"), 1)
    request.seal()
    assert work_off(queue) == ["r/0"]
    request.seal()
    assert (request.status().state, request.status().endings) == ("completed", 1)


def test_what_went_wrong_in_the_block_is_not_hidden_by_a_cancel_that_fails(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def go_wrong() -> None:
        with queue.request("r") as request:
            request.add(b"")
            queue.delete()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        go_wrong()
    assert "could not be cancelled" in caplog.text


# ----------------------------------------------------------- an id that was used before


@pytest.mark.parametrize("keep_for", [0, 10, 60])
def test_an_id_is_free_as_soon_as_its_request_need_not_be_kept(
    queue: Queue, clock: Clock, keep_for: float
) -> None:
    fill(queue.request("r", keep_for=keep_for, follow_up=b"after"), 3)
    work_off(queue)
    clock.advance(max(keep_for, 10) - 0.001)
    with pytest.raises(WrongState):
        queue.request("r").open()
    clock.advance(0.001)
    assert queue.request("r").open() == 0
    again = queue.request("r")
    assert again.status().state == "open"
    assert again.add(b"new").id == "r/0"
    again.seal()
    assert work_off(queue) == ["r/0"]
    assert counters(again.status()) == {"total": 1, "done": 1}


def test_the_results_of_an_earlier_request_are_forgotten_when_its_id_is_used_again(
    queue: Queue, clock: Clock
) -> None:
    request = fill(queue.request("r", keep_for=60), 4)
    queue.complete_many((lease, b"old") for lease in queue.lease_many(2, 60))
    queue.cancel("r/2")
    queue.complete(take(queue))
    clock.advance(60)
    fill(queue.request("r"), 4)
    assert [part.result for part in request.results()] == [None] * 4
    assert states(request) == ["waiting"] * 4


def test_opening_forgets_thousands_of_parts_call_by_call(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    fill(queue.request("r", keep_for=60), 2500).cancel()
    clock.advance(60)
    assert queue.request("r").open() == 0
    assert behind("HLEN", "facts") == 0


def test_an_id_whose_parts_wait_for_a_decision_is_taken(queue: Queue, clock: Clock) -> None:
    request = fill(queue.request("r", keep_for=60), 1)
    queue.fail(take(queue), error="why")
    clock.advance(3600)
    with pytest.raises(WrongState, match="has ended and is remembered"):
        request.open()
    queue.cancel("r/0")
    request.open()
    assert request.status().total == 0
