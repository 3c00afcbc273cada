"""What the tests of workers share: handlers of both kinds, workers, an ear for what they tell."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from holdfast import Hooks, Job, Queue, RunningJob, Worker
from holdfast.worker.executors.processes import Processes
from holdfast.worker.loop import ControlLoop
from holdfast.worker.outcomes import GIVEN_BACK
from support import DEADLINE, wait_until

NEVER = 2 * DEADLINE
"""Longer than a test takes: who sleeps for so long and is not ended makes the test fail."""

Kind: TypeAlias = Literal["plain", "coroutine"]
KINDS: list[Kind] = ["plain", "coroutine"]
both_kinds = pytest.mark.parametrize("kind", KINDS)

Body: TypeAlias = Callable[[Any], object]
Queues: TypeAlias = Queue | Iterable[Queue] | Mapping[Queue, int]


def as_handler(kind: Kind, body: Body) -> Callable[[Any], Any]:
    """Make a function a handler that runs in a thread, or on an event loop."""
    if kind == "plain":
        return body

    async def handle(job: object) -> object:
        return body(job)

    return handle


def worker_of(queues: Queues, handler: Callable[..., Any], **options: Any) -> Worker:
    """Make a worker with one handler for everything."""
    worker = Worker(queues, **options)
    worker.handler(handler)
    return worker


@contextmanager
def working(queues: Queues, handler: Callable[..., Any], **options: Any) -> Iterator[Worker]:
    """Let a worker with one handler work for the block; then it gives back what still runs."""
    worker = worker_of(queues, handler, **options)
    with at_work(worker):
        yield worker


@contextmanager
def at_work(worker: Worker) -> Iterator[Worker]:
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(0)


def work_off(queues: Queues, handler: Callable[..., Any], **options: Any) -> bool:
    """Work until there is nothing that could run now."""
    return worker_of(queues, handler, **options).run(until_empty=True)


def shown(queue: Queue, id: str = "a") -> Job:
    job = queue.show(id)
    assert job is not None, f"{id} is gone"
    return job


def is_done(queue: Queue) -> bool:
    """Tell whether nothing waits and nothing runs."""
    counts = queue.counts()
    return counts.waiting == counts.leased == 0


class Heard(Hooks):
    """Notes all that a worker tells: what, and of which job; and what else it says.

    What a worker gives back since it did not come to it is noted aside: that costs nothing, and may
    happen to any job where the machine is busy.
    """

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.unbegun: list[str] = []
        self.reasons: list[str] = []

    def _note(self, what: str, job: RunningJob, *reasons: str) -> None:
        self.told.append((what, job.id))
        self.reasons += reasons

    def started(self, job: RunningJob) -> None:
        self._note("started", job)

    def done(self, job: RunningJob) -> None:
        self._note("done", job)

    def retried(self, job: RunningJob, error: str) -> None:
        self._note("retried", job, error)

    def failed(self, job: RunningJob, error: str) -> None:
        self._note("failed", job, error)

    def released(self, job: RunningJob) -> None:
        if job.started_at is None and job.answer == GIVEN_BACK:
            self.unbegun.append(job.id)
        else:
            self._note("released", job)

    def lapsed(self, job: RunningJob, reason: str) -> None:
        self._note("lapsed", job, reason)

    def cancelled(self, job: RunningJob) -> None:
        self._note("cancelled", job)

    def lost(self, job: RunningJob) -> None:
        self._note("lost", job)

    def unknown(self, job: RunningJob) -> None:
        self._note("unknown", job)

    def of(self, id: str = "a") -> list[str]:
        return [what for what, told_id in list(self.told) if told_id == id]

    def ids(self, what: str) -> list[str]:
        return [id for told, id in list(self.told) if told == what]

    def wait_for(self, what: str, id: str = "a", *, times: int = 1) -> None:
        wait_until(lambda: self.of(id).count(what) >= times, f"{id} to be {what}")


class Gate:
    """A handler that waits to be let go, and tells how many wait."""

    def __init__(self) -> None:
        self.jobs: list[RunningJob] = []
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, job: RunningJob) -> None:
        self.jobs.append(job)
        self.entered.set()
        assert self.open.wait(DEADLINE)

    def wait(self, jobs: int = 1) -> None:
        wait_until(lambda: len(self.jobs) >= jobs, f"{jobs} handlers to run")


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is held up gives nothing back for that, and lends no places: order stays."""
    monkeypatch.setattr("holdfast.worker.loop.STUCK_SECONDS", NEVER)
    monkeypatch.setattr("holdfast.worker.slots.LEND_SECONDS", NEVER)


@pytest.fixture
def unextended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker extends no leases, and so hears nothing of its jobs before they are settled."""
    monkeypatch.setattr("holdfast.worker.leases.extend_every", lambda lease, held: NEVER)


@contextmanager
def program(directory: Path, text: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a process of its own, which is gone when the block is over."""
    path = directory / "program.py"
    path.write_text(textwrap.dedent(text))
    running = subprocess.Popen(
        [sys.executable, str(path), *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def control_of(worker: Worker, name: str) -> ControlLoop:
    return worker._controls[name]


def executor_of(worker: Worker) -> Processes:
    """Return where the handlers of a worker with processes run, once there is one."""
    shared = worker._shared
    assert shared
    wait_until(lambda: shared.executors, "its first job")
    executor = shared.executors[False]
    assert isinstance(executor, Processes)
    return executor
