from __future__ import annotations

from collections.abc import Callable

import pytest

from conftest import Clock
from engine_support import Behind, pack, take
from holdfast import NewJob, Problem, Queue
from holdfast.engine import calls


def populate(queue: Queue) -> None:
    """Leave one job in every state, named after it, with everything a job can have."""
    queue.add(b"x", id="failed", max_lapses=0, priority=90)
    queue.release(take(queue), lapsed="crashed")
    queue.add(b"x", id="ended", result_for=60, keep=True, remember_for=30)
    queue.complete(take(queue), b"result")
    queue.add(b"x", id="forgotten", remember_for=60)
    queue.complete(take(queue))
    queue.add(b"x", id="leased", handler="h")
    take(queue, 60)
    queue.add(b"x", id="delayed", delay=60, priority=10)
    queue.add(b"x", id="ready", priority=70, handler="h")


def test_a_queue_with_everything_in_it_is_in_order(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    populate(queue)
    queue.add(b"x", id="reclaimed")
    queue.complete(take(queue))
    take(queue, 1)
    clock.advance(1)
    queue.tidy()
    queue.pause()
    before = behind.everything()
    assert queue.audit() == []
    assert behind.everything() == before


BROKEN: dict[str, tuple[Callable[[Behind], object], Problem]] = {
    "in two sets": (
        lambda b: b("ZADD", "ready", 1, "delayed"),
        Problem("delayed", "in ready and in delayed"),
    ),
    "leased and ready": (
        lambda b: b("ZADD", "ready", 1, "leased"),
        Problem("leased", "in leased and in ready"),
    ),
    "ended and failed": (
        lambda b: b("ZADD", "failed", 1, "ended"),
        Problem("ended", "in failed and in ended"),
    ),
    "no payload": (lambda b: b("HDEL", "jobs", "ready"), Problem("ready", "no payload")),
    "no payload of a leased job": (
        lambda b: b("HDEL", "jobs", "leased"),
        Problem("leased", "no payload"),
    ),
    "no payload of a failed job": (
        lambda b: b("HDEL", "jobs", "failed"),
        Problem("failed", "no payload"),
    ),
    "no payload of a delayed job": (
        lambda b: b("HDEL", "jobs", "delayed"),
        Problem("delayed", "no payload"),
    ),
    "payload of an ending": (
        lambda b: b("HSET", "jobs", "forgotten", b"x"),
        Problem("forgotten", "payload of an ending"),
    ),
    "kept payload that is missing": (
        lambda b: b("HDEL", "jobs", "ended"),
        Problem("ended", "payload of an ending"),
    ),
    "result too soon": (
        lambda b: b("HSET", "results", "ready", b"x"),
        Problem("ready", "a result that nobody wants"),
    ),
    "cancelled too soon": (
        lambda b: b("HSET", "facts", "ready", pack(cancelled=True)),
        Problem("ready", "cancelled, but not leased"),
    ),
    "failed at no time": (
        lambda b: b("HSET", "facts", "failed", pack(lapses=1)),
        Problem("failed", "failed at no time"),
    ),
    "failed, but where?": (
        lambda b: b("HSET", "facts", "delayed", pack(failed_at=1)),
        Problem("delayed", "a time of failure, but not failed"),
    ),
    "no outcome": (
        lambda b: b("HDEL", "facts", "forgotten"),
        Problem("forgotten", "ended without an outcome"),
    ),
    "outcome too soon": (
        lambda b: b("HSET", "facts", "ready", pack(outcome="completed")),
        Problem("ready", "an outcome, but not ended"),
    ),
    "no hold": (
        lambda b: b("HDEL", "holds", "leased"),
        Problem("leased", "leased without a hold"),
    ),
    "unreadable hold": (
        lambda b: b("HSET", "holds", "leased", "garbage"),
        Problem("leased", "hold cannot be read"),
    ),
    "hold whose rank is no number": (
        lambda b: b("HSET", "holds", "leased", "token 1 nan"),
        Problem("leased", "hold cannot be read"),
    ),
    "hold of a delayed job": (
        lambda b: b("HSET", "holds", "delayed", b("HGET", "holds", "leased")),
        Problem("delayed", "a hold, but not leased"),
    ),
    "hold of a failed job": (
        lambda b: b("HSET", "holds", "failed", b("HGET", "holds", "leased")),
        Problem("failed", "a hold, but not leased"),
    ),
    "hold of an ending": (
        lambda b: b("HSET", "holds", "ended", b("HGET", "holds", "leased")),
        Problem("ended", "a hold, but not leased"),
    ),
    "facts that are not msgpack": (
        lambda b: b("HSET", "facts", "ready", b"\xc1"),
        Problem("ready", "facts cannot be read"),
    ),
    "facts that are a number": (
        lambda b: b("HSET", "facts", "leased", b"\x07"),
        Problem("leased", "facts cannot be read"),
    ),
    "facts of the wrong type": (
        lambda b: b("HSET", "facts", "leased", pack(max_lapses="x")),
        Problem("leased", "facts cannot be read"),
    ),
    "successor of a ready job": (
        lambda b: b("HSET", "next", "ready", b"x"),
        Problem("ready", "a successor, but not leased"),
    ),
    "priority of a ready job": (
        lambda b: b("HSET", "facts", "ready", pack(priority=90)),
        Problem("ready", "priority in the facts, but not delayed"),
    ),
    "rank with a fraction": (
        lambda b: b("ZADD", "ready", 1.5, "ready"),
        Problem("ready", "score is not a whole number"),
    ),
    "negative due": (
        lambda b: b("ZADD", "delayed", -1, "delayed"),
        Problem("delayed", "score is not a whole number"),
    ),
    "infinite lapse": (
        lambda b: b("ZADD", "leased", "+inf", "leased"),
        Problem("leased", "score is not a whole number"),
    ),
    "rank of a later sequence": (
        lambda b: b("ZADD", "ready", 10**9, "ready"),
        Problem("ready", "rank that was never given"),
    ),
    "rank below all priorities": (
        lambda b: b("ZADD", "ready", 100 * 2**46 + 1, "ready"),
        Problem("ready", "rank that was never given"),
    ),
    "two wakes": (
        lambda b: b("RPUSH", "wake", "1", "1"),
        Problem("", "more than one wake token"),
    ),
    "lost payload": (
        lambda b: b("HSET", "jobs", "nobody", b"x"),
        Problem("", "1 payloads that belong to no job"),
    ),
    "lost holds": (
        lambda b: b("HSET", "holds", "nobody", b"x", "no one", b"x"),
        Problem("", "2 holds that belong to no job"),
    ),
    "lost facts": (
        lambda b: b("HSET", "facts", "nobody", pack(lapses=1)),
        Problem("", "1 facts that belong to no job"),
    ),
    "lost successor": (
        lambda b: b("HSET", "next", "nobody", b"x"),
        Problem("", "1 successors that belong to no job"),
    ),
    "lost result": (
        lambda b: b("HSET", "results", "nobody", b"x"),
        Problem("", "1 results that belong to no job"),
    ),
    "an id in no set": (
        lambda b: b("ZREM", "ready", "ready"),
        Problem("", "1 payloads that belong to no job"),
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_what_is_broken_is_named(queue: Queue, spoiled: Behind, how: str) -> None:
    populate(queue)
    assert queue.audit() == []
    break_it, problem = BROKEN[how]
    break_it(spoiled)
    before = spoiled.everything()
    assert problem in queue.audit()
    assert spoiled.everything() == before


def test_a_queue_without_any_bookkeeping_is_not_in_order(queue: Queue, spoiled: Behind) -> None:
    populate(queue)
    spoiled("UNLINK", "meta")
    assert Problem("ready", "rank that was never given") in queue.audit()


def test_all_of_a_long_queue_is_looked_at(queue: Queue, spoiled: Behind) -> None:
    queue.add_many(NewJob(b"", id=f"{n}") for n in range(2500))
    queue.add_many(NewJob(b"", id=f"later-{n}", delay=60) for n in range(1200))
    assert queue.audit() == []
    broken = {"0", "999", "1000", "1499", "1500", "2499", "later-0", "later-1199"}
    spoiled("HDEL", "jobs", *broken)
    assert {problem.id for problem in queue.audit()} == broken


def test_a_walk_in_small_steps_finds_what_one_look_finds(queue: Queue, spoiled: Behind) -> None:
    queue.add_many(NewJob(b"", id=f"{n}") for n in range(10))
    queue.add_many(NewJob(b"", id=f"later-{n}", delay=60) for n in range(5))
    spoiled("HDEL", "jobs", "0", "4", "9", "later-2")
    place: tuple[int, int] | None = (1, 0)
    found = []
    looked_at = 0
    while place is not None:
        chunk = queue._run(calls.audit(place, 3))
        found += [problem.id for problem in chunk.problems]
        looked_at += 1
        place = chunk.following
    assert sorted(found) == ["0", "4", "9", "later-2"]
    assert looked_at >= 5


def test_ids_that_are_not_text_are_shown_not_refused(queue: Queue, spoiled: Behind) -> None:
    spoiled("ZADD", "delayed", 1, b"\xff\xfe")
    assert queue.audit() == [Problem("\\xff\\xfe", "no payload")]


@pytest.mark.parametrize("what", ["cancel", "update", "retry", "revive", "set_result"])
def test_nothing_is_called_lost_that_moved_while_it_was_counted(queue: Queue, what: str) -> None:
    queue.add(b"x", id="failed", result_for=60)
    queue.fail(take(queue), error="why")
    queue.add(b"x", id="leased", result_for=60)
    lease = take(queue)
    queue.add_many([NewJob(b"", id=f"{n}") for n in range(3)])
    first = queue._run(calls.audit((1, 0), 1))
    match what:
        case "cancel":
            queue.cancel("2")
        case "update":
            queue.add(b"new", id="leased", on_conflict="update")
        case "retry":
            queue.retry(lease, error="why")
        case "revive":
            queue.revive("failed")
        case _:
            queue.set_result("leased", b"so far")
    assert queue._run(calls.audit((1, 0), 1)).stamp != first.stamp
