"""Workers make the ticks of their queues' schedules."""

from __future__ import annotations

import dataclasses
import logging
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from conftest import Clock
from holdfast import AsyncQueue, Queue, RunningJob, Server, ServerUnavailable, Worker
from holdfast.worker import queues
from support import TestServer, wait_until
from worker.support import at_work, program, worker_of, working


def tick_of(id: str) -> float:
    return datetime.fromisoformat(id.rpartition("@")[2]).timestamp()


def test_a_worker_adds_and_runs_the_jobs_of_a_schedule(live_queue: Queue) -> None:
    begun: list[tuple[str, float]] = []

    @live_queue.handler
    def refresh(job: RunningJob) -> None:
        begun.append((job.id, datetime.now(UTC).timestamp()))

    refresh.every("1s")
    with at_work(Worker(live_queue, concurrency=1)):
        wait_until(lambda: len(begun) >= 3, "three ticks")
    ids = [id for id, _ in begun]
    assert ids == sorted(set(ids))
    assert all(at >= tick_of(id) - 0.001 for id, at in begun)  # Never before its time.


def test_any_number_of_workers_run_one_job_per_tick(
    live_queue: Queue, test_server: TestServer
) -> None:
    ran: list[str] = []
    queues = [Queue(live_queue.name, Server(test_server.queue_url)) for _ in range(3)]
    workers = []
    for queue in queues:
        queue.every("1s", name="s")
        workers.append(worker_of(queue, lambda job: ran.append(job.id), concurrency=2))
    with workers[0], workers[1], workers[2]:  # What has begun is finished, and not given back.
        wait_until(lambda: len(ran) >= 3, "three ticks")
    assert len(ran) == len(set(ran))
    for queue in queues:
        queue.close()


PROGRAM = """
    import os, sys
    from holdfast import Queue, Worker

    queue = Queue(sys.argv[1], sys.argv[2])
    queue.every("1s", name="s")
    worker = Worker(queue, lease=3)

    @worker.handler
    def handle(job):
        os.write(1, f"{job.id} {job.lapses}\\n".encode())

    worker.run()
"""


def test_ticks_go_on_when_a_process_that_makes_them_is_killed(
    live_queue: Queue, test_server: TestServer, tmp_path: Path
) -> None:
    args = (live_queue.name.strip("\n\0"), test_server.queue_url)
    told: list[str] = []
    with program(tmp_path, PROGRAM, *args) as first, program(tmp_path, PROGRAM, *args) as second:
        for process in (first, second):
            assert process.stdout
        threads = [
            threading.Thread(target=lambda out=one.stdout: told.extend(out))
            for one in (first, second)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(told) >= 3, "three ticks")
        first.kill()
        seen = len(told)
        wait_until(lambda: len(told) >= seen + 3, "three more")
        second.kill()
        for thread in threads:
            thread.join()
    # A job that was begun by who was killed runs again, and counts a lapse; no tick is made twice.
    ran = [line.split()[0] for line in told if line.split()[1] == "0"]
    assert len(ran) == len(set(ran)) >= 5
    with Queue(*args) as queue:
        queue.delete()


def test_a_schedule_may_be_declared_while_the_worker_runs(live_queue: Queue) -> None:
    ran: list[str] = []
    with working(live_queue, lambda job: ran.append(job.id)):
        live_queue.every("1s", name="late")
        wait_until(lambda: ran, "a tick")


def test_a_worker_makes_ticks_also_until_its_queue_is_empty(queue: Queue, clock: Clock) -> None:
    clock.ms -= clock.ms % 86_400_000
    ran: list[str] = []
    worker = worker_of(queue, lambda job: ran.append(job.id))
    queue.cron("0 3 * * *", name="daily")
    for hours in (0, 2, 1, 0, 24):
        clock.advance(hours * 3600)
        assert worker.run(until_empty=True)
    assert [id.partition("@")[2] for id in ran] == ["2023-11-14T03:00:00Z", "2023-11-15T03:00:00Z"]


def test_a_worker_makes_the_ticks_of_an_async_queue(
    queue: Queue, test_server: TestServer, clock: Clock
) -> None:
    clock.ms -= clock.ms % 60_000
    aqueue = AsyncQueue(queue.name, test_server.queue_url, clock=clock)
    ran: list[str] = []

    @aqueue.handler
    async def refresh() -> None:
        ran.append("refresh")

    refresh.every("1m")
    for _ in range(3):
        assert Worker(aqueue).run(until_empty=True)
        clock.advance(60)
    assert ran == ["refresh"] * 2


def test_a_schedule_that_raises_keeps_nobody_from_working(
    queue: Queue, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast")
    ran: list[str] = []

    def broken(after: int) -> int:
        raise RuntimeError("no such hour")

    queue.every("1m", name="s")
    queue.schedules["s"] = dataclasses.replace(queue.schedules["s"], rhythm=broken)
    queue.add(b"", id="a")
    assert worker_of(queue, lambda job: ran.append(job.id)).run(until_empty=True)
    assert ran == ["a"]
    assert "s: its ticks cannot be made; trying again: no such hour" in caplog.text


def test_a_server_that_is_lost_is_for_the_control_loop_to_bear() -> None:
    queue = Queue("nowhere", Server("redis://localhost:1", patience=0.05))
    queue.every("1m", name="s")
    with pytest.raises(ServerUnavailable):
        queues.Ticker(queue).tick()


def test_ticks_that_are_refused_keep_nobody_from_working(
    queue: Queue,
    clock: Clock,
    client: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full server takes no more jobs, and is drained."""
    monkeypatch.setattr(queues, "REFUSED_SECONDS", 0.05)
    caplog.set_level(logging.WARNING, "holdfast")
    clock.ms -= clock.ms % 60_000
    ran: list[str] = []
    queue.every("1m", name="s")
    queue.tick()
    clock.advance(60)
    queue.add(b"", id="a")
    client.config_set("maxmemory", "1mb")
    try:
        with working(queue, lambda job: ran.append(job.id)):
            wait_until(lambda: "a" in ran, "the job")
            wait_until(lambda: "s: its ticks cannot be made" in caplog.text, "a word about it")
            client.config_set("maxmemory", "0")
            wait_until(lambda: len(ran) == 2, "the tick")
            assert caplog.text.count("s: its ticks cannot be made") == 1
    finally:
        client.config_set("maxmemory", "0")
