"""Starting and stopping: what has begun is finished or given back, and costs nobody anything."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, cast

import pytest

from conftest import Clock
from engine_support import own_server, take
from holdfast import (
    AsyncRunningJob,
    InvalidArgument,
    Lease,
    NewJob,
    Queue,
    RunningJob,
    Server,
    ServerRefused,
    Worker,
    WrongState,
)
from holdfast.worker.executors.event_loop import EventLoop
from holdfast.worker.executors.fork_server import fork
from holdfast.worker.handlers import Handler
from holdfast.worker.job import RunContext, run
from holdfast.worker.outcomes import GIVEN_BACK
from support import DEADLINE, command_on, wait_until, with_login
from worker.support import (
    KINDS,
    NEVER,
    Gate,
    Heard,
    Kind,
    as_handler,
    at_work,
    both_kinds,
    is_done,
    shown,
    worker_of,
    working,
)


@contextmanager
def in_a_thread(ask: Callable[[], object]) -> Iterator[list[object]]:
    """Do something beside the block; what it answers is there when the block is over."""
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(ask()))
    thread.start()
    yield answers
    thread.join(DEADLINE)
    assert not thread.is_alive()


def is_stopping(worker: Worker) -> bool:
    return all(control.leave_at is not None for control in worker._controls.values())


# ----------------------------------------------------------------------- drain


@both_kinds
def test_what_has_begun_is_finished(live_queue: Queue, gate: Gate, kind: Kind) -> None:
    heard = Heard()
    live_queue.add_many(NewJob(b"", id=id) for id in "abcd")

    async def wait(job: AsyncRunningJob) -> None:
        gate.jobs.append(job)
        while not gate.open.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    handler = gate if kind == "plain" else wait
    worker = worker_of(live_queue, handler, concurrency=2, hooks=[heard])
    worker.start()
    gate.wait(2)
    with in_a_thread(worker.stop) as stopped:
        wait_until(lambda: is_stopping(worker), "it to stop")
        gate.open.set()
    assert stopped == [True]
    assert sorted(heard.ids("done")) == ["a", "b"]
    assert [(job.id, job.failures, job.lapses) for job in live_queue.peek(9)] == [
        ("c", 0, 0),
        ("d", 0, 0),
    ]


@both_kinds
@pytest.mark.usefixtures("unhurried")
def test_what_has_not_begun_is_given_back_at_no_cost_and_at_its_rank(
    live_queue: Queue, gate: Gate, kind: Kind
) -> None:
    def handle(job: RunningJob) -> None:
        if job.data == b"long":
            gate(job)

    live_queue.add_many([b""] * 50)
    live_queue.add(b"long", id="long")
    live_queue.add_many([b""] * 50)
    last = [job.id for job in live_queue.peek(1000)][51:]
    worker = worker_of(live_queue, as_handler(kind, handle), concurrency=1, ahead=5)
    worker.start()
    gate.wait()
    with in_a_thread(worker.stop) as stopped:
        wait_until(lambda: live_queue.counts().leased == 1, "the rest to be given back")
        gate.open.set()
    assert stopped == [True]
    left = live_queue.peek(1000)
    assert [job.id for job in left] == last
    assert {(job.failures, job.lapses) for job in left} <= {(0, 0)}


@pytest.mark.parametrize("requeue", ["rank", "back"])
def test_what_is_given_back_goes_where_the_queue_says(
    live_queue: Queue, gate: Gate, requeue: str
) -> None:
    queue = Queue(live_queue.name, live_queue.server, requeue=requeue)  # type: ignore[arg-type]
    for id in "ab":
        queue.add(b"", id=id)
    worker = worker_of(queue, gate, concurrency=1, ahead=0)
    worker.start()
    gate.wait()
    assert not worker.stop(0)
    assert [job.id for job in queue.peek(2)] == (["a", "b"] if requeue == "rank" else ["b", "a"])


@both_kinds
def test_what_runs_for_longer_than_the_grace_is_given_back(
    live_queue: Queue, gate: Gate, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread stays behind, and what it says then counts no more. A coroutine is ended."""
    monkeypatch.setattr(EventLoop, "ends_within", NEVER)
    heard = Heard()
    ended = threading.Event()

    def block(job: RunningJob) -> None:
        gate(job)
        ended.set()

    async def sleep(job: AsyncRunningJob) -> None:
        gate.jobs.append(job)
        try:
            await asyncio.sleep(2 * DEADLINE)
        finally:
            ended.set()

    live_queue.add(b"", id="a")
    worker = worker_of(live_queue, block if kind == "plain" else sleep, grace=0.01, hooks=[heard])
    worker.start()
    gate.wait()
    clean = worker.stop()
    assert clean is (kind == "coroutine")
    job = shown(live_queue)
    assert (job.state, job.failures, job.lapses, job.error) == ("ready", 0, 0, None)
    assert gate.jobs[0].cancelled
    gate.open.set()
    assert ended.wait(DEADLINE)
    assert shown(live_queue).state == "ready"
    assert heard.of() == ["started", "released"]


def test_more_than_a_thousand_jobs_are_given_back(live_queue: Queue) -> None:
    running: list[str] = []

    async def handle(job: AsyncRunningJob) -> None:
        running.append(job.id)
        await asyncio.sleep(2 * DEADLINE)

    live_queue.add_many([b""] * 2500)
    worker = worker_of(live_queue, handle, concurrency=2500, grace=0)
    worker.start()
    wait_until(lambda: len(running) == 2500, "all to run")
    worker.stop()
    counts = live_queue.counts()
    assert (counts.ready, counts.leased, counts.failed) == (2500, 0, 0)


def test_a_handler_that_ends_just_when_its_worker_leaves_is_settled_once(
    live_queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        heard = Heard()
        live_queue.add(b"", id="a")
        worker = worker_of(live_queue, lambda job: wait_until(lambda: job.cancelled), hooks=[heard])
        worker.start()
        heard.wait_for("started")
        worker.stop(0)
        live_queue.cancel("a")
        assert heard.of() in (["started", "released"], ["started", "done"])
    assert "unexpected" not in caplog.text


def test_what_was_given_back_stays_so_whatever_its_handler_comes_to() -> None:
    control = cast("RunContext", SimpleNamespace(hooks=()))
    for body in (lambda job: None, lambda job: 1 / 0):
        job = RunningJob(Lease("a", b"", "holder.1"), Handler(body), control, 0)
        job.answer = GIVEN_BACK
        run(job)
        assert job.answer is GIVEN_BACK


# --------------------------------------------------------------- again and again


def test_a_second_stop_hurries_the_first(live_queue: Queue, gate: Gate) -> None:
    live_queue.add(b"", id="a")
    worker = worker_of(live_queue, gate)
    worker.start()
    gate.wait()
    with in_a_thread(worker.stop) as stopped:
        wait_until(lambda: is_stopping(worker), "it to stop")
        worker.stop(0)
    assert stopped == [False]
    assert shown(live_queue).state == "ready"


def test_a_second_stop_with_more_grace_does_not_hold_up_the_first(
    live_queue: Queue, gate: Gate
) -> None:
    live_queue.add(b"", id="a")
    worker = worker_of(live_queue, gate)
    worker.start()
    gate.wait()
    with in_a_thread(lambda: worker.stop(0.05)) as stopped:
        wait_until(lambda: is_stopping(worker), "it to stop")
        worker.stop(float("inf"))
    assert stopped == [False]


def test_what_does_not_run_can_be_stopped(live_queue: Queue) -> None:
    worker = worker_of(live_queue, lambda job: None)
    assert worker.stop()
    with worker:
        pass
    assert worker.stop()


def test_what_runs_cannot_be_started(live_queue: Queue) -> None:
    heard = Heard()
    with working(live_queue, lambda job: None, hooks=[heard]) as worker:
        with pytest.raises(WrongState, match="is running already"):
            worker.start()
        with pytest.raises(WrongState, match="is running already"):
            worker.run()
        live_queue.add(b"", id="a")
        heard.wait_for("done")


@both_kinds
def test_a_worker_can_be_started_again(live_queue: Queue, kind: Kind) -> None:
    heard = Heard()
    worker = worker_of(live_queue, as_handler(kind, lambda job: None), hooks=[heard])
    for n in range(3):
        live_queue.add(b"", id=str(n))
        with worker:
            heard.wait_for("done", str(n))
        assert worker.running() == []


def test_a_worker_that_was_stopped_leaves_no_threads_behind(live_queue: Queue) -> None:
    before = threading.active_count()
    for kind in KINDS:
        heard = Heard()
        live_queue.add(b"", id="a")
        with working(live_queue, as_handler(kind, lambda job: None), hooks=[heard]):
            heard.wait_for("done")
    wait_until(lambda: threading.active_count() <= before, "its threads to end")


def test_a_block_waits_for_what_has_begun(live_queue: Queue) -> None:
    heard = Heard()
    live_queue.add(b"", id="a")
    with worker_of(live_queue, lambda job: None, hooks=[heard]) as worker:
        heard.wait_for("started")
        assert isinstance(worker, Worker)
    assert heard.of() == ["started", "done"]


@both_kinds
def test_a_handler_may_ask_its_worker_to_stop(live_queue: Queue, kind: Kind) -> None:
    seen: list[str] = []
    worker = Worker(live_queue, concurrency=1, ahead=0)

    def handle(job: RunningJob) -> None:
        seen.append(job.id)
        if job.id == "b":
            worker.ask_to_stop()

    worker.handler(as_handler(kind, handle))
    for id in "abcdef":
        live_queue.add(b"", id=id)
    assert worker.run()
    assert seen[:2] == ["a", "b"]
    assert len(live_queue) == 6 - len(seen)


def test_a_worker_may_run_in_another_thread(live_queue: Queue) -> None:
    heard = Heard()
    worker = worker_of(live_queue, lambda job: None, hooks=[heard])
    live_queue.add(b"", id="a")
    with in_a_thread(worker.run) as answers:
        heard.wait_for("done")
        worker.ask_to_stop()
    assert answers == [True]


# ------------------------------------------------------------------ until empty


def test_until_empty_ends_when_nothing_could_run_now(live_queue: Queue) -> None:
    seen: list[str] = []
    live_queue.add_many([b""] * 100)
    live_queue.add(b"", id="later", delay=60)
    worker = worker_of(live_queue, lambda job: seen.append(job.id))
    assert worker.run(until_empty=True)
    assert len(seen) == 100
    assert shown(live_queue, "later").state == "delayed"
    live_queue.add(b"", id="again")
    assert worker.run(until_empty=True)
    assert seen[100:] == ["again"]


def test_until_empty_ends_where_the_queue_is_paused(live_queue: Queue) -> None:
    live_queue.add(b"", id="a")
    live_queue.pause()
    assert worker_of(live_queue, lambda job: None).run(until_empty=True)
    live_queue.resume()
    assert shown(live_queue).state == "ready"


def test_until_empty_waits_for_what_runs(live_queue: Queue, gate: Gate) -> None:
    live_queue.add(b"", id="a")
    worker = worker_of(live_queue, gate)
    with in_a_thread(lambda: worker.run(until_empty=True)) as answers:
        gate.wait()
        live_queue.add(b"", id="b")
        gate.wait(2)
        assert answers == []
        gate.open.set()
    assert answers == [True]
    assert is_done(live_queue)


def test_until_empty_waits_for_a_server_that_is_lost() -> None:
    with own_server("--appendonly", "yes") as server, Queue("q", server.url) as queue:
        queue.add(b"", id="a")
        server.kill()
        worker = worker_of(queue, lambda job: None)
        with in_a_thread(lambda: worker.run(until_empty=True)) as answers:
            wait_until(lambda: worker._controls, "it to begin")
            server.start()
        assert answers == [True]
        assert is_done(queue)


# ----------------------------------------------------------- a server that is lost


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stops a worker does not wait long for a server that is lost."""
    monkeypatch.setattr("holdfast.worker.loop.LEAVE_WITHIN_SECONDS", 0.2)


@pytest.mark.usefixtures("hasty")
def test_a_worker_can_be_stopped_while_its_server_is_down() -> None:
    with own_server() as server, Queue("q", server.url) as queue:
        gate = Gate()
        queue.add(b"", id="a")
        worker = worker_of(queue, gate)
        worker.start()
        gate.wait()
        server.kill()
        assert not worker.stop(0)
        gate.open.set()


@pytest.mark.usefixtures("hasty")
def test_an_idle_worker_that_is_stopped_while_its_server_is_down_has_left_nothing() -> None:
    with own_server() as server, Queue("q", server.url) as queue:
        worker = worker_of(queue, lambda job: None)
        worker.start()
        server.kill()
        assert worker.stop(0)


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_an_idle_worker_does_not_use_its_grace_to_wait_for_a_server_that_is_lost(how: str) -> None:
    with (
        own_server() as server,
        Queue("q", Server(server.url, patience=3600)) as queue,
        Queue("q2", Server(server.url, patience=3600)) as other,
    ):
        worker = worker_of([queue, other], lambda job: None, grace=2 * DEADLINE)
        queue.add(b"")
        worker.start()
        controls = list(worker._controls.values())
        wait_until(lambda: is_done(queue), "the job to be done")
        wait_until(lambda: not any(control._held.jobs for control in controls), "it to know that")
        if how == "killed":
            server.kill()
        else:
            server.freeze()
        with in_a_thread(worker.stop) as answers:
            pass
        assert answers == [True]
        if how == "killed":
            server.start()
        else:
            server.thaw()
        assert all(control.wait(DEADLINE) for control in controls)


def test_a_worker_that_holds_a_job_waits_within_its_grace_for_a_server_that_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.worker.loop.LEAVE_IDLE_SECONDS", 0.0)
    gate = Gate()
    with own_server() as server, Queue("q", Server(server.url, patience=3600)) as queue:
        queue.add(b"", id="a", result_for=60)
        worker = worker_of(queue, gate, grace=2 * DEADLINE)
        worker.start()
        gate.wait()
        [job] = worker.running()
        server.freeze()
        with in_a_thread(worker.stop) as answers:
            gate.open.set()
            wait_until(lambda: job.answer, "the handler to return")
            wait_until(lambda: not worker.running(), "the run to be over")
            assert answers == []
            server.thaw()
        assert answers == [True]
        outcome = queue.result("a")
        assert outcome
        assert outcome.completed


def test_a_job_that_arrives_after_an_idle_worker_was_stopped_is_given_back(clock: Clock) -> None:
    ran: list[str] = []
    with (
        own_server() as server,
        Queue("q", Server(server.url, patience=3600), clock=clock) as queue,
    ):
        worker = worker_of(queue, lambda job: ran.append(job.id), grace=2 * DEADLINE)
        queue.add(b"", id="a", delay=60)
        worker.start()
        [control] = worker._controls.values()
        held, session = control._held, control.queue.server.session
        asked_at = held.asked_at
        wait_until(
            lambda: control._held.asked_at > asked_at and session._idle, "it to find nothing"
        )
        server.freeze()
        clock.advance(60)  # The next call leases the job, and is answered after the stop.
        wait_until(lambda: not session._idle, "it to ask again")
        assert worker.stop()
        server.thaw()
        assert control.wait(DEADLINE)
        queue.tidy()  # Its last call may be from before the job was due.
        job = shown(queue)
        assert (ran, job.state, job.lapses) == ([], "ready", 0)


def handlers_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("holdfast handler", "holdfast loop"))]


@both_kinds
@pytest.mark.usefixtures("hasty", "unhurried")
def test_nothing_begins_after_a_worker_was_stopped_without_its_server(kind: Kind) -> None:
    """Also not where its control loop waits for an answer, and cannot see to it."""
    begun: list[str] = []
    told: list[bool] = []
    stopped = threading.Event()

    def handle(job: RunningJob) -> None:
        begun.append(job.id)
        if job.id == "slow":
            assert stopped.wait(DEADLINE)
            told.append(job.cancelled)

    with own_server() as server, Queue("q", server.url) as queue:
        worker = worker_of(queue, as_handler(kind, handle), concurrency=1, ahead=60)
        queue.add_many([b""] * 50)  # It learns that they are short.
        worker.start()
        wait_until(lambda: is_done(queue), "all to be done")
        [control] = worker._controls.values()
        session = control.queue.server.session
        wait_until(lambda: session._idle, "it to ask for nothing")
        callers = set(session._idle)
        queue.add(b"", id="slow")
        queue.add_many([b""] * 20)
        wait_until(
            lambda: "slow" in begun and len(control._held.jobs) > 5, "some to wait behind it"
        )
        callers.update(session._idle)
        server.freeze()
        wait_until(lambda: callers - {*session._idle}, "it to ask the server that is lost")
        before = len(begun)
        assert not worker.stop(0)
        stopped.set()
        wait_until(lambda: not handlers_threads(), "those to leave who would run them")
        assert begun[before:] == []
        assert told == [True]
        server.thaw()
        assert control.wait(DEADLINE)


def test_a_server_that_refuses_is_told_at_the_start_and_can_be_tried_again() -> None:
    with own_server() as server, server.client() as client:
        command_on(client, "ACL", "SETUSER", "somebody", "on", ">secret", "~*", "-@all")
        queue = Queue("q", with_login(server.url, "somebody:secret"))
        worker = worker_of(queue, lambda job: None)
        for _ in range(2):
            with pytest.raises(ServerRefused):
                worker.start()
        command_on(client, "ACL", "SETUSER", "somebody", "+@all", "&*")
        with at_work(worker):
            queue.add(b"")
            wait_until(lambda: is_done(queue), "it to be done")
        queue.close()


def test_a_worker_without_a_handler_does_not_start(live_queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="no handler"):
        Worker(live_queue).start()
    with pytest.raises(InvalidArgument, match="no handler"):
        Worker(live_queue).run()


@pytest.mark.parametrize("failed", [False, True], ids=["a job", "a failed job"])
def test_workers_until_empty_that_start_now_and_then_take_back_what_another_left(
    queue: Queue, clock: Clock, failed: bool
) -> None:
    ran = list[str]()
    queue.add(b"", id="left", max_failures=0)
    if failed:
        queue.fail(take(queue), error="in vain")
    assert queue.lease(1, failed=failed)  # The one who has it is gone.
    for _ in range(4):
        clock.advance(20)
        worker = worker_of(queue, lambda job: ran.append(job.id))
        worker.failure_handler(lambda job: ran.append(job.id))
        assert worker.run(until_empty=True)
    assert ran == ["left"]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_forked_child_that_stops_the_worker_stops_nothing_of_its_parent(
    live_queue: Queue, tmp_path: Path, executor: Literal["thread", "process"]
) -> None:
    def handle(job: RunningJob) -> None:
        (tmp_path / "begun").touch()
        wait_until((tmp_path / "go").exists, "the parent")

    live_queue.add(b"", id="a", result_for=60)
    worker = Worker(live_queue, executor=executor, concurrency=1)
    worker.handler(handle)
    with at_work(worker):
        wait_until((tmp_path / "begun").exists, "the job to run")
        child = fork()
        if child == 0:
            os._exit(0 if worker.stop() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        (tmp_path / "go").touch()
        wait_until(lambda: bool(live_queue.result("a")), "the job to be done")
    outcome = live_queue.result("a")
    assert outcome
    assert outcome.completed


def test_a_worker_that_held_nothing_ends_well_though_its_server_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker(Queue("nobody", Server("redis://127.0.0.1:1", patience=0.1)), grace=0.1)
    worker.handler(lambda job: None)
    worker.start()
    wait_until(lambda: "keeps trying" in caplog.text, "it to find no server")
    assert worker.stop() is True
    # A worker of another test may still be leaving, and say so.
    ours = [text for text in caplog.messages if text.startswith("nobody")]
    assert not any("left to lapse" in text for text in ours)


def test_a_worker_that_ends_when_all_is_done_empties_a_big_request_that_has_failed(
    live_queue: Queue,
) -> None:
    """One call cancels a thousand parts; those that find nothing to lease are not the end."""
    ran: list[str] = []
    with live_queue.request(
        "r", on_failure="fail_fast", follow_up=NewJob(b"", handler="told")
    ) as request:
        request.add_many([b""] * 6000, max_failures=0)

    def handle(job: RunningJob) -> None:
        ran.append(job.id)
        raise ZeroDivisionError

    worker = worker_of(live_queue, handle, concurrency=1, ahead=0)
    worker.handler("told")(lambda job: ran.append(job.id))
    assert worker.run(until_empty=True)
    assert request.status().state == "failed"
    assert ran == ["r/0", "r/end/1"]
