"""How much a worker does and holds at a time."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from engine_support import engine_calls
from holdfast import Counts, NewJob, Queue, RunningJob, Server, Worker
from holdfast.connection.protocol import Packer
from holdfast.connection.server import Sent
from holdfast.engine.call import Call
from holdfast.errors import ServerUnavailable
from holdfast.worker.leases import HeldJobs, LeaseCall
from support import wait_until
from worker.support import (
    Gate,
    Heard,
    Kind,
    as_handler,
    at_work,
    both_kinds,
    is_done,
    work_off,
    worker_of,
    working,
)


class Crowd:
    """Counts those who are inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = 0
        self.most = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        yield
        with self._lock:
            self.inside -= 1


@pytest.mark.parametrize("concurrency", [1, 3, 16])
@pytest.mark.parametrize("ahead", [0, 0.02])
def test_no_more_handlers_run_at_a_time_than_said(
    live_queue: Queue, concurrency: int, ahead: float
) -> None:
    crowd = Crowd()
    full = threading.Event()

    def handle(job: RunningJob) -> None:
        with crowd.entered():
            if crowd.inside == concurrency:
                full.set()
            assert full.wait(30)

    live_queue.add_many([b""] * 100)
    assert work_off(live_queue, handle, concurrency=concurrency, ahead=ahead)
    assert crowd.most == concurrency


def test_no_more_of_both_kinds_together_run_at_a_time_than_said(live_queue: Queue) -> None:
    crowd = Crowd()
    worker = Worker(live_queue, concurrency=3, ahead=5)

    @worker.handler
    def block(job: RunningJob) -> None:
        with crowd.entered():
            wait_until(lambda: crowd.most >= 3, "three of them")
            time.sleep(0.0005)

    @worker.handler("coroutine")
    async def wait(job: RunningJob) -> None:
        with crowd.entered():
            while crowd.most < 3:  # noqa: ASYNC110 (threads are among those it waits for)
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.0005)

    live_queue.add_many(
        [NewJob(b"", handler=name) for _ in range(100) for name in (None, "coroutine")]
    )
    assert worker.run(until_empty=True)
    assert crowd.most == 3


def test_no_more_coroutines_run_at_a_time_than_said(live_queue: Queue) -> None:
    crowd = Crowd()

    async def handle(job: RunningJob) -> None:
        with crowd.entered():
            await asyncio.sleep(0)

    live_queue.add_many([b""] * 200)
    assert work_off(live_queue, handle, concurrency=3, ahead=1)
    assert crowd.most == 3


@both_kinds
def test_without_ahead_no_more_is_leased_than_may_begin(live_queue: Queue, kind: Kind) -> None:
    leased: list[int] = []

    def handle(job: RunningJob) -> None:
        leased.append(live_queue.counts().leased)

    live_queue.add_many([b""] * 100)
    assert work_off(live_queue, as_handler(kind, handle), concurrency=3, ahead=0)
    assert len(leased) == 100
    assert max(leased) <= 3


def test_a_worker_that_is_full_leaves_the_rest_to_others(live_queue: Queue, gate: Gate) -> None:
    live_queue.add_many([b""] * 10)
    with working(live_queue, gate, concurrency=3):
        gate.wait(3)
        counts = live_queue.counts()
        assert (counts.leased, counts.ready) == (3, 7)
        with working(live_queue, gate, concurrency=4):
            gate.wait(7)
            assert live_queue.counts().leased == 7
            gate.open.set()
            wait_until(lambda: is_done(live_queue), "all")


@both_kinds
def test_short_jobs_come_many_at_a_time(live_queue: Queue, client: redis.Redis, kind: Kind) -> None:
    live_queue.add_many([b""] * 2000)
    before = engine_calls(client)
    # So much ahead that they are short, also where one is held up for a moment.
    assert work_off(live_queue, as_handler(kind, lambda job: None), concurrency=4, ahead=60)
    assert is_done(live_queue)
    assert engine_calls(client) - before < 500


def only_the_long_one(counts: Counts) -> bool:
    return (counts.ready, counts.leased) == (0, 1)


def test_what_does_not_begin_goes_to_somebody_who_is_free(live_queue: Queue, gate: Gate) -> None:
    """A long job among short ones: those that were leased with it do not wait for its end."""
    heard = Heard()

    def handle(job: RunningJob) -> None:
        if job.data == b"long":
            gate(job)

    live_queue.add_many([b"short"] * 300)
    live_queue.add(b"long", id="long")
    live_queue.add_many([b"short"] * 300)
    with working(live_queue, handle, concurrency=1, ahead=5):
        gate.wait()
        with working(live_queue, lambda job: None, hooks=[heard]):
            wait_until(lambda: only_the_long_one(live_queue.counts()), "the others to be done")
        gate.open.set()
        wait_until(lambda: is_done(live_queue), "the long one")
    assert "long" not in heard.ids("done")
    assert heard.ids("done")


@both_kinds
def test_what_comes_to_a_worker_that_had_nothing_to_do_is_not_given_back(
    live_queue: Queue, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it had nothing to do."""
    monkeypatch.setattr("holdfast.worker.loop.STUCK_SECONDS", 5.0)
    heard = Heard()
    with working(live_queue, as_handler(kind, lambda job: None), hooks=[heard]) as worker:
        assert worker._shared is not None
        for n in range(100):
            for executor in worker._shared.executors.values():
                vars(executor)["_moved_at"] = 0.0
            live_queue.add(b"", id=str(n))
            heard.wait_for("done", str(n))
    assert heard.unbegun == []


@both_kinds
def test_what_is_given_back_unbegun_costs_nothing(
    live_queue: Queue, gate: Gate, kind: Kind
) -> None:
    """And comes again when there is a place."""
    attempts: list[tuple[int, int]] = []

    def handle(job: RunningJob) -> None:
        attempts.append((job.failures, job.lapses))
        if job.data == b"long":
            gate(job)

    worker = Worker(live_queue, concurrency=1, ahead=5)
    worker.handler("coroutine")(as_handler("coroutine", handle))
    worker.handler("plain")(as_handler("plain", handle))
    live_queue.add_many([b"short"] * 50, handler=kind)
    live_queue.add(b"long", id="long", handler=kind)
    live_queue.add_many([b"short"] * 50, handler=kind)
    with worker:
        gate.wait()
        wait_until(lambda: live_queue.counts().leased == 1, "the rest to be given back")
        gate.open.set()
        wait_until(lambda: is_done(live_queue), "all")
    assert attempts == [(0, 0)] * 101


class UnderWay:
    """Counts the lease calls that were sent, and whose answers nobody read yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = self.most = 0
        send, result = Server.send, Sent.result

        def count_sent(server: Server, packer: Packer, call: Call[Any], now: bytes) -> Sent[Any]:
            sent = send(server, packer, call, now)
            self.calls += 1
            self.most = max(self.most, self.calls)
            return sent

        def count_read(sent: Sent[Any]) -> Any:
            self.calls -= 1
            return result(sent)

        monkeypatch.setattr(Server, "send", count_sent)
        monkeypatch.setattr(Sent, "result", count_read)


def test_the_next_call_is_under_way_before_the_last_is_answered_where_jobs_are_short(
    live_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way = UnderWay(monkeypatch)
    begun: list[str] = []

    def work() -> bool:
        live_queue.add_many([b"x"] * 5000)
        assert work_off(live_queue, lambda job: begun.append(job.id), concurrency=2)
        return under_way.most > 1

    wait_until(work, "two at a time")  # One that is held up for a moment takes them for long.
    assert len(begun) == len(set(begun))
    assert is_done(live_queue)
    assert (under_way.calls, under_way.most) == (0, 2)


def test_a_call_that_is_never_answered_takes_nothing_from_the_one_behind_it(
    live_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way = UnderWay(monkeypatch)
    lost: list[Sent[Any]] = []
    result = Sent.result

    def lose(sent: Sent[Any]) -> Any:
        if under_way.calls == 2 and not lost:
            lost.append(sent)
            under_way.calls -= 1
            sent.forget()
            raise ServerUnavailable("the answer is lost")
        return result(sent)

    monkeypatch.setattr(Sent, "result", lose)
    begun: list[str] = []
    added: list[str] = []

    def work() -> list[Sent[Any]]:
        added.extend(receipt.id for receipt in live_queue.add_many([b"x"] * 5000))
        assert work_off(live_queue, lambda job: begun.append(job.id), concurrency=2, lease=1)
        return lost

    wait_until(work, "two calls under way")
    wait_until(lambda: live_queue.tidy().reclaimed or is_done(live_queue), "it to lapse")
    assert work_off(live_queue, lambda job: begun.append(job.id), concurrency=2)
    assert is_done(live_queue)
    assert set(begun) == set(added)


def test_no_place_is_lost_with_an_answer_that_failed_jobs_would_have_waited_for(
    live_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, result, lost = HeldJobs._send, Sent.result, threading.Event()
    worker = worker_of(live_queue, lambda job: None, concurrency=2, lease=1)
    worker.failure_handler(lambda job: None)

    def ask_for_failed_next(held: HeldJobs, *args: Any, **options: Any) -> LeaseCall:
        for control in worker._controls.values():
            control._held.ask_failed_at = 0.0
        return send(held, *args, **options)

    def lose(sent: Sent[Any]) -> Any:
        frame = sys._getframe(1)
        callers = [frame.f_code.co_name]
        while frame := frame.f_back:  # type: ignore[assignment]
            callers.append(frame.f_code.co_name)
        if callers[1:3] == ["read_pending", "lease"] and not lost.is_set():
            lost.set()
            sent.forget()
            raise ServerUnavailable("the answer is lost")
        return result(sent)

    monkeypatch.setattr(HeldJobs, "_send", ask_for_failed_next)
    monkeypatch.setattr(Sent, "result", lose)
    with at_work(worker):
        assert worker._shared
        slots = worker._shared.slots
        while not lost.is_set():
            live_queue.add_many([b"x"] * 2000)
            wait_until(lambda: lost.is_set() or is_done(live_queue), "all")
        wait_until(lambda: is_done(live_queue), "all")
        wait_until(lambda: slots.free + slots.reserved == slots._total, "all places to be free")


def test_one_call_at_a_time_is_under_way_where_nothing_is_held_ahead(
    live_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way = UnderWay(monkeypatch)
    live_queue.add_many([b"x"] * 100)
    assert work_off(live_queue, lambda job: None, concurrency=2, ahead=0)
    assert (under_way.calls, under_way.most) == (0, 0)


@both_kinds
def test_where_no_thread_can_be_started_jobs_wait_until_one_can(
    live_queue: Queue, kind: Kind, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        if thread.name in ("holdfast handler 1", "holdfast loop") and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    live_queue.add_many([b""] * 3)
    heard = Heard()
    with working(live_queue, as_handler(kind, lambda job: None), hooks=[heard], concurrency=2):
        wait_until(lambda: is_done(live_queue), "all to be done")
    assert len(heard.ids("done")) == 3
    assert refused
    assert "can't start new thread; released" in caplog.text
