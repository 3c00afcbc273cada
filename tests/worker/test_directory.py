"""The directory of workers: who is there, and what it does."""

from __future__ import annotations

import os
import platform

import pytest

from holdfast import Queue, RunningJob, Worker, WorkerInfo
from holdfast.worker.reporting import fitting
from support import wait_until
from worker.support import Gate, Heard, at_work, is_done, worker_of, working


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers tell about themselves every few milliseconds."""
    monkeypatch.setattr("holdfast.worker.presence.REGISTER_SECONDS", 0.02)


def alive(queue: Queue) -> list[WorkerInfo]:
    return [info for info in queue.workers() if info.alive]


def running(queue: Queue) -> list[dict[str, object]]:
    return [job for info in alive(queue) for job in info.about["running"]]


def test_a_worker_is_in_the_directory_while_it_works(live_queue: Queue) -> None:
    worker = Worker(live_queue, concurrency=7)
    worker.handler(lambda job: None)
    worker.handler("send")(lambda job: None)
    worker.handler("fetch")(lambda job: None)
    with at_work(worker):
        wait_until(lambda: alive(live_queue), "it to be there")
        [info] = alive(live_queue)
        about = dict(info.about)
        assert about.pop("started_at") <= info.alive_until
        assert about == {
            "host": platform.node(),
            "pid": os.getpid(),
            "queues": [live_queue.name],
            "handlers": ["fetch", "send"],
            "concurrency": 7,
            "running": [],
        }
    wait_until(lambda: not alive(live_queue), "it to be gone")


def test_what_runs_is_in_the_directory_with_its_progress(live_queue: Queue, gate: Gate) -> None:
    def handle(job: RunningJob) -> None:
        if job.id == "a":
            job.progress(0.25, "a quarter")
        gate(job)

    for id in "ab":
        live_queue.add(b"", id=id)
    with working(live_queue, handle, concurrency=2):
        gate.wait(2)
        wait_until(lambda: len(running(live_queue)) == 2, "both to be told")
        wait_until(lambda: all("seconds" in job for job in running(live_queue)), "their times")
        told = {job["id"]: job.get("progress") for job in running(live_queue)}
        assert told == {"a": [0.25, "a quarter"], "b": None}
        gate.jobs[0].progress(1)
        wait_until(
            lambda: [1.0, ""] in [job.get("progress") for job in running(live_queue)],
            "its progress",
        )
        gate.open.set()
        wait_until(lambda: running(live_queue) == [], "them to be gone")


def test_a_worker_that_is_killed_in_spirit_dies_in_the_directory(live_queue: Queue) -> None:
    """Its jobs go to others at once when somebody says so."""
    heard = Heard()
    live_queue.add(b"", id="a")
    with working(
        live_queue,
        lambda job: wait_until(lambda: job.cancelled or job.lapses),
        lease=1,
        hooks=[heard],
    ):
        heard.wait_for("started")
        wait_until(lambda: alive(live_queue), "it to be there")
        live_queue.fail_worker(alive(live_queue)[0])
        wait_until(lambda: is_done(live_queue), "another to do it")


def test_each_queue_has_its_own_directory(live_queue: Queue) -> None:
    other = Queue(live_queue.name + "2", live_queue.server)
    with working([live_queue, other], lambda job: None):
        wait_until(lambda: alive(live_queue) and alive(other), "it to be in both")
        assert alive(live_queue)[0].holder != alive(other)[0].holder
        assert alive(other)[0].about["queues"] == [live_queue.name, other.name]
    other.delete()


def test_a_worker_with_much_to_tell_is_there_all_the_same(live_queue: Queue, gate: Gate) -> None:
    def handle(job: RunningJob) -> None:
        job.progress(0.5, "ü" * 500)
        gate(job)

    for n in range(16):
        live_queue.add(b"", id=f"{n} " + "x" * 400)
    with working(live_queue, handle):
        gate.wait(16)
        wait_until(lambda: running(live_queue), "some of it to be told")
        assert 0 < len(running(live_queue)) < 16


def test_a_note_that_is_no_text_is_told_as_far_as_it_goes(live_queue: Queue, gate: Gate) -> None:
    def handle(job: RunningJob) -> None:
        job.progress(0.5, "file \udc80")
        gate(job)

    live_queue.add(b"", id="a")
    with working(live_queue, handle):
        gate.wait()
        wait_until(lambda: running(live_queue), "it to be told")
        assert running(live_queue)[0]["progress"] == [0.5, "file \\udc80"]


def test_a_worker_knows_what_it_runs(live_queue: Queue, gate: Gate) -> None:
    worker = worker_of(live_queue, gate)
    assert worker.running() == []
    live_queue.add(b"", id="a")
    with at_work(worker):
        gate.wait()
        assert worker.running() == gate.jobs
        gate.open.set()
        wait_until(lambda: worker.running() == [], "it to be done")


def test_what_is_told_is_cut_down_to_what_fits() -> None:
    about: dict[str, object] = {"host": "here", "running": ["x" * 100] * 100, "queues": ["q"]}
    assert fitting(about) == {"host": "here", "running": ["x" * 100] * 25, "queues": ["q"]}
    assert fitting({"queues": ["q" * 500] * 10}) == {"queues": ["q" * 500] * 5}
    assert fitting({"queues": ["q"]}) == {"queues": ["q"]}
    assert fitting({"handlers": ["h" * 500] * 10}) == {"handlers": None}
