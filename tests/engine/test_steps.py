"""Walks look at as many ids per call as they are told, no more, and miss none."""

from __future__ import annotations

from typing import Any

import pytest

from engine_support import Behind
from holdfast import InvalidArgument, NewJob, Queue
from holdfast.engine import calls


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
    chunk = queue._run(calls.repair((1, b""), count))
    assert len(chunk.done) == count
    assert chunk.following == ((1, b"%d" % (10 - count)) if count < 10 else (2, b""))


def test_a_thousand_at_once_is_not_too_many(queue: Queue) -> None:
    ids = [f"{n}" for n in range(1000)]
    queue.add_many(NewJob(b"", id=id) for id in ids)
    leases = queue.lease_many(1000, 30)
    assert len(leases) == 1000
    failures = [(lease.id, lease.token, 0, b"why") for lease in leases]
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


NOTHING: dict[str, calls.Call[Any]] = {
    "audit": calls.audit(count=0),
    "cancel_matching": calls.cancel_matching(b"x", count=0),
    "recall": calls.recall(holder="h", count=0),
    "repair": calls.repair(count=0),
    "peek": calls.peek("ready", 0, 0),
    "lease": calls.lease("h.1", 1, 0),
    "lease for no time": calls.lease("h.1", 0, 1),
    "extend for no time": calls.extend([("a", "h.1", None)], 0),
    "register for no time": calls.register("h", 0, b""),
}


@pytest.mark.parametrize("what", NOTHING)
def test_nothing_at_all_is_not_asked_for(queue: Queue, behind: Behind, what: str) -> None:
    with pytest.raises(InvalidArgument):
        queue._run(NOTHING[what])
    assert behind.everything() == {}
