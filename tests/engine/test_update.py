"""An update of a job that is there: at once while it waits, as its successor while it runs."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from conftest import Clock
from engine_support import Behind, pack, take
from holdfast import Job, Lease, NewJob, Queue, Update
from holdfast.engine import calls
from holdfast.engine.call import Entry
from holdfast.job import JobOptions


def shown(queue: Queue, id: str = "a") -> Job:
    job = queue.show(id)
    assert job is not None
    return job


def update(queue: Queue, data: bytes = b"new", id: str = "a", **options: Any) -> str | None:
    """Update a job; return where it stands now."""
    how = options.pop("how", Update())
    receipt = queue.add(data, id=id, on_conflict=how, **options)
    assert receipt.updated != receipt.created
    return receipt.state


# ------------------------------------------------------------------ a job that waits


def test_an_id_that_is_free_is_added_whatever_the_update_says(queue: Queue) -> None:
    nothing = Update(data=False, due=False, limits=False, counts=False)
    receipt = queue.add(b"x", id="a", delay=5, handler="h", priority=9, on_conflict=nothing)
    assert receipt
    job = shown(queue)
    assert (job.state, job.data, job.facts.handler, job.priority) == ("delayed", b"x", "h", 9)


def test_update_is_short_for_all_of_it(queue: Queue) -> None:
    queue.add(b"x", id="a", handler="old", priority=20, max_failures=1)
    queue.add(b"y", id="a", on_conflict="update", priority=80)
    job = shown(queue)
    assert (job.data, job.priority, job.facts.handler, job.facts.max_failures) == (
        b"y",
        80,
        None,
        10,
    )


@pytest.mark.parametrize("data", [True, False])
def test_the_payload_is_replaced_where_the_update_says_so(queue: Queue, data: bool) -> None:
    queue.add(b"old", id="a")
    assert update(queue, how=Update(data=data)) == "ready"
    assert queue.data("a") == (b"new" if data else b"old")


def test_a_ready_job_keeps_its_place(queue: Queue) -> None:
    queue.add_many([NewJob(b"", id="a"), NewJob(b"", id="b")])
    update(queue)
    assert [job.id for job in queue.peek(2)] == ["a", "b"]


def test_a_new_priority_moves_a_ready_job(queue: Queue) -> None:
    queue.add_many([NewJob(b"", id="b"), NewJob(b"", id="a")])
    update(queue, priority=51)
    assert [job.id for job in queue.peek(2)] == ["a", "b"]
    update(queue, priority=49)
    assert [job.id for job in queue.peek(2)] == ["b", "a"]
    update(queue, priority=99, how=Update(limits=False))
    assert [job.id for job in queue.peek(2)] == ["b", "a"]


DUE: dict[str, tuple[float, bool | Literal["later", "earlier"], float, float]] = {
    # before, the update's due, its time, after
    "replaced by a later one": (10, True, 20, 20),
    "replaced by an earlier one": (10, True, 5, 5),
    "replaced by now": (10, True, 0, 0),
    "now, replaced by a later one": (0, True, 5, 5),
    "kept": (10, False, 20, 10),
    "kept at now": (0, False, 20, 0),
    "only later, and it is": (10, "later", 20, 20),
    "only later, and it is not": (10, "later", 5, 10),
    "only later than now": (0, "later", 5, 5),
    "only earlier, and it is": (10, "earlier", 5, 5),
    "only earlier, and it is not": (10, "earlier", 20, 10),
    "only earlier, and it is now": (10, "earlier", 0, 0),
    "only earlier than now": (0, "earlier", 5, 0),
}


@pytest.mark.parametrize("case", DUE)
@pytest.mark.parametrize("leased", [False, True])
def test_the_due_time_is_replaced_as_the_update_says(
    queue: Queue, clock: Clock, case: str, leased: bool
) -> None:
    """Also when it is leased: then what the lease ends with is what the update meets."""
    before, due, new, after = DUE[case]
    queue.add(b"x", id="a", priority=70, delay=0 if leased else before)
    lease = take(queue) if leased else None
    state = update(queue, how=Update(due=due, limits=False), delay=new)
    if lease:
        assert state == "leased"
        queue.release(lease, after=before)
    else:
        assert state == ("delayed" if after else "ready")
    job = shown(queue)
    assert job.priority == 70
    assert (job.state, job.at) == (
        ("delayed", clock.ms / 1000 + after) if after else ("ready", None)
    )


@pytest.mark.parametrize("counts", [None, True, False])
@pytest.mark.parametrize("data", [True, False])
def test_counts_begin_anew_with_a_new_payload_or_as_the_update_says(
    queue: Queue, clock: Clock, counts: bool | None, data: bool
) -> None:
    queue.add(b"x", id="a")
    queue.retry(take(queue), error="why", after=1)
    update(queue, how=Update(data=data, counts=counts))
    lease = take(queue)
    anew = data if counts is None else counts
    assert (lease.failures, lease.error) == ((0, None) if anew else (1, "why"))


def test_limits_are_replaced_as_a_whole(queue: Queue) -> None:
    queue.add(b"x", id="a", handler="h", max_lapses=7, result_for=60)
    update(queue, how=Update(limits=False), handler="other", max_lapses=1)
    assert (shown(queue).facts.handler, shown(queue).facts.max_lapses) == ("h", 7)
    update(queue, handler="other")
    facts = shown(queue).facts
    assert (facts.handler, facts.max_lapses, facts.result_for_ms) == ("other", 3, 0)


OPTIONS: dict[str, tuple[object, object]] = {
    "priority": (20, 80),
    "handler": ("old", "new"),
    "timeout": (1, 2),
    "max_failures": (1, None),
    "max_lapses": (1, 2),
    "min_backoff": (1, 4),
    "max_backoff": (100, 200),
    "result_for": (60, 120),
    "keep": (True, False),
    "remember_for": (60, 120),
    "group": ("old", "new"),
}
"""Each option as the job had it, and as the update says it."""


def all_facts(queue: Queue, id: str = "a") -> dict[str, Any]:
    job = shown(queue, id)
    return {**msgspec.structs.asdict(job.facts), "priority": job.priority}


def test_every_option_of_a_job_can_be_replaced_by_itself() -> None:
    assert OPTIONS.keys() == JobOptions.__annotations__.keys() - {"group_limit"}


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("option", OPTIONS)
def test_an_update_that_names_an_option_leaves_all_others(
    queue: Queue, option: str, leased: bool
) -> None:
    old: dict[str, Any] = {name: value for name, (value, _) in OPTIONS.items()}
    new: dict[str, Any] = {name: value for name, (_, value) in OPTIONS.items()}
    for id, options in (("a", old), ("b", new), ("c", old | {option: new[option]})):
        queue.add(b"old", id=id, **options)
    before, expected = all_facts(queue), all_facts(queue, "c")
    leases = {lease.id: lease for lease in queue.lease_many(3, 60)} if leased else {}
    how = Update(data=False, due=False, limits=[option])
    update(queue, how=how, **new)
    if leased:
        for lease in leases.values():
            queue.release(lease)
    assert all_facts(queue) == expected != before
    assert queue.data("a") == b"old"
    update(queue, how=Update(data=False, due=False, limits=()), **new)
    assert all_facts(queue) == expected


def test_an_option_that_is_named_and_not_given_gets_its_default(queue: Queue) -> None:
    queue.add(b"x", id="a", max_failures=3, handler="h", priority=70)
    update(queue, how=Update(limits=["max_failures", "priority"]), handler="other")
    job = shown(queue)
    assert (job.facts.max_failures, job.facts.handler, job.priority) == (10, "h", 50)


def test_a_failed_job_is_revived_with_the_options_that_are_named(queue: Queue) -> None:
    queue.add(b"x", id="a", max_failures=0, handler="h", max_lapses=7)
    queue.retry(take(queue), error="why")
    assert update(queue, how=Update(limits=["max_failures"]), max_failures=5) == "failed"
    facts = take(queue).facts
    assert (facts.max_failures, facts.handler, facts.max_lapses) == (5, "h", 7)


def test_a_result_is_kept_no_longer_than_the_update_says(queue: Queue, behind: Behind) -> None:
    queue.add(b"x", id="a", result_for=60)
    queue.set_result("a", b"so far")
    update(queue, how=Update(limits=["priority"]), priority=70)
    assert behind("HGET", "results", "a") == b"so far"
    update(queue, how=Update(limits=["result_for"]), result_for=0)
    assert behind("HGET", "results", "a") is None


def test_a_group_comes_with_its_limit(queue: Queue) -> None:
    queue.add_many([NewJob(b"x", id=id, group="old") for id in "abc"])
    for id in "abc":
        update(queue, id=id, how=Update(limits=["group"]), group="new", group_limit=1)
    assert [lease.id for lease in queue.lease_many(3, 60)] == ["a"]
    assert update(queue, id="b", how=Update(limits=["group"])) == "ready"
    assert [lease.id for lease in queue.lease_many(3, 60)] == ["b"]


def test_who_lost_the_lease_cannot_complete_what_was_replaced_since(
    queue: Queue, clock: Clock
) -> None:
    queue.add(b"old", id="a")
    lost = take(queue, 1)
    clock.advance(1)
    queue.tidy()
    update(queue)
    assert queue.complete(lost) is False
    assert take(queue).data == b"new"


def test_an_id_that_is_remembered_stays_as_it_ended(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a", remember_for=60)
    queue.complete(take(queue))
    receipt = queue.add(b"y", id="a", on_conflict="update")
    assert (receipt.created, receipt.updated, receipt.state) == (False, False, "ended")
    clock.advance(60)
    assert queue.add(b"y", id="a", on_conflict="update").created


def test_an_ending_that_is_only_kept_for_its_result_is_replaced(queue: Queue) -> None:
    queue.add(b"x", id="a", result_for=60, keep=True)
    queue.complete(take(queue), b"result")
    assert queue.add(b"y", id="a", on_conflict="update").created
    assert take(queue).data == b"y"


def test_the_same_id_twice_in_one_call_is_added_and_then_changed(queue: Queue) -> None:
    jobs = [NewJob(b"1", id="a"), NewJob(b"2", id="a", delay=5), NewJob(b"3", id="b")]
    receipts = queue.add_many(jobs, on_conflict="update")
    assert [(r.created, r.state) for r in receipts] == [
        (True, None),
        (False, "delayed"),
        (True, None),
    ]
    assert shown(queue).data == b"2"


def test_jobs_without_an_id_are_new(queue: Queue) -> None:
    assert all(queue.add_many([b"x", b"x"], on_conflict="update"))
    assert queue.counts().ready == 2


def test_an_update_that_makes_a_job_ready_wakes_a_sleeper(queue: Queue, behind: Behind) -> None:
    queue.add(b"x", id="a", delay=60)
    behind("UNLINK", "wake")
    update(queue)
    assert behind("LLEN", "wake") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        Update(data=1),  # type: ignore[arg-type]
        Update(due="sometimes"),  # type: ignore[arg-type]
        Update(due=None),  # type: ignore[arg-type]
        Update(due=1),  # type: ignore[arg-type]
        Update(due=[]),  # type: ignore[arg-type]
        Update(limits="priority"),
        Update(limits=["max_failure"]),
        Update(limits=["priority", 1]),  # type: ignore[list-item]
        Update(limits=["group_limit"]),
        Update(limits=1),  # type: ignore[arg-type]
        Update(limits=None),  # type: ignore[arg-type]
        Update(counts=0),  # type: ignore[arg-type]
        Update,
        "replace",
        None,
    ],
    ids=repr,
)
def test_an_update_that_makes_no_sense_is_refused(queue: Queue, behind: Behind, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"Update\.|on_conflict"):
        queue.add(b"x", id="a", on_conflict=wrong)
    assert behind.everything() == {}


# ------------------------------------------------------------------ a job that runs


def running(queue: Queue, **options: Any) -> Lease:
    queue.add(b"old", id="a", **options)
    return take(queue)


def test_two_runs_of_one_id_never_overlap(queue: Queue) -> None:
    lease = running(queue)
    assert update(queue) == "leased"
    assert queue.lease(30) is None
    assert queue.counts().waiting == 0
    queue.complete(lease)
    assert take(queue).data == b"new"


def test_the_successor_of_a_completed_job_is_a_new_job(queue: Queue) -> None:
    lease = running(queue, handler="h", priority=20, result_for=60)
    queue.retry(lease, error="why", after=0)
    lease = take(queue)
    update(queue, priority=70, max_lapses=1, how=Update(data=False, limits=False, counts=False))
    assert queue.complete(lease, b"result")
    job = shown(queue)
    assert (job.state, job.data, job.priority) == ("ready", b"new", 70)
    assert (job.facts.handler, job.facts.max_lapses, job.failures) == (None, 1, 0)
    assert queue.result("a") is None


def test_the_successor_waits_for_its_time(queue: Queue, clock: Clock) -> None:
    lease = running(queue)
    update(queue, delay=10)
    clock.advance(4)
    queue.complete(lease)
    assert shown(queue).at == clock.ms / 1000 + 6


def test_the_successor_of_a_retried_job_is_merged_into_it(queue: Queue, clock: Clock) -> None:
    lease = running(queue, handler="h")
    update(queue, how=Update(due=False, limits=False, counts=False))
    queue.retry(lease, error="why", after=5)
    job = shown(queue)
    assert (job.state, job.data, job.failures) == ("delayed", b"new", 1)
    assert (job.at, job.facts.handler) == (clock.ms / 1000 + 5, "h")


@pytest.mark.parametrize("end", ["release", "lapse", "recall", "release lapsed"])
def test_the_successor_of_a_job_that_comes_back_is_merged_into_it(
    queue: Queue, clock: Clock, end: str
) -> None:
    queue.add(b"old", id="a")
    lease = take(queue, 1)
    update(queue, priority=90)
    if end == "release":
        queue.release(lease)
    elif end == "release lapsed":
        queue.release(lease, lapsed="crashed")
    elif end == "recall":
        queue.fail_worker(lease)
    else:
        clock.advance(1)
        queue.tidy()
    assert queue.complete(lease) is False
    granted = take(queue)
    assert (granted.data, granted.lapses) == (b"new", 0)


@pytest.mark.parametrize("end", ["fail", "retry", "lapse"])
def test_when_a_job_fails_its_successor_takes_the_id(queue: Queue, clock: Clock, end: str) -> None:
    queue.add(b"old", id="a", max_failures=0, max_lapses=0, priority=60, result_for=60)
    lease = take(queue, 1)
    queue.set_result("a", b"so far")
    update(queue, handler="h")
    if end == "fail":
        queue.fail(lease, error="why")
    elif end == "retry":
        queue.retry(lease, error="why")
    else:
        clock.advance(1)
        queue.tidy()
    [failed] = queue.failed()
    assert failed.id.startswith("a~")
    assert (failed.data, failed.priority) == (b"old", 60)
    outcome = queue.result(failed.id)
    assert outcome is not None
    assert (outcome.kind, outcome.result) == ("failed", b"so far")
    granted = take(queue)
    assert (granted.id, granted.data, granted.facts.handler) == ("a", b"new", "h")
    assert queue.revive(failed.id)


def test_a_failed_job_with_a_long_id_can_still_be_named(queue: Queue) -> None:
    id = "x" * 512
    queue.add(b"old", id=id)
    lease = take(queue)
    update(queue, id=id)
    queue.fail(lease, error="why")
    [failed] = queue.failed()
    assert len(failed.id) <= 512
    assert queue.cancel(failed.id)
    assert queue.data(id) == b"new"


def test_several_failures_of_one_id_are_filed_apart(queue: Queue) -> None:
    queue.add(b"0", id="a")
    for n in range(1, 4):
        lease = take(queue)
        update(queue, b"%d" % n)
        queue.fail(lease, error=f"{n}")
    assert sorted(job.data or b"" for job in queue.failed()) == [b"0", b"1", b"2"]
    assert len({job.id for job in queue.failed()}) == 3


UPDATES = [
    (b"1", Update(data=False, due="later", limits=False, counts=False), 10, {}),
    (b"2", Update(data=True, due=False, limits=False, counts=None), 99, {}),
    (b"3", Update(data=False, due="earlier", limits=True, counts=False), 7, {"handler": "h"}),
    (b"4", Update(data=True, due=True, limits=False, counts=True), 4, {}),
    (b"5", Update(data=False, due="later", limits=True, counts=False), 6, {"max_lapses": 9}),
    (b"6", Update(data=False, due="earlier", limits=False, counts=False), 20, {}),
    (b"7", Update(data=False, limits=["max_lapses"]), 5, {"handler": "n", "max_lapses": 8}),
    (b"8", Update(due=False, limits=["priority", "keep"]), 3, {"priority": 9, "keep": True}),
    (b"9", Update(limits=["group", "handler"]), 3, {"group": "g", "max_lapses": 1}),
]


@pytest.mark.parametrize("first", range(len(UPDATES)))
@pytest.mark.parametrize("second", range(len(UPDATES)))
@pytest.mark.parametrize("third", [2, 6])
@pytest.mark.parametrize("after", [0, 8])
def test_updates_while_it_runs_do_together_what_they_do_one_by_one_to_a_job_that_waits(
    queue: Queue, first: int, second: int, third: int, after: float
) -> None:
    chosen = [UPDATES[n] for n in (first, second, third)]
    for id in ("runs", "waits"):
        queue.add(b"0", id=id, max_failures=1)
    leases = {lease.id: lease for lease in queue.lease_many(2, 60)}
    queue.release(leases["waits"], after=after)
    for data, how, delay, options in chosen:
        for id in ("runs", "waits"):
            queue.add(data, id=id, on_conflict=how, delay=delay, **options)  # type: ignore[arg-type]
    queue.release(leases["runs"], after=after)
    runs, waits = shown(queue, "runs"), shown(queue, "waits")
    assert (runs.data, runs.at, runs.facts, runs.state, runs.priority) == (
        waits.data,
        waits.at,
        waits.facts,
        waits.state,
        waits.priority,
    )


@pytest.mark.parametrize("first", range(len(UPDATES)))
@pytest.mark.parametrize("second", range(len(UPDATES)))
def test_updates_while_it_runs_make_the_job_that_they_make_of_nothing(
    queue: Queue, first: int, second: int
) -> None:
    queue.add(b"0", id="runs")
    lease = take(queue)
    for data, how, delay, options in (UPDATES[first], UPDATES[second]):
        for id in ("runs", "new"):
            queue.add(data, id=id, on_conflict=how, delay=delay, **options)  # type: ignore[arg-type]
    queue.complete(lease)
    runs, new = shown(queue, "runs"), shown(queue, "new")
    assert (runs.data, runs.at, runs.facts, runs.priority) == (
        new.data,
        new.at,
        new.facts,
        new.priority,
    )


def test_a_successor_is_seen_and_explained(queue: Queue) -> None:
    lease = running(queue)
    assert not shown(queue).successor
    update(queue)
    assert shown(queue).successor
    assert "an update waits" in queue.explain("a")
    queue.complete(lease)
    assert not shown(queue).successor


def test_a_successor_that_somebody_spoiled_stops_nobody(queue: Queue, spoiled: Behind) -> None:
    lease = running(queue)
    spoiled("HSET", "next", "a", b"\xc1")
    assert queue.complete(lease) is True
    assert queue.audit() == []


def test_a_job_that_somebody_robbed_of_its_payload_fails_whole(
    queue: Queue, spoiled: Behind
) -> None:
    lease = running(queue)
    update(queue)
    spoiled("HDEL", "jobs", "a")
    queue.fail(lease, error="why")
    assert take(queue).data == b"new"
    assert queue.audit() == []


def test_a_failed_job_is_filed_under_an_id_that_nobody_has(queue: Queue) -> None:
    lease = running(queue)
    update(queue)
    for n in range(2, 9):
        queue.add(b"precious", id=f"a~{n}")
    queue.fail(lease, error="why")
    assert sum(job.data == b"precious" for job in queue.peek(99)) == 7
    [failed] = queue.failed()
    assert failed.data == b"old"


@pytest.mark.parametrize("id", ["a" + "é" * 255, "é" * 256, "ab" + "日" * 170, "a" * 495 + "é"])
def test_an_id_is_not_cut_inside_a_character(queue: Queue, id: str) -> None:
    queue.add(b"old", id=id)
    lease = take(queue)
    update(queue, id=id)
    queue.fail(lease, error="why")
    [failed] = queue.failed()
    assert id.startswith(failed.id.rpartition("~")[0])
    handled = queue.lease(30, failed=True)
    assert handled is not None
    assert handled.id == failed.id


@pytest.mark.parametrize("meanwhile", ["waiting", "leased", "ended"])
def test_an_update_of_a_made_id_that_comes_again_after_long_changes_nothing(
    queue: Queue, behind: Behind, meanwhile: str
) -> None:
    entry = Entry("made", b"x", True, 50, b"", pack(result_for_ms=3_600_000))
    call = calls.update([entry], b"1=11")
    assert [r.created for r in behind.ask(call, "caller", 1)] == [True]
    if meanwhile != "waiting":
        lease = take(queue)
        if meanwhile == "ended":
            queue.complete(lease)
    behind("HDEL", "calls", "caller")
    before = behind.everything()
    assert [r.created for r in behind.ask(call, "caller", 1)] == [True]
    after = behind.everything()
    assert {name for name in after if after[name] != before.get(name)} <= {"calls", "meta"}


def test_a_long_id_is_cut_no_shorter_than_it_must_be(queue: Queue) -> None:
    id = "x" * 494 + "é" + "x" * 16
    queue.add(b"old", id=id)
    lease = take(queue)
    queue.add(b"new", id=id, on_conflict="update")
    queue.fail(lease, error="no")
    [failed] = queue.failed()
    assert failed.id.startswith("x" * 494 + "é~")
