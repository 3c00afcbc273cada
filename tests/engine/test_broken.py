"""What somebody else broke in the server must not stop the queue."""

from __future__ import annotations

import pytest

from conftest import Clock
from engine_support import Behind, ids, pack, take
from holdfast import NewJob, Queue
from holdfast.asking import Requeue


def lease_all(queue: Queue, count: int = 3) -> list[str]:
    """Lease until there is nothing more."""
    leased: list[str] = []
    while leases := queue.lease_many(count, 30):
        leased += ids(leases)
    return leased


def test_an_id_without_a_payload_is_dropped_and_hides_nothing(
    queue: Queue, spoiled: Behind
) -> None:
    for n in range(3):
        spoiled("ZADD", "ready", n, f"ghost-{n}")
        spoiled("HSET", "holds", f"ghost-{n}", "gone.1 1 1")
        spoiled("HSET", "facts", f"ghost-{n}", pack(lapses=1))
    queue.add(b"real", id="a")
    assert take(queue).data == b"real"
    assert queue.lease_many(9, 30) == []
    assert queue.counts().ready == 0
    assert queue.audit() == []


def test_ids_without_a_payload_among_jobs_are_dropped(queue: Queue, spoiled: Behind) -> None:
    queue.add_many([NewJob(b"", id=id) for id in "abcdef"])
    spoiled("HDEL", "jobs", "a", "c", "f")
    assert lease_all(queue) == ["b", "d", "e"]
    assert queue.audit() == []


def test_a_thousand_ids_without_a_payload_hide_no_job(queue: Queue, spoiled: Behind) -> None:
    queue.add_many(NewJob(b"", id=str(n)) for n in range(1000))
    queue.add(b"", id="real")
    spoiled("UNLINK", "jobs")
    spoiled("HSET", "jobs", "real", b"")
    assert take(queue).id == "real"


def test_ghosts_do_not_come_back_from_other_sets(
    queue: Queue, clock: Clock, spoiled: Behind
) -> None:
    queue.add(b"", id="leased")
    take(queue, 1)
    queue.add(b"", id="delayed", delay=1)
    queue.add(b"real", id="real", delay=1)
    spoiled("HDEL", "jobs", "leased", "delayed")
    clock.advance(1)
    assert lease_all(queue) == ["real"]
    assert queue.audit() == []


@pytest.mark.parametrize(
    "hold",
    [
        None,
        "",
        "garbage",
        "token 1 rank",
        "token 1 nan",
        "token 1 -nan",
        "token 1 inf",
        "token 1 -inf",
        "token 1 -5",
        "token 1 1e300",
        "token 1 1.5",
    ],
)
@pytest.mark.parametrize("requeue", ["rank", "back"])
def test_a_broken_hold_does_not_stop_the_queue(
    queue: Queue, clock: Clock, spoiled: Behind, hold: str | None, requeue: Requeue
) -> None:
    other = Queue(queue.name, queue.server, requeue=requeue, clock=clock)
    queue.add_many([NewJob(b"", id=id) for id in "abc"])
    queue.lease_many(2, 1)
    if hold is None:
        spoiled("HDEL", "holds", "a")
    else:
        spoiled("HSET", "holds", "a", hold)
    clock.advance(1)
    assert other.tidy().reclaimed == 2
    # What cannot be read is corrected, not carried on.
    assert [problem for problem in other.audit() if problem.what != "hold cannot be read"] == []
    leases = other.lease_many(9, 30)
    assert sorted(ids(leases)) == ["a", "b", "c"]
    assert other.complete_many(leases) == [True] * 3
    assert other.audit() == []


GARBAGE = {
    "not msgpack": b"\xc1",
    "a number": b"\x07",
    "cut off": pack(lapses=1, handler="x")[:-1],
    "a list": b"\x93\x01\x02\x03",
    "an empty list": b"\x90",
    "lapses": pack(lapses="many"),
    "max_lapses": pack(max_lapses="x"),
    "max_lapses as a map": pack(max_lapses={}),
    "result_for": pack(result_for_ms="x"),
    "remember_for": pack(remember_for_ms=[1]),
    "priority": pack(priority="high"),
    "priority not a number": pack(priority=float("nan")),
    "priority out of range": pack(priority=10**9),
    "an unknown field": pack(colour="red"),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("state", ["ready", "delayed", "leased"])
def test_garbage_in_the_facts_does_not_stop_the_queue(
    queue: Queue, clock: Clock, spoiled: Behind, garbage: bytes, state: str
) -> None:
    queue.add(b"", id="a", delay=1 if state == "delayed" else None, handler="x")
    if state == "leased":
        take(queue, 1)
    spoiled("HSET", "facts", "a", garbage)
    clock.advance(1)
    queue.add(b"", id="b")
    assert sorted(ids(queue.lease_many(9, 1))) == ["a", "b"]
    clock.advance(1)
    leases = queue.lease_many(9, 30)
    assert sorted(ids(leases)) == ["a", "b"]
    assert queue.complete_many(leases) == [True, True]
    assert queue.audit() == []


def test_garbage_in_the_facts_of_an_ending_does_not_keep_its_id_taken(
    queue: Queue, spoiled: Behind
) -> None:
    queue.add(b"", id="a", remember_for=60)
    queue.complete(take(queue))
    spoiled("HSET", "facts", "a", pack(outcome="completed", taken_until="tomorrow"))
    assert queue.add(b"", id="a")
    assert queue.lease(30)


def test_garbage_among_the_callers_does_not_stop_the_queue(
    queue: Queue, clock: Clock, spoiled: Behind
) -> None:
    spoiled("HSET", "calls", "somebody", "garbage")
    for n in range(40):
        assert queue.add(b"%d" % n)
    assert queue.counts().ready == 40
