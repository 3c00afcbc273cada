"""Walks look at as many ids per call as they are told, no more, and miss none."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import Clock
from engine_support import Behind, opened
from holdfast import InvalidArgument, NewJob, Queue, Request
from holdfast.engine import calls, request_calls
from holdfast.engine.call import Call, Failed


def held_up(queue: Queue, parts: int, **options: Any) -> Request:
    """Open a request none of whose parts may run."""
    return opened(queue, "r", parts, limit=0, **options)


@pytest.mark.parametrize("count", [1, 3, 10, 1000])
def test_an_audit_looks_at_so_many(queue: Queue, count: int) -> None:
    queue.add_many(NewJob(b"", id=f"{n}") for n in range(10))
    chunk = queue._run(calls.audit((1, 0), count))
    assert chunk.tallies[0] == min(count, 10)
    assert chunk.following == ((1, 10 - count) if count < 10 else (2, 0) if count == 10 else None)


@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_search_by_payload_looks_at_so_many(queue: Queue, count: int) -> None:
    queue.add_many(NewJob(b"x", id=f"{n}", delay=60) for n in range(10))
    cancelled, place = queue._run(calls.cancel_matching(b"x", place=(2, 0), count=count))
    assert cancelled == count
    assert place == ((2, 10 - count) if count < 10 else (3, 0))
    assert queue.counts().delayed == 10 - count


@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_recall_looks_at_so_many(queue: Queue, count: int) -> None:
    queue.add_many(NewJob(b"x", id=f"{n}") for n in range(10))
    queue.lease_many(10, 30)
    assert queue._run(calls.recall(holder=queue.holder, count=count)) == (count, 10 - count)
    assert queue.counts().ready == count


@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_repair_looks_at_so_many(queue: Queue, spoiled: Behind, count: int) -> None:
    queue.add_many(NewJob(b"x", id=f"{n}") for n in range(10))
    spoiled("UNLINK", "jobs")
    chunk = queue._run(calls.repair((4, b""), count))
    assert len(chunk.done) == count
    assert chunk.following == ((4, b"%d" % (10 - count)) if count < 10 else (5, b""))


@pytest.mark.parametrize("count", [1, 3, 10])
def test_an_audit_looks_at_so_many_that_are_parked(queue: Queue, count: int) -> None:
    held_up(queue, 10)
    chunk = queue._run(calls.audit((4, 0), count))
    assert chunk.tallies[0] == count
    assert chunk.fellows == {("r", "parked"): count}
    assert chunk.following == ((4, 10 - count) if count < 10 else (5, 0))


@pytest.mark.parametrize("count", [1, 3, 10])
def test_an_audit_looks_at_so_many_requests(queue: Queue, count: int) -> None:
    for n in range(10):
        queue.request(f"{n}").open()
    chunk = queue._run(calls.audit((7, 0), count))
    assert len(chunk.records) == chunk.tallies[5] == count
    assert chunk.following == ((7, 10 - count) if count < 10 else (8, 0))


@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_search_by_payload_looks_at_so_many_that_are_parked(queue: Queue, count: int) -> None:
    held_up(queue, 10)
    cancelled, place = queue._run(calls.cancel_matching(b"x", place=(3, 0), count=count))
    assert cancelled == count
    assert place == ((3, 10 - count) if count < 10 else (4, 0))
    assert queue.counts().parked == 10 - count


def test_a_search_by_payload_in_small_steps_misses_no_part(queue: Queue) -> None:
    held_up(queue, 10)
    queue.add_many([NewJob(b"x", group="g", group_limit=0)] * 3)
    place: tuple[int, int] | None = (1, 0)
    total = 0
    while place:
        cancelled, place = queue._run(calls.cancel_matching(b"x", place=place, count=4))
        total += cancelled
    assert total == 13
    assert queue.counts().waiting == 0


@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_repair_looks_at_so_many_requests(queue: Queue, spoiled: Behind, count: int) -> None:
    for n in range(10):
        queue.request(f"{n}").open()
    spoiled("UNLINK", "requests")
    chunk = queue._run(calls.repair((1, b""), count))
    assert len(chunk.done) == count
    assert chunk.following == ((1, b"%d" % (10 - count)) if count < 10 else (2, b""))


@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_repair_looks_at_so_many_that_are_parked(
    queue: Queue, spoiled: Behind, count: int
) -> None:
    held_up(queue, 10)
    spoiled("UNLINK", "jobs")
    chunk = queue._run(calls.repair((7, b""), count))
    assert len(chunk.done) == count
    assert chunk.following == ((7, b"%d" % (10 - count)) if count < 10 else (8, b""))


@pytest.mark.parametrize("count", [1, 3, 10, 1000])
def test_a_list_of_requests_looks_at_so_many(queue: Queue, count: int) -> None:
    for n in range(10):
        queue.request(f"{n}").open()
    position, found = 0, set[str]()
    while True:
        some, position = queue._run(request_calls.some_requests(position, count))
        assert len(some) == (min(count, 10) if position else len(some))
        assert len(some) <= count
        found |= {one.name for one in some}
        if not position:
            break
    assert found == {f"{n}" for n in range(10)}


@pytest.mark.parametrize("count", [1, 3, 10, 1000])
def test_a_look_at_parts_looks_at_so_many(queue: Queue, count: int) -> None:
    held_up(queue, 10)
    assert len(queue._run(request_calls.parts("r", 0, count)).parts) == min(count, 10)
    assert len(queue._run(request_calls.parts("r", 8, count)).parts) == min(count, 2)
    assert queue._run(request_calls.parts("r", 10, count)).parts == []


def test_a_look_at_parts_brings_no_more_results_than_fit(queue: Queue) -> None:
    with queue.request("r") as request:
        request.add_many([b"x"] * 20)
    result = b"x" * 1_000_000
    queue.complete_many((lease, result) for lease in queue.lease_many(20, 60))
    assert len(queue._run(request_calls.parts("r", 0, 1000)).parts) == 8
    assert [part.result for part in request.results()] == [result] * 20


@pytest.mark.parametrize("parts", [999, 1000, 1001, 2500])
def test_a_request_is_emptied_in_calls_of_a_thousand(queue: Queue, parts: int) -> None:
    request = held_up(queue, parts // 2)
    request.add_many([b"x"] * (parts - parts // 2 - 1))
    request.add(b"x", delay=60)
    letter, left = queue._run(request_calls.change_request("r", cancel=True))
    assert letter == "1"
    assert max(0, parts - 1001) <= left <= max(1, parts - 999)
    assert queue.audit() == []
    while queue.tidy().tended:
        assert queue.audit() == []
        if request.status().ended:
            break
    assert (request.status().state, request.status().cancelled) == ("cancelled", parts)


@pytest.mark.parametrize("parts", [998, 999, 1000, 2500])
def test_a_request_is_forgotten_in_calls_of_a_thousand(
    queue: Queue, clock: Clock, behind: Behind, parts: int
) -> None:
    request = held_up(queue, parts, keep_for=1)
    request.cancel()
    clock.advance(10)
    calls_made = 0
    while queue.requests():
        queue._run(calls.tidy())
        calls_made += 1
        assert queue.audit() == []
    assert calls_made == parts // 999 + (parts % 999 > 0)
    assert behind.everything().keys() <= {"calls", "meta", "wake"}


def test_a_thousand_at_once_is_not_too_many(queue: Queue) -> None:
    ids = [f"{n}" for n in range(1000)]
    queue.add_many(NewJob(b"", id=id) for id in ids)
    leases = queue.lease_many(1000, 30)
    assert len(leases) == 1000
    failures = [Failed(lease.id, lease.token, b"", b"why") for lease in leases]
    assert queue._run(calls.fail(failures)) == [True] * 1000
    assert queue._run(calls.revive(ids)) == [True] * 1000
    assert len(queue.peek(1000)) == 1000
    assert queue._run(calls.cancel(ids)) == [True] * 1000


@pytest.mark.parametrize("priority", [0, 99])
def test_the_lowest_and_the_highest_priority_are_in_order(
    queue: Queue, spoiled: Behind, priority: int
) -> None:
    queue.add(b"", id="a", priority=priority)
    assert queue.audit() == []
    assert queue.repair() == []
    lease = queue.lease(30)
    assert lease is not None
    queue.release(lease)
    assert [job.priority for job in queue.peek()] == [priority]


NOTHING: dict[str, Call[Any]] = {
    "audit": calls.audit(count=0),
    "cancel_matching": calls.cancel_matching(b"x", count=0),
    "recall": calls.recall(holder="h", count=0),
    "repair": calls.repair(count=0),
    "peek": calls.peek("ready", 0, 0),
    "lease": calls.lease("h.1", 1, 0),
    "lease for no time": calls.lease("h.1", 0, 1),
    "extend for no time": calls.extend([("a", "h.1", None)], 0),
    "requests": request_calls.some_requests(count=0),
    "parts": request_calls.parts("r", 0, 0),
    "no parts": request_calls.add_parts("r", 0, []),
    "open for no time": request_calls.open_request("r", open_for_ms=0),
    "register for no time": calls.register("h", 0, b""),
}


@pytest.mark.parametrize("what", NOTHING)
def test_nothing_at_all_is_not_asked_for(queue: Queue, behind: Behind, what: str) -> None:
    with pytest.raises(InvalidArgument):
        queue._run(NOTHING[what])
    assert behind.everything() == {}
