from __future__ import annotations

import pytest

from conftest import Clock
from engine_support import Behind, ids, take
from holdfast import LeaseLost, NewJob, Queue


def test_a_completed_job_leaves_nothing_but_bookkeeping(queue: Queue, behind: Behind) -> None:
    queue.add(b"x", id="a", handler="h")
    assert queue.complete(take(queue)) is True
    assert set(behind.everything()) <= {"calls", "meta", "wake"}


def test_a_job_is_completed_once(queue: Queue, behind: Behind) -> None:
    queue.add(b"x")
    lease = take(queue)
    assert queue.complete(lease) is True
    before = behind.everything()
    assert queue.complete(lease) is False
    after = behind.everything()
    assert after.pop("calls") != before.pop("calls")
    assert after == before


def test_only_the_last_token_given_out_completes(queue: Queue, clock: Clock) -> None:
    queue.add(b"x")
    first = take(queue, 1)
    clock.advance(1)
    second = take(queue, 1)
    assert queue.complete(first) is False
    assert queue.counts().leased == 1
    assert queue.complete(second) is True


def test_a_lapsed_lease_that_nobody_took_back_still_completes(queue: Queue, clock: Clock) -> None:
    queue.add(b"x")
    lease = take(queue, 1)
    clock.advance(2)
    assert queue.complete(lease) is True


def test_after_a_reclaim_the_last_holder_may_still_complete_and_leaves_no_ghost(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    queue.add(b"x", id="a", result_for=60)
    lease = take(queue, 1)
    clock.advance(1)
    assert queue.tidy().reclaimed == 1
    assert queue.complete(lease, b"late") is True
    assert queue.complete(lease) is False
    assert queue.lease(30) is None
    assert queue.counts().ready == 0
    assert behind("HGET", "results", "a") == b"late"


def test_a_released_job_cannot_be_completed_by_who_gave_it_back(queue: Queue) -> None:
    queue.add(b"x")
    lease = take(queue)
    queue.release(lease)
    assert queue.complete(lease) is False
    assert queue.counts().ready == 1


def test_a_failed_job_cannot_be_completed_by_its_last_holder(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", max_lapses=0)
    lease = take(queue, 1)
    clock.advance(1)
    queue.tidy()
    assert queue.counts().failed == 1
    assert queue.complete(lease) is False
    assert queue.counts().failed == 1


def test_a_made_up_token_completes_nothing(queue: Queue) -> None:
    queue.add(b"x", id="a")
    lease = take(queue)
    holder, _, number = lease.token.partition(".")
    for token in (f"{holder}.{int(number) + 1}", f"{holder}.", holder, lease.token[:-1] or "x"):
        forged = type(lease)("a", b"", token)
        assert queue.complete(forged) is False
    assert queue.complete(lease) is True


# ------------------------------------------------------------------------- many


def test_many_are_completed_and_each_is_answered_for_itself(queue: Queue, clock: Clock) -> None:
    queue.add_many([NewJob(b"", id=id) for id in "abc"])
    lost = take(queue, 1)
    clock.advance(1)
    leases = queue.lease_many(3, 30)
    answers = queue.complete_many([leases[1], lost, leases[0], leases[0], leases[2]])
    assert answers == [True, False, True, False, True]


def test_a_thousand_and_more_are_completed_in_calls_of_a_thousand(queue: Queue) -> None:
    queue.add_many([b""] * 1500)
    leases = [lease for _ in range(2) for lease in queue.lease_many(1000, 30)]
    assert queue.complete_many(leases) == [True] * 1500
    assert queue.counts().leased == 0


def test_nothing_completed_is_no_call(queue: Queue, behind: Behind) -> None:
    assert queue.complete_many([]) == []
    assert behind.everything() == {}


# ---------------------------------------------------------------------- results


def test_a_result_is_kept_for_as_long_as_the_job_says(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    queue.add(b"x", id="a", result_for=60)
    queue.complete(take(queue), {"sum": 3})
    assert behind("HGET", "results", "a") == b'{"sum":3}'
    assert behind("HGET", "jobs", "a") is None
    assert queue.counts().ended == 1
    clock.advance(59.999)
    assert queue.tidy().pruned == 0
    clock.advance(0.001)
    assert queue.tidy().pruned == 1
    assert set(behind.everything()) <= {"calls", "meta", "wake"}


def test_a_result_is_not_kept_where_the_job_does_not_say_so(queue: Queue, behind: Behind) -> None:
    queue.add(b"x", id="plain")
    queue.add(b"x", id="remembered", remember_for=60)
    queue.complete_many([(lease, b"result") for lease in queue.lease_many(2, 30)])
    assert behind("EXISTS", "results") == 0
    assert queue.counts().ended == 1


def test_a_job_without_a_result_has_ended_all_the_same(queue: Queue, behind: Behind) -> None:
    queue.add(b"x", id="a", result_for=60)
    assert queue.complete(take(queue))
    assert behind("EXISTS", "results") == 0
    assert behind.facts("a")["outcome"] == "completed"


def test_an_empty_result_is_a_result(queue: Queue, behind: Behind) -> None:
    queue.add(b"x", id="a", result_for=60)
    queue.complete(take(queue), b"")
    assert behind("HGET", "results", "a") == b""


def test_a_payload_is_kept_with_the_result_where_the_job_says_so(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    queue.add(b"payload", id="a", result_for=60, keep=True)
    queue.add(b"payload", id="no result to keep it with", remember_for=60, keep=True)
    queue.complete_many(queue.lease_many(2, 30))
    assert behind("HGETALL", "jobs") == {b"a": b"payload"}
    clock.advance(60)
    queue.tidy()
    assert behind("EXISTS", "jobs") == 0


def test_a_result_can_be_kept_for_ever(queue: Queue, clock: Clock, behind: Behind) -> None:
    queue.add(b"x", id="a", result_for=float("inf"))
    queue.complete(take(queue), b"result")
    clock.advance(10**9)
    queue.tidy()
    assert behind("HGET", "results", "a") == b"result"


def test_an_ending_knows_when_and_how(queue: Queue, clock: Clock, behind: Behind) -> None:
    queue.add(b"x", id="a", result_for=60, remember_for=30, handler="h")
    queue.complete(take(queue))
    assert behind.facts("a") == {
        "outcome": "completed",
        "ended_at": clock.ms,
        "taken_until": clock.ms + 30_000,
    }


def test_the_result_that_is_kept_is_the_winners(queue: Queue, clock: Clock, behind: Behind) -> None:
    queue.add(b"x", id="a", result_for=60)
    loser = take(queue, 1)
    clock.advance(1)
    winner = take(queue, 1)
    assert queue.complete(loser, b"loser's") is False
    assert queue.complete(winner, b"winner's") is True
    assert queue.complete(loser, b"loser's") is False
    assert behind("HGET", "results", "a") == b"winner's"


@pytest.mark.parametrize("winner_first", [True, False])
@pytest.mark.parametrize("way", ["complete_many", "lease_many"])
def test_the_result_that_is_kept_is_the_winners_also_in_one_call(
    queue: Queue, clock: Clock, behind: Behind, winner_first: bool, way: str
) -> None:
    queue.add(b"x", id="a", result_for=60)
    loser = take(queue, 1)
    clock.advance(1)
    winner = take(queue, 1)
    done = [(winner, b"winner's"), (loser, b"loser's")]
    if not winner_first:
        done.reverse()
    if way == "complete_many":
        answers = queue.complete_many(done)
    else:
        answers = queue.lease_many(1, 30, complete=done).completed
    assert answers == [winner_first, not winner_first]
    assert behind("HGET", "results", "a") == b"winner's"


def test_many_large_results_are_cut_into_calls(queue: Queue, behind: Behind) -> None:
    queue.add_many([b""] * 20, result_for=60)
    leases = queue.lease_many(20, 30)
    assert queue.complete_many([(lease, b"x" * 1_000_000) for lease in leases]) == [True] * 20
    assert behind("HLEN", "results") == 20


# ------------------------------------------------------------------- follow-ups


def test_follow_ups_are_added_in_the_call_that_completes(queue: Queue) -> None:
    queue.add(b"x", id="a")
    follow_ups = [b"plain", NewJob(b"named", id="b", priority=90), NewJob(b"later", delay=5)]
    assert queue.complete(take(queue), add=follow_ups)
    assert [lease.data for lease in queue.lease_many(9, 30)] == [b"named", b"plain"]
    assert queue.counts().delayed == 1


def test_what_was_not_completed_adds_no_follow_ups(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a")
    lost = take(queue, 1)
    clock.advance(1)
    take(queue, 30)
    assert queue.complete(lost, b"result", add=[b"follow-up"]) is False
    assert queue.counts().waiting == 0


def test_a_follow_up_may_have_the_id_of_the_job_it_follows(queue: Queue) -> None:
    queue.add(b"1", id="a")
    assert queue.complete(take(queue), add=[NewJob(b"2", id="a")])
    again = take(queue)
    assert (again.id, again.data, again.lapses) == ("a", b"2", 0)


def test_a_follow_up_with_its_own_remembered_id_is_not_added(queue: Queue) -> None:
    queue.add(b"1", id="a", remember_for=60)
    assert queue.complete(take(queue), add=[NewJob(b"2", id="a")])
    assert queue.counts().waiting == 0


def test_a_follow_up_with_a_taken_id_is_left_out_and_the_others_are_added(queue: Queue) -> None:
    queue.add(b"1", id="a")
    queue.add(b"old", id="b")
    assert queue.complete(take(queue), add=[NewJob(b"new", id="b"), NewJob(b"3", id="c")])
    assert [lease.data for lease in queue.lease_many(9, 30)] == [b"old", b"3"]


def test_a_thousand_follow_ups_are_added_at_once(queue: Queue) -> None:
    queue.add(b"x")
    assert queue.complete(take(queue), add=[b""] * 1000)
    assert queue.counts().ready == 1000


# ------------------------------------------------------------------------ force


def test_with_force_the_id_is_enough_whoever_holds_it(queue: Queue) -> None:
    queue.add(b"x", id="a")
    lease = take(queue)
    assert queue.complete("a", force=True) is True
    assert queue.complete(lease) is False
    assert queue.complete("a", force=True) is False
    with pytest.raises(LeaseLost):
        queue.extend(lease, 30)


@pytest.mark.parametrize("state", ["ready", "delayed", "leased", "failed"])
def test_with_force_a_job_is_completed_wherever_it_stands(
    queue: Queue, behind: Behind, state: str
) -> None:
    queue.add(b"x", id="a", delay=5 if state == "delayed" else 0, max_lapses=0, result_for=60)
    if state in ("leased", "failed"):
        lease = take(queue)
        if state == "failed":
            queue.release(lease, lapsed="crashed")
    assert getattr(queue.counts(), state) == 1
    assert queue.complete("a", b"done", force=True) is True
    assert behind("HGET", "results", "a") == b"done"
    counts = queue.counts()
    assert (counts.waiting, counts.leased, counts.failed, counts.ended) == (0, 0, 0, 1)


def test_with_force_what_does_not_exist_is_not_completed(queue: Queue) -> None:
    assert queue.complete("nobody", force=True, add=[b"follow-up"]) is False
    assert queue.counts().waiting == 0


def test_with_force_a_lost_lease_completes(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a")
    lost = take(queue, 1)
    clock.advance(1)
    take(queue, 30)
    assert queue.complete(lost, force=True) is True


def test_with_force_an_ending_stays_as_it_is(queue: Queue, behind: Behind) -> None:
    queue.add(b"x", id="a", result_for=60)
    queue.complete(take(queue), b"first")
    assert queue.complete("a", b"second", force=True) is False
    assert behind("HGET", "results", "a") == b"first"


# ---------------------------------------------------------------------- I2 again


def test_over_a_jobs_life_one_complete_answers_true(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a", max_lapses=None)
    leases = []
    for _ in range(5):
        leases.append(take(queue, 1))
        clock.advance(1)
    queue.tidy()
    answers = queue.complete_many(leases) + queue.complete_many(leases)
    assert answers == [False] * 4 + [True] + [False] * 5
    assert ids(queue.lease_many(9, 1)) == []
