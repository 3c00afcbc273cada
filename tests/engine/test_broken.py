"""What somebody else broke in the server must not stop the queue."""

from __future__ import annotations

import math

import msgspec
import pytest

from conftest import Clock
from engine_support import Behind, ids, opened, pack, pack_record, take
from holdfast import NewJob, Queue
from holdfast.client.inputs import Requeue


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


@pytest.mark.parametrize("count", [1, 9])
def test_turns_of_those_who_have_nothing_to_give_hide_no_part(
    queue: Queue, spoiled: Behind, count: int
) -> None:
    queue.request("empty").open()
    opened(queue, "full", 1, limit=0)
    opened(queue, "r", 3)
    for n, name in enumerate(("nobody", "empty", "full", "no one")):
        spoiled("ZADD", "turns", n, name)
    assert lease_all(queue, count) == ["r/0", "r/1", "r/2"]
    assert spoiled("ZCARD", "turns") == 0
    assert queue.audit() == []


def test_parts_without_a_payload_are_dropped_and_hide_no_part(
    queue: Queue, spoiled: Behind
) -> None:
    with queue.request("r", limit=2) as request:
        request.add_many([b"x"] * 6)
    spoiled("HDEL", "jobs", "r/0", "r/1", "r/4", "r/5")
    leases = queue.lease_many(9, 30)
    while leases:
        queue.complete_many(leases)
        leases = queue.lease_many(9, 30)
    status = request.status()
    assert (status.state, status.done, status.cancelled) == ("completed", 2, 4)
    assert queue.audit() == []


@pytest.mark.parametrize("record", [b"\xc1", b"\x07", b"\x90", b""])
def test_garbage_in_the_record_of_a_request_makes_its_parts_jobs_like_any_other(
    queue: Queue, clock: Clock, spoiled: Behind, record: bytes
) -> None:
    opened(queue, "r", 3, limit=2)
    leases = queue.lease_many(1, 30)
    opened(queue, "sound", 1)
    spoiled("HSET", "requests", "r", record)
    assert queue.complete_many(leases) == [True]
    queue.repair()
    assert sorted(lease_all(queue)) == ["r/1", "r/2", "sound/0"]
    assert queue.audit() == []


@pytest.mark.parametrize(
    "field",
    ["priority", "limit", "total", "running", "failed", "done", "results", "walked"],
)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, -7, 0.5, 1e300])
def test_garbage_in_a_field_of_a_record_stops_neither_the_queue_nor_a_repair(
    queue: Queue, spoiled: Behind, field: str, garbage: float
) -> None:
    with queue.request("r", limit=2) as request:
        request.add_many([b"x"] * 3)
    leases = queue.lease_many(1, 30)
    spoiled("HSET", "requests", "r", pack_record(**spoiled.records()["r"] | {field: garbage}))
    queue.repair()
    assert queue.audit() == []
    while leases:
        assert all(queue.complete_many(leases))
        leases = queue.lease_many(9, 30)
    assert request.status().state == "completed"


def test_a_follow_up_is_not_taken_for_a_record_whatever_its_bytes_are(
    queue: Queue, spoiled: Behind
) -> None:
    queue.request("r").open()
    spoiled("HSET", "requests", "r/end", pack_record(total=5))
    assert queue.add(b"", id="r/end/1")


@pytest.mark.parametrize("name", ["facts", "results", "facts of a job", "terms", "turns"])
@pytest.mark.parametrize("data", [b"x", b"x" * 500])
def test_who_names_a_follow_up_as_a_request_does_not_harm_it(
    queue: Queue, spoiled: Behind, name: str, data: bytes
) -> None:
    with queue.request("r", follow_up=data):
        queue.add(b"", id="a", priority=0, handler="x")
        if name == "facts of a job":
            spoiled("HSET", "facts", "a", pack(request="r/end"))
        elif name in ("terms", "turns"):
            spoiled("ZADD", name, 0, "r/end")
        else:
            spoiled("HSET", name, "r/end/1", pack(lapses=1))
        queue.tidy()
        queue.repair()
        assert queue.audit() == []
    assert take(queue).data == data


SUCCESSORS: dict[str, dict[str, object]] = {
    "most": {"most": "x"},
    "least as a map": {"least": {}},
    "least not a number": {"least": math.nan},
    "priority out of range": {"priority": 1000},
    "priority not a number": {"priority": math.nan},
    "priority not whole": {"priority": -5.5},
    "due never": {"due": math.inf},
    "due not a number": {"due": math.nan},
    "options": {"options": 5},
}


@pytest.mark.parametrize("garbage", SUCCESSORS.values(), ids=SUCCESSORS.keys())
@pytest.mark.parametrize("end", ["complete", "release", "release later", "fail", "lapse", "update"])
def test_garbage_in_a_successor_does_not_stop_the_queue(
    queue: Queue, clock: Clock, spoiled: Behind, garbage: dict[str, object], end: str
) -> None:
    queue.add(b"", id="a")
    lease = take(queue, 1)
    queue.add(b"new", id="a", on_conflict="update")
    kept = msgspec.msgpack.decode(spoiled("HGET", "next", "a"))
    spoiled("HSET", "next", "a", pack(**kept | garbage))
    if end == "complete":
        queue.complete(lease)
    elif end == "fail":
        queue.fail(lease, error="why")
    elif end == "lapse":
        clock.advance(1)
        queue.tidy(force=True)
    else:
        if end == "update":
            queue.add(b"new", id="a", on_conflict="update")
        queue.release(lease, after=1 if end == "release later" else None)
    assert queue.audit() == []
    clock.advance(1)
    assert take(queue).data == b"new"
