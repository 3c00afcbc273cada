from __future__ import annotations

from collections.abc import Callable

import pytest

from conftest import Clock
from engine_support import Behind, Held, filled, opened, pack, pack_record, take
from holdfast import NewJob, Problem, Queue
from holdfast.engine import calls


def populate(behind: Behind, clock: Clock) -> None:
    """Leave one job in every state, named after it, with everything a job can have."""
    filled(behind, clock, populate_whole)


def populate_whole(queue: Queue, clock: Clock) -> Held:
    populate_requests(queue)
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
    return Held()


def populate_requests(queue: Queue) -> None:
    """Leave requests and groups: `r` and `g` are full, `t` has a turn, `over` has ended."""
    request = opened(queue, "r", 5, follow_up=b"x")
    done, failed, handled, _, marked = queue.lease_many(5, 60)
    queue.complete(done, b"result")
    queue.fail(handled, error="why")
    queue.complete(queue.lease_many(1, 60, failed=True)[0])
    queue.fail(failed, error="why")
    queue.cancel(marked.id)
    queue.complete(marked)
    request.set_limit(1)
    request.add_many([b"x"] * 2, max_lapses=0)
    request.add(b"x", delay=60, priority=60)
    queue.cancel("r/6")
    with queue.request("over", follow_up=NewJob(b"x", delay=60)) as over:
        over.add(b"x")
    queue.complete(take(queue), b"result")
    queue.add_many([NewJob(b"x", id="late-1"), NewJob(b"x", id="late-2", delay=60)], group="late")
    queue.add_many([NewJob(b"x", id=f"g-{n}") for n in range(3)], group="g", group_limit=1)
    queue.lease_many(2, 60)
    with queue.request("t", limit=2, priority=20) as turn:
        turn.add_many([b"x"] * 3)


WRONG = "its counters are wrong: there are"


def amend(behind: Behind, request: str, **changed: object) -> None:
    """Change what is kept about a request."""
    behind("HSET", "requests", request, pack_record(**behind.records()[request] | changed))


def parked(behind: Behind, id: str, **changed: object) -> str:
    """Return where a job is parked, or would be."""
    facts = behind.facts(id) | changed
    owner = facts.get("request") or facts["group"]
    place = facts.get("place", int(id.split("/")[1]) if "request" in facts else 0)
    order = f"{99 - facts.get('priority', 50):02}{place:010}{facts.get('number', 0):014}"
    return f"{len(owner.encode()):03}{owner}{order}{id}"


def park_elsewhere(behind: Behind, id: str, **changed: object) -> object:
    member = parked(behind, id)
    assert behind("ZREM", "parked", member) == 1
    return behind("ZADD", "parked", 0, parked(behind, id, **changed))


def test_a_queue_with_everything_in_it_is_in_order(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    populate(behind, clock)
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
    "ended score": (
        lambda b: b("ZADD", "ended", 1e300, "ended"),
        Problem("ended", "score is not a whole number"),
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
    # Requests: their records,
    "no record": (
        lambda b: b("HDEL", "requests", "r"),
        Problem("r", "a request without a record"),
    ),
    "no record, and jobs": (
        lambda b: b("HDEL", "requests", "r"),
        Problem("r", "jobs of a request that is not there"),
    ),
    "no record and no term": (
        lambda b: b("HDEL", "requests", "r") and b("ZREM", "terms", "r"),
        Problem("r", "jobs of a request that is not there"),
    ),
    "no record of a group": (
        lambda b: b("HDEL", "requests", "g"),
        Problem("g", "a request without a record"),
    ),
    "record that is too short": (
        lambda b: b("HSET", "requests", "r", b"\xc1"),
        Problem("r", "a request without a record"),
    ),
    "record that is a number": (
        lambda b: b("HSET", "requests", "t", b"\x07"),
        Problem("t", "a request without a record"),
    ),
    "record of nobody": (
        lambda b: b("HSET", "requests", "nobody", b"\xc1"),
        Problem("", "1 records of requests that belong to no job"),
    ),
    "follow-up of nobody": (
        lambda b: b("HSET", "requests", "nobody/end", b("HGET", "requests", "r/end")),
        Problem("", "1 records of requests that belong to no job"),
    ),
    "no term": (
        lambda b: b("ZREM", "terms", "r"),
        Problem("", "2 records of requests that belong to no job"),
    ),
    "no term of an ending": (
        lambda b: b("ZREM", "terms", "over"),
        Problem("", "2 records of requests that belong to no job"),
    ),
    "term of nobody": (
        lambda b: b("ZADD", "terms", 5, "nobody"),
        Problem("nobody", "a request without a record"),
    ),
    # their counters,
    "too many running": (
        lambda b: amend(b, "t", running=1),
        Problem("t", f"{WRONG} 0 leased, 0 failed, 3 parked, 0 delayed"),
    ),
    "too few running": (
        lambda b: amend(b, "r", running=0),
        Problem("r", f"{WRONG} 1 leased, 1 failed, 1 parked, 1 delayed"),
    ),
    "too few running for a turn": (
        lambda b: amend(b, "r", running=0),
        Problem("r", "a free place and a part, but no turn"),
    ),
    "too few failed": (
        lambda b: amend(b, "r", failed=0),
        Problem("r", f"{WRONG} 1 leased, 1 failed, 1 parked, 1 delayed"),
    ),
    "too many done": (
        lambda b: amend(b, "t", done=1),
        Problem("t", f"{WRONG} 0 leased, 0 failed, 3 parked, 0 delayed"),
    ),
    "all done, but parts wait": (
        lambda b: amend(b, "t", done=3),
        Problem("t", "over, but not ended"),
    ),
    "too many cancelled": (
        lambda b: amend(b, "r", cancelled=3),
        Problem("", "-1 facts that belong to no job"),
    ),
    "handled, but counted as done": (
        lambda b: amend(b, "r", handled=0, done=2),
        Problem("", "1 facts that belong to no job"),
    ),
    "too many results": (
        lambda b: amend(b, "r", results=5),
        Problem("", "-4 results that belong to no job"),
    ),
    "too few results": (
        lambda b: amend(b, "over", results=0),
        Problem("", "1 results that belong to no job"),
    ),
    "too few parts": (
        lambda b: amend(b, "t", total=1),
        Problem("t", f"{WRONG} 0 leased, 0 failed, 3 parked, 0 delayed"),
    ),
    "too few parts for those that ended": (
        lambda b: amend(b, "r", total=1),
        Problem("r", "more parts than there are"),
    ),
    "too many parts": (
        lambda b: amend(b, "t", total=9),
        Problem("t", f"{WRONG} 0 leased, 0 failed, 3 parked, 0 delayed"),
    ),
    "group that counts no job": (
        lambda b: amend(b, "g", total=0),
        Problem("g", f"{WRONG} 1 leased, 0 failed, 2 parked, 0 delayed"),
    ),
    "group that counts no delayed job": (
        lambda b: amend(b, "late", total=0, running=0),
        Problem("late", f"{WRONG} 1 leased, 0 failed, 0 parked, 1 delayed"),
    ),
    "group that counts too many": (
        lambda b: amend(b, "g", total=9),
        Problem("g", f"{WRONG} 1 leased, 0 failed, 2 parked, 0 delayed"),
    ),
    "over, but not ended": (
        lambda b: amend(b, "over", outcome=0, ended_at=0),
        Problem("over", "over, but not ended"),
    ),
    "ended, but parts wait": (
        lambda b: amend(b, "t", outcome=1, ended_at=5, keep_for_ms=5),
        Problem("t", "ended, but parts of it wait"),
    ),
    # their turns,
    "turn of a full request": (
        lambda b: b("ZADD", "turns", 1, "r"),
        Problem("r", "a turn, but no free place or no part"),
    ),
    "turn of an ended request": (
        lambda b: b("ZADD", "turns", 1, "over"),
        Problem("over", "a turn, but no free place or no part"),
    ),
    "turn of a request without a term": (
        lambda b: b("ZADD", "turns", 1, "t") + b("ZREM", "terms", "t"),
        Problem("", "1 turns that belong to no job"),
    ),
    "turn of nobody": (
        lambda b: b("ZADD", "turns", 1, "nobody"),
        Problem("", "1 turns that belong to no job"),
    ),
    "no turn": (
        lambda b: b("ZREM", "turns", "t"),
        Problem("t", "a free place and a part, but no turn"),
    ),
    # and their parts.
    "part that is ready": (
        lambda b: b("ZREM", "parked", parked(b, "r/5")) and b("ZADD", "ready", 1, "r/5"),
        Problem("r/5", "a part, but not parked"),
    ),
    "part that is parked and ready": (
        lambda b: b("ZADD", "ready", 1, "r/5"),
        Problem("r/5", "in ready and in parked"),
    ),
    "part that is parked and leased": (
        lambda b: b("ZADD", "parked", 0, parked(b, "r/3")),
        Problem("r/3", "in leased and in parked"),
    ),
    "part that is parked and delayed": (
        lambda b: b("ZADD", "parked", 0, parked(b, "r/7")),
        Problem("r/7", "in delayed and in parked"),
    ),
    "part that is parked and failed": (
        lambda b: b("ZADD", "parked", 0, parked(b, "r/1")),
        Problem("r/1", "in failed and in parked"),
    ),
    "job of a group that is parked and leased": (
        lambda b: b("ZADD", "parked", 0, parked(b, "g-0")),
        Problem("g-0", "in leased and in parked"),
    ),
    "parked under another number": (
        lambda b: park_elsewhere(b, "r/5", number=1),
        Problem("r/5", "parked where its facts do not say"),
    ),
    "parked under another priority": (
        lambda b: park_elsewhere(b, "g-1", priority=99),
        Problem("g-1", "parked where its facts do not say"),
    ),
    "parked under another request": (
        lambda b: park_elsewhere(b, "r/5", request="t"),
        Problem("r/5", "parked where its facts do not say"),
    ),
    "parked under a request that is not there": (
        lambda b: park_elsewhere(b, "r/5", request="nobody"),
        Problem("r/5", "parked where its facts do not say"),
    ),
    "parked twice": (
        lambda b: b("ZADD", "parked", 0, parked(b, "t/1", number=1)),
        Problem("t/1", "parked where its facts do not say"),
    ),
    "parked at a number that was never given": (
        lambda b: (
            park_elsewhere(b, "t/1", number=10**9),
            b("HSET", "facts", "t/1", pack(request="t", number=10**9)),
        ),
        Problem("t/1", "rank that was never given"),
    ),
    "parked without facts": (
        lambda b: b("HDEL", "facts", "t/1"),
        Problem("t/1", "parked where its facts do not say"),
    ),
    "parked in no set": (
        lambda b: b("ZREM", "parked", parked(b, "t/0")),
        Problem("", "1 payloads that belong to no job"),
    ),
    "all parked in no set": (
        lambda b: b("UNLINK", "parked"),
        Problem("t", f"{WRONG} 0 leased, 0 failed, 0 parked, 0 delayed"),
    ),
    "nonsense that is parked": (
        lambda b: b("ZADD", "parked", 0, "nonsense"),
        Problem("", "no payload"),
    ),
    "no payload of a parked part": (
        lambda b: b("HDEL", "jobs", "r/5"),
        Problem("r/5", "no payload"),
    ),
    "no payload of a leased part": (
        lambda b: b("HDEL", "jobs", "r/3"),
        Problem("r/3", "no payload"),
    ),
    "no payload of a delayed part": (
        lambda b: b("HDEL", "jobs", "r/7"),
        Problem("r/7", "no payload"),
    ),
    "no payload of a failed part": (
        lambda b: b("HDEL", "jobs", "r/1"),
        Problem("r/1", "no payload"),
    ),
    "no payload of a parked job of a group": (
        lambda b: b("HDEL", "jobs", "g-1"),
        Problem("g-1", "no payload"),
    ),
    "no hold of a part": (
        lambda b: b("HDEL", "holds", "r/3"),
        Problem("r/3", "leased without a hold"),
    ),
    "no facts of a leased part": (
        lambda b: b("HDEL", "facts", "r/3"),
        Problem("r", f"{WRONG} 0 leased, 1 failed, 1 parked, 1 delayed"),
    ),
    "lost ending of a part": (
        lambda b: b("HSET", "facts", "nobody/3", pack(request="nobody", outcome="cancelled")),
        Problem("", "1 facts that belong to no job"),
    ),
    "lost result of a part": (
        lambda b: b("HSET", "results", "nobody/3", b"x"),
        Problem("", "1 results that belong to no job"),
    ),
    "part that ended and waits": (
        lambda b: b("HSET", "facts", "t/0", pack(**b.facts("t/0"), outcome="cancelled")),
        Problem("t/0", "an outcome, but not ended"),
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_what_is_broken_is_named(queue: Queue, clock: Clock, spoiled: Behind, how: str) -> None:
    populate(spoiled, clock)
    assert queue.audit() == []
    break_it, problem = BROKEN[how]
    break_it(spoiled)
    before = spoiled.everything()
    assert problem in queue.audit()
    assert spoiled.everything() == before


def test_a_queue_without_any_bookkeeping_is_not_in_order(
    queue: Queue, clock: Clock, spoiled: Behind
) -> None:
    populate(spoiled, clock)
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


@pytest.mark.parametrize(
    "what", ["cancel what waits", "cancel what matches", "add a cancelled id", "forget"]
)
def test_nothing_is_called_lost_that_nobody_was_told_of(
    queue: Queue, clock: Clock, what: str
) -> None:
    with queue.request("r", limit=0, keep_for=1) as request:
        request.add_many([b""] * 1500)
    request.cancel()
    queue.tidy()
    queue.add_many([NewJob(b"x", id=id, group=id) for id in "ab"])
    queue.lease_many(2, 60)
    queue.add(b"y", id="a", on_conflict="update")
    queue.cancel("b")
    first = queue._run(calls.audit())
    match what:
        case "cancel what waits":
            assert queue.cancel("a", running=False)
        case "cancel what matches":
            assert queue.cancel_matching(b"y", running=False) == 1
        case "add a cancelled id":
            assert queue.add(b"y", id="b").updated
        case _:
            clock.advance(10)
            queue._run(calls.tidy())
            assert queue.requests() != []
    assert queue._run(calls.audit()).stamp != first.stamp


def test_a_request_that_is_half_forgotten_is_in_order(queue: Queue, clock: Clock) -> None:
    with queue.request("r", limit=0, keep_for=1) as request:
        request.add_many([b""] * 1500)
    request.cancel()
    clock.advance(10)
    for _ in range(2):
        queue._run(calls.tidy())
        assert queue.audit() == []
    assert queue.requests() == []


def test_a_result_that_is_set_before_its_part_has_ended_is_in_order(queue: Queue) -> None:
    with queue.request("r") as request:
        request.add_many([b"", b""])
    queue.set_result("r/0", b"so far")
    assert queue.audit() == []
    queue.complete_many(queue.lease_many(2, 30))
    assert queue.audit() == []
    assert [part.result for part in request.results()] == [b"so far", None]
