from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from conftest import Clock
from engine_support import Behind, ids, take
from holdfast import Lease, LeaseLost, NewJob, Queue


def test_a_released_job_is_ready_at_the_rank_it_had_and_at_no_cost(queue: Queue) -> None:
    queue.add_many([NewJob(b"", id=id) for id in "abc"])
    for _ in range(10):
        queue.release(take(queue))
    lease = take(queue)
    assert (lease.id, lease.lapses, lease.failures) == ("a", 0, 0)


def test_a_released_job_leaves_no_facts(queue: Queue, behind: Behind) -> None:
    queue.add(b"")
    queue.release(take(queue))
    assert behind("EXISTS", "facts") == 0
    assert behind("EXISTS", "holds") == 0


def test_a_queue_may_put_what_is_given_back_behind_its_equals(queue: Queue, clock: Clock) -> None:
    back = Queue(queue.name, queue.server, requeue="back", clock=clock)
    back.add_many([NewJob(b"", id=id, priority=70) for id in "abc"])
    back.add(b"", id="low", priority=10)
    back.release_many(back.lease_many(2, 30))
    assert ids(back.lease_many(9, 30)) == ["c", "a", "b", "low"]


def test_many_are_released_to_the_places_they_had(queue: Queue) -> None:
    queue.add_many([NewJob(b"", id=id) for id in "abcd"])
    first = queue.lease_many(3, 30)
    assert queue.release_many(reversed(first)) == [True] * 3
    assert ids(queue.lease_many(9, 30)) == ["a", "b", "c", "d"]


def test_more_than_a_thousand_are_released_in_several_calls(queue: Queue) -> None:
    queue.add_many([b""] * 1100)
    leases = [lease for _ in range(2) for lease in queue.lease_many(1000, 30)]
    assert queue.release_many(leases) == [True] * 1100
    assert queue.counts().ready == 1100


@pytest.mark.parametrize("after", [10, 10.0, timedelta(seconds=10)])
def test_a_job_released_for_later_waits_until_then(
    queue: Queue, clock: Clock, after: float
) -> None:
    queue.add(b"", id="a")
    queue.release(take(queue), after=after)
    assert queue.counts().delayed == 1
    clock.advance(9.999)
    assert queue.lease(30) is None
    clock.advance(0.001)
    assert take(queue).lapses == 0


def test_released_after_nothing_is_released_at_once(queue: Queue) -> None:
    queue.add(b"")
    queue.release(take(queue), after=0)
    assert queue.counts().ready == 1


def test_a_job_released_for_later_keeps_its_priority(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="high", priority=90, handler="h")
    queue.add(b"", id="low", priority=10)
    queue.release_many(queue.lease_many(2, 30), after=1)
    queue.add(b"", id="middle")
    clock.advance(1)
    leases = queue.lease_many(9, 30)
    assert ids(leases) == ["high", "middle", "low"]
    assert leases[0].facts.handler == "h"


# ---------------------------------------------------------------- a run that lapsed


def test_a_run_that_did_not_answer_counts_as_a_lapse_and_says_why(
    queue: Queue, behind: Behind
) -> None:
    queue.add(b"", id="a")
    queue.release(take(queue), lapsed="killed after 30 s")
    lease = take(queue)
    assert (lease.lapses, lease.failures) == (1, 0)
    assert lease.facts.error == "killed after 30 s"


def test_by_default_a_job_is_given_out_four_times_and_then_failed(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    queue.add(b"", id="a", priority=90)
    for lapses in range(4):
        lease = take(queue)
        assert lease.lapses == lapses
        queue.release(lease, lapsed="crashed")
    assert queue.lease(30) is None
    assert queue.counts().failed == 1
    assert behind("EXISTS", "holds") == 0
    assert behind.facts("a") == {
        "lapses": 4,
        "error": "crashed",
        "failed_at": clock.ms,
        "priority": 90,
    }


@pytest.mark.parametrize(("max_lapses", "runs"), [(0, 1), (1, 2), (5, 6)])
def test_a_job_says_how_many_lapses_it_may_have(queue: Queue, max_lapses: int, runs: int) -> None:
    queue.add(b"", max_lapses=max_lapses)
    for _ in range(runs):
        assert queue.counts().failed == 0
        queue.release(take(queue), lapsed="crashed")
    assert queue.counts().failed == 1


def test_a_job_may_lapse_for_ever(queue: Queue) -> None:
    queue.add(b"", max_lapses=None)
    for lapses in range(20):
        lease = take(queue)
        assert lease.lapses == lapses
        queue.release(lease, lapsed="crashed")
    assert queue.counts().ready == 1


def test_clean_releases_between_lapses_cost_nothing(queue: Queue) -> None:
    queue.add(b"", max_lapses=1)
    for _ in range(5):
        queue.release(take(queue))
    queue.release(take(queue), lapsed="crashed")
    for _ in range(5):
        queue.release(take(queue))
    assert take(queue).lapses == 1


def test_a_lapse_may_wait(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a", priority=90, max_lapses=1)
    queue.release(take(queue), lapsed="crashed", after=5)
    assert queue.counts().delayed == 1
    clock.advance(5)
    queue.release(take(queue), lapsed="crashed", after=5)
    assert (queue.counts().delayed, queue.counts().failed) == (0, 1)


def test_of_many_that_lapsed_each_is_judged_by_its_own_limit(queue: Queue) -> None:
    queue.add_many([NewJob(b"", id="spent", max_lapses=0), NewJob(b"", id="not yet")])
    assert queue.release_many(queue.lease_many(2, 30), lapsed="crashed") == [True, True]
    assert (queue.counts().failed, queue.counts().ready) == (1, 1)
    assert take(queue).id == "not yet"


def test_a_long_reason_is_cut_and_an_odd_one_is_kept_readable(queue: Queue) -> None:
    queue.add(b"", max_lapses=None)
    for reason, kept in {"x" * 10_000: "x" * 4096, "\ud800 bad": "\\ud800 bad"}.items():
        queue.release(take(queue), lapsed=reason)
        lease = take(queue)
        assert lease.facts.error == kept
        queue.release(lease)


# ------------------------------------------------------------------------ too late

SETTLE: dict[str, Callable[[Queue, Lease], object]] = {
    "release": lambda queue, lease: queue.release(lease),
    "release after": lambda queue, lease: queue.release(lease, after=5),
    "release lapsed": lambda queue, lease: queue.release(lease, lapsed="crashed"),
    "extend": lambda queue, lease: queue.extend(lease, 30),
}


@pytest.mark.parametrize(
    "end", ["completed", "released", "reclaimed", "given to another", "failed", "deleted"]
)
@pytest.mark.parametrize("settle", SETTLE)
def test_a_lease_that_is_over_can_be_neither_released_nor_extended(
    queue: Queue, clock: Clock, behind: Behind, end: str, settle: str
) -> None:
    queue.add(b"", id="a", max_lapses=0 if end == "failed" else 3)
    lease = take(queue, 1)
    if end == "completed":
        queue.complete(lease)
    elif end == "released":
        queue.release(lease)
    elif end == "deleted":
        queue.delete()
    else:
        clock.advance(1)
        queue.tidy()
        if end == "given to another":
            take(queue)
    before = behind.everything()
    with pytest.raises(LeaseLost, match=r"^a: "):
        SETTLE[settle](queue, lease)
    after = behind.everything()
    for changing in ("calls", "meta"):
        before.pop(changing, None)
        after.pop(changing, None)
    assert after == before


def test_the_many_form_answers_for_each_lease(queue: Queue, clock: Clock) -> None:
    queue.add_many([NewJob(b"", id=id) for id in "ab"])
    lost = take(queue, 1)
    clock.advance(1)
    leases = queue.lease_many(2, 30)
    answers = queue.release_many([lost, leases[0], leases[0], leases[1]])
    assert answers == [False, True, False, True]
