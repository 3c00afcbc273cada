"""What was sent long ago, or is sent again after others have moved on, changes nothing any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from faults.scenarios import EMPTY, Scenario, Stage, nothing, three_jobs, three_leases
from faults.theatre import Theatre, both_shells, every_call
from holdfast import Extended
from proxy import LATE, PASS, Kind, cut_reply

# -------------------------------------------------------------- requests that come late


@every_call
@both_shells
def test_an_old_request_that_arrives_late_changes_nothing(
    theatre: Theatre, scenario: Scenario
) -> None:
    """Two copies of the call are still on their way when it is answered."""
    answer, _ = theatre.on_a_good_connection(scenario)
    with theatre.stage(scenario, "late") as stage:
        if scenario.meanwhile:
            scenario.meanwhile(stage)
        theatre.proxy.plan([LATE, LATE])
        assert theatre.outcome(scenario, stage) == answer
        assert theatre.proxy.made == [Kind.LATE, Kind.LATE]

        answered = theatre.stored(EMPTY, stage)
        theatre.proxy.deliver_late()
        assert theatre.stored(EMPTY, stage) == answered, "one came right after the answer"

        stage.queue.add("newer", id="newer")
        answered = theatre.stored(EMPTY, stage)
        theatre.proxy.deliver_late()
        assert theatre.stored(EMPTY, stage) == answered, "one came after the next call"
        assert theatre.hidden(stage) == 0


@both_shells
def test_a_late_request_to_wait_for_a_job_leases_nothing(theatre: Theatre) -> None:
    """The server hears of a sleeper whose client went on long ago, and there is a job for it."""
    with theatre.stage(EMPTY, "late") as stage:
        theatre.proxy.plan([PASS, LATE])
        assert stage.queue.lease(30, wait=0.5) is None
        assert theatre.proxy.made == [Kind.LATE]
        assert stage.queue.add("newer", id="newer")
        theatre.proxy.deliver_late()
        assert theatre.hidden(stage) == 0
        assert stage.queue.counts().ready == 1


@both_shells
def test_a_job_added_anew_after_its_caller_was_forgotten_is_one_job(theatre: Theatre) -> None:
    """A laptop sleeps with its lid closed over a lost reply, while others go on for long."""

    def sleep(stage: Stage) -> None:
        for _ in range(150):
            stage.clock.advance(5)
            stage.other.tidy()
        lease_to_other(stage)

    with theatre.stage(EMPTY, "slept") as stage:
        theatre.proxy.plan([replace(cut_reply(), after=lambda: sleep(stage))])
        receipt = stage.queue.add("made")
        theatre.proxy.plan()
        assert [lease.id for lease in stage.held_by_other] == [receipt.id]
        assert stage.queue.audit() == []
        assert stage.queue.counts().ready == 0


@pytest.mark.parametrize("hours", [2, -2])
@both_shells
def test_a_clock_that_jumps_between_a_call_and_its_repetition_changes_nothing(
    theatre: Theatre, hours: int
) -> None:
    """The server's clock is set; nobody was silent for so long, though it looks so."""

    def jump(stage: Stage) -> None:
        stage.clock.advance(hours * 3600)
        stage.other.add("after the jump", id="after the jump")

    with theatre.stage(Scenario("jump", nothing, three_leases), "jumped") as stage:
        theatre.proxy.plan([replace(cut_reply(), after=lambda: jump(stage))])
        assert stage.queue.complete(stage.held[0]), "it was completed, by this very call"
        assert theatre.proxy.made == [Kind.CUT_REPLY]


# ------------------------------------------- what others do between a call and its repetition


@dataclass(frozen=True)
class Interlude:
    """A call whose reply is cut, and what happens before it is made again."""

    name: str
    call: Callable[[Stage], object]
    others: Callable[[Stage], object]
    answer: object
    check: Callable[[Stage], bool]

    def __str__(self) -> str:
        return self.name


def lease_to_other(stage: Stage) -> None:
    stage.held_by_other += stage.other.lease_many(1, 30)


def lapse_and_lease_to_other(stage: Stage) -> None:
    stage.clock.advance(31)
    stage.other.tidy(force=True)
    lease_to_other(stage)


def add_anew_and_lease(stage: Stage) -> None:
    assert stage.other.add("anew", id="first", priority=60)
    lease_to_other(stage)


def other_can_complete(stage: Stage) -> bool:
    return stage.other.complete(stage.held_by_other[0])


INTERLUDES = (
    Interlude(
        "leased, lapsed, leased to another",
        lambda s: "first" in [lease.id for lease in s.queue.lease_many(1, 30)],
        lapse_and_lease_to_other,
        False,
        other_can_complete,
    ),
    Interlude(
        "completed, added anew, leased to another",
        lambda s: s.queue.complete(s.held[0]),
        add_anew_and_lease,
        True,
        other_can_complete,
    ),
    Interlude(
        "released, leased to another",
        lambda s: s.queue.release(s.held[0]),
        lease_to_other,
        None,
        other_can_complete,
    ),
    Interlude(
        "extended, lapsed, leased to another",
        lambda s: s.queue.extend(s.held[0], 1),
        lapse_and_lease_to_other,
        Extended.HELD,
        other_can_complete,
    ),
    Interlude(
        "added, leased and completed by another",
        lambda s: s.queue.add("once", id="once", priority=99).created,
        lambda s: s.other.complete_many(s.other.lease_many(1, 30)),
        True,
        lambda s: s.queue.counts().ready == 0,
    ),
    Interlude(
        "paused, resumed by another",
        lambda s: s.queue.pause(),
        lambda s: s.other.resume(),
        None,
        lambda s: not s.queue.counts().paused,
    ),
    Interlude(
        "resumed, paused by another",
        lambda s: s.queue.resume(),
        lambda s: s.other.pause(),
        None,
        lambda s: s.queue.counts().paused,
    ),
)


@pytest.mark.parametrize("interlude", INTERLUDES, ids=str)
@both_shells
def test_a_call_made_again_undoes_nothing_that_others_did_since(
    theatre: Theatre, interlude: Interlude
) -> None:
    def prepare(stage: Stage) -> None:
        three_jobs(stage)
        if not interlude.name.startswith("leased"):
            stage.held += stage.queue.lease_many(3, 30)

    with theatre.stage(Scenario(interlude.name, prepare, prepare), "between") as stage:
        theatre.proxy.plan([replace(cut_reply(), after=lambda: interlude.others(stage))])
        assert interlude.call(stage) == interlude.answer
        assert theatre.proxy.made == [Kind.CUT_REPLY]
        theatre.proxy.plan()
        assert interlude.check(stage)
