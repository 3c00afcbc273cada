"""Handlers in processes that do what they should not: their job pays for it, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue, RunningJob, Worker
from holdfast.worker.executors import processes, trees
from support import DEADLINE, wait_until
from worker.families import Pids
from worker.support import NEVER, Heard, at_work, shown, work_off, worker_of, working


@pytest.fixture
def heard() -> Heard:
    return Heard()


def options(heard: Heard) -> dict[str, Any]:
    return {"executor": "process", "concurrency": 1, "hooks": [heard]}


def stop_yourself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


# ------------------------------------------------------------------ who is stopped


def test_who_stops_itself_is_killed_when_its_time_is_up(live_queue: Queue, heard: Heard) -> None:
    live_queue.add(b"", id="a", timeout=0.5, max_lapses=0)
    live_queue.add(b"", id="b", handler="good")
    worker = worker_of(live_queue, lambda job: stop_yourself(), **options(heard))
    worker.handler("good")(lambda job: None)
    worker.run(until_empty=True)
    assert shown(live_queue).error == "timeout: it ran for 0.5 s"
    assert heard.of("b") == ["started", "done"]


def test_who_stops_itself_without_a_timeout_is_told_of_and_can_be_cancelled(
    live_queue: Queue,
    heard: Heard,
    pids: Pids,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "STILL_SECONDS", 0.05)

    def handle(job: RunningJob) -> None:
        pids.note()
        stop_yourself()

    live_queue.add(b"", id="a")
    with working(live_queue, handle, **options(heard)):
        wait_until(lambda: "is stopped while its lease is extended" in caplog.text, "the warning")
        live_queue.cancel("a")
        heard.wait_for("cancelled")
        pids.wait_for_end()
    assert caplog.text.count("is stopped while its lease is extended") == 1


def test_a_process_that_is_stopped_between_two_jobs_does_not_hang_its_worker(
    live_queue: Queue, heard: Heard, pids: Pids
) -> None:
    """The next job is too big for what a socket holds, and nobody reads it."""

    def handle(job: RunningJob) -> int:
        pids.note()
        return len(job.data)

    with working(live_queue, handle, **options(heard)):
        live_queue.add(b"", id="a")
        heard.wait_for("done")
        [child] = pids.all()
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: trees.is_stopped(child), "it to be stopped")
        live_queue.add(bytes(6_000_000), id="b", timeout=1, result_for=60)
        heard.wait_for("done", "b")
    assert heard.of("b") == ["started", "released", "started", "done"]  # It had not begun.
    outcome = live_queue.result("b")
    assert outcome
    assert outcome.json() == 6_000_000


# -------------------------------------------------- who writes into the connection


@pytest.mark.parametrize(
    "said",
    [b"x", b"\xff" * 64, b"\x05\0\0\0hello", b"\0\0\0\x10 and then nothing", b"\xf7hf\x01\xff" * 9],
)
def test_who_writes_into_the_connection_is_ended(
    live_queue: Queue, heard: Heard, said: bytes
) -> None:
    def handle(job: RunningJob) -> None:
        for number in range(900, 910):
            with suppress(OSError):
                os.write(number, said)

    worker = worker_of(live_queue, handle, **options(heard))
    worker.handler("good")(lambda job: None)
    live_queue.add(b"", id="a", max_lapses=0)
    live_queue.add(b"", id="b", max_lapses=0, handler="good")
    with at_work(worker):
        heard.wait_for("failed")
        heard.wait_for("done", "b")
    assert shown(live_queue).error == "it broke the connection to the worker"


# --------------------------------------------------------------------- who leaves


def test_who_exits_with_0_has_not_completed_its_job(live_queue: Queue) -> None:
    live_queue.add(b"", id="a", max_lapses=0)
    work_off(live_queue, lambda job: os._exit(0), executor="process")
    assert shown(live_queue).error == "its process exited with 0"


def test_endless_recursion_is_a_failure(live_queue: Queue) -> None:
    def handle(job: RunningJob) -> None:
        handle(job)

    live_queue.add(b"", id="a", max_failures=0)
    work_off(live_queue, handle, executor="process")
    assert "RecursionError" in (shown(live_queue).error or "")


RELAY = """
import os, sys
os.setsid()
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpgrp()}\\n")
while True:
    if os.fork():
        os._exit(0)
"""


def members(group: int) -> set[int]:
    return {one.pid for one in trees._all_processes() if one.group == group}


@pytest.mark.parametrize("way", ["timeout", "killed"])
def test_who_forks_and_exits_again_and_again_does_not_outrun_its_end(
    live_queue: Queue, heard: Heard, pids: Pids, way: str
) -> None:
    """No process of it lives long enough to be found and killed, but its group does."""

    def handle(job: RunningJob) -> None:
        subprocess.Popen([sys.executable, "-c", RELAY, str(pids._path)])
        pids.wait(1)
        if way == "killed":
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(NEVER)

    live_queue.add(b"", id="a", timeout=3, max_lapses=0)
    with working(live_queue, handle, **options(heard)):
        heard.wait_for("failed")
        [group] = pids.all()
        try:
            # Not all of the dead are buried yet, but no new ones come.
            before = members(group)
            assert not any(members(group) - before for _ in range(20))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def test_many_processes_of_a_job_are_all_ended(live_queue: Queue, heard: Heard, pids: Pids) -> None:
    def handle(job: RunningJob) -> None:
        for _ in range(7):  # 128 of them, each with a session of its own.
            os.fork()
        with suppress(PermissionError):
            os.setsid()
        pids.note()
        time.sleep(NEVER)

    live_queue.add(b"", id="a", timeout=DEADLINE, max_lapses=0)
    with working(live_queue, handle, **options(heard)):
        pids.wait(128)
        live_queue.cancel("a")
        heard.wait_for("cancelled")
        pids.wait_for_end()


def test_what_a_job_changes_in_its_process_is_gone_with_recycle_after_1(live_queue: Queue) -> None:
    def handle(job: RunningJob) -> str:
        before = str(Path.cwd())
        os.chdir("/")
        os.close(1)
        return before

    for id in ("a", "b"):
        live_queue.add(b"", id=id, result_for=60)
    worker = Worker(live_queue, executor="process", concurrency=1, recycle_after=1)
    worker.handler(handle)
    worker.run(until_empty=True)
    for id in ("a", "b"):
        outcome = live_queue.result(id)
        assert outcome
        assert outcome.result == str(Path.cwd()).encode()
