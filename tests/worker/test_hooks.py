"""Hooks: who wants to know is told once, of the right job, and may raise what it likes."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from holdfast import AsyncRunningJob, Fail, Hooks, NewJob, Queue, Release, RunningJob, Worker
from holdfast.escaping import loggers
from support import DEADLINE, wait_until
from worker.support import (
    Heard,
    Kind,
    as_handler,
    at_work,
    both_kinds,
    control_of,
    is_done,
    work_off,
    working,
)

ERRORS = {
    "retried": ValueError("no"),
    "failed": Fail("no"),
    "released": Release(after=60),
}


def handle(job: RunningJob) -> None:
    if job.id in ERRORS:
        raise ERRORS[job.id]


def hooks_of(heard: Heard) -> dict[str, list[str]]:
    return {id: heard.of(id) for id in sorted({id for _, id in heard.told})}


@both_kinds
def test_each_ending_is_told_of_its_job(live_queue: Queue, kind: Kind) -> None:
    heard = Heard()
    for id in ("done", *ERRORS):
        live_queue.add(b"", id=id)
    live_queue.add(b"", id="unknown", handler="elsewhere")
    assert work_off(live_queue, as_handler(kind, handle), hooks=[heard])
    assert hooks_of(heard) == {
        "done": ["started", "done"],
        "failed": ["started", "failed"],
        "released": ["started", "released"],
        "retried": ["started", "retried"],
        "unknown": ["unknown", "released"],
    }
    assert sorted(heard.reasons) == ["ValueError: no", "no"]


def test_all_hooks_are_told(live_queue: Queue) -> None:
    first, second = Heard(), Heard()
    live_queue.add(b"", id="a")
    assert work_off(live_queue, lambda job: None, hooks=[first, Hooks(), second])
    assert first.told == second.told == [("started", "a"), ("done", "a")]


@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize("times", [1, 50])
def test_a_log_that_raises_stops_no_worker(live_queue: Queue, times: int, concurrency: int) -> None:
    raised: list[logging.LogRecord] = []

    def refuse(record: logging.LogRecord) -> bool:
        if str(record.threadName).startswith(("holdfast control", "holdfast handler")):
            raised.append(record)
            if len(raised) <= times:
                raise ZeroDivisionError
        return True

    for log in loggers():
        log.addFilter(refuse)
    try:
        live_queue.add_many(NewJob(b"", id=f"failed{n}") for n in range(5))
        with working(
            live_queue, lambda job: (_ for _ in ()).throw(Fail("no")), concurrency=concurrency
        ) as worker:
            wait_until(lambda: live_queue.counts().failed == 5, "all to be failed")
            live_queue.add_many(NewJob(b"", id=f"again{n}") for n in range(5))
            wait_until(lambda: live_queue.counts().failed == 10, "it to go on")
            control = control_of(worker, live_queue.name)
            wait_until(lambda: not control._held.jobs, "all to be settled")
    finally:
        for log in loggers():
            log.removeFilter(refuse)
    assert raised


class Bad(Heard):
    def _note(self, what: str, job: RunningJob, *reasons: str) -> None:
        super()._note(what, job, *reasons)
        raise SystemExit(what) if job.data == b"exit" else ZeroDivisionError(what)


@both_kinds
@pytest.mark.parametrize("data", [b"", b"exit"])
def test_a_hook_that_raises_harms_nobody(
    live_queue: Queue, kind: Kind, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Bad(), Heard()
    live_queue.add_many(NewJob(data, id=id) for id in ("done", *ERRORS))
    live_queue.add(data, id="unknown", handler="elsewhere")
    with caplog.at_level(logging.ERROR):
        assert work_off(live_queue, as_handler(kind, handle), concurrency=1, hooks=[bad, good])
    assert len(good.told) == 10
    assert sorted(bad.told) == sorted(good.told)
    assert "the hook 'done' of" in caplog.text
    assert "unexpected" not in caplog.text


def test_a_hook_that_raises_when_a_lease_is_lost_harms_nobody(live_queue: Queue) -> None:
    bad = Bad()

    async def sleep(job: AsyncRunningJob) -> None:
        if not job.lapses:
            await asyncio.sleep(2 * DEADLINE)

    for id in "abc":
        live_queue.add(b"", id=id)
    worker = Worker(live_queue, hooks=[bad])
    worker.handler(sleep, timeout=DEADLINE)
    with at_work(worker):
        wait_until(lambda: len(bad.ids("started")) == 3, "all to run")
        wait_until(lambda: any(info.alive for info in live_queue.workers()), "it to be listed")
        live_queue.cancel("a")
        live_queue.fail_worker(next(info for info in live_queue.workers() if info.alive))
        wait_until(lambda: is_done(live_queue), "all")
    assert set(bad.ids("lost")) == {"a", "b", "c"} or "a" in bad.ids("cancelled")
    assert set(bad.ids("lost")) >= {"b", "c"}


def test_a_hook_is_told_after_the_server_has_confirmed_it(live_queue: Queue) -> None:
    class Looking(Hooks):
        found: object = "nothing"

        def done(self, job: RunningJob) -> None:
            self.found = live_queue.show(job.id)

    looking = Looking()
    live_queue.add(b"", id="a")
    assert work_off(live_queue, lambda job: None, hooks=[looking])
    assert looking.found is None


@pytest.mark.usefixtures("unextended")
def test_a_run_that_does_not_count_is_told_as_lost(
    live_queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()

    def forestall(job: RunningJob) -> None:
        assert live_queue.complete(job.id, force=True)

    live_queue.add(b"", id="a")
    with working(live_queue, forestall, hooks=[heard]):
        heard.wait_for("lost")
    assert heard.of() == ["started", "lost"]
    assert "a: cancelled or taken back; the outcome of this run does not count" in caplog.text


# ------------------------------------------------------------------ one line per job


def test_each_completed_job_has_a_line_in_the_log(
    live_queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def send(job: RunningJob) -> None: ...

    ids = ["a", "b", "c\nforged"]
    for id in ids:
        live_queue.add(b"", id=id)
    with caplog.at_level(logging.INFO, logger="holdfast.jobs"):
        assert work_off(live_queue, send)
    lines = [record for record in caplog.records if record.name == "holdfast.jobs"]
    assert {record.levelno for record in lines} == {logging.INFO}
    pattern = r"(.*): .*send completed in \d+\.\d{3} s"
    found = [re.fullmatch(pattern, record.getMessage()) for record in lines]
    assert sorted(match[1] for match in found if match) == ["a", "b", r"c\nforged"]


def test_the_line_per_job_can_be_switched_off(
    live_queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="holdfast")
    caplog.set_level(logging.WARNING, logger="holdfast.jobs")
    live_queue.add(b"", id="a")
    assert work_off(live_queue, lambda job: None)
    assert not [record for record in caplog.records if record.name == "holdfast.jobs"]
