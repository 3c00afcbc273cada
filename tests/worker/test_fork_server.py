"""A job may stop or kill the fork server: that costs a moment, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue, RunningJob
from holdfast.worker.executors import fork_server, trees
from holdfast.worker.executors.fork_server import ForkServer
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
    worker_of,
    working,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs marks and subreapers")


@pytest.fixture
def heard() -> Heard:
    return Heard()


def options(heard: Heard, concurrency: int = 2) -> dict[str, Any]:
    return {"executor": "process", "concurrency": concurrency, "hooks": [heard]}


def stop_fork_server() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    wait_until(lambda: trees.is_stopped(os.getppid()), "the fork server to be stopped")


# ------------------------------------------------------------------------ stopped


def test_a_stopped_fork_server_goes_on_and_costs_no_other_job_anything(
    live_queue: Queue, heard: Heard, tmp_path: Path
) -> None:
    def handle(job: RunningJob) -> None:
        if job.id == "long":
            (tmp_path / "long").touch()
            wait_until((tmp_path / "go").exists, "to be let go")
        if job.id == "a":
            wait_until((tmp_path / "long").exists, "the other to run")
            stop_fork_server()
            os._exit(1)  # A new process is needed, and somebody to fork it.

    live_queue.add(b"", id="long", max_lapses=0)
    live_queue.add(b"", id="a", max_lapses=0)
    live_queue.add(b"", id="b", max_lapses=0)
    with working(live_queue, handle, **options(heard)):
        heard.wait_for("failed", "a")
        heard.wait_for("done", "b")
        (tmp_path / "go").touch()
        heard.wait_for("done", "long")
    assert shown(live_queue).error == "its process exited with 1"
    assert heard.of("long") == heard.of("b") == ["started", "done"]


def test_a_death_is_noticed_though_the_fork_server_was_stopped_when_it_had_told_of_the_birth(
    live_queue: Queue, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = socket.send_fds

    def tell_and_stop(link: socket.socket, *said: Any) -> None:
        tell(link, *said)
        os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr(socket, "send_fds", tell_and_stop)
    monkeypatch.setattr(fork_server, "LOOK_SECONDS", 0.1)
    live_queue.add(b"", id="a", max_lapses=0)
    with working(live_queue, lambda job: os._exit(1), **options(heard)):
        heard.wait_for("failed", "a")
    assert shown(live_queue).error == "its process exited with 1"


def test_a_fork_server_that_does_not_answer_is_replaced_with_all_that_jobs_started(
    live_queue: Queue, heard: Heard, pids: Pids, stuck: Path
) -> None:
    def handle(job: RunningJob) -> None:
        if job.id == "long" and not job.lapses:
            pids.note()
            pids.note(os.getppid())
            start_family(pids)
            time.sleep(NEVER)
        if job.id == "a" and not job.lapses:
            pids.wait(5)
            stuck.touch()
            os._exit(1)

    for id in ("long", "a", "b"):
        live_queue.add(b"", id=id, max_lapses=100)
    with working(live_queue, handle, **options(heard)):
        heard.wait_for("lapsed", "long")
        assert not any(map(is_alive, pids.all()))
        for id in ("long", "a", "b"):
            heard.wait_for("done", id)
    assert "the fork server of the worker was killed" in heard.reasons


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a file: when it is there the fork server is stuck, once."""
    end, path = fork_server._Process._end, tmp_path / "stuck"

    def be_stuck(home: fork_server._Process, pid: int) -> None:
        if path.exists():
            path.unlink()
            time.sleep(NEVER)
        end(home, pid)

    # A slow machine replaces it more often than it has to: a lapse must not matter.
    monkeypatch.setattr(fork_server, "SILENT_SECONDS", 3.0)
    monkeypatch.setattr(fork_server, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(fork_server._Process, "_end", be_stuck)
    return path


def test_a_worker_stops_though_its_fork_server_is_stopped(
    live_queue: Queue, heard: Heard, pids: Pids
) -> None:
    def handle(job: RunningJob) -> None:
        pids.note()
        pids.note(os.getppid())
        start_family(pids)
        stop_fork_server()

    live_queue.add(b"", id="a")
    with working(live_queue, handle, **options(heard)):
        heard.wait_for("done")
    assert not any(map(is_alive, pids.all()))


# ------------------------------------------------------------------------- killed


def test_a_killed_fork_server_lets_no_daemon_of_another_job_escape(
    live_queue: Queue, heard: Heard, pids: Pids
) -> None:
    def handle(job: RunningJob) -> None:
        if job.id == "a" and not job.lapses:
            pids.note()
            start_family(pids)
            time.sleep(NEVER)
        if job.id == "b" and not job.lapses:
            pids.wait(4)
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(NEVER)

    live_queue.add(b"", id="a")
    live_queue.add(b"", id="b")
    with working(live_queue, handle, **options(heard)):
        heard.wait_for("lapsed", "a")
        assert not any(map(is_alive, pids.all()))
        heard.wait_for("done", "a")
        heard.wait_for("done", "b")
    for id in ("a", "b"):
        assert heard.of(id) == ["started", "lapsed", "started", "done"]
    assert set(heard.reasons) == {"the fork server of the worker was killed"}


def test_a_daemon_that_a_finished_job_left_is_ended_with_the_worker(
    live_queue: Queue, heard: Heard, pids: Pids
) -> None:
    def handle(job: RunningJob) -> None:
        pids.note()
        start_family(pids)

    live_queue.add(b"", id="a")
    with working(live_queue, handle, **options(heard)) as worker:
        heard.wait_for("done")
        os.kill(executor_of(worker)._fork_server.pid, signal.SIGKILL)
    assert not any(map(is_alive, pids.all()))


def test_jobs_that_kill_the_fork_server_again_and_again_lose_no_other(
    live_queue: Queue, heard: Heard
) -> None:
    def handle(job: RunningJob) -> str:
        if job.id.startswith("kill") and not job.lapses:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(NEVER)
        return "done"

    ids = [f"kill {n}" if n % 20 == 10 else f"good {n}" for n in range(100)]
    for id in ids:
        live_queue.add(b"", id=id, max_lapses=50, result_for=600)
    with working(live_queue, handle, **options(heard, 3)):
        wait_until(lambda: is_done(live_queue), "all to be done")
    assert all(live_queue.result(id) for id in ids)
    assert live_queue.audit() == []


def test_a_process_is_not_said_to_be_gone_before_all_that_it_started_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy machine takes its time to end what was killed."""
    alive = [2, 1, 0]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        home = fork_server._Process(theirs, lambda *_: None, os.getpid())
        monkeypatch.setattr(home, "_reap", lambda: None)
        monkeypatch.setattr(home, "_end_orphans", lambda: alive.pop(0))
        home._end(1)
        assert alive == []
        assert ours.recv(64) == b"its process exited with 0"


# ----------------------------------------------------------- together with the worker

PROGRAM = """
import os, signal, subprocess, sys, time
from holdfast import Queue, Worker

name, url, path = {arguments!r}
worker = Worker(Queue(name, url), executor="process", concurrency=2)

@worker.handler
def handle(job):
    note = f"echo $$ >> {{path}}; exec sleep 1000"
    for shell in (note, f"(setsid env -i sh -c '{{note}}' &) &"):
        subprocess.Popen(["sh", "-c", shell], stdin=subprocess.DEVNULL)
    fork = os.fork()
    if fork == 0:
        os.setsid()
    with open(path, "a") as file:
        file.write(f"{{os.getpid()}}\\n")
        if fork:
            file.write(f"{{os.getppid()}}\\n")
    time.sleep(1000)

worker.run()
"""


@pytest.fixture
def jobs_of_a_program(
    test_server: TestServer, queue_name: str, pids: Pids, tmp_path: Path
) -> Iterator[tuple[int, int]]:
    """Run a worker with two jobs and their daemons; give its pid, and that of the fork server."""
    arguments = (queue_name, test_server.queue_url, str(pids._path))
    with Queue(queue_name, test_server.queue_url) as queue:
        queue.add_many([b"", b""])
        with program(tmp_path, PROGRAM.format(arguments=arguments)) as running:
            noted = pids.wait(10)
            assert all(map(is_alive, noted))
            [fork_server] = {pid for pid in noted if noted.count(pid) == 2}
            yield running.pid, fork_server


def test_worker_and_fork_server_may_be_killed_at_the_same_moment(
    jobs_of_a_program: tuple[int, int], pids: Pids
) -> None:
    worker, fork_server = jobs_of_a_program
    for pid in (worker, fork_server):
        os.kill(pid, signal.SIGKILL)
    pids.wait_for_end()


def test_worker_fork_server_and_children_may_be_killed_at_the_same_moment(
    jobs_of_a_program: tuple[int, int], pids: Pids
) -> None:
    worker, fork_server = jobs_of_a_program
    children = trees.below(fork_server, only_children=True)
    for pid in (fork_server, *children, worker):
        os.kill(pid, signal.SIGKILL)
    pids.wait_for_end()


def test_a_worker_may_be_killed_while_its_fork_server_is_stopped(
    jobs_of_a_program: tuple[int, int], pids: Pids
) -> None:
    worker, fork_server = jobs_of_a_program
    os.kill(fork_server, signal.SIGSTOP)
    wait_until(lambda: trees.is_stopped(fork_server), "it to be stopped")
    os.kill(worker, signal.SIGKILL)
    pids.wait_for_end()


def _marked(home: ForkServer) -> set[int]:
    return {one.pid for one in trees._marked(home._mark) if one.lives}


def test_a_worker_that_is_told_to_stop_leaves_neither_fork_server_nor_guard(
    live_queue: Queue, heard: Heard
) -> None:
    live_queue.add(b"", id="a")
    worker = worker_of(live_queue, lambda job: None, **options(heard))
    with at_work(worker):
        heard.wait_for("done")
        home = executor_of(worker)._fork_server
        assert home._guard
        mine = [home.pid, home._guard.pid]
        assert all(map(is_alive, mine))
        assert home.pid in _marked(home)
    assert not any(map(is_alive, mine))
    assert _marked(home) == set()


# --------------------------------------------------------------- signals of the program


def test_a_program_that_ignores_the_end_of_its_children_hears_how_jobs_ended(
    test_server: TestServer, queue_name: str, tmp_path: Path
) -> None:
    text = f"""
    import os, signal
    from holdfast import Queue, Worker
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    worker = Worker(Queue({queue_name!r}, {test_server.queue_url!r}), executor="process")
    @worker.handler
    def handle(job):
        os._exit(7)
    worker.run(until_empty=True)
    """
    with Queue(queue_name, test_server.queue_url) as queue:
        queue.add(b"", id="a", max_lapses=0)
        with program(tmp_path, text) as running:
            running.wait(DEADLINE)
        assert shown(queue).error == "its process exited with 7"
        queue.delete()


def test_a_signal_to_a_process_of_a_job_is_not_heard_by_the_event_loop_of_the_worker(
    test_server: TestServer, queue_name: str, tmp_path: Path
) -> None:
    text = f"""
    import asyncio, os, signal
    from holdfast import Queue, Worker
    worker = Worker(Queue({queue_name!r}, {test_server.queue_url!r}), executor="process")
    @worker.handler
    def handle(job):
        signal.signal(signal.SIGUSR1, lambda *_: None)
        os.kill(os.getpid(), signal.SIGUSR1)
    async def main():
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, os._exit, 9)
        await worker.run_async(until_empty=True)
    asyncio.run(main())
    """
    with Queue(queue_name, test_server.queue_url) as queue:
        queue.add(b"", id="a", max_lapses=0)
        with program(tmp_path, text) as running:
            assert running.wait(DEADLINE) == 0
        assert is_done(queue)
        queue.delete()


# ------------------------------------------------------------------- without Linux


@pytest.mark.parametrize("what", ["timeout", "kill"])
def test_without_marks_a_worker_still_ends_its_processes_and_goes_on(
    test_server: TestServer, queue_name: str, pids: Pids, tmp_path: Path, what: str
) -> None:
    """As on a system of another name: process groups, no orphans, no guard."""
    text = f"""
    import os, signal, sys, time
    from holdfast import Queue, Worker
    queue = Queue({queue_name!r}, {test_server.queue_url!r})
    sys.platform = "another"
    worker = Worker(queue, executor="process", concurrency=1)
    @worker.handler
    def handle(job):
        if job.lapses:
            return
        with open({str(pids._path)!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n{{os.getppid()}}\\n")
        if {what!r} == "kill":
            os.kill(os.getppid(), signal.SIGKILL)
            os._exit(1)
        time.sleep(1000)
    worker.run(until_empty=True)
    """
    with Queue(queue_name, test_server.queue_url) as queue:
        queue.add(b"", id="a", timeout=1 if what == "timeout" else None)
        with program(tmp_path, text) as running:
            assert running.wait(DEADLINE) == 0
        assert is_done(queue)
        assert not len(queue)
        assert not any(map(is_alive, pids.all()))
        queue.delete()
