"""The directory of workers: who is there, and what it does."""

from __future__ import annotations

import os
import platform

import pytest

from holdfast import NewJob, Queue, RunningJob, Server, Worker, WorkerInfo
from holdfast.engine import library
from holdfast.worker.queues import fitting
from support import wait_until
from worker.support import Gate, Heard, at_work, is_done, worker_of, working


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers tell about themselves every few milliseconds."""
    monkeypatch.setattr("holdfast.worker.loop.REGISTER_SECONDS", 0.02)


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
            "executor": "thread",
            "handlers": ["fetch", "send"],
            "unnamed": True,
            "concurrency": 7,
            "library": library.library_name(),
            "running": [],
        }
    wait_until(lambda: not alive(live_queue), "it to be gone")


def test_the_directory_of_a_queue_names_the_handlers_for_it(live_queue: Queue) -> None:
    other = Queue(live_queue.name + "2", live_queue.server)
    worker = Worker([live_queue, other])
    worker.handler("everywhere")(lambda job: None)
    worker.handler(queue=live_queue.name)(lambda job: None)

    @worker.handler("coroutine", queue=other.name)
    async def coroutine(job: RunningJob) -> None: ...

    with at_work(worker):
        wait_until(lambda: alive(live_queue) and alive(other), "it to be in both")
        here, there = alive(live_queue)[0].about, alive(other)[0].about
    assert (here["handlers"], here["unnamed"]) == (["everywhere"], True)
    assert (there["handlers"], there["unnamed"]) == (["coroutine", "everywhere"], False)
    assert (here.get("coroutines"), there.get("coroutines")) == (None, ["coroutine"])
    other.delete()


def test_the_directory_names_the_schedules_that_a_program_declares(live_queue: Queue) -> None:
    live_queue.every("1h", name="hourly", handler="refresh")
    live_queue.cron("0 3 * * *", name="nightly", tz="Europe/Berlin", missed="all")
    worker = Worker(live_queue)
    worker.handler(lambda job: None)
    with at_work(worker):
        wait_until(lambda: alive(live_queue), "it to be there")
        [info] = alive(live_queue)
    assert info.name == f"{platform.node()}:{os.getpid()}"
    assert info.about["schedule_count"] == 2
    assert info.about["schedules"] == [
        ["hourly", "refresh", "skip", "every 1h"],
        ["nightly", None, "all", "0 3 * * * Europe/Berlin"],
    ]


def test_of_many_schedules_the_directory_names_some_and_their_number(live_queue: Queue) -> None:
    for n in range(200):
        live_queue.every("1h", name=f"schedule number {n}", handler="refresh")
    worker = Worker(live_queue)
    worker.handler("refresh")(lambda job: None)
    with at_work(worker):
        wait_until(lambda: alive(live_queue), "it to be there")
        [info] = alive(live_queue)
    assert info.about["schedule_count"] == 200
    assert 20 < len(info.about["schedules"]) < 200
    assert info.about["handlers"] == ["refresh"]


def test_a_job_that_nobody_takes_is_explained(live_queue: Queue) -> None:
    live_queue.add(b"", id="a", delay=600)
    live_queue.add(b"", id="b", delay=600, handler="send", timeout=5)
    worker = Worker(live_queue)
    worker.handler("send")(lambda job: None)
    with at_work(worker):
        wait_until(lambda: alive(live_queue), "it to be there")
        assert "runs jobs that name no handler" in live_queue.explain("a")
        assert "ends no run" in live_queue.explain("b")


def test_what_runs_is_in_the_directory_with_its_progress(live_queue: Queue, gate: Gate) -> None:
    def handle(job: RunningJob) -> None:
        if job.id == "a":
            job.progress(0.25, "a quarter")
        gate(job)

    for id in "ab":
        live_queue.add(b"", id=id)
    with working(live_queue, handle, concurrency=2):
        gate.wait(2)
        expected = {"a": [0.25, "a quarter"], "b": None}

        def told() -> dict[object, object]:
            return {job["id"]: job.get("progress") for job in running(live_queue)}

        wait_until(lambda: told() == expected, "both to be told")
        wait_until(lambda: all("seconds" in job for job in running(live_queue)), "their times")
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
        wait_until(lambda: any(job.get("progress") for job in running(live_queue)), "its progress")
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


def test_a_worker_publishes_its_notes_the_latest_first(live_queue: Queue) -> None:
    def notes() -> object:
        return [info.about.get("notes") for info in alive(live_queue)]

    worker = Worker(live_queue)
    worker.handler(lambda job: None)
    with at_work(worker):
        wait_until(lambda: notes() == [None], "it to be there")
        worker.notes["disk"] = "there is no room"
        worker.notes["code"] = "it is another"
        latest = [["code", "it is another"], ["disk", "there is no room"]]
        wait_until(lambda: notes() == [latest], "its notes")
        worker.notes.clear()
        wait_until(lambda: notes() == [None], "them to go away")


def test_what_is_told_is_cut_down_to_what_fits() -> None:
    notes: dict[str, object] = {"notes": [["a", "x" * 3000], ["b", "x" * 3000]], "running": ["r"]}
    assert fitting(notes) == {"notes": [["a", "x" * 3000]], "running": ["r"]}
    about: dict[str, object] = {"host": "here", "running": ["x" * 100] * 100, "queues": ["q"]}
    assert fitting(about) == {"host": "here", "running": ["x" * 100] * 25, "queues": ["q"]}
    assert fitting({"queues": ["q" * 500] * 10}) == {"queues": ["q" * 500] * 5}
    assert fitting({"queues": ["q"]}) == {"queues": ["q"]}
    assert fitting({"handlers": ["h" * 500] * 10}) == {"handlers": None}


def test_the_directory_knows_queues_that_are_taken_up_and_dropped(
    live_queue: Queue, server: Server
) -> None:
    other = Queue(f"{live_queue.name} too", server)

    @other.handler
    def late() -> None: ...

    def told(queue: Queue) -> list[list[list[str]]]:
        return [[info.about["queues"], info.about["handlers"]] for info in alive(queue)]

    both = [live_queue.name, other.name]
    worker = Worker(live_queue)
    worker.handler("send")(lambda job: None)
    with at_work(worker):
        worker.take_up(other)
        wait_until(lambda: told(live_queue) == [[both, ["send"]]], "both queues")
        wait_until(lambda: told(other) == [[both, ["late", "send"]]], "both queues and the handler")
        worker.drop(live_queue.name)
        wait_until(lambda: told(other) == [[[other.name], ["late", "send"]]], "one to be dropped")
    other.delete()


def test_what_has_ended_since_it_was_told_does_not_run_in_the_directory(queue: Queue) -> None:
    queue.add_many([NewJob(b"", id=id) for id in "abcd"])
    leases = queue.lease_many(4, 60)
    told = [{"id": id, "seconds": 0.5} for id in "abcd"]
    queue.register(running=told)
    assert queue.workers()[0].about["running"] == told
    queue.complete(leases[0])
    queue.retry(leases[1], error="why")
    [info] = queue.workers()
    assert info.about["running"] == told[2:]
    queue.fail_worker(queue.holder)
    queue.lease_many(2, 60)  # Another token of the same holder, of whom nothing is told yet.
    queue.register(running=told[2:])
    assert len(queue.workers()[0].about["running"]) == 2


@pytest.mark.parametrize("running", [None, "abc", 7, [], [7, {"id": 7}, {}, "a"], {"id": "a"}])
def test_a_worker_may_say_anything_about_what_runs(queue: Queue, running: object) -> None:
    queue.register(running=running)
    [info] = queue.workers()
    assert info.about["running"] == running
