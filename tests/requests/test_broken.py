"""What somebody else did to the keys of a queue stops neither its requests nor the others."""

from __future__ import annotations

import pytest

from engine_support import Behind, ids, take
from holdfast import GroupStatus, NewJob, Queue
from request_support import counters, fill, states, work_off


def test_a_part_without_a_payload_is_dropped_where_it_is_met(queue: Queue, behind: Behind) -> None:
    request = fill(queue.request("r", limit=1), 3)
    behind("HDEL", "jobs", "r/0", "r/1")
    leases = [*queue.lease_many(9, 60), *queue.lease_many(9, 60)]
    assert ids(leases) == ["r/2"]
    assert counters(request.status()) == {"total": 3, "cancelled": 2, "running": 1}
    assert states(request) == ["cancelled", "cancelled", "running"]
    assert queue.audit() == []
    queue.complete_many(leases)
    assert request.status().state == "completed"


def test_a_failed_part_without_a_payload_is_dropped_where_it_is_met(
    queue: Queue, behind: Behind
) -> None:
    request = fill(queue.request("r", limit=2), 2)
    queue.fail(take(queue), error="why")
    behind("HDEL", "jobs", "r/0")
    assert queue.lease(60, failed=True) is None
    assert counters(request.status()) == {"total": 2, "cancelled": 1, "parked": 1}
    assert request.status().state == "sealed"
    assert work_off(queue) == ["r/1"]
    assert request.status().state == "completed"


@pytest.mark.parametrize("failed", [True, False])
@pytest.mark.parametrize("result_for", [0, 60])
def test_a_job_of_a_group_without_a_payload_is_dropped_where_it_is_met(
    queue: Queue, behind: Behind, failed: bool, result_for: int
) -> None:
    queue.add_many(
        [NewJob(b"", id=id, group="g", group_limit=1, result_for=result_for) for id in "ab"]
    )
    if failed:
        queue.fail(take(queue), error="why")
    behind("HDEL", "jobs", "a")
    leases = queue.lease_many(9, 60, failed=failed)
    assert ids(leases) == ([] if failed else ["b"])
    assert queue.groups() == [GroupStatus("g", 1, 1, len(leases), 1 - len(leases))]
    assert queue.audit() == []
    queue.release_many(leases)
    assert work_off(queue) == ["b"]
    assert queue.groups() == []


def test_a_request_that_lost_all_its_payloads_ends(queue: Queue, behind: Behind) -> None:
    request = fill(queue.request("r", follow_up=b""), 3)
    behind("UNLINK", "jobs")
    assert take(queue).id == "r/end/1"
    assert counters(request.status()) == {"total": 3, "cancelled": 3}


def test_a_record_that_cannot_be_read_stops_nobody_else(queue: Queue, behind: Behind) -> None:
    """And a repair makes its parts jobs like any other, so that nothing is lost."""
    fill(queue.request("broken", priority=90), 2)
    held = take(queue)
    fill(queue.request("sound"), 1)
    queue.add(b"", id="plain")
    behind("HSET", "requests", "broken", b"junk")
    assert sorted(ids(queue.lease_many(1, 60) + queue.lease_many(9, 60))) == ["plain", "sound/0"]
    assert [status.id for status in queue.requests()] == ["sound"]
    assert queue.audit() != []
    assert queue.complete(held)
    assert queue.repair() != []
    assert work_off(queue) == ["broken/1"]


def test_counters_that_are_wrong_are_counted_anew(queue: Queue, behind: Behind) -> None:
    """Two places seem taken by nobody, and no part is given out, until a repair."""
    request = fill(queue.request("r", limit=2), 4)
    leases = queue.lease_many(2, 60)
    full = behind("HGET", "requests", "r")
    queue.complete_many(leases)
    behind("HSET", "requests", "r", full)
    assert {problem.id for problem in queue.audit()} == {"r"}
    assert queue.lease(60) is None
    assert "counted anew" in {problem.what for problem in queue.repair()}
    assert queue.audit() == []
    assert counters(request.status()) == {"total": 4, "done": 2, "parked": 2}
    assert work_off(queue) == ["r/2", "r/3"]
    assert request.status().state == "completed"


def test_a_part_that_does_not_know_its_request_any_more_can_be_looked_at(
    queue: Queue, behind: Behind
) -> None:
    request = fill(queue.request("r"), 2)
    behind("HDEL", "facts", "r/0")
    assert [part.number for part in request.results()] == [0, 1]
    queue.repair()
    assert queue.audit() == []
