"""Plain jobs of any priority share the limit of their group, which is gone with its last job."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import Clock
from engine_support import Behind, ids, take
from holdfast import (
    GroupStatus,
    InvalidArgument,
    JobExists,
    JobNotFound,
    JobOptions,
    NewJob,
    Queue,
    Update,
    WrongState,
)
from holdfast.engine import request_calls
from request_support import fill, work_off


def group_of(queue: Queue, name: str = "g") -> GroupStatus:
    [found] = [group for group in queue.groups() if group.name == name]
    return found


def add(queue: Queue, letters: str, group: str | None = "g", limit: int | None = 1) -> None:
    queue.add_many([NewJob(b"", id=id, group=group, group_limit=limit) for id in letters])


def test_jobs_of_a_group_share_its_limit(queue: Queue) -> None:
    queue.add(b"", id="a", group="g", group_limit=2, priority=10)
    queue.add(b"", id="b", group="g", priority=90)
    queue.add(b"", id="c", group="g")
    queue.add(b"", id="plain", priority=5)
    assert ids(queue.lease_many(9, 60)) == ["b", "c", "plain"]
    assert group_of(queue) == GroupStatus("g", 2, 3, 2, 1)
    assert queue.counts().parked == 1
    assert queue.lease(60) is None
    queue.complete("b", force=True)
    assert take(queue).id == "a"


def test_a_group_without_a_limit_is_just_a_name(queue: Queue) -> None:
    queue.add_many([NewJob(b"", id=id, group="g") for id in "abc"])
    assert group_of(queue) == GroupStatus("g", None, 3, 0, 3)
    assert ids(queue.lease_many(9, 60)) == ["a", "b", "c"]


def test_every_add_may_change_the_limit(queue: Queue) -> None:
    add(queue, "abcdef", limit=1)
    assert len(queue.lease_many(9, 60)) == 1
    queue.add(b"", group="g")
    assert group_of(queue).limit == 1
    queue.add(b"", group="g", group_limit=3)
    assert group_of(queue).limit == 3
    assert len(queue.lease_many(9, 60)) == 2
    queue.add(b"", group="g", group_limit=None)
    assert group_of(queue).limit is None
    assert len(queue.lease_many(9, 60)) == 6


def test_an_add_that_adds_nothing_changes_no_limit(queue: Queue) -> None:
    add(queue, "a", limit=1)
    assert not queue.add(b"", id="a", group="g", group_limit=5)
    with pytest.raises(JobExists):
        queue.add(b"", id="a", group="g", group_limit=5, on_conflict="raise")
    assert group_of(queue) == GroupStatus("g", 1, 1, 0, 1)


def test_a_limit_can_be_set_from_outside(queue: Queue) -> None:
    add(queue, "abcde", limit=0)
    assert queue.lease(60) is None
    queue.set_group_limit("g", 2)
    assert ids(queue.lease_many(9, 60)) == ["a", "b"]
    queue.set_group_limit("g", 1)
    assert group_of(queue).running == 2
    queue.complete("a", force=True)
    assert queue.lease(60) is None
    queue.set_group_limit("g", None)
    assert ids(queue.lease_many(9, 60)) == ["c", "d", "e"]


def test_the_limit_of_a_group_that_is_not_there_cannot_be_set(queue: Queue) -> None:
    with pytest.raises(JobNotFound, match="g: no group"):
        queue.set_group_limit("g", 1)
    fill(queue.request("r", limit=3), 1, seal=False)
    with pytest.raises(JobNotFound, match="r: no group"):
        queue.set_group_limit("r", 1)
    assert queue.request("r").status().limit == 3


@pytest.mark.parametrize("end", ["complete", "cancel", "cancel_running", "fail", "remembered"])
def test_the_group_is_gone_with_its_last_job(queue: Queue, behind: Behind, end: str) -> None:
    options = {"result_for": 60} if end == "remembered" else {}
    queue.add(b"", id="a", group="g", group_limit=1, **options)  # type: ignore[arg-type]
    queue.add(b"", id="b", group="g", delay=60)
    queue.cancel("b")
    assert group_of(queue).jobs == 1
    if end == "cancel":
        queue.cancel("a")
    else:
        lease = take(queue)
        if end == "cancel_running":
            queue.cancel("a")
        if end == "fail":
            queue.fail(lease, error="why")
            assert group_of(queue) == GroupStatus("g", 1, 1, 0, 0)
            queue.cancel("a")
        else:
            queue.complete(lease)
    assert queue.groups() == []
    assert not behind.everything().keys() & {"requests", "terms", "turns", "parked"}
    # The name is free, and the limit is forgotten.
    queue.add(b"", group="g")
    assert group_of(queue).limit is None


def test_groups_are_listed_by_name(queue: Queue) -> None:
    fill(queue.request("r"), 1)
    for n in (2, 0, 1):
        queue.add(b"", group=f"g{n}", group_limit=n)
    assert queue.groups() == [GroupStatus(f"g{n}", n, 1, 0, 1) for n in range(3)]
    assert [status.id for status in queue.requests()] == ["r"]


def test_hundreds_of_groups_are_listed(queue: Queue) -> None:
    queue.add_many(NewJob(b"", group=f"{n:03}") for n in range(600))
    assert [group.name for group in queue.groups()] == [f"{n:03}" for n in range(600)]


def test_an_update_moves_a_job_into_another_group(queue: Queue) -> None:
    add(queue, "ab", "old")
    assert queue.add(b"", id="b", group="new", group_limit=7, on_conflict="update").updated
    assert queue.groups() == [GroupStatus("new", 7, 1, 0, 1), GroupStatus("old", 1, 1, 0, 1)]
    assert queue.add(b"", id="a", on_conflict="update").updated
    assert queue.groups() == [GroupStatus("new", 7, 1, 0, 1)]
    assert queue.counts().ready == 1
    assert queue.add(b"", id="a", group="new", on_conflict="update").updated
    assert queue.groups() == [GroupStatus("new", 7, 2, 0, 2)]
    assert queue.add(b"", id="a", on_conflict=Update(limits=False)).updated
    assert queue.groups() == [GroupStatus("new", 7, 2, 0, 2)]


@pytest.mark.parametrize("where", ["delayed", "failed", "parked"])
def test_an_update_of_any_job_that_waits_moves_it(queue: Queue, where: str) -> None:
    queue.add(b"", id="a", group="old", delay=60 if where == "delayed" else None)
    if where == "failed":
        queue.fail(take(queue), error="why")
    queue.add(b"new", id="a", group="new", group_limit=1, on_conflict="update")
    assert queue.groups() == [GroupStatus("new", 1, 1, 0, 1)]
    assert take(queue).data == b"new"


@pytest.mark.parametrize("end", ["complete", "release", "fail", "retry", "lapse"])
def test_a_successor_is_of_the_group_that_it_names(queue: Queue, clock: Clock, end: str) -> None:
    """When the run is over; until then the job has its place in the old one."""
    add(queue, "ab", "old")
    lease = take(queue, 30)
    queue.add(b"new", id="a", group="new", group_limit=1, on_conflict="update")
    assert queue.groups() == [GroupStatus("old", 1, 2, 1, 1)]
    match end:
        case "complete":
            queue.complete(lease)
        case "release":
            queue.release(lease)
        case "fail":
            queue.fail(lease, error="why")
        case "retry":
            queue.retry(lease, error="why", after=60)
        case _:
            clock.advance(30)
            queue.tidy(force=True)
    jobs = 2 if end == "fail" else 1  # What failed is filed, and of its group.
    assert queue.groups() == [GroupStatus("new", 1, 1, 0, 1), GroupStatus("old", 1, jobs, 0, 1)]
    assert sorted(ids(queue.lease_many(9, 60))) == ["a", "b"]


def test_a_retry_and_a_delay_keep_the_group(queue: Queue, clock: Clock) -> None:
    add(queue, "ab")
    queue.add(b"", id="c", group="g", delay=60)
    queue.retry(take(queue), error="why", after=60)
    held = take(queue, 600)
    assert group_of(queue) == GroupStatus("g", 1, 3, 1, 0)
    clock.advance(60)
    assert queue.lease(60) is None
    assert group_of(queue) == GroupStatus("g", 1, 3, 1, 2)
    queue.complete(held)
    assert work_off(queue) == ["a", "c"]
    assert queue.groups() == []


def test_a_job_of_a_group_that_comes_back_has_its_place(queue: Queue) -> None:
    add(queue, "abc")
    queue.release(take(queue))
    assert take(queue).id == "a"


def test_a_failed_job_of_a_group_is_handled_and_revived_within_its_limit(
    queue: Queue, clock: Clock
) -> None:
    add(queue, "abc")
    for _ in range(2):
        queue.fail(take(queue), error="why")
    held = take(queue)
    assert held.id == "c"
    assert queue.lease(60, failed=True) is None
    queue.complete(held)
    clock.advance(1)
    handled = queue.lease(60, failed=True)
    assert handled
    assert queue.revive("b" if handled.id == "a" else "a")
    assert queue.lease(60) is None
    queue.complete(handled)
    assert len(work_off(queue)) == 1
    assert queue.groups() == []


def test_a_group_and_a_request_of_one_name_refuse_each_other(queue: Queue, clock: Clock) -> None:
    add(queue, "a", "both")
    with pytest.raises(WrongState, match="both: a group of jobs has this name"):
        queue.request("both").open()
    with pytest.raises(WrongState, match="a group of jobs"):
        queue.request("both").add(b"")
    with pytest.raises(WrongState, match="a group of jobs"):
        queue.request("both").seal()
    with pytest.raises(WrongState, match="a group of jobs"):
        queue.request("both").set_priority(1)
    with pytest.raises(WrongState, match="a group of jobs"):
        queue.request("both").cancel()
    with pytest.raises(JobNotFound):
        queue.request("both").status()
    assert group_of(queue, "both").jobs == 1
    work_off(queue)
    fill(queue.request("both", keep_for=60), 1)
    for on_conflict in ("ignore", "raise", "update"):
        with pytest.raises(WrongState, match="request has the name"):
            queue.add(b"", group="both", on_conflict=on_conflict)
    with pytest.raises(WrongState, match="request has the name"):
        queue.add_many([b"", NewJob(b"", group="both")])
    assert len(queue) == 1
    lease = take(queue)
    with pytest.raises(WrongState, match="request has the name"):
        queue.complete(lease, add=[NewJob(b"", group="both")])
    assert queue.complete(lease)
    clock.advance(60)
    queue.tidy()
    assert queue.add(b"", group="both")


def test_a_successor_whose_group_became_a_request_is_a_plain_job(queue: Queue) -> None:
    queue.add(b"old", id="a")
    lease = take(queue)
    queue.add(b"new", id="a", group="r", on_conflict="update")
    fill(queue.request("r", limit=0), 1)
    queue.complete(lease)
    assert take(queue).data == b"new"
    assert queue.groups() == []
    assert queue.request("r").status().total == 1


def test_a_group_of_one_name_does_not_touch_another(queue: Queue) -> None:
    """Nor a request's follow-up, which is kept beside it."""
    add(queue, "a", "x")
    add(queue, "b", "xy")
    add(queue, "c", "x/")
    add(queue, "d", "x0")
    assert [group.parked for group in queue.groups()] == [1, 1, 1, 1]
    assert ids(queue.lease_many(9, 60)) == ["a", "b", "c", "d"]
    queue.complete("a", force=True)
    assert [group.name for group in queue.groups()] == ["x/", "x0", "xy"]


def test_follow_ups_of_a_job_may_be_of_a_group(queue: Queue) -> None:
    queue.add(b"", id="first")
    queue.complete(take(queue), add=[NewJob(b"", id=id, group="g", group_limit=1) for id in "ab"])
    assert group_of(queue) == GroupStatus("g", 1, 2, 0, 2)
    assert ids(queue.lease_many(9, 60)) == ["a"]


def test_a_follow_up_may_take_away_the_turn_that_the_same_call_gave(queue: Queue) -> None:
    add(queue, "abc", limit=2)
    [first, _] = queue.lease_many(2, 60)
    fill(queue.request("r", follow_up=NewJob(b"", group="g", group_limit=1)), 1)
    assert queue.complete_many([first, take(queue)]) == [True, True]
    assert group_of(queue).limit == group_of(queue).running == 1
    assert queue.audit() == []
    assert queue.lease(60) is None


def test_the_defaults_of_a_queue_may_name_a_group(queue: Queue) -> None:
    grouped = Queue(
        queue.name, queue.server, defaults={"group": "g", "group_limit": 1}, clock=queue.clock
    )
    grouped.add_many([b"", b""])
    grouped.add(b"")
    assert group_of(queue) == GroupStatus("g", 1, 3, 0, 3)


def test_one_call_may_have_to_do_with_thousands_of_groups(queue: Queue, clock: Clock) -> None:
    """As many as it completes, promotes, takes back, tends and gives out: a thousand of each."""
    a_thousand = range(1000)
    queue.add_many(NewJob(b"", group=f"done {n}") for n in a_thousand)
    done = queue.lease_many(1000, 60)
    queue.add_many(NewJob(b"", group=f"lapsing {n}") for n in a_thousand)
    assert len(queue.lease_many(1000, 1)) == 1000
    queue.add_many(NewJob(b"", group=f"due {n}", delay=1) for n in a_thousand)
    queue.add_many(NewJob(b"", group=f"ready {n}", priority=90) for n in a_thousand)
    for n in a_thousand:
        queue._run(request_calls.open_request(f"late {n}", open_for_ms=1000))
    clock.advance(1)
    leases = queue.lease_many(1000, 60, complete=done)
    assert (len(leases), sum(leases.completed)) == (1000, 1000)
    assert {status.state for status in queue.requests()} == {"failed"}
    assert queue.counts().parked == 2000
    assert queue.audit() == []


def test_a_limit_that_is_a_default_goes_with_its_group(queue: Queue, clock: Clock) -> None:
    defaults: JobOptions = {"group": "g", "group_limit": 1}
    other = Queue(queue.name, queue.server, defaults=defaults, clock=clock)
    other.add_many([b"1", b"2", NewJob(b"3", group=None)])
    other.add(b"4", group=None)
    assert sorted(lease.data for lease in queue.lease_many(9, 30)) == [b"1", b"3", b"4"]
    with pytest.raises(InvalidArgument, match="group_limit needs a group"):
        other.add(b"", group=None, group_limit=2)


@pytest.mark.parametrize("change", [{"seal": True}, {"cancel": True}, {"priority": 7}])
def test_nothing_but_the_limit_of_a_group_can_be_changed(
    queue: Queue, change: dict[str, Any]
) -> None:
    queue.add(b"", group="g")
    with pytest.raises(InvalidArgument, match="group"):
        queue._run(request_calls.change_request("g", group=True, **change))
