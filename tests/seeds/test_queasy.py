"""queasy on Holdfast: what it does can be done here, and its bugs are not ours."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis.crc import key_slot

from conftest import Clock
from engine_support import Behind, engine_calls, ids, own_server, take
from holdfast import (
    AsyncRunningJob,
    Auto,
    Extended,
    Fail,
    Failure,
    Lease,
    LeaseLost,
    NewJob,
    Queue,
    Retry,
    RunningJob,
    Server,
    Update,
    Worker,
)
from holdfast.engine.keys import queue_keys
from holdfast.testing import run_until_empty
from holdfast.worker import concurrency
from holdfast.worker.concurrency import Load
from seeds.crowd import race, running
from seeds.looks import held_for, outcome_of, shown, sleepers
from seeds.staff import Heard, Held, Hire, wait_until_gone
from support import DEADLINE, TestServer, command_on, kill_connections, wait_until


def run_until_failed(queue: Queue, clock: Clock, settle: Callable[[Lease], object]) -> int:
    """Lease and settle until nothing comes any more; return how often it ran."""
    for runs in range(100):
        lease = queue.lease(1)
        if lease is None:
            return runs
        settle(lease)
        clock.advance(1)
    raise AssertionError("it goes on for ever")


# ------------------------------------------------------------------------- adding, updating


def test_01_a_queue_has_defaults_for_its_jobs_and_is_one_slot(
    queue: Queue, server: Server, clock: Clock
) -> None:
    """Every job has them that does not say otherwise."""
    strict = Queue(queue.name, server, defaults={"max_failures": 1, "priority": 60}, clock=clock)
    strict.add_many([NewJob(b"", id="a"), NewJob(b"", id="b", max_failures=5)])
    assert [job.facts.max_failures for job in queue.peek(9)] == [1, 5]
    assert [job.priority for job in queue.peek(9)] == [60, 60]
    assert len({key_slot(key) for key in queue_keys(queue.name)}) == 1


@pytest.mark.parametrize("data", [None, True, 0, -1.5, "text", [], {"a": [{"b": None}]}])
def test_02_a_job_is_any_json_value_and_its_id_is_returned(queue: Queue, data: object) -> None:
    """A new id, or the one that was given. With json= a str is JSON too, and comes back as one."""
    made, named = queue.add(json=data), queue.add(json=data, id="mine")
    assert named.id == "mine" != made.id
    for lease in queue.lease_many(2, 30):
        assert lease.json() == data
        assert type(lease.json()) is type(data)


def test_03_a_job_has_limits_of_its_own(queue: Queue) -> None:
    """Where it says nothing: due at once, 10 failures, 3 lapses, from 2 to 300 seconds."""
    queue.add(b"", id="plain")
    queue.add(b"", id="own", max_failures=1, max_lapses=0, min_backoff=5, max_backoff=60)
    plain, own = (lease.facts for lease in queue.lease_many(2, 30))
    assert (plain.max_failures, plain.max_lapses) == (10, 3)
    assert (plain.min_backoff_ms, plain.max_backoff_ms) == (2_000, 300_000)
    assert (own.max_failures, own.max_lapses) == (1, 0)
    assert (own.min_backoff_ms, own.max_backoff_ms) == (5_000, 60_000)


def test_04_a_job_is_not_run_before_its_time(queue: Queue, clock: Clock) -> None:
    """A time of the wall clock, as a datetime or a number."""
    at = clock.ms / 1000 + 2
    queue.add(b"", id="a", at=datetime.fromtimestamp(at, UTC))
    queue.add(b"", id="b", at=at)
    assert shown(queue, "a").at == shown(queue, "b").at == at
    clock.advance(1.999)
    assert queue.lease(30) is None
    clock.advance(0.001)
    assert ids(queue.lease_many(9, 30)) == ["a", "b"]


@pytest.mark.parametrize(
    ("due", "new", "kept"),
    [
        (True, 10, 10),
        (True, 30, 30),
        (False, 10, 20),
        (False, 30, 20),
        ("later", 10, 20),
        ("later", 30, 30),
        ("earlier", 10, 10),
        ("earlier", 30, 20),
    ],
)
def test_05_the_time_of_a_waiting_job_is_updated_as_told(
    queue: Queue, clock: Clock, due: bool, new: float, kept: float
) -> None:
    """Always, never, or only to a later or an earlier one. An id that is new is always added."""
    update = Update(due=due)
    assert queue.add(b"old", id="a", delay=20, on_conflict=update).created
    changed = queue.add(b"new", id="a", delay=new, on_conflict=update)
    assert (changed.created, changed.updated) == (False, True)
    assert shown(queue, "a").at == clock.ms / 1000 + kept
    assert len(queue) == 1


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("counts", [True, False, None])
@pytest.mark.parametrize("limits", [True, False])
def test_05_payload_limits_and_counts_are_updated_as_told(
    queue: Queue, data: bool, counts: bool | None, limits: bool
) -> None:
    """Each for itself; counts begin anew where the payload is new, unless told otherwise."""
    queue.add(b"old", id="a", max_failures=5)
    queue.retry(take(queue), error="why", after=0)
    queue.add(b"new", id="a", max_failures=7, on_conflict=Update(data, True, limits, counts))
    job = shown(queue, "a")
    assert job.data == (b"new" if data else b"old")
    assert job.facts.max_failures == (7 if limits else 5)
    assert job.failures == (0 if (data if counts is None else counts) else 1)


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("option", ["max_failures", "max_lapses", "min_backoff", "max_backoff"])
def test_05_each_limit_is_updated_by_itself(queue: Queue, option: str, runs: bool) -> None:
    """All others stay as they were, also where the job runs meanwhile."""
    old: dict[str, Any] = {"max_failures": 1, "max_lapses": 2, "min_backoff": 3, "max_backoff": 4}
    new: dict[str, Any] = {"max_failures": 5, "max_lapses": 6, "min_backoff": 7, "max_backoff": 8}
    queue.add(b"old", id="a", priority=60, **old)
    lease = take(queue) if runs else None
    update = Update(data=False, due=False, limits=[option])
    queue.add(b"new", id="a", priority=70, on_conflict=update, **new)
    if lease:
        queue.release(lease)
    job = shown(queue, "a")
    facts = job.facts
    assert (job.data, job.priority) == (b"old", 60)
    assert facts.min_backoff_ms is not None
    assert facts.max_backoff_ms is not None
    assert {
        "max_failures": facts.max_failures,
        "max_lapses": facts.max_lapses,
        "min_backoff": facts.min_backoff_ms // 1000,
        "max_backoff": facts.max_backoff_ms // 1000,
    } == old | {option: new[option]}


def test_06_a_job_that_waits_can_be_cancelled(queue: Queue) -> None:
    """Also one that waits for another run of its id. Unknown or running: False, and no change."""
    for id, delay in (("running", 0), ("ready", 0), ("delayed", 60)):
        queue.add(b"", id=id, delay=delay)
    lease = take(queue)
    queue.add(b"again", id="running", on_conflict="update")
    cancel = partial(queue.cancel, running=False)
    assert [cancel(id) for id in ("ready", "delayed", "running")] == [True, True, True]
    assert [cancel(id) for id in ("ready", "delayed", "running", "?")] == [False] * 4
    assert queue.complete(lease)
    assert queue.lease(30) is None


# --------------------------------------------------------------------------------- settling


def work_on(
    queue: Queue,
    handler: Callable[..., object],
    failure_handler: Callable[..., object] | None = None,
) -> None:
    """Let a worker do all that can be done now."""
    worker = Worker(queue)
    worker.handler(handler)
    if failure_handler:
        worker.failure_handler(failure_handler)
    assert worker.run(until_empty=True)


def ways(job: RunningJob) -> str:
    """Do what the id says."""
    match job.id:
        case "bad":
            raise ValueError("oops")
        case "soon":
            raise Retry("not now", after=0.5)
        case "then":
            raise Retry("not now", at=job.json())
        case "hopeless":
            raise Fail("never")
    return "the result"


async def async_ways(job: AsyncRunningJob) -> str:
    await asyncio.sleep(0)
    return ways(job)


def test_07_a_queue_has_a_handler_and_one_for_failures(queue: Queue) -> None:
    """The one gets every job, the other those that failed, with payload, job and error."""
    queue.add_many([NewJob({"n": n}, id=f"{n}") for n in range(3)])
    ran: list[object] = []
    failed: list[object] = []

    def handle(job: RunningJob) -> None:
        ran.append(job.json()["n"])
        if job.id == "1":
            raise Fail("never")

    def handle_failure(job: RunningJob) -> None:
        failed.append((job.json(), job.id, job.error, job.failed))

    work_on(queue, handle, handle_failure)
    assert sorted(ran, key=str) == [0, 1, 2]
    assert failed == [({"n": 1}, "1", "never", True)]
    assert queue.failed() == []


@pytest.mark.parametrize("handler", [ways, async_ways])
def test_08_a_handler_returns_or_raises(
    queue: Queue, clock: Clock, handler: Callable[..., object]
) -> None:
    """Completed with a result; tried again after a backoff, or at the very time it says; failed."""
    at = clock.ms / 1000 + 7.25
    queue.add_many([NewJob(at, id=id) for id in ("good", "bad", "soon", "then", "hopeless")])
    queue.add(b"", id="kept", result_for=60)
    work_on(queue, handler)
    assert queue.show("good") is None
    assert outcome_of(queue, "kept").result == b"the result"
    bad, soon, then = (shown(queue, id) for id in ("bad", "soon", "then"))
    assert (bad.state, bad.error, bad.failures) == ("delayed", "ValueError: oops", 1)
    assert 2 <= (bad.at or 0) - clock.ms / 1000 <= 2.5
    assert (soon.at, soon.error) == (clock.ms / 1000 + 0.5, "not now")
    assert then.at == at
    assert [(job.id, job.error) for job in queue.failed()] == [("hopeless", "never")]


class BusyError(Exception):
    """Any exception that says when: it need not be ours."""

    def __init__(self, retry_at: object) -> None:
        super().__init__("busy")
        self.retry_at = retry_at


def test_08_an_error_with_a_time_is_tried_again_just_then(queue: Queue, clock: Clock) -> None:
    """Sooner than the backoff too; a time that makes no sense is as none."""
    now = clock.ms / 1000
    times = {"soon": now + 0.5, "zoned": datetime.fromtimestamp(now + 7, UTC), "odd": "tomorrow"}
    queue.add_many([NewJob(b"", id=id, min_backoff=60) for id in times])

    def handle(job: RunningJob) -> None:
        raise BusyError(times[job.id])

    work_on(queue, handle)
    assert [shown(queue, id).at for id in ("soon", "zoned")] == [now + 0.5, now + 7]
    assert (shown(queue, "odd").at or 0) >= now + 60
    assert {shown(queue, id).failures for id in times} == {1}


def test_08_a_run_ends_well_or_is_tried_again_or_fails(queue: Queue, clock: Clock) -> None:
    """Completed; retried after a backoff, or at the very time the handler asks for; failed."""
    queue.add_many([NewJob(b"", id=id) for id in ("good", "bad", "asked", "hopeless")])
    good, bad, asked, hopeless = queue.lease_many(4, 30)
    queue.complete(good)
    queue.retry(bad, error=ValueError("oops"))
    queue.retry(asked, error="not now", after=0.5)
    queue.fail(hopeless, error="never")
    assert queue.show("good") is None
    assert shown(queue, "bad").state == "delayed"
    assert shown(queue, "bad").error == "ValueError: oops"
    assert shown(queue, "asked").at == clock.ms / 1000 + 0.5
    assert [job.id for job in queue.failed()] == ["hopeless"]


def test_09_a_handler_is_told_about_its_job(queue: Queue, clock: Clock) -> None:
    """Its options, and how often it failed or did not answer."""
    queue.add({"a": 1}, id="a", handler="send", timeout=9)
    queue.retry(take(queue), error="why", after=0)
    take(queue, 1)
    clock.advance(1)
    lease = take(queue)
    assert (lease.id, lease.json(), lease.failures, lease.lapses) == ("a", {"a": 1}, 1, 1)
    assert (lease.facts.handler, lease.facts.timeout_ms) == ("send", 9000)


def test_09_a_running_job_has_its_options_and_counts(queue: Queue, clock: Clock) -> None:
    """As they are stored with it."""
    queue.add({"a": 1}, id="a", max_failures=4, timeout=9)
    queue.retry(take(queue), error="why", after=0)
    take(queue, 1)
    clock.advance(1)
    seen: list[object] = []

    def handle(job: RunningJob) -> None:
        facts = job.lease.facts
        seen.append((job.id, job.json(), job.failures, job.lapses, job.error))
        seen.append((facts.max_failures, facts.max_lapses, facts.timeout_ms))

    work_on(queue, handle)
    assert seen == [("a", {"a": 1}, 1, 1, "the lease lapsed"), (4, 3, 9000)]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_10_a_handler_that_raises_is_called_once_more_than_it_may_fail(
    queue: Queue, most: int
) -> None:
    """And then the failure handler, once."""
    queue.add(b"", id="a", max_failures=most, min_backoff=0)
    ran: list[int] = []
    failed: list[int] = []

    def handle(job: RunningJob) -> None:
        ran.append(job.failures)
        raise ValueError

    work_on(queue, handle, lambda job: failed.append(job.failures))
    assert ran == list(range(most + 1))
    assert failed == [most + 1]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_10_a_job_runs_once_more_than_it_may_fail(queue: Queue, clock: Clock, most: int) -> None:
    """With no failure allowed it runs once."""
    queue.add(b"", id="a", max_failures=most)
    retry = partial(queue.retry, error="why", after=0)
    assert run_until_failed(queue, clock, retry) == most + 1
    assert queue.failed()[0].failures == most + 1


def test_11_the_wait_doubles_up_to_a_limit(queue: Queue, clock: Clock) -> None:
    """And varies by up to a quarter, so that what failed together does not come back together."""
    queue.add(b"", id="a", min_backoff=1, max_backoff=6)
    for least, most in ((1, 1.25), (2, 2.5), (4, 5), (4.8, 6), (4.8, 6)):
        queue.retry(take(queue), error="why")
        at = shown(queue, "a").at
        assert at is not None
        wait = at - clock.ms / 1000
        assert least <= round(wait, 3) <= most
        clock.advance(wait)


def test_11_a_worker_waits_twice_as_long_each_time(queue: Queue, clock: Clock) -> None:
    """Up to the limit of the job."""
    queue.add(b"", id="bad", min_backoff=1, max_backoff=6)
    for least, most in ((1, 1.25), (2, 2.5), (4, 5), (4.8, 6), (4.8, 6)):
        work_on(queue, ways)
        wait = (shown(queue, "bad").at or 0) - clock.ms / 1000
        assert least <= round(wait, 3) <= most
        clock.advance(wait)


def test_12_a_failure_handler_that_raises_is_asked_again_much_later(
    queue: Queue, clock: Clock
) -> None:
    """After ten seconds, then twice as long. It is told of lapses as of errors."""
    queue.add_many([NewJob(b"", id="a", max_lapses=0), NewJob(b"", id="hopeless")])
    assert take(queue, 1).id == "a"
    clock.advance(1)
    asked: list[str | None] = []

    def handle_failure(job: RunningJob) -> None:
        asked.append(job.error)
        if len(asked) < 5:
            raise OSError("the mail server is down")

    for wait in (13, 26):
        work_on(queue, ways, handle_failure)
        work_on(queue, ways, handle_failure)
        clock.advance(wait)
    assert sorted(map(str, asked)) == ["never", "never", "the lease lapsed", "the lease lapsed"]
    work_on(queue, ways, handle_failure)
    assert queue.failed() == []


class DeclinedError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__("declined")
        self.code = code


def test_12_a_failure_handler_is_given_a_copy_of_the_error(queue: Queue, clock: Clock) -> None:
    """Its type, message and attributes; of a lapse there is no more than the text."""
    queue.add_many([NewJob(b"", id="lapsed", max_lapses=0), NewJob(b"", id="a", max_failures=0)])
    assert take(queue, 1).id == "lapsed"
    clock.advance(1)
    given: dict[str, tuple[Failure | None, str | None]] = {}

    def handle(job: RunningJob) -> None:
        raise DeclinedError(402)

    work_on(queue, handle, lambda job: given.update({job.id: (job.failure, job.error)}))
    name = f"{__name__}.DeclinedError"
    assert given == {
        "a": (Failure(name, "declined", {"code": 402}), f"{name}: declined"),
        "lapsed": (None, "the lease lapsed"),
    }


def test_12_a_failure_handler_is_asked_for_days(queue: Queue, clock: Clock) -> None:
    """It has limits of its own, or none."""
    queue.add(b"", id="hopeless")
    begun, asked = clock.ms, 0

    def handle_failure(job: RunningJob) -> None:
        nonlocal asked
        asked += 1
        if clock.ms < begun + 5 * 86_400_000:
            raise OSError("the mail server is down")

    worker = Worker(queue)
    worker.handler(ways)
    worker.failure_handler(handle_failure, max_failures=None, min_backoff=60, max_backoff=3600)
    while queue.show("hopeless"):
        run_until_empty(worker, raising=False)
        clock.advance(3600)
    assert 5 * 24 <= asked < 7 * 24


HANGS = """
import time
from holdfast import Worker
worker = Worker(queue, lease=2)
worker.handler(lambda job: time.sleep(60))
worker.run()
"""


def test_13_a_job_whose_worker_was_killed_is_run_again(
    live_queue: Queue, hire: Hire, test_server: TestServer
) -> None:
    """At least once: until some run of it returns."""
    live_queue.add(b"", id="a")

    def runs(lapses: int) -> bool:
        job = live_queue.show("a")
        return job is not None and (job.state, job.lapses) == ("leased", lapses)

    for lapses in range(2):
        with running(HANGS, test_server.url, live_queue):
            wait_until(partial(runs, lapses), "a run")
    ran: list[int] = []
    hire(live_queue, lambda job: ran.append(job.lapses))
    wait_until_gone(live_queue, "a")
    assert ran == [2]


def test_12_a_failure_handler_has_all_the_time_it_needs(queue: Queue, clock: Clock) -> None:
    """It gets payload and error, and is asked again after ten seconds and more."""
    queue.add({"a": 1}, id="a")
    queue.fail(take(queue), error="never")
    lease = queue.lease(30, failed=True)
    assert lease is not None
    assert (lease.json(), lease.error, lease.failed) == ({"a": 1}, "never", True)
    queue.retry(lease, error="the handler has a bug")
    assert queue.lease(30, failed=True) is None
    clock.advance(13)
    lease = queue.lease(30, failed=True)
    assert lease is not None
    assert queue.complete(lease)
    assert queue.show("a") is None


# ------------------------------------------------------------------------- leasing, singletons


def test_15_many_are_leased_at_once_in_the_order_they_are_due(queue: Queue, clock: Clock) -> None:
    """No more than asked for, and none before its time."""
    for id, delay in (("third", 3), ("first", 1), ("fourth", 4), ("second", 2)):
        queue.add(b"", id=id, delay=delay)
    clock.advance(3)
    assert ids(queue.lease_many(2, 30)) == ["first", "second"]
    assert ids(queue.lease_many(9, 30)) == ["third"]
    assert (queue.counts().leased, queue.counts().delayed) == (3, 1)


def test_16_two_runs_of_one_id_never_overlap(queue: Queue, clock: Clock) -> None:
    """What is added while it runs waits until the run is over, and then for its time."""
    queue.add(b"first", id="a")
    lease = take(queue)
    kept = queue.add(b"second", id="a", delay=2, on_conflict="update")
    assert (kept.created, kept.updated, kept.state) == (False, True, "leased")
    clock.advance(3)
    assert queue.lease(30) is None
    queue.add(b"third", id="a", delay=2, on_conflict="update")
    assert queue.complete(lease)
    assert queue.lease(30) is None
    clock.advance(2)
    assert take(queue).data == b"third"


def test_17_a_retry_meets_what_waits_for_its_id(queue: Queue, clock: Clock) -> None:
    """The one job that is left has the new payload, and what the update does not touch."""
    queue.add(b"old", id="a", max_failures=5)
    lease = take(queue)
    queue.add(b"new", id="a", on_conflict=Update(due=False, limits=False, counts=False))
    queue.retry(lease, error="why", after=2)
    assert queue.lease(30) is None
    clock.advance(2)
    again = take(queue)
    assert (again.data, again.failures, again.facts.max_failures) == (b"new", 1, 5)
    assert queue.complete(again)
    assert queue.lease(30) is None


def test_18_a_heartbeat_tells_when_the_lease_is_lost(queue: Queue, clock: Clock) -> None:
    """So that the run can be stopped."""
    queue.add(b"")
    lease = take(queue, 1)
    for _ in range(3):
        clock.advance(0.9)
        assert queue.extend(lease, 1) is Extended.HELD
    clock.advance(1)
    queue.tidy()
    with pytest.raises(LeaseLost):
        queue.extend(lease, 1)


def test_18_a_run_is_stopped_when_its_lease_is_lost(
    live_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coroutine is cancelled, a thread is told; how they end does not count."""
    monkeypatch.setattr("holdfast.worker.leases.extend_every", lambda lease, held: 2 * DEADLINE)
    heard, stopped = Heard(), threading.Event()
    held = Held()

    async def wait(job: AsyncRunningJob) -> None:
        try:
            await asyncio.sleep(DEADLINE)
        except asyncio.CancelledError:
            stopped.set()
            raise

    worker = Worker(live_queue, concurrency=2, ahead=0, hooks=[heard])
    worker.handler("thread")(held)
    worker.handler("coroutine")(wait)
    live_queue.add(b"", id="a", handler="thread")
    live_queue.add(b"", id="b", handler="coroutine")
    with worker:
        wait_until(lambda: len(worker.running()) == 2, "both to run")
        assert live_queue.fail_worker(worker.running()[0].lease) == 2
        theirs = live_queue.lease_many(2, 30)
        [control] = worker._controls.values()
        control._held.extend_at = 0.0  # From now on it may know.
        control._waiter.rouse()
        assert stopped.wait(DEADLINE)
        wait_until(lambda: held.jobs[0].cancelled, "the thread to be told")
        held.let_go()
        assert len(heard.has("lost", 2)) == 2
    assert sorted(heard.tokens) == ["lost", "started"]
    assert [(lease.id, lease.failures, lease.lapses) for lease in theirs] == [
        ("a", 0, 1),
        ("b", 0, 1),
    ]
    assert live_queue.extend_many(theirs, 30) == [Extended.HELD] * 2


def test_18_a_coroutine_is_ended_when_its_lease_must_be_over(hire: Hire) -> None:
    """Also where the server cannot be asked: that is no failure of the job."""
    counts: list[int] = []
    stopped = threading.Event()

    async def wait(job: AsyncRunningJob) -> None:
        counts.append(job.failures)
        try:
            await asyncio.sleep(0 if stopped.is_set() else DEADLINE)
        except asyncio.CancelledError:
            stopped.set()
            raise

    with own_server() as server, Queue("q", server.url) as queue:
        worker = hire(queue, wait, lease=1, concurrency=1)
        queue.add(b"", id="a")
        wait_until(lambda: counts, "the run")
        server.freeze()
        assert stopped.wait(DEADLINE)
        server.thaw()
        wait_until_gone(queue, "a")
        assert len(counts) > 1
        assert set(counts) == {0}
        worker.stop()


@pytest.mark.parametrize("most", [0, 1, 3])
def test_19_a_job_that_does_not_answer_comes_back_first_and_fails_in_the_end(
    queue: Queue, clock: Clock, most: int
) -> None:
    """Each time a lapse is counted, and it is ready at once, before those that came later."""
    queue.add(b"", id="a", max_lapses=most)
    for _ in range(most):
        assert take(queue, 1).id == "a"
        clock.advance(1)
        queue.add(b"", id="later", on_conflict="ignore")
    assert take(queue, 1).lapses == most
    clock.advance(1)
    assert queue.tidy().reclaimed == 1
    assert [(job.id, job.error) for job in queue.failed()] == [("a", "the lease lapsed")]
    assert outcome_of(queue, "a").kind == "failed"


def test_21_a_finished_job_lets_the_next_run_begin(queue: Queue, behind: Behind) -> None:
    """Its lease and payload are gone, and what waited for it is ready."""
    queue.add(b"first", id="a")
    lease = take(queue)
    queue.add(b"second", id="a", on_conflict="update")
    assert queue.complete(lease)
    assert (queue.counts().leased, queue.counts().ready) == (0, 1)
    assert queue.complete(take(queue))
    assert behind.everything().keys() <= {"meta", "calls", "wake"}


# --------------------------------------------------------------------------------- running


def test_23_handlers_that_compute_do_not_lose_their_jobs(live_queue: Queue, hire: Hire) -> None:
    """They run in threads; leases are extended by another, which gets its turn."""
    enough = threading.Event()
    ran: list[str] = []

    def compute(job: RunningJob) -> None:
        ran.append(job.id)
        n = 0
        while not enough.is_set():
            n = (n * n + 1) % 1_000_003

    hire(live_queue, compute, concurrency=3, lease=2)
    live_queue.add_many([NewJob(b"", id=id) for id in "abc"])
    held = partial(held_for, live_queue)
    wait_until(lambda: min(held("a"), held("b"), held("c")) > 4.4, "three leases of each")
    assert [shown(live_queue, id).lapses for id in "abc"] == [0, 0, 0]
    enough.set()
    wait_until_gone(live_queue, "a", "b", "c")
    assert sorted(ran) == ["a", "b", "c"]


def test_23_a_coroutine_that_runs_too_long_is_ended_and_counts_as_a_lapse(
    live_queue: Queue, hire: Hire
) -> None:
    """As if its worker had died; the worker goes on."""
    heard, ran = Heard(), Counter[str]()

    async def handle(job: AsyncRunningJob) -> None:
        ran[job.id] += 1
        await asyncio.sleep(DEADLINE if job.id == "slow" else 0)

    hire(live_queue, handle, concurrency=1, hooks=[heard])
    live_queue.add(b"", id="slow", timeout=0.05, max_lapses=1)
    live_queue.add(b"", id="quick")
    wait_until_gone(live_queue, "quick")
    heard.has("failed")
    assert ran == {"slow": 2, "quick": 1}
    (job,) = live_queue.failed()
    assert (job.failures, job.lapses) == (0, 2)
    assert job.error == "timeout: it ran for 0.05 s"


def test_23_a_process_that_runs_too_long_is_killed_and_replaced(
    live_queue: Queue, hire: Hire
) -> None:
    """Whatever it computes; only that job is affected, and the next runs in a new process."""
    heard = Heard()

    def compute(job: RunningJob) -> int:
        while job.id == "slow":
            pass
        return os.getpid()

    hire(live_queue, compute, executor="process", concurrency=1, hooks=[heard])
    live_queue.add(b"", id="before", result_for=60)
    heard.has("done")
    live_queue.add(b"", id="slow", timeout=0.05, max_lapses=0)
    heard.has("failed")
    live_queue.add(b"", id="after", result_for=60)
    heard.has("done", 2)
    (job,) = live_queue.failed()
    assert (job.failures, job.lapses, job.error) == (0, 1, "timeout: it ran for 0.05 s")
    assert outcome_of(live_queue, "before").result != outcome_of(live_queue, "after").result


def test_18_a_process_is_killed_when_its_lease_is_lost(
    live_queue: Queue, hire: Hire, tmp_path: Path
) -> None:
    """It cannot do harm any more."""
    heard = Heard()

    def compute(job: RunningJob) -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        while True:
            pass

    worker = hire(live_queue, compute, executor="process", hooks=[heard])
    live_queue.add(b"", id="a", max_lapses=0)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the run")
    assert live_queue.fail_worker(worker.running()[0].lease) == 1
    heard.has("lost")
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not psutil.pid_exists(pid), "it to be killed")
    assert sorted(heard.tokens) == ["lost", "started"]


def test_24_concurrency_follows_the_load(
    live_queue: Queue, hire: Hire, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up while processors are idle and work waits, down while they are all busy."""
    monkeypatch.setattr(concurrency, "TICK_SECONDS", 3600.0)  # It looks when it is told to, below.
    worker = hire(live_queue, held, concurrency=Auto(1, 8), ahead=0)
    live_queue.add_many([NewJob(b"") for _ in range(20)])
    assert worker._tuner
    assert worker._shared
    places, before = worker._shared.slots, worker._shared.concurrency
    held.has(before)
    wait_until(places.are_wanted, "more to be wanted")
    worker._tuner.look(Load(busy=0.1, own=0.0))
    assert worker._shared.concurrency > before
    held.has(worker._shared.concurrency)
    worker._tuner.look(Load(busy=1.0, own=0.0))
    assert worker._shared.concurrency == before
    held.let_go()


def test_28_a_worker_tells_what_it_does(queue: Queue, hire: Hire) -> None:
    """Each run once, after the server has confirmed it."""
    heard = Heard()
    hire(queue, ways, hooks=[heard])
    queue.add_many([NewJob(b"", id=id) for id in ("good", "soon", "hopeless")])
    assert len(heard.has("done") + heard.has("retried") + heard.has("failed")) == 3
    assert heard.errors == {"good": "", "soon": "not now", "hopeless": "never"}
    assert sorted(heard.tokens) == ["done", "failed", "retried", "started"]


def test_29_what_runs_when_a_worker_is_closed_goes_back(
    live_queue: Queue, hire: Hire, held: Held
) -> None:
    """At no cost, and what the handler says later does not count."""
    heard = Heard()
    worker = hire(live_queue, held, concurrency=1, hooks=[heard])
    live_queue.add(b"", id="a")
    (job,) = held.has(1)
    assert not worker.stop(grace=0)
    assert job.cancelled
    assert heard.tokens["released"] == [job.token]
    held.let_go()
    assert [(one.id, one.failures, one.lapses) for one in live_queue.peek(9)] == [("a", 0, 0)]


def test_29_a_worker_leaves_in_good_order_whatever_its_handlers_do(
    live_queue: Queue, hire: Hire, held: Held
) -> None:
    """Also when they end just as their jobs are given back."""
    obeyed: list[str] = []

    def obey(job: RunningJob) -> None:
        if job.id == "deaf":
            held(job)
        wait_until(lambda: job.cancelled, "to be told")
        obeyed.append(job.id)

    worker = hire(live_queue, obey, concurrency=9)
    live_queue.add_many([NewJob(b"", id=id) for id in ("deaf", *"abcdefgh")])
    wait_until(lambda: len(worker.running()) == 9, "all to run")
    assert not worker.stop(grace=0)
    assert live_queue.counts().leased == 0
    wait_until(lambda: sorted(obeyed) == list("abcdefgh"), "them to end")
    assert shown(live_queue, "deaf").state == "ready"
    assert all((job.failures, job.lapses) == (0, 0) for job in live_queue.peek(9))


def test_30_a_job_whose_handler_is_not_here_waits_for_who_has_it(
    live_queue: Queue, hire: Hire
) -> None:
    """It is neither dropped nor counted, and others are not held up."""
    heard, ran = Heard(), list[str]()
    hire(live_queue, lambda job: ran.append(job.id), hooks=[heard])
    live_queue.add_many([NewJob(b"", id="a", handler="elsewhere"), NewJob(b"", id="b")])
    heard.has("unknown")
    wait_until_gone(live_queue, "b")
    wait_until(lambda: shown(live_queue, "a").state == "delayed", "it to be given back")
    assert ran == ["b"]
    assert (shown(live_queue, "a").failures, shown(live_queue, "a").lapses) == (0, 0)


def test_31_a_handler_can_add_its_own_job_for_the_next_time(live_queue: Queue, hire: Hire) -> None:
    """While it runs; the next run begins when this one is over."""
    running, ran = 0, 0

    def tick(job: RunningJob) -> None:
        nonlocal running, ran
        running, ran = running + 1, ran + 1
        assert running == 1
        if ran < 5:
            live_queue.add(b"", id=job.id, delay=0.01, on_conflict="update")
        running -= 1

    hire(live_queue, tick)
    live_queue.add(b"", id="tick")
    wait_until(lambda: ran == 5, "five times")
    wait_until_gone(live_queue, "tick")


def test_31_a_job_can_add_itself_for_the_next_time(queue: Queue, clock: Clock) -> None:
    """While it runs, with its own id: a job that comes every few seconds."""
    queue.add(b"", id="every 3 s")
    for _ in range(3):
        lease = take(queue)
        queue.add(b"", id="every 3 s", delay=3, on_conflict="update")
        queue.complete(lease)
        assert queue.lease(30) is None
        clock.advance(3)
    assert len(queue) == 1


# ------------------------------------------------------------------------------- their bugs


def test_bug_d1_a_job_without_a_time_is_not_run_twice_at_once(live_queue: Queue) -> None:
    """There: minus zero was not less than zero, so what should wait was given out."""
    running = 0
    for _ in range(40):
        live_queue.add(b"", id="a", on_conflict="update")
        lease = take(live_queue)
        _, *others = race(
            partial(live_queue.add, b"", id="a", on_conflict="update"),
            partial(live_queue.lease, 30),
            partial(live_queue.lease, 30),
        )
        running += sum(other is not None for other in others)
        assert live_queue.complete(lease)
    assert running == 0


def test_bug_d1_workers_do_not_run_one_id_twice_at_once(live_queue: Queue, hire: Hire) -> None:
    """However often it is added while it runs."""
    running: list[int] = []
    ran, most = 0, 0

    def handle(job: RunningJob) -> None:
        nonlocal ran, most
        running.append(1)
        most = max(most, len(running))
        ran += 1
        time.sleep(0.002)  # Long enough to be met by another.
        running.pop()

    for _ in range(2):
        hire(live_queue, handle, concurrency=4)

    def add_often() -> bool:
        for n in range(150):
            live_queue.add(n, id="a", on_conflict="update")
        return ran > 1

    wait_until(add_often, "it to be met")
    wait_until_gone(live_queue, "a")
    assert most == 1


@pytest.mark.parametrize("due", [True, False, "later", "earlier"])
@pytest.mark.parametrize("delay", [None, 2])
def test_bug_d2_what_waits_for_a_run_is_free_when_it_is_over(
    queue: Queue, clock: Clock, due: bool, delay: float | None
) -> None:
    """There: with some of the flags it waited for ever."""
    queue.add(b"first", id="a")
    lease = take(queue)
    queue.add(b"second", id="a", delay=delay, on_conflict=Update(due=due))
    assert queue.complete(lease)
    clock.advance(2)
    assert take(queue).data == b"second"


@pytest.mark.parametrize("settle", ["complete", "retry", "fail", "release"])
def test_bug_d3_a_zombie_settles_nothing(
    queue: Queue, clock: Clock, other: Queue, settle: str
) -> None:
    """There: its finish deleted what the new holder was running, and a third run began."""
    queue.add(b"", id="a")
    zombie = take(queue, 1)
    clock.advance(1)
    lease = take(other)
    settles: dict[str, Callable[[], object]] = {
        "complete": lambda: queue.complete(zombie),
        "retry": lambda: queue.retry(zombie, error="late"),
        "fail": lambda: queue.fail(zombie, error="late"),
        "release": lambda: queue.release(zombie),
    }
    if settle == "complete":
        assert settles[settle]() is False
    else:
        with pytest.raises(LeaseLost):
            settles[settle]()
    assert queue.lease(30) is None
    assert other.extend(lease, 30) is Extended.HELD
    other.retry(lease, error="why", after=0)
    assert take(queue).failures == 1


@pytest.mark.parametrize("missing", ["holds", "facts", "jobs"])
def test_bug_d4_a_record_that_is_missing_stops_nobody(
    queue: Queue, clock: Clock, behind: Behind, missing: str
) -> None:
    """There: the sweep raised on it, and so did every dequeue and heartbeat from then on."""
    queue.add_many([NewJob(b"", id=id, max_failures=5) for id in ("broken", "b", "c")])
    take(queue, 1)
    held = take(queue, 10)
    behind("HDEL", missing, "broken")
    clock.advance(1)
    rest = sorted(ids(queue.lease_many(9, 30)))
    assert rest == (["c"] if missing == "jobs" else ["broken", "c"])
    assert queue.extend(held, 30)
    assert queue.complete(held)


@pytest.mark.parametrize("missing", ["holds", "facts", "jobs"])
def test_bug_d4_a_record_that_is_missing_stops_no_worker(
    queue: Queue, behind: Behind, hire: Hire, held: Held, missing: str
) -> None:
    """It goes on with all else, whatever it runs itself."""
    queue.add_many([NewJob(b"", id=id, max_failures=5) for id in ("broken", "b")])
    hire(queue, held, concurrency=4)
    held.has(2)
    behind("HDEL", missing, "broken")
    queue.add(b"", id="c")
    held.has(3)
    held.let_go()
    wait_until_gone(queue, "b", "c")
    if missing == "holds":
        assert queue.tidy(held_longer_than=0).reclaimed == 1
    queue.repair()
    queue.cancel("broken")


def test_bug_d5_a_missing_payload_in_the_middle_of_a_batch_strands_no_other(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    """There: the batch was cut short by an error, and what it had moved was never swept."""
    queue.add_many([NewJob(b"", id=id) for id in "abcde"])
    behind("HDEL", "jobs", "c")
    assert ids(queue.lease_many(5, 1)) == ["a", "b", "d", "e"]
    clock.advance(1)
    assert ids(queue.lease_many(5, 1)) == ["a", "b", "d", "e"]


def test_bug_d6_a_worker_that_asks_for_more_is_still_told_what_it_lost(
    queue: Queue, clock: Clock, other: Queue
) -> None:
    """There: asking made it alive again, and nobody told it that its jobs were gone."""
    queue.add_many([NewJob(b"", id=id) for id in "ab"])
    lost = take(queue, 1)
    clock.advance(1)
    assert take(other, 30).id == "a"
    fresh = take(queue, 30)
    assert queue.extend_many([lost, fresh], 30) == [Extended.LOST, Extended.HELD]


def several(queue: Queue, server: Server, count: int) -> list[Queue]:
    return [Queue(f"{queue.name} {n}", server) for n in range(count)]


def test_bug_d7_one_place_is_enough_for_many_queues(
    live_queue: Queue, server: Server, hire: Hire
) -> None:
    """There: a queue that found no place was never looked at again."""
    queues = several(live_queue, server, 5)
    for queue in queues:
        queue.add_many([b""] * 5)
    ran: Counter[str] = Counter()
    hire(queues, lambda job: ran.update([job.queue]), concurrency=1, ahead=0)
    wait_until(lambda: ran.total() == 25, "all of them")
    assert ran == {queue.name: 5 for queue in queues}
    live_queue.add(b"")


@pytest.mark.usefixtures("unhurried")
def test_bug_d8_a_busy_queue_does_not_starve_the_others(live_queue: Queue, server: Server) -> None:
    """There: busy queues came first, and the priorities were the wrong way round."""
    busy, quiet = several(live_queue, server, 2)
    for strict, first, last in ((False, 0, 12), (True, 40, 41)):
        ran: list[bytes] = []
        busy.add_many([b"busy"] * 40)
        worker = Worker([busy, quiet], strict=strict, concurrency=1, ahead=0)

        def handle(job: RunningJob, worker: Worker = worker, ran: list[bytes] = ran) -> None:
            if not ran:
                quiet.add_many([NewJob(b"low", priority=10), NewJob(b"high", priority=90)])
                wait_until(lambda: all_hungry(worker), "both queues to want a place")
            ran.append(job.data)

        worker.handler(handle)
        with worker:
            wait_until(lambda ran=ran: len(ran) == 42, "all of them")  # type: ignore[misc]
        assert first <= ran.index(b"high") < ran.index(b"low") <= last


def all_hungry(worker: Worker) -> bool:
    return all(control._share.wants_more for control in worker._controls.values())


def test_bug_d9_runs_that_are_ended_cost_no_place(live_queue: Queue, hire: Hire) -> None:
    """There: each timeout of a worker took its capacity away once more."""
    together = asyncio.Barrier(3)

    async def handle(job: AsyncRunningJob) -> None:
        await (together.wait() if job.id.isdigit() else asyncio.sleep(DEADLINE))

    hire(live_queue, handle, concurrency=3)
    live_queue.add_many([NewJob(b"", timeout=0.02, max_lapses=1) for _ in range(6)])
    wait_until(lambda: live_queue.counts().failed == 6, "them to be ended")
    live_queue.add_many([NewJob(b"", id=f"{n}") for n in range(6)])
    wait_until_gone(live_queue, *(f"{n}" for n in range(6)))


def test_bug_d9_a_queue_that_is_dropped_gives_its_places_to_the_others(
    live_queue: Queue, server: Server, hire: Hire, held: Held
) -> None:
    """When its handlers are done; here its job was given back long before."""
    one, two = several(live_queue, server, 2)
    worker = hire([one, two], held, concurrency=1, ahead=0)
    one.add(b"", id="a")
    held.has(1)
    worker.drop(one.name, grace=0)
    two.add(b"", id="b")
    held.let_go()
    wait_until_gone(two, "b")
    assert shown(one, "a").state == "ready"


def test_bug_d9_ids_of_different_queues_are_different_jobs(
    live_queue: Queue, server: Server, hire: Hire, held: Held
) -> None:
    """There: what happened to one happened to the other."""
    one, two = several(live_queue, server, 2)
    heard = Heard()
    hire([one, two], held, hooks=[heard])
    for queue in (one, two):
        queue.add(queue.name, id="same")
    jobs = {job.queue: job for job in held.has(2)}
    assert all(job.data == name.encode() for name, job in jobs.items())
    assert one.cancel("same")
    wait_until(lambda: jobs[one.name].cancelled, "the one to be told")
    assert not jobs[two.name].cancelled
    held.let_go()
    assert heard.has("done") == [jobs[two.name].token]


def test_bug_d10_times_and_flags_arrive_as_they_were_given(queue: Queue, clock: Clock) -> None:
    """There: the time was not stored, an argument was off by one, and 'false' was true."""
    queue.add(b"old", id="a", delay=7.5)
    queue.add(b"new", id="a", delay=1, on_conflict=Update(data=False, due=False))
    job = shown(queue, "a")
    assert (job.data, job.at) == (b"old", clock.ms / 1000 + 7.5)
    queue.add(b"", id="a", on_conflict=Update(data=False))
    queue.retry(take(queue), error="why", after=0.123)
    job = shown(queue, "a")
    assert (job.data, job.at, job.failures) == (b"old", clock.ms / 1000 + 0.123, 1)


def test_bug_d11_the_first_failure_waits_for_a_handler_whoever_has_one(
    queue: Queue, other: Queue
) -> None:
    """There: a client that knew of no failure handler dropped the job."""
    queue.add(b"x", id="a", max_failures=0)
    queue.retry(take(queue), error="why")
    lease = other.lease(30, failed=True)
    assert lease is not None
    assert (lease.id, lease.data, lease.error) == ("a", b"x", "why")


def test_bug_d11_a_worker_that_comes_later_handles_the_failures_of_others(
    live_queue: Queue, hire: Hire
) -> None:
    """There: who had no failure handler dropped the job."""
    heard, handled = Heard(), list[tuple[str, str | None]]()
    hire(live_queue, ways, hooks=[heard])
    live_queue.add(b"", id="hopeless")
    heard.has("failed")
    worker = Worker(live_queue)
    worker.failure_handler(lambda job: handled.append((job.id, job.error)))
    with worker:
        wait_until_gone(live_queue, "hopeless")
    assert handled == [("hopeless", "never")]


def test_bug_d12_a_lost_lease_is_noticed_and_ids_may_have_colons(
    queue: Queue, clock: Clock, other: Queue
) -> None:
    """There: the heartbeat answered the same either way, and `a:b` was an id or id and worker."""
    names = ["a", "a:b", "a:b:c", f"a:{other.holder}", "a.1", "a 1 2"]
    queue.add_many([NewJob(name, id=name) for name in names])
    held = queue.lease_many(9, 1)
    assert [lease.data.decode() for lease in held] == names
    clock.advance(1)
    taken = other.lease_many(3, 30)
    queue.tidy()
    assert queue.extend_many(held, 30) == [Extended.LOST] * 6
    assert other.extend_many(taken, 30) == [Extended.HELD] * 3
    assert queue.complete_many(held) == [False] * 3 + [True] * 3


def test_bug_d13_times_are_the_servers_and_a_handler_may_come_back_sooner(
    live_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There: client clocks decided, and the time a handler asked for could only be later."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    live_queue.add(b"", min_backoff=60)
    live_queue.retry(take(live_queue), error="why", after=0.01)
    assert live_queue.lease(30, wait=DEADLINE) is not None


def test_bug_d13_jobs_that_failed_together_do_not_come_back_together(queue: Queue) -> None:
    """There: all at the same moment."""
    queue.add_many([b""] * 20)
    for lease in queue.lease_many(20, 30):
        queue.retry(lease, error="why")
    assert len({job.at for job in queue.peek(20, state="delayed")}) > 5


def test_bug_d13_jobs_due_at_the_same_time_come_in_the_order_they_were_added(
    queue: Queue, clock: Clock
) -> None:
    """There: by id."""
    for id in "zac":
        queue.add(b"", id=id, at=clock.ms / 1000 + 1)
    clock.advance(1)
    assert ids(queue.lease_many(9, 30)) == ["z", "a", "c"]


def test_bug_d14_many_lapses_are_taken_back_a_thousand_at_a_time(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    """There: one dead client per call, however many jobs it had, in one long script."""
    queue.add_many([b""] * 2500)
    while queue.lease_many(1000, 1):
        pass
    clock.advance(1)
    called = engine_calls(behind.client)
    assert len(queue.lease_many(10, 30)) == 10
    assert queue.counts().ready == 990
    assert queue.tidy().reclaimed == 1500
    assert engine_calls(behind.client) == called + 4
    assert queue.counts().ready == 2490


def test_bug_d14_a_waiting_worker_is_woken_and_does_not_ask_all_the_time(
    queue: Queue, behind: Behind
) -> None:
    """There: ten questions a second from everybody."""
    client, asked = behind.client, engine_calls(behind.client)
    began = time.monotonic()

    def add() -> None:
        wait_until(lambda: client.info("clients")["blocked_clients"], "a sleeper")
        queue.add(b"x")

    lease, _ = race(partial(queue.lease, 30, wait=DEADLINE), add)
    assert lease is not None
    seconds = time.monotonic() - began
    assert engine_calls(client) <= asked + 4 + 2 * seconds


def test_bug_d14_an_idle_worker_asks_about_once_a_second(
    queue: Queue, behind: Behind, hire: Hire
) -> None:
    """There: ten times a second, each of them."""
    client = behind.client
    wait_until(lambda: sleepers(client) == 0, "the sleepers of others")
    hire(queue, print)
    wait_until(lambda: sleepers(client) == 1, "the worker to sleep")
    began, before = client.time()[0], engine_calls(client)
    wait_until(lambda: client.time()[0] >= began + 3, "three seconds of the server")
    asked = engine_calls(client) - before
    assert asked <= 2 * (client.time()[0] - began)


@pytest.mark.parametrize("trouble", ["cut", "refused", "killed"])
def test_bug_d15_a_worker_goes_on_when_the_server_does(
    hire: Hire, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    """There: the first error ended the loop, and nobody noticed."""
    with own_server() as server, Queue("q", server.url) as queue:
        ran: list[str] = []
        worker = hire(queue, lambda job: ran.append(job.id))
        queue.add(b"", id="before")
        wait_until_gone(queue, "before")
        with server.client() as client:
            if trouble == "cut":
                kill_connections(client)
            elif trouble == "refused":
                command_on(client, "ACL", "SETUSER", "default", "-@scripting")
                wait_until(lambda: "keeps trying" in caplog.text, "the worker to notice")
                command_on(client, "ACL", "SETUSER", "default", "+@scripting")
            else:
                server.kill()
                server.start()
        queue.add(b"", id="after")
        wait_until(lambda: ran == ["before", "after"], "the worker to go on")
        wait_until_gone(queue, "after")
        worker.stop()


def test_bug_d16_as_many_run_at_a_time_as_is_documented(
    live_queue: Queue, hire: Hire, held: Held
) -> None:
    """There: ten in the code and a hundred in the documents."""
    worker = hire(live_queue, held)
    live_queue.add_many([b""] * 30)
    held.has(16)
    assert worker.__doc__ is not None
    assert "by default 16 threads, 100 coroutines" in worker.__doc__
    live_queue.add(b"", id="last", priority=99)
    assert shown(live_queue, "last").state == "ready"
    assert (len(held.jobs), live_queue.counts().leased) == (16, 16)
    held.let_go()
    wait_until_gone(live_queue, "last")


def test_bug_d17_a_job_that_runs_can_be_cancelled_and_looked_at(
    live_queue: Queue, hire: Hire
) -> None:
    """There: neither."""
    heard, stopped = Heard(), threading.Event()

    async def wait(job: AsyncRunningJob) -> None:
        job.progress(0.5, "half")
        try:
            await asyncio.sleep(DEADLINE)
        finally:
            stopped.set()

    worker = hire(live_queue, wait, hooks=[heard])
    live_queue.add(b"", id="a", result_for=60)
    wait_until(worker.running, "the run")
    (job,) = worker.running()
    assert live_queue.explain("a").startswith("leased")
    assert live_queue.cancel("a")
    assert stopped.wait(DEADLINE)
    assert heard.has("cancelled") == [job.token]
    wait_until(lambda: live_queue.result("a"), "its end")
    assert outcome_of(live_queue, "a").kind == "cancelled"
