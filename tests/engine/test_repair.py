"""Repair mends what audit finds broken, and drops nothing that has a payload."""

from __future__ import annotations

from functools import partial

import pytest

from conftest import Clock
from engine.test_audit import BROKEN, amend, populate
from engine_support import Behind, filled, pack, refused, take
from holdfast import NewJob, Problem, Queue, ServerRefused, Update
from holdfast.engine import calls, request_calls
from holdfast.engine.keys import NAMES


def payloads(behind: Behind) -> set[bytes]:
    return set(behind("HKEYS", "jobs"))


@pytest.mark.parametrize("how", BROKEN)
def test_what_is_broken_is_mended(queue: Queue, clock: Clock, spoiled: Behind, how: str) -> None:
    populate(spoiled, clock)
    break_it, _ = BROKEN[how]
    break_it(spoiled)
    before = payloads(spoiled)
    done = queue.repair()
    assert done
    assert queue.audit() == []
    # The ending whose payload nobody should have kept, and what was cancelled.
    assert before - payloads(spoiled) <= {b"forgotten", b"ready"}
    if how != "cancelled too soon":
        assert b"ready" in payloads(spoiled) or how == "no payload"
    assert queue.repair() == []


def test_a_queue_that_is_in_order_is_left_as_it_is(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    filled(behind, clock)
    before, records = behind.everything(), behind.records()
    assert queue.repair() == []
    after = behind.everything()
    for name in before.keys() - {"calls", "meta", "requests"}:
        assert after[name] == before[name]
    assert behind.records() == records


COUNTERS = ["too many running", "too few running", "too few failed", "too many done"]
COUNTERS += ["all done, but parts wait", "too many cancelled", "handled, but counted as done"]
COUNTERS += ["too many results", "too few results", "too few parts", "group that counts no job"]
COUNTERS += ["group that counts no delayed job", "group that counts too many", "no turn"]
COUNTERS += ["turn of a full request", "ended, but parts wait"]


@pytest.mark.parametrize("how", COUNTERS)
def test_what_is_counted_anew_is_as_it_was(
    queue: Queue, clock: Clock, spoiled: Behind, how: str
) -> None:
    populate(spoiled, clock)
    before = spoiled.records()
    turns = spoiled("ZRANGE", "turns", 0, -1)
    BROKEN[how][0](spoiled)
    queue.repair()
    after = spoiled.records()
    if how == "ended, but parts wait":
        before["t"]["keep_for_ms"] = 5  # Which was changed too.
    assert after == before
    assert spoiled("ZRANGE", "turns", 0, -1) == turns


def test_a_request_that_was_broken_comes_to_its_end(queue: Queue, spoiled: Behind) -> None:
    with queue.request("r", limit=1, follow_up=b"over") as request:
        request.add_many([b"x"] * 3)
    amend(spoiled, "r", running=1, done=2)
    spoiled("UNLINK", "turns")
    spoiled("UNLINK", "terms")
    spoiled("UNLINK", "parked")
    assert queue.repair()
    assert queue.audit() == []
    for _ in range(3):
        [lease] = queue.lease_many(9, 30)  # No more than its limit.
        queue.complete(lease, b"result")
    assert (request.status().state, request.status().done) == ("completed", 3)
    assert take(queue).id == "r/end/1"


def test_a_request_whose_term_was_lost_goes_on(queue: Queue, clock: Clock, spoiled: Behind) -> None:
    request = queue.request("r", limit=0)
    request.open()
    request.add_many([b"x"] * 2)
    spoiled("UNLINK", "terms")
    assert queue.repair() == [Problem("r", "request tended again")]
    clock.advance(3600)
    queue.tidy()
    assert (request.status().state, request.status().parked) == ("open", 2)


def test_an_ending_whose_term_was_lost_is_kept_as_long_as_before(
    queue: Queue, clock: Clock, spoiled: Behind
) -> None:
    with queue.request("r", keep_for=60) as request:
        request.add(b"x")
    queue.complete(take(queue), b"result")
    clock.advance(30)
    spoiled("UNLINK", "terms")
    queue.repair()
    clock.advance(29)
    queue.tidy()
    assert [part.result for part in request.results()] == [b"result"]
    clock.advance(1)
    queue.tidy()
    assert queue.requests() == []


def test_what_is_counted_while_the_queue_moves_is_not_written(queue: Queue, behind: Behind) -> None:
    with queue.request("r", limit=1) as request:
        request.add_many([b"x"] * 3)
    stamp = queue._run(calls.audit()).stamp
    take(queue)
    before = behind.records()
    assert queue._run(request_calls.recount(stamp, {"r": (0, 0, 3, 0, 0, 0, 0)})) is False
    assert behind.records() == before


def test_a_foreign_key_in_the_way_stops_a_recount_before_it_changes_anything(
    queue: Queue, clock: Clock, spoiled: Behind
) -> None:
    counted = {"r": (0, 0, 2, *[0] * 4), "t": (2, *[0] * 6), "g": (0,) * 7}
    for name in NAMES:
        populate(spoiled, clock)
        recount = request_calls.recount(queue._run(calls.audit()).stamp, counted)
        spoiled("UNLINK", "wake")
        spoiled("UNLINK", name)
        spoiled("SET", name, "foreign")
        before = spoiled.everything()
        if refused(partial(queue._run, recount)):
            assert spoiled.everything() == before, name
        else:
            assert name not in {"requests", "turns", "terms", "meta", "calls", "wake"}


def test_jobs_that_no_set_has_are_ready_again_at_their_priority(
    queue: Queue, spoiled: Behind
) -> None:
    queue.add_many([NewJob(b"a", id="a"), NewJob(b"b", id="b", priority=90, delay=60)])
    spoiled("UNLINK", "ready")
    spoiled("UNLINK", "delayed")
    assert (
        queue.repair()
        == [
            Problem("a", "in no set: now ready"),
            Problem("b", "in no set: now ready"),
        ]
        or queue.counts().ready == 2
    )
    assert [job.id for job in queue.peek(2)] == ["b", "a"]
    assert queue.audit() == []


def test_a_job_whose_rank_was_never_given_gets_the_one_of_a_plain_job(
    queue: Queue, spoiled: Behind
) -> None:
    queue.add_many([NewJob(b"", id="lost"), NewJob(b"", id="below", priority=49)])
    spoiled("ZADD", "ready", 2**50 + 7, "lost")
    assert queue.repair() == [Problem("lost", "given a new rank")]
    assert [(job.id, job.priority) for job in queue.peek(2)] == [("lost", 50), ("below", 49)]


def test_all_of_a_big_queue_is_found_again(queue: Queue, spoiled: Behind) -> None:
    queue.add_many(NewJob(b"x" * 100, id=f"{n}") for n in range(2500))
    spoiled("UNLINK", "ready")
    assert len(queue.repair()) == 2500
    assert queue.counts().ready == 2500
    assert queue.audit() == []


def test_a_walk_over_big_payloads_reads_a_few_at_a_time(queue: Queue, spoiled: Behind) -> None:
    queue.add_many(NewJob(b"x" * 3_000_000, id=f"{n}") for n in range(4))
    spoiled("UNLINK", "ready")
    assert len(queue.repair()) == 4
    assert queue.audit() == []


def test_a_sequence_that_is_no_number_goes_on_above_all_that_was_given(
    queue: Queue, spoiled: Behind, clock: Clock
) -> None:
    queue.add(b"", id="a")
    spoiled("HSET", "meta", "sequence", "garbage")
    assert queue.repair() == []
    assert int(spoiled("HGET", "meta", "sequence")) >= clock.ms
    queue.add(b"", id="b")
    assert [job.id for job in queue.peek(2)] == ["a", "b"]
    assert queue.audit() == []


def test_lost_bookkeeping_costs_no_job(queue: Queue, clock: Clock, spoiled: Behind) -> None:
    populate(spoiled, clock)
    spoiled("UNLINK", "meta")
    assert Problem("ready", "given a new rank") in queue.repair()
    assert queue.audit() == []


def test_a_successor_whose_job_is_gone_becomes_a_job(queue: Queue, spoiled: Behind) -> None:
    queue.add(b"old", id="a")
    lease = take(queue)
    queue.add(b"new", id="a", on_conflict="update", handler="h")
    for key in ("leased", "jobs", "holds"):
        spoiled("UNLINK", key)
    assert Problem("a", "successor of no job: a job now") in queue.repair()
    job = queue.show("a")
    assert job is not None
    assert (job.state, job.data, job.facts.handler) == ("ready", b"new", "h")
    assert queue.complete(lease) is False
    assert queue.audit() == []


def test_a_successor_that_becomes_a_job_has_nothing_of_the_old_one(
    queue: Queue, spoiled: Behind
) -> None:
    queue.add(b"old", id="a", result_for=60)
    lease = take(queue)
    queue.set_result("a", b"old")
    queue.add(b"new", id="a", on_conflict=Update(limits=False))
    for key in ("leased", "jobs"):
        spoiled("UNLINK", key)
    queue.repair()
    assert queue.audit() == []
    assert not queue.complete(lease)
    assert not spoiled("HEXISTS", "results", "a")
    assert queue.data("a") == b"new"


def test_a_successor_of_a_job_that_waits_is_applied(queue: Queue, spoiled: Behind) -> None:
    queue.add(b"old", id="a")
    take(queue)
    queue.add(b"new", id="a", on_conflict="update")
    spoiled("ZREM", "leased", "a")
    spoiled("ZADD", "delayed", 5, "a")
    queue.repair()
    assert queue.data("a") == b"new"
    assert queue.audit() == []


def test_a_failed_job_in_no_set_is_failed_again(queue: Queue, spoiled: Behind) -> None:
    queue.add(b"x", id="a")
    queue.fail(take(queue), error="why")
    spoiled("UNLINK", "failed")
    assert queue.repair() == [Problem("a", "in no set: now failed")]
    assert [job.error for job in queue.failed()] == ["why"]
    assert queue.audit() == []


def test_a_job_that_is_leased_and_ready_stays_with_its_holder(
    queue: Queue, spoiled: Behind
) -> None:
    queue.add(b"x", id="a")
    lease = take(queue)
    spoiled("ZADD", "ready", 1, "a")
    assert queue.repair() == [Problem("a", "taken out of ready, as another set has it")]
    assert queue.complete(lease) is True


def test_an_ending_that_is_not_whole_is_forgotten(queue: Queue, spoiled: Behind) -> None:
    queue.add(b"x", id="a", result_for=60)
    queue.complete(take(queue), b"result")
    spoiled("HSET", "facts", "a", pack(lapses=1))
    queue.repair()
    assert queue.show("a") is None
    assert queue.audit() == []


def test_two_repairs_at_once_do_the_work_once(queue: Queue, spoiled: Behind) -> None:
    queue.add_many(NewJob(b"", id=f"{n}") for n in range(300))
    spoiled("UNLINK", "ready")
    places: list[tuple[int, bytes] | None] = [(1, b""), (1, b"")]
    done = 0
    while any(places):
        for i, place in enumerate(places):
            if place:
                chunk = queue._run(calls.repair(place, 20))
                places[i] = chunk.following
                done += len(chunk.done)
    assert done == 300
    assert queue.counts().ready == 300
    assert queue.audit() == []


def test_a_cancelled_job_does_not_run_again(queue: Queue, spoiled: Behind) -> None:
    queue.add(b"x", id="a")
    take(queue)
    queue.cancel("a")
    spoiled("UNLINK", "leased")
    assert queue.repair() == [Problem("a", "in no set: now cancelled")]
    assert queue.lease(30) is None


def test_a_lease_that_no_set_has_is_as_after_a_reclaim(queue: Queue, spoiled: Behind) -> None:
    queue.add_many([NewJob(b"x", id="a", priority=90), NewJob(b"x", id="b", priority=90)])
    leases = queue.lease_many(2, 60)
    spoiled("UNLINK", "leased")
    assert len(queue.repair()) == 2
    assert [(job.id, job.priority) for job in queue.peek(2)] == [("a", 90), ("b", 90)]
    assert queue.complete(leases[1]) is True


@pytest.mark.parametrize(
    "name",
    [
        "delayed",
        "failed",
        "ended",
        "leased",
        "results",
        "next",
        "facts",
        "parked",
        "turns",
        "terms",
        "requests",
    ],
)
def test_a_foreign_key_in_the_way_stops_it_before_it_mends_anything(
    queue: Queue, spoiled: Behind, name: str
) -> None:
    queue.add_many(NewJob(b"", id=f"{n}") for n in range(5))
    spoiled("HDEL", "jobs", "1", "3")
    spoiled("SET", name, "foreign")
    before = spoiled.everything()
    with pytest.raises(ServerRefused):
        queue.repair()
    assert spoiled.everything() == before
