"""Handlers in processes: they may say what others may, and are killed with what they started."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from engine_support import own_server
from holdfast import (
    Fail,
    HoldfastError,
    InvalidArgument,
    JobCancelled,
    JobOptions,
    LeaseLost,
    NewJob,
    Queue,
    Release,
    Retry,
    RunningJob,
    ServerUnavailable,
    Worker,
    WrongState,
)
from holdfast.worker.executors import messages, processes
from holdfast.worker.executors.processes import Processes
from support import DEADLINE, TestServer, wait_until
from worker.families import Pids, is_alive, start_family
from worker.support import (
    NEVER,
    Heard,
    at_work,
    executor_of,
    is_done,
    program,
    shown,
    work_off,
    worker_of,
    working,
)


@pytest.fixture
def heard() -> Heard:
    return Heard()


# ------------------------------------------------------------ what handlers may say


def test_a_handler_runs_in_another_process(live_queue: Queue) -> None:
    live_queue.add(b"payload", id="a", result_for=60)
    assert work_off(live_queue, lambda job: [os.getpid(), job.data.decode()], executor="process")
    outcome = live_queue.result("a")
    assert outcome
    pid, data = json.loads(outcome.result or b"")
    assert pid != os.getpid()
    assert data == "payload"


def test_any_bytes_reach_the_handler_and_come_back(live_queue: Queue) -> None:
    payloads = {"none": b"", "every": bytes(range(256)), "big": os.urandom(3_000_000)}
    for id, data in payloads.items():
        live_queue.add(data, id=id, result_for=60)
    assert work_off(live_queue, lambda job: job.data[:1000] + job.data[-1000:], executor="process")
    for id, data in payloads.items():
        outcome = live_queue.result(id)
        assert outcome
        assert outcome.result == data[:1000] + data[-1000:]


def raise_it(error: Exception) -> Callable[[RunningJob], object]:
    def handle(job: RunningJob) -> object:
        raise error

    return handle


def test_an_exception_is_a_failure_with_its_message(live_queue: Queue, heard: Heard) -> None:
    live_queue.add(b"", id="a")
    work_off(live_queue, raise_it(ValueError("no such user")), executor="process", hooks=[heard])
    assert shown(live_queue).failures == 1
    assert shown(live_queue).lapses == 0
    assert shown(live_queue).error == "ValueError: no such user"
    assert heard.of() == ["started", "retried"]


def test_the_stack_of_what_was_raised_is_logged(
    live_queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(job: RunningJob) -> None:
        raise ValueError("no such user")

    live_queue.add(b"", id="a")
    work_off(live_queue, handle, executor="process")
    assert "raise ValueError" in caplog.text


def test_retry_fail_and_release_mean_what_they_mean_elsewhere(live_queue: Queue) -> None:
    errors = {
        "retry": Retry("later", after=1000),
        "fail": Fail("never"),
        "release": Release(after=1000),
    }

    def handle(job: RunningJob) -> None:
        raise errors[job.id]

    for id in errors:
        live_queue.add(b"", id=id)
    work_off(live_queue, handle, executor="process")
    assert live_queue.counts().delayed == 2
    assert (shown(live_queue, "retry").failures, shown(live_queue, "retry").error) == (1, "later")
    assert (shown(live_queue, "release").failures, shown(live_queue, "release").lapses) == (0, 0)
    assert [job.error for job in live_queue.failed()] == ["never"]


def test_follow_ups_are_added_when_the_job_completes(live_queue: Queue) -> None:
    def handle(job: RunningJob) -> None:
        if job.id == "a":
            job.add({"n": 1}, id="b", priority=90)

    live_queue.add(b"", id="a")
    with working(live_queue, handle, executor="process", concurrency=1):
        wait_until(lambda: is_done(live_queue), "both to end")
    assert live_queue.show("b") is None


def test_progress_is_seen_in_the_directory_while_it_runs(live_queue: Queue, tmp_path: Path) -> None:
    def handle(job: RunningJob) -> None:
        job.progress(0.5, "half")
        wait_until((tmp_path / "go").exists, "to be let go")

    live_queue.add(b"", id="a")
    with working(live_queue, handle, executor="process") as worker:
        wait_until(
            lambda: any(job.describe().get("progress") for job in worker.running()),
            "the progress",
        )
        (told,) = [job.describe()["progress"] for job in worker.running()]
        assert told == (0.5, "half")
        (tmp_path / "go").touch()
        assert worker.stop()


def test_a_handler_may_extend_its_lease(live_queue: Queue, tmp_path: Path) -> None:
    def handle(job: RunningJob) -> None:
        job.extend(500)
        (tmp_path / "extended").touch()
        wait_until((tmp_path / "go").exists, "to be let go")

    live_queue.add(b"", id="a")
    with working(live_queue, handle, executor="process") as worker:
        wait_until((tmp_path / "extended").exists, "the extend")
        (job,) = worker.running()
        assert job.lapses_at - time.monotonic() > 100
        (tmp_path / "go").touch()


@pytest.mark.usefixtures("unextended")
def test_extend_tells_a_handler_that_the_lease_is_lost(live_queue: Queue, tmp_path: Path) -> None:
    def handle(job: RunningJob) -> str:
        (tmp_path / "here").touch()
        wait_until((tmp_path / "go").exists, "to be let go")
        try:
            job.extend()
        except LeaseLost as lost:
            (tmp_path / "lost").write_text(str(lost))
        return ""

    live_queue.add(b"", id="a")
    with working(live_queue, handle, executor="process"):
        wait_until((tmp_path / "here").exists, "it to run")
        live_queue.complete("a", force=True)
        (tmp_path / "go").touch()
        wait_until((tmp_path / "lost").exists, "the handler to be told")


def test_a_handler_that_waits_for_a_lost_server_is_killed_when_its_time_is_up(
    heard: Heard, pids: Pids, tmp_path: Path
) -> None:
    def handle(job: RunningJob) -> None:
        if not job.lapses:
            pids.note()
            wait_until((tmp_path / "go").exists, "to be let go")
            job.extend()

    with own_server() as server, Queue("q", server.url) as queue:
        queue.add(b"", id="a", timeout=1)
        options: Any = {"executor": "process", "concurrency": 1, "hooks": [heard]}
        with working(queue, handle, **options) as worker:
            [pid] = pids.wait(1)
            [control] = worker._controls.values()
            control.queue.server._patience = math.inf
            server.freeze()
            (tmp_path / "go").touch()
            wait_until(lambda: not is_alive(pid), "it to be killed")
            server.thaw()
            heard.wait_for("done")
    assert heard.reasons == ["timeout: it ran for 1 s"]


def test_extend_tells_a_handler_that_the_server_did_not_answer(tmp_path: Path) -> None:
    def handle(job: RunningJob) -> None:
        (tmp_path / "here").touch()
        wait_until((tmp_path / "go").exists, "to be let go")
        try:
            job.extend()
        except HoldfastError as error:
            (tmp_path / "told").write_text(type(error).__name__)

    with own_server() as server, Queue("q", server.url) as queue:
        queue.add(b"", id="a")
        with working(queue, handle, executor="process", concurrency=1) as worker:
            wait_until((tmp_path / "here").exists, "it to run")
            [control] = worker._controls.values()
            control.queue.server._patience = 0.01
            server.kill()
            (tmp_path / "go").touch()
            told = tmp_path / "told"
            wait_until(lambda: told.exists() and told.read_text(), "the handler to be told")
            assert told.read_text() == "ServerUnavailable"
            server.start()


def test_threads_of_a_handler_may_all_tell_and_extend(live_queue: Queue) -> None:
    def handle(job: RunningJob) -> None:
        def speak() -> None:
            for _ in range(50):
                job.progress(0.1, "x" * 200)
                job.extend()

        threads = [threading.Thread(target=speak) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    live_queue.add(b"", id="a", max_lapses=0, max_failures=0)
    assert work_off(live_queue, handle, executor="process")
    assert live_queue.counts().failed == 0


def test_a_batch_is_one_call_in_one_process(live_queue: Queue, tmp_path: Path) -> None:
    def handle(jobs: list[RunningJob]) -> list[object]:
        (tmp_path / f"{len(jobs)}").touch()
        return [ValueError("odd") if int(job.id) % 2 else None for job in jobs]

    for n in range(6):
        live_queue.add(b"", id=str(n))
    worker = Worker(live_queue, executor="process", concurrency=1)
    worker.handler(batch=6)(handle)
    worker.run(until_empty=True)
    assert [path.name for path in tmp_path.iterdir()] == ["6"]
    assert sorted(job.id for job in live_queue.peek(10, state="delayed")) == ["1", "3", "5"]


def test_failed_jobs_reach_the_failure_handler(live_queue: Queue, tmp_path: Path) -> None:
    worker = worker_of(live_queue, raise_it(Fail("never")), executor="process")

    @worker.failure_handler
    def handle_failure(job: RunningJob) -> None:
        (tmp_path / "handled").write_text(f"{job.id} {job.error} {os.getpid()}")

    live_queue.add(b"", id="a")
    with at_work(worker):
        wait_until(lambda: live_queue.show("a") is None, "it to be handled")
    id, error, pid = (tmp_path / "handled").read_text().split()
    assert (id, error) == ("a", "never")
    assert int(pid) != os.getpid()


def test_coroutine_functions_run_on_the_loop_of_the_worker(live_queue: Queue) -> None:
    async def handle(job: RunningJob) -> int:
        return os.getpid()

    live_queue.add(b"", id="a", result_for=60)
    work_off(live_queue, handle, executor="process")
    outcome = live_queue.result("a")
    assert outcome
    assert outcome.result == str(os.getpid()).encode()


def test_a_handler_may_use_the_queue_of_the_program(live_queue: Queue) -> None:
    def handle(job: RunningJob) -> None:
        if not job.failures and len(job.id) < 3:
            for n in range(10):
                live_queue.add(b"", id=f"{job.id}-{n}")

    for n in range(4):
        live_queue.add(b"", id=str(n))
    with working(live_queue, handle, executor="process", concurrency=2):
        wait_until(lambda: is_done(live_queue), "all to be done")
    assert live_queue.audit() == []


def test_handlers_are_registered_before_it_starts(live_queue: Queue) -> None:
    worker = worker_of(live_queue, lambda job: None, executor="process")
    with at_work(worker), pytest.raises(WrongState, match="before the worker starts"):
        worker.handler("late")(lambda job: None)
    worker.handler("late")(lambda job: None)


@pytest.mark.parametrize("option", ["recycle_after", "max_megabytes"])
def test_what_is_for_processes_is_refused_elsewhere(live_queue: Queue, option: str) -> None:
    with pytest.raises(InvalidArgument, match=f'{option} is for executor="process"'):
        Worker(live_queue, **{option: 1})  # type: ignore[arg-type]


# ------------------------------------------------------------------------ the kill


def family_of(pids: Pids) -> Callable[[RunningJob], None]:
    def handle(job: RunningJob) -> None:
        pids.note()
        start_family(pids)
        time.sleep(NEVER)

    return handle


@pytest.mark.parametrize("of", ["handler", "job"])
def test_a_timeout_ends_the_whole_tree_and_counts_one_lapse(
    live_queue: Queue, heard: Heard, pids: Pids, of: str
) -> None:
    worker = Worker(live_queue, executor="process", concurrency=1, hooks=[heard])
    worker.handler(timeout=2 if of == "handler" else None)(family_of(pids))
    live_queue.add(b"", id="a", max_lapses=0, timeout=2 if of == "job" else None)
    with at_work(worker):
        heard.wait_for("failed")
        assert not any(map(is_alive, pids.all()))
        assert shown(live_queue).lapses == 1
        assert shown(live_queue).error == "timeout: it ran for 2 s"
        wait_until(lambda: worker._shared is not None and _free(worker) == 1, "the place")
    assert heard.of() == ["started", "failed"]


def _free(worker: Worker) -> int:
    assert worker._shared
    slots = worker._shared.slots
    with slots.lock:
        return slots.free + slots.reserved + sum(share.given for share in slots.shares)


@pytest.mark.parametrize("why", ["cancelled", "lost"])
def test_who_is_cancelled_or_has_lost_the_lease_is_ended_and_nobody_else(
    live_queue: Queue, heard: Heard, pids: Pids, tmp_path: Path, why: str
) -> None:
    def handle(job: RunningJob) -> None:
        if job.id == "a":
            family_of(pids)(job)
        (tmp_path / "b").touch()
        wait_until((tmp_path / "go").exists, "to be let go")

    live_queue.add(b"", id="a")
    live_queue.add(b"", id="b", result_for=60)
    options: Any = {"executor": "process", "concurrency": 2, "hooks": [heard]}
    with working(live_queue, handle, **options) as worker:
        pids.wait(4)
        wait_until((tmp_path / "b").exists, "the other to run")
        if why == "cancelled":
            assert live_queue.cancel("a")
        else:
            live_queue.complete("a", force=True)
        heard.wait_for(why)
        pids.wait_for_end()
        (tmp_path / "go").touch()
        heard.wait_for("done", "b")
        assert worker.stop()
    assert live_queue.show("a") is None
    assert "lapsed" not in heard.of("a")


def test_a_handler_that_is_told_may_still_answer(live_queue: Queue, tmp_path: Path) -> None:
    def handle(job: RunningJob) -> str:
        wait_until(lambda: job.cancelled, "to be told")
        return "what there was"

    live_queue.add(b"", id="a", timeout=0.2, result_for=60)
    assert work_off(live_queue, handle, executor="process")
    outcome = live_queue.result("a")
    assert outcome
    assert outcome.result == b"what there was"


def test_a_job_that_is_given_back_runs_nowhere_any_more(
    live_queue: Queue, pids: Pids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Processes, "ends_within", NEVER)
    live_queue.add(b"", id="a")
    worker = worker_of(live_queue, family_of(pids), executor="process")
    worker.start()
    pids.wait(4)
    assert worker.stop(0)
    assert not any(map(is_alive, pids.all()))
    assert (shown(live_queue).state, shown(live_queue).lapses) == ("ready", 0)


def test_a_worker_that_stops_leaves_no_process(live_queue: Queue, pids: Pids) -> None:
    live_queue.add(b"", id="a", max_lapses=0)

    def handle(job: RunningJob) -> None:
        pids.note()
        start_family(pids)

    with working(live_queue, handle, executor="process") as worker:
        wait_until(lambda: is_done(live_queue), "it to be done")
        pids.note(executor_of(worker)._fork_server.pid)
    pids.wait_for_end()


def test_all_die_with_a_worker_that_is_killed(
    test_server: TestServer, queue_name: str, pids: Pids, tmp_path: Path
) -> None:
    text = f"""
    import os, subprocess, sys, time
    from holdfast import Queue, Worker
    worker = Worker(Queue({queue_name!r}, {test_server.queue_url!r}), executor="process")
    @worker.handler
    def handle(job):
        for shell in ("", "setsid "):
            command = shell + f"sh -c 'echo $$ >> {pids._path}; exec sleep 1000' &"
            subprocess.run(command, shell=True)
        with open({str(pids._path)!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n{{os.getppid()}}\\n")
        time.sleep(1000)
    worker.run()
    """
    with Queue(queue_name, test_server.queue_url) as queue:
        queue.add(b"", id="a")
        with program(tmp_path, text) as running:
            pids.wait(4)
            assert all(map(is_alive, pids.all()))
            running.kill()
            pids.wait_for_end()


def test_a_worker_goes_on_when_its_fork_server_is_killed(
    live_queue: Queue, heard: Heard, pids: Pids
) -> None:
    def handle(job: RunningJob) -> None:
        pids.note()
        if not job.lapses:
            time.sleep(NEVER)

    live_queue.add(b"", id="a")
    with working(live_queue, handle, executor="process", hooks=[heard]) as worker:
        first = pids.wait(1)
        os.kill(executor_of(worker)._fork_server.pid, signal.SIGKILL)
        heard.wait_for("done")
        assert not is_alive(first[0])
    assert heard.of() == ["started", "lapsed", "started", "done"]


def test_a_worker_without_descriptors_says_so(tmp_path: Path) -> None:
    text = """
    import resource
    from holdfast.worker.executors.fork_server import ForkServer
    fork_server = ForkServer(lambda connection, take, slot: None)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))
    try:
        fork_server.spawn(0)
    except OSError as error:
        said = str(error)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    fork_server.close()
    print(said)
    """
    with program(tmp_path, text) as running:
        assert running.communicate(timeout=DEADLINE) == ("too many open files\n", "")


def test_where_no_process_can_be_started_a_job_waits(
    live_queue: Queue, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    live_queue.pause()
    live_queue.add(b"", id="a")
    options: Any = {"executor": "process", "concurrency": 1, "hooks": [heard]}
    with working(live_queue, lambda job: None, **options) as worker:
        fork_server = executor_of(worker)._fork_server.pid
        before = resource.prlimit(fork_server, resource.RLIMIT_NOFILE)
        resource.prlimit(fork_server, resource.RLIMIT_NOFILE, (1, before[1]))
        live_queue.resume()
        heard.wait_for("released")
        assert "no process could be started" in caplog.text
        resource.prlimit(fork_server, resource.RLIMIT_NOFILE, before)
        heard.wait_for("done")
    assert live_queue.show("a") is None


# --------------------------------------------------------------- crash and recycle


def test_a_crash_costs_one_job_a_lapse_and_brings_a_new_child(
    live_queue: Queue, heard: Heard
) -> None:
    def handle(job: RunningJob) -> None:
        if job.id == "a" and not job.lapses:
            os.kill(os.getpid(), signal.SIGKILL)

    for id in ("a", "b", "c"):
        live_queue.add(b"", id=id)
    with working(live_queue, handle, executor="process", concurrency=1, hooks=[heard]):
        wait_until(lambda: is_done(live_queue), "all to be done")
    assert heard.of("a") == ["started", "lapsed", "started", "done"]
    assert heard.of("b") == heard.of("c") == ["started", "done"]
    assert heard.reasons == ["its process was killed by SIGKILL"]


def test_a_child_that_dies_between_two_jobs_costs_none_of_them_anything(
    live_queue: Queue, heard: Heard, pids: Pids
) -> None:
    options: Any = {"executor": "process", "concurrency": 1, "hooks": [heard]}
    with working(live_queue, lambda job: pids.note(), **options):
        live_queue.add(b"", id="a")
        heard.wait_for("done")
        [first] = pids.wait(1)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not is_alive(first), "the child to be dead")
        live_queue.add(b"", id="b", max_lapses=0)
        heard.wait_for("done", "b")
    assert heard.of("b") == ["started", "done"]


def test_a_thread_that_a_run_left_behind_says_nothing_about_the_next(
    live_queue: Queue, heard: Heard, tmp_path: Path
) -> None:
    go_on, said = tmp_path / "go on", tmp_path / "said"
    worker = Worker(live_queue, executor="process", concurrency=1, hooks=[heard])

    def speak(job: RunningJob) -> None:
        wait_until(go_on.exists, "the next run to begin")
        job.progress(0.5, "late")
        try:
            job.extend()
        except LeaseLost as error:
            said.write_text(str(error))

    @worker.handler(batch=2)
    def handle(jobs: list[RunningJob]) -> None:
        if len(jobs) == 2:
            threading.Thread(target=speak, args=(jobs[1],), daemon=True).start()
        else:
            go_on.touch()
            wait_until(lambda: said.exists() and said.read_text(), "the thread to have spoken")

    live_queue.add_many([NewJob(b"", id="a"), NewJob(b"", id="b")])
    with at_work(worker):
        heard.wait_for("done", "b")
        live_queue.add(b"", id="c", max_lapses=0)
        heard.wait_for("done", "c")
    assert said.read_text() == "b: its run is over"


def test_follow_ups_have_the_defaults_of_a_queue_that_was_taken_up_later(
    live_queue: Queue, heard: Heard
) -> None:
    worker = Worker(live_queue, executor="process", concurrency=1, hooks=[heard])
    worker.handler(lambda job: job.add(b"", id="b", delay=60))
    careful: JobOptions = {"max_failures": 77, "timeout": timedelta(seconds=5)}
    with Queue(f"{live_queue.name}2", live_queue.server, defaults=careful) as other:
        other.add(b"", id="a")
        with at_work(worker):
            worker.take_up(other)
            heard.wait_for("done")
        facts = shown(other, "b").facts
        assert (facts.max_failures, facts.timeout_ms) == (77, 5000)
        other.delete()


def test_a_handler_sees_which_job_of_a_batch_was_cancelled(
    live_queue: Queue, tmp_path: Path
) -> None:
    here, seen = tmp_path / "here", tmp_path / "seen"
    worker = Worker(live_queue, executor="process", concurrency=1)

    @worker.handler(batch=3)
    def handle(jobs: list[RunningJob]) -> None:
        here.touch()
        wait_until(lambda: any(job.cancelled for job in jobs), "one to be cancelled")
        seen.write_text(" ".join(job.id for job in jobs if job.cancelled))

    live_queue.add_many(NewJob(b"", id=id) for id in "abc")
    with at_work(worker):
        wait_until(here.exists, "it to run")
        live_queue.cancel("b")
        wait_until(lambda: is_done(live_queue), "all to be done")
    assert seen.read_text() == "b"


def test_children_are_replaced_after_so_many_jobs(live_queue: Queue, pids: Pids) -> None:
    live_queue.add_many([b"x"] * 10)
    options: Any = {"executor": "process", "concurrency": 1, "recycle_after": 3}
    assert work_off(live_queue, lambda job: pids.note(), **options)
    ran = pids.all()
    assert len(ran) == 10
    assert [ran.count(pid) for pid in dict.fromkeys(ran)] == [3, 3, 3, 1]


def test_without_a_limit_a_child_is_kept(live_queue: Queue, pids: Pids) -> None:
    live_queue.add_many([b"x"] * 10)
    assert work_off(live_queue, lambda job: pids.note(), executor="process", concurrency=1)
    assert len(set(pids.all())) == 1


def test_a_child_that_has_too_much_memory_is_killed(live_queue: Queue, heard: Heard) -> None:
    def handle(job: RunningJob) -> None:
        kept = bytearray(os.urandom(2**20)) * 600
        time.sleep(NEVER)
        kept.clear()

    live_queue.add(b"", id="a", max_lapses=0)
    options: Any = {"executor": "process", "max_megabytes": 300, "hooks": [heard]}
    with working(live_queue, handle, **options):
        heard.wait_for("failed")
    assert shown(live_queue).error == "it used more than 300 MB"


def test_a_child_that_had_much_memory_is_replaced(
    live_queue: Queue, pids: Pids, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in ("LOOK_SECONDS", "STILL_SECONDS"):  # It is not looked at while it runs.
        monkeypatch.setattr(processes, seconds, NEVER)

    def handle(job: RunningJob) -> None:
        pids.note()
        if job.id == "a":
            os.urandom(2**20) * 300

    live_queue.add(b"", id="a")
    live_queue.add(b"", id="b")
    live_queue.add(b"", id="c")
    options: Any = {"executor": "process", "concurrency": 1, "max_megabytes": 200}
    assert work_off(live_queue, handle, **options)
    first, second, third = pids.all()
    assert first != second
    assert second == third


def test_what_children_share_with_the_worker_is_not_counted(
    live_queue: Queue, pids: Pids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.001)
    model = bytearray(os.urandom(2**20)) * 400

    def handle(job: RunningJob) -> None:
        pids.note()
        assert model[-1] == model[2**20 - 1]
        looked_at = time.monotonic() + 0.05
        wait_until(lambda: time.monotonic() > looked_at)

    live_queue.add_many([b"x"] * 3)
    options: Any = {"executor": "process", "concurrency": 1, "max_megabytes": 300}
    assert work_off(live_queue, handle, **options)
    assert len(pids.all()) == 3
    assert len(set(pids.all())) == 1


# ------------------------------------------------------------- who does what it should not


def test_one_that_the_handler_forked_does_not_answer_for_it(
    live_queue: Queue, heard: Heard, tmp_path: Path
) -> None:
    def handle(job: RunningJob) -> str:
        if job.id == "a":
            if (fork := os.fork()) == 0:
                return "the fork"
            os.waitpid(fork, 0)  # It has said all that it could.
        return "the child"

    for id in ("a", "b"):
        live_queue.add(b"", id=id, result_for=60, max_lapses=0)
    assert work_off(live_queue, handle, executor="process", concurrency=1, hooks=[heard])
    for id in ("a", "b"):
        outcome = live_queue.result(id)
        assert outcome
        assert outcome.result == b"the child"


@pytest.mark.parametrize("ending", ["return", "raise", "hang"])
def test_who_closes_all_descriptors_is_settled_as_it_answered(
    live_queue: Queue, heard: Heard, ending: str
) -> None:
    def handle(job: RunningJob) -> str:
        os.closerange(0, 4096)
        if ending == "raise":
            raise Fail("without a word")
        if ending == "hang":
            time.sleep(NEVER)
        return "done"

    timeout = 1 if ending == "hang" else NEVER
    live_queue.add(b"", id="a", result_for=60, max_lapses=0, timeout=timeout)
    live_queue.add(b"", id="b", max_lapses=0, handler="good")
    worker = worker_of(live_queue, handle, executor="process", concurrency=1, hooks=[heard])
    worker.handler("good")(lambda job: None)
    worker.run(until_empty=True)
    assert heard.of("b") == ["started", "done"]
    if ending == "return":
        outcome = live_queue.result("a")
        assert outcome
        assert outcome.result == b"done"
    else:
        reason = {"raise": "without a word", "hang": "timeout: it ran for 1 s"}[ending]
        assert shown(live_queue).error == reason
        assert shown(live_queue).lapses == (ending == "hang")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (messages.Extended("why"), LeaseLost),
        (messages.Extended("why", cancelled=True), JobCancelled),
        (messages.Extended("why", unavailable=True), ServerUnavailable),
    ],
)
def test_a_child_is_told_why_its_lease_was_not_extended(
    answer: messages.Extended, expected: type[Exception]
) -> None:
    with pytest.raises(expected) as refused:
        answer.check()
    assert type(refused.value) is expected
    assert str(refused.value) == "why"
