"""Asked again, answered the same: what happens when a reply is lost and the call is sent again."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from conftest import Clock
from engine_support import CHANGES, Behind, call_of, command_calls, filled, function_of, ids, take
from holdfast import NewJob, Queue
from holdfast.engine import calls, library
from holdfast.engine.call import Call
from holdfast.engine.library import FUNCTIONS

REPEATED = [kind for kind in CHANGES if kind != "delete"]


def repeated(behind: Behind, clock: Clock, kind: str) -> Call[Any]:
    """Populate a queue, and return a call that has not been made yet."""
    held = filled(behind, clock)
    return call_of(lambda queue: CHANGES[kind](queue, held), behind.queue)


def test_every_changing_transition_is_asked_again_here(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    held = filled(behind, clock)
    asked = {function_of(kind, queue, held) for kind in REPEATED}
    assert asked == {function for function in FUNCTIONS if function.changes} - {library.DELETE}


@pytest.mark.parametrize("kind", REPEATED)
def test_the_same_call_asked_again_is_answered_the_same_and_changes_nothing(
    queue: Queue, clock: Clock, behind: Behind, kind: str
) -> None:
    call = repeated(behind, clock, kind)
    first = behind.ask(call, "caller", 7, clock.ms)
    before = behind.everything()
    assert behind.ask(call, "caller", 7, clock.ms) == first
    # A reply may be lost for as long as the client is patient.
    clock.advance(20)
    assert behind.ask(call, "caller", 7, clock.ms) == first
    assert behind.everything() == before


def test_an_answer_that_is_given_again_is_written_again(queue: Queue, behind: Behind) -> None:
    """As it was, so that who waits for replicas on another connection waits for this one too."""
    call = call_of(lambda queue: queue.add(b"x", id="a"), queue)
    behind.ask(call, "caller", 1)
    written = command_calls(behind.client, "hset")
    behind.ask(call, "caller", 1)
    assert command_calls(behind.client, "hset") == written + 1


@pytest.mark.parametrize("kind", REPEATED)
def test_a_call_that_comes_after_a_later_one_of_its_caller_is_refused(
    queue: Queue, clock: Clock, behind: Behind, kind: str
) -> None:
    call = repeated(behind, clock, kind)
    behind.ask(calls.pause(), "caller", 8, clock.ms)
    before = behind.everything()
    with pytest.raises(redis.ResponseError, match=r"^STALE "):
        behind.ask(call, "caller", 7, clock.ms)
    assert behind.everything() == before


@pytest.mark.parametrize("kind", REPEATED)
def test_the_same_number_of_another_caller_is_another_call(
    queue: Queue, clock: Clock, behind: Behind, kind: str
) -> None:
    call = repeated(behind, clock, kind)
    behind.ask(calls.pause(), "caller", 7, clock.ms)
    behind.ask(call, "other", 7, clock.ms)
    assert behind("HEXISTS", "calls", "other")
    # It was not given the other's answer: only a pause leaves the queue paused as it was.
    assert queue.counts().paused == (kind != "resume")


# ------------------------------------------------------------------ lost leases


def test_a_lease_asked_again_reads_the_payloads_again(queue: Queue, behind: Behind) -> None:
    queue.add_many([NewJob(b"one", id="a", handler="h"), NewJob(b"two", id="b")])
    call = call_of(lambda queue: queue.lease_many(10, 60), queue)
    behind.ask(call, "caller", 1)
    granted = behind.ask(call, "caller", 1)
    assert [(lease.id, lease.data) for lease in granted.leases] == [("a", b"one"), ("b", b"two")]
    assert granted.leases[0].facts.handler == "h"
    assert not any(b"one" in answer for answer in behind("HVALS", "calls"))


@pytest.mark.parametrize("end", ["complete", "release", "reclaim", "given again"])
def test_a_lease_asked_again_gives_only_what_is_still_the_callers(
    queue: Queue, clock: Clock, behind: Behind, end: str
) -> None:
    queue.add_many([NewJob(b"", id="a"), NewJob(b"", id="b")])
    call = call_of(lambda queue: queue.lease_many(10, 1), queue)
    leases = behind.ask(call, "caller", 1, clock.ms).leases
    if end == "complete":
        queue.complete(leases[0])
    elif end == "release":
        queue.release(leases[0])
    else:
        queue.extend(leases[1], 60)
        clock.advance(1)
        queue.tidy()
        if end == "given again":
            take(queue)
    assert ids(behind.ask(call, "caller", 1, clock.ms).leases) == ["b"]


def test_no_answer_keeps_a_payload_or_a_result(queue: Queue, clock: Clock, behind: Behind) -> None:
    queue.add(b"SECRET", id="a", result_for=60)
    queue.complete(take(queue), b"SECRET", add=[b"SECRET"])
    queue.lease_many(1, 30)
    assert all(b"SECRET" not in answer for answer in behind("HVALS", "calls"))


# ------------------------------------------------------------- callers that are gone


def test_a_caller_silent_for_more_than_ten_minutes_is_forgotten(
    clock: Clock, behind: Behind
) -> None:
    behind.ask(calls.pause(), "old", 1, clock.ms)
    for number in range(1, 121):
        clock.advance(5)
        behind.ask(calls.pause(), "young", number, clock.ms)
    behind.ask(calls.pause(), "new", 1, clock.ms)
    assert behind("HEXISTS", "calls", "old")
    clock.advance(0.001)
    behind.ask(calls.pause(), "newer", 1, clock.ms)
    assert not behind("HEXISTS", "calls", "old")
    assert behind("HEXISTS", "calls", "young")


def test_a_jump_of_the_clock_forgets_nobody_who_was_there_before(
    clock: Clock, behind: Behind
) -> None:
    behind.ask(calls.pause(), "living", 1, clock.ms)
    clock.advance(7200)
    for newcomer in "abc":
        behind.ask(calls.pause(), newcomer, 1, clock.ms)
    assert behind("HEXISTS", "calls", "living")


@pytest.mark.parametrize("number", [1, 2, 16, 1000])
def test_callers_that_make_one_call_do_not_pile_up(
    clock: Clock, behind: Behind, number: int
) -> None:
    for n in range(400):
        behind.ask(calls.pause(), f"caller-{n}", number, clock.ms)
        clock.advance(20)
    # 30 of them called within the last ten minutes.
    assert behind("HLEN", "calls") < 100


def test_one_caller_is_one_entry_however_often_it_calls(queue: Queue, behind: Behind) -> None:
    for number in range(1, 50):
        behind.ask(calls.pause(), "caller", number)
    assert behind("HLEN", "calls") == 1


def test_reading_needs_no_caller(queue: Queue, behind: Behind) -> None:
    queue.counts()
    queue.audit()
    assert behind.everything() == {}
