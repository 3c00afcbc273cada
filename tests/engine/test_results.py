"""Results and endings: how a job ended can be read for as long as it says."""

from __future__ import annotations

import asyncio
import math
import threading

import pytest

from conftest import Clock
from engine_support import take
from faults.shells import SHELLS, Shell, open_queue
from holdfast import AsyncQueue, AsyncServer, JobNotFound, Outcome, Queue, WrongState
from support import DEADLINE, TestServer, wait_until


def outcome_of(queue: Queue, id: str = "a") -> Outcome:
    outcome = queue.result(id)
    assert outcome is not None
    return outcome


def test_a_result_can_be_read_for_as_long_as_the_job_says(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a", result_for=60)
    assert queue.result("a") is None
    lease = take(queue)
    assert queue.result("a") is None
    clock.advance(5)
    queue.complete(lease, {"sum": 3})
    outcome = outcome_of(queue)
    assert (outcome.kind, outcome.json(), outcome.at) == ("completed", {"sum": 3}, clock.ms / 1000)
    assert outcome.completed
    clock.advance(60)
    queue.tidy()
    with pytest.raises(JobNotFound, match="result_for"):
        queue.result("a")


def test_no_result_is_told_from_an_empty_one(queue: Queue) -> None:
    for id, result in (("a", None), ("b", b"")):
        queue.add(b"x", id=id, result_for=60)
        queue.complete(take(queue), result)
        assert outcome_of(queue, id).result == result


def test_an_id_that_nobody_has_is_told_from_one_that_has_not_ended(queue: Queue) -> None:
    with pytest.raises(JobNotFound, match="nobody: no job has this id"):
        queue.result("nobody")


def test_a_failure_is_an_outcome(queue: Queue) -> None:
    queue.add(b"x", id="a")
    queue.fail(take(queue), error=ValueError("why"))
    outcome = outcome_of(queue)
    assert (outcome.kind, outcome.error, outcome.completed) == ("failed", "ValueError: why", False)
    assert queue.lease(30, failed=True) is not None
    assert outcome_of(queue).kind == "failed"


def test_for_ever_is_possible(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a", result_for=math.inf, keep=True)
    queue.complete(take(queue), b"result")
    clock.advance(10**9)
    queue.tidy()
    assert outcome_of(queue).result == b"result"
    assert queue.data("a") == b"x"
    job = queue.show("a")
    assert job is not None
    assert job.at == math.inf


# ------------------------------------------------------------------------ data


def test_a_payload_can_be_read_at_any_time(queue: Queue) -> None:
    queue.add(b"x", id="a", result_for=60, keep=True)
    assert queue.data("a") == b"x"
    lease = take(queue)
    assert queue.data("a") == b"x"
    queue.complete(lease)
    assert queue.data("a") == b"x"
    assert queue.data("nobody") is None


def test_a_payload_is_not_kept_unless_the_job_says_so(queue: Queue) -> None:
    queue.add(b"x", id="a", result_for=60)
    queue.complete(take(queue))
    assert queue.data("a") is None


# ------------------------------------------------------------------- set_result


def test_a_result_can_be_set_by_anybody_and_the_last_one_stands(queue: Queue) -> None:
    queue.add(b"x", id="a", result_for=60)
    queue.set_result("a", b"first")
    assert queue.result("a") is None
    lease = take(queue)
    queue.set_result("a", b"second")
    queue.complete(lease)
    assert outcome_of(queue).result == b"second"
    queue.set_result("a", {"third": 3})
    assert outcome_of(queue).json() == {"third": 3}


def test_the_result_of_the_one_who_completes_counts(queue: Queue) -> None:
    queue.add(b"x", id="a", result_for=60)
    queue.set_result("a", b"so far")
    queue.complete(take(queue), b"whole")
    assert outcome_of(queue).result == b"whole"


def test_a_job_that_keeps_no_result_takes_none(queue: Queue) -> None:
    queue.add(b"x", id="a")
    with pytest.raises(WrongState, match="add it with result_for"):
        queue.set_result("a", b"some")
    with pytest.raises(JobNotFound):
        queue.set_result("nobody", b"some")


def test_a_result_does_not_outlive_the_wish_for_it(queue: Queue) -> None:
    queue.add(b"x", id="a", result_for=60)
    queue.set_result("a", b"so far")
    queue.add(b"x", id="a", on_conflict="update")
    assert queue.complete(take(queue), b"some")
    with pytest.raises(JobNotFound):
        queue.result("a")


# ---------------------------------------------------------------------- waiting


def test_who_waits_gets_the_result_when_it_comes(live_queue: Queue) -> None:
    live_queue.add(b"x", id="a", result_for=60)
    found: list[Outcome | None] = []
    waiter = threading.Thread(target=lambda: found.append(live_queue.result("a", wait=30)))
    waiter.start()
    live_queue.complete(take(live_queue), b"result")
    waiter.join(30)
    assert [outcome and outcome.result for outcome in found] == [b"result"]


def test_who_waits_in_vain_gets_nothing(live_queue: Queue) -> None:
    live_queue.add(b"x", id="a", result_for=60)
    assert live_queue.result("a", wait=0.05) is None


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_who_waits_learns_of_a_bad_end_too(live_queue: Queue, end: str) -> None:
    live_queue.add(b"x", id="a", result_for=60)
    found: list[Outcome | None] = []
    waiter = threading.Thread(target=lambda: found.append(live_queue.result("a", wait=30)))
    waiter.start()
    if end == "fail":
        live_queue.fail(take(live_queue), error="why")
    else:
        live_queue.cancel("a")
    waiter.join(30)
    kind = "failed" if end == "fail" else "cancelled"
    assert [outcome and outcome.kind for outcome in found] == [kind]


def test_a_coroutine_waits_for_a_result_among_the_noise_of_others(
    test_server: TestServer, live_queue: Queue
) -> None:
    async def wait() -> Outcome | None:
        async with AsyncQueue(live_queue.name, AsyncServer(test_server.url)) as queue:
            waiting = asyncio.create_task(queue.result("a", wait=30))
            for _ in range(20):
                await queue.add(b"noise")
                await asyncio.sleep(0)
            await queue.complete("a", b"result", force=True)
            return await waiting

    live_queue.add(b"x", id="a", result_for=60)
    outcome = asyncio.run(wait())
    assert outcome is not None
    assert outcome.result == b"result"
    wait_until(lambda: live_queue.counts().ended == 1)


@pytest.mark.parametrize("shell", SHELLS)
def test_who_waits_in_vain_is_not_kept_by_the_noise_of_others(
    test_server: TestServer, live_queue: Queue, shell: Shell
) -> None:
    live_queue.add(b"x", id="a", result_for=60)
    over = threading.Event()

    def make_noise() -> None:
        while not over.is_set():
            live_queue.set_result("a", b"so far")

    noise = threading.Thread(target=make_noise)
    with open_queue(shell, live_queue.name, test_server.url) as queue:
        waiter = threading.Thread(target=lambda: queue.result("a", wait=0.1))
        noise.start()
        waiter.start()
        waiter.join(DEADLINE)
        kept = waiter.is_alive()
        over.set()
        noise.join()
        waiter.join()
    assert not kept
