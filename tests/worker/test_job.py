"""What a handler sees of its job, and may ask of it."""

from __future__ import annotations

import time
from typing import Any, NoReturn

import pytest

from engine_support import own_server
from holdfast import (
    AsyncRunningJob,
    CodecError,
    Fail,
    InvalidArgument,
    JobCancelled,
    LeaseLost,
    NewJob,
    Queue,
    Release,
    RunningJob,
    Worker,
)
from support import command_on, wait_until
from worker.support import (
    Gate,
    Heard,
    Kind,
    as_handler,
    at_work,
    both_kinds,
    is_done,
    shown,
    work_off,
    worker_of,
    working,
)


@both_kinds
def test_it_carries_what_was_added(queue: Queue, kind: Kind) -> None:
    seen: list[object] = []

    def handle(job: RunningJob) -> None:
        seen.extend([job.id, job.data, job.json(), job.queue, job.request, job.failed])
        seen.append(repr(job))
        lease = shown(queue)
        assert job.token == lease.token

    queue.add({"to": "a@b.c"}, id="a")
    assert work_off(queue, as_handler(kind, handle))
    assert queue.show("a") is None
    name = "AsyncRunningJob" if kind == "coroutine" else "RunningJob"
    assert seen == [
        "a",
        b'{"to":"a@b.c"}',
        {"to": "a@b.c"},
        queue.name,
        None,
        False,
        f"{name}('a')",
    ]


def test_each_run_has_a_token_of_its_own(queue: Queue) -> None:
    tokens: list[str] = []

    def handle(job: RunningJob) -> None:
        tokens.append(job.token)
        if len(tokens) < 3:
            raise Release

    queue.add(b"")
    assert work_off(queue, handle, concurrency=1, ahead=0)
    assert len(set(tokens)) == 3


def test_a_payload_that_is_no_json_says_so(queue: Queue) -> None:
    def handle(job: RunningJob) -> None:
        with pytest.raises(CodecError, match="payload is not JSON"):
            job.json()

    queue.add(b"\xff", id="a")
    assert work_off(queue, handle)
    assert queue.show("a") is None


# ------------------------------------------------------------------- follow-ups


@both_kinds
def test_follow_ups_are_added_when_the_job_is_completed(queue: Queue, kind: Kind) -> None:
    def handle(job: RunningJob) -> None:
        if job.id == "a":
            job.add("one", id="b", priority=90, delay=60)
            job.add(NewJob({"two": 2}, id="c", delay=60, handler="other"))
            assert queue.counts().delayed == 0

    queue.add(b"", id="a")
    assert work_off(queue, as_handler(kind, handle))
    assert queue.show("a") is None
    b, c = shown(queue, "b"), shown(queue, "c")
    assert (b.data, b.priority, b.state) == (b"one", 90, "delayed")
    assert (c.data, c.facts.handler, c.state) == (b'{"two":2}', "other", "delayed")


@both_kinds
def test_a_follow_up_runs_next(queue: Queue, kind: Kind) -> None:
    order: list[bytes] = []

    def handle(job: RunningJob) -> object:
        order.append(job.data)
        if len(order) < 5:
            job.add(b"%d" % len(order))
        return len(order)

    queue.add(b"0", id="a", result_for=60)
    assert work_off(queue, as_handler(kind, handle))
    assert order == [b"0", b"1", b"2", b"3", b"4"]
    outcome = queue.result("a")
    assert outcome is not None
    assert outcome.json() == 1


@both_kinds
@pytest.mark.parametrize("error", [ValueError(), Fail(), Release(after=60)])
def test_follow_ups_are_not_added_when_the_run_ends_in_another_way(
    queue: Queue, kind: Kind, error: Exception
) -> None:
    def handle(job: RunningJob) -> NoReturn:
        job.add(b"", id="b", delay=60)
        raise error

    queue.add(b"", id="a")
    assert work_off(queue, as_handler(kind, handle))
    assert shown(queue, "a").state != "leased"
    assert queue.show("b") is None


@pytest.mark.usefixtures("unextended")
def test_follow_ups_of_a_run_that_does_not_count_are_not_added(live_queue: Queue) -> None:
    heard = Heard()

    def handle(job: RunningJob) -> None:
        job.add(b"", id="b")
        live_queue.cancel("a")

    live_queue.add(b"", id="a")
    with working(live_queue, handle, hooks=[heard]):
        heard.wait_for("lost")
    assert is_done(live_queue)


def test_jobs_of_a_batch_have_their_own_follow_ups(queue: Queue) -> None:
    def handle(jobs: list[RunningJob]) -> list[object]:
        for job in jobs:
            job.add(b"", id=f"after {job.id}", delay=60)
        return [None if job.id != "b" else ValueError() for job in jobs]

    for id in "abc":
        queue.add(b"", id=id)
    worker = Worker(queue)
    worker.handler(handle, batch=3)
    assert worker.run(until_empty=True)
    waiting = {job.id for job in queue.peek(9, state="delayed")}
    assert waiting == {"after a", "after c", "b"}


def test_follow_ups_have_the_defaults_of_their_queue(queue: Queue) -> None:
    careful = Queue(queue.name, queue.server, defaults={"max_failures": 77}, clock=queue.clock)

    def handle(job: RunningJob) -> None:
        job.add(b"", id="b", delay=60)

    queue.add(b"", id="a")
    assert work_off(careful, handle)
    assert shown(queue, "b").facts.max_failures == 77


@pytest.mark.parametrize(
    ("add", "why"),
    [
        (lambda job: job.add(object()), "payload cannot be written"),
        (lambda job: job.add(b"", priority=100), "priority"),
        (lambda job: job.add(b"", delay=-1), "delay"),
        (lambda job: job.add(b"", id=""), "id"),
        (lambda job: job.add(b"", on_conflict="update"), "on_conflict"),
        (lambda job: job.add(NewJob(b""), priority=5), "a NewJob has its own options"),
        (lambda job: [job.add(b"") for _ in range(1001)], "at most 1000 follow-ups"),
        (lambda job: [job.add(b"x" * 5_000_000) for _ in range(2)], "at most 1000 follow-ups and"),
    ],
)
def test_a_follow_up_that_cannot_be_is_an_error_of_the_handler(
    queue: Queue, add: Any, why: str
) -> None:
    queue.add(b"", id="a")
    assert work_off(queue, add)
    job = shown(queue)
    assert (job.state, job.failures) == ("delayed", 1)
    assert why in str(job.error)
    assert len(queue) == 1


def test_as_many_follow_ups_as_one_call_adds_are_added(queue: Queue) -> None:
    def handle(job: RunningJob) -> None:
        for _ in range(1000):
            job.add(b"", delay=60)

    queue.add(b"")
    assert work_off(queue, handle)
    assert queue.counts().delayed == 1000


def test_follow_ups_that_the_server_refuses_for_good_are_a_failure_of_the_job(
    queue: Queue,
) -> None:
    request = queue.request("r")
    request.open()
    queue.add(b"", id="a")
    queue.add_many([b""] * 5)

    def handle(job: RunningJob) -> None:
        if job.id == "a":
            job.add(b"", group="r")

    assert work_off(queue, handle)
    job = shown(queue)
    assert (job.state, job.failures) == ("delayed", 1)
    assert "a request has the name of the group" in str(job.error)
    assert len(queue) == 1
    request.cancel()


def test_while_a_server_has_no_room_for_follow_ups_all_else_goes_on() -> None:
    with own_server() as server, server.client() as client, Queue("q", server.url) as queue:
        gate, heard = Gate(), Heard()

        def handle(job: RunningJob) -> None:
            if job.id == "a":
                client.config_set("maxmemory", 1)
                job.add(b"", id="b")
            elif job.id == "long":
                gate(job)

        queue.add(b"", id="long")
        queue.add(b"", id="a")
        queue.add_many([NewJob(b"", id=str(n)) for n in range(50)])
        with working(queue, handle, concurrency=2, hooks=[heard]):
            wait_until(lambda: len(heard.ids("done")) == 50, "all that need no room")
            held_until = shown(queue, "long").at
            assert held_until is not None
            wait_until(
                lambda: (shown(queue, "long").at or 0) > held_until + 1, "its lease to go on"
            )
            refused = command_on(client, "INFO", "errorstats")["errorstat_OOM"]["count"]
            assert 1 <= refused < 100, "it asks without a pause"
            assert shown(queue, "a").state == "leased"
            gate.open.set()
            client.config_set("maxmemory", 0)
            wait_until(lambda: is_done(queue), "the rest")
        assert heard.of("long") == ["started", "done"]
        assert heard.of("a") == ["started", "done"]
        assert heard.of("b") == ["started", "done"]
        assert queue.audit() == []


# ----------------------------------------------------------------------- extend


def test_a_handler_can_make_sure_that_the_job_is_still_its_own(live_queue: Queue) -> None:
    heard = Heard()

    def handle(job: RunningJob) -> None:
        before = shown(live_queue).at
        assert before is not None
        job.extend()
        job.extend(60)
        after = shown(live_queue).at
        assert after is not None
        assert after > before + 30

    live_queue.add(b"", id="a")
    with working(live_queue, handle, hooks=[heard]):
        heard.wait_for("done")


def test_a_coroutine_can_make_sure_that_the_job_is_still_its_own(live_queue: Queue) -> None:
    heard = Heard()

    async def handle(job: AsyncRunningJob) -> None:
        before = shown(live_queue).at
        assert before is not None
        await job.extend(60)
        after = shown(live_queue).at
        assert after is not None
        assert after > before + 30

    live_queue.add(b"", id="a")
    with working(live_queue, handle, hooks=[heard]):
        heard.wait_for("done")


def test_what_a_handler_holds_for_longer_stays_so(live_queue: Queue, gate: Gate) -> None:
    """The worker goes on extending it, and does not hold it for less."""

    def handle(job: RunningJob) -> None:
        job.extend(60)
        gate(job)

    live_queue.add(b"", id="a")
    live_queue.add(b"", id="b", handler="plain")
    worker = worker_of(live_queue, handle, lease=3)
    worker.handler("plain")(gate)
    with at_work(worker):
        gate.wait(2)
        seen: set[float | None] = set()

        def extensions() -> int:
            seen.add(shown(live_queue, "b").at)
            return len(seen) - 1

        wait_until(lambda: extensions() == 3, "three extensions")
        assert (shown(live_queue).at or 0) > time.time() + 30
        gate.open.set()
        wait_until(lambda: is_done(live_queue), "both")


def test_a_handler_cannot_hold_its_job_for_less_than_the_worker_does(
    live_queue: Queue, gate: Gate
) -> None:
    def handle(job: RunningJob) -> None:
        job.extend(0.001)
        assert not job.cancelled
        gate(job)

    live_queue.add(b"", id="a")
    with working(live_queue, handle, lease=60):
        gate.wait()
        assert (shown(live_queue).at or 0) > time.time() + 10


def test_a_handler_whose_job_was_taken_back_is_told(live_queue: Queue) -> None:
    seen: list[str] = []

    def handle(job: RunningJob) -> None:
        if not seen:
            live_queue.fail_worker(job.lease)
            with pytest.raises(LeaseLost, match="the lease is over") as raised:
                job.extend()
            seen.append(str(raised.value))

    live_queue.add(b"", id="a")
    with working(live_queue, handle, concurrency=1, ahead=0):
        wait_until(lambda: seen and is_done(live_queue), "it to be done")


@both_kinds
@pytest.mark.usefixtures("unextended")
def test_a_handler_whose_job_was_cancelled_is_told(live_queue: Queue, kind: Kind) -> None:
    seen: list[str] = []
    heard = Heard()

    def handle(job: RunningJob) -> None:
        live_queue.cancel("a")
        with pytest.raises(JobCancelled, match="the job was cancelled") as raised:
            RunningJob.extend(job)
        seen.append(str(raised.value))

    live_queue.add(b"", id="a")
    with working(live_queue, as_handler(kind, handle), hooks=[heard]):
        wait_until(lambda: seen and is_done(live_queue), "it to end")
    assert live_queue.show("a") is None
    assert heard.of() == ["started", "lost"]


@pytest.mark.parametrize("seconds", [0, -1, "5", True, float("nan"), float("inf")])
def test_a_job_is_extended_by_seconds(live_queue: Queue, seconds: Any) -> None:
    heard = Heard()

    def handle(job: RunningJob) -> None:
        with pytest.raises(InvalidArgument, match="seconds"):
            job.extend(seconds)

    live_queue.add(b"", id="a")
    with working(live_queue, handle, hooks=[heard]):
        heard.wait_for("done")


def test_a_job_that_is_over_can_be_asked_without_harm(live_queue: Queue) -> None:
    kept: list[RunningJob] = []
    heard = Heard()
    live_queue.add(b"", id="a")
    with working(live_queue, kept.append, hooks=[heard]):
        heard.wait_for("done")
        with pytest.raises(LeaseLost):
            kept[0].extend()
        kept[0].progress(0.5)
        assert kept[0].id == "a"


# --------------------------------------------------------------------- progress


@pytest.mark.parametrize("fraction", ["0.5", None, True, float("nan"), [0.5], 1j])
def test_a_progress_is_a_number(live_queue: Queue, fraction: Any) -> None:
    heard = Heard()

    def handle(job: RunningJob) -> None:
        with pytest.raises(InvalidArgument, match="fraction must be a number"):
            job.progress(fraction)

    live_queue.add(b"", id="a")
    with working(live_queue, handle, hooks=[heard]):
        heard.wait_for("done")


@pytest.mark.parametrize(
    ("fraction", "told"),
    [(0, 0.0), (0.25, 0.25), (1, 1.0), (-5, 0.0), (7, 1.0), (10**400, 1.0), (float("inf"), 1.0)],
)
def test_a_progress_is_kept_between_nothing_and_all(
    live_queue: Queue, gate: Gate, fraction: float, told: float
) -> None:
    def handle(job: RunningJob) -> None:
        job.progress(fraction, "note " * 100)
        gate(job)

    live_queue.add(b"", id="a")
    with working(live_queue, handle) as worker:
        gate.wait()
        [job] = worker.running()
        assert job.describe()["progress"] == (told, ("note " * 100)[:200])
