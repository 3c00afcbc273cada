"""Finished runs to calls: which jobs a call settles, and how."""

from __future__ import annotations

from typing import Any, cast

import pytest

from holdfast import Facts, InvalidArgument, Lease, QueueFull, RunningJob, ServerRefused, WrongState
from holdfast.engine.call import Entry
from holdfast.worker import outcomes
from holdfast.worker.handlers import Handler
from holdfast.worker.job import RunContext
from holdfast.worker.outcomes import COMPLETED, GIVEN_BACK, Answer, Settlement, lapsed

ENTRY = Entry("f", b"", True, 50, b"", b"")


def answered(id: str, answer: Answer, *, follow_ups: int = 0) -> RunningJob:
    job = RunningJob(
        Lease(id, b"", "holder.1", Facts()), Handler(print), cast("RunContext", None), 0
    )
    job.answer = answer
    job.follow_ups = [ENTRY] * follow_ups or None
    return job


def others(*jobs: RunningJob, to_the_back: bool = False) -> list[Settlement]:
    return list(outcomes.others(jobs, to_the_back=to_the_back))


def told(settlement: Settlement) -> tuple[str, list[str]]:
    return settlement.call.function.name, [job.id for job in settlement.jobs]


def test_what_is_merely_completed_rides_on_a_lease_call() -> None:
    done = answered("a", COMPLETED), answered("b", Answer("complete", b"result"))
    rest = answered("c", GIVEN_BACK), answered("d", COMPLETED, follow_ups=1)
    assert outcomes.completed([*done, *rest]) == list(done)
    assert others(*done) == []
    assert [outcomes.settle_of(job) for job in done] == [
        ("a", "holder.1", None),
        ("b", "holder.1", b"result"),
    ]


def test_no_more_ride_on_a_call_than_it_may_carry() -> None:
    jobs = [answered(str(n), COMPLETED) for n in range(1001)]
    assert outcomes.completed(jobs) == jobs[:1000]


def test_big_results_ride_on_several_calls() -> None:
    big = Answer("complete", bytes(outcomes.MOST_BYTES // 2))
    jobs = [answered(str(n), big) for n in range(3)]
    assert outcomes.completed(jobs) == jobs[:2]
    huge = [answered(str(n), Answer("complete", bytes(outcomes.MOST_BYTES + 1))) for n in range(2)]
    assert outcomes.completed(huge) == huge[:1]


def test_each_that_adds_follow_ups_has_a_call_of_its_own() -> None:
    jobs = [answered(id, COMPLETED, follow_ups=2) for id in "ab"]
    assert list(map(told, others(*jobs))) == [
        ("complete_and_add", ["a"]),
        ("complete_and_add", ["b"]),
    ]


def test_what_ends_alike_shares_a_call() -> None:
    jobs = [
        answered("a", Answer("retry", due=b"+1", reason=b"x")),
        answered("b", Answer("fail", reason=b"x")),
        answered("c", Answer("retry", due=b"+2", reason=b"y")),
        answered("d", GIVEN_BACK),
        answered("e", Answer("fail", reason=b"y")),
        answered("f", Answer("release", after_ms=0)),
        answered("g", GIVEN_BACK),
        answered("h", lapsed("late")),
        answered("i", lapsed("later")),
        answered("j", lapsed("late")),
        answered("k", COMPLETED),
    ]
    assert list(map(told, others(*jobs))) == [
        ("retry", ["a", "c"]),
        ("fail", ["b", "e"]),
        ("release", ["d", "g"]),
        ("release", ["f"]),
        ("release", ["h", "j"]),
        ("release", ["i"]),
    ]


@pytest.mark.parametrize("answer", [GIVEN_BACK, Answer("retry", reason=b"x"), lapsed("late")])
def test_a_call_settles_no_more_than_it_may(answer: Answer) -> None:
    jobs = [answered(str(n), answer) for n in range(2500)]
    settlements = others(*jobs)
    assert [len(settlement.jobs) for settlement in settlements] == [1000, 1000, 500]
    assert [job for settlement in settlements for job in settlement.jobs] == jobs


@pytest.mark.parametrize("to_the_back", [False, True])
def test_what_is_given_back_goes_where_the_queue_says(to_the_back: bool) -> None:
    [settlement] = others(answered("a", GIVEN_BACK), to_the_back=to_the_back)
    assert settlement.call.args[:3] == [b"", b"1" if to_the_back else b"0", b""]
    [settlement] = others(answered("a", Answer("release", after_ms=5)), to_the_back=to_the_back)
    assert settlement.call.args[:3] == [b"5", b"1" if to_the_back else b"0", b""]


@pytest.mark.parametrize(
    ("error", "for_good"),
    [
        (InvalidArgument("no"), True),
        (WrongState("no"), True),
        (QueueFull("no"), False),
        (ServerRefused("no"), False),
    ],
)
def test_follow_ups_that_are_refused_for_good_are_a_failure_of_their_job(
    error: Any, for_good: bool
) -> None:
    job = answered("a", COMPLETED, follow_ups=1)
    [settlement] = others(job)
    assert outcomes.turn_down(settlement, error) is for_good
    assert job.answer is not None
    assert job.answer.way == ("retry" if for_good else "complete")
    assert bool(job.follow_ups) is not for_good


def test_a_job_without_follow_ups_is_not_turned_down() -> None:
    job = answered("a", GIVEN_BACK)
    [settlement] = others(job)
    assert not outcomes.turn_down(settlement, InvalidArgument("no"))
    assert job.answer is GIVEN_BACK
