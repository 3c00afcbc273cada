"""One queue for many threads: what `AsyncQueue` does between two awaits, no lock guards here."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from conftest import Clock
from holdfast import NewJob, Queue, Request, Schedule

T = TypeVar("T")

THREADS = 64


@pytest.fixture(autouse=True)
def _switching() -> Iterator[None]:
    """Let threads take turns as often as Python can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def together(act: Callable[[int], T]) -> list[T]:
    """Let all threads begin at once; return what each came to."""
    ready = threading.Barrier(THREADS)

    def begin(number: int) -> T:
        ready.wait()
        return act(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


def test_64_threads_add_lease_and_complete_on_one_queue(live_queue: Queue) -> None:
    queue = live_queue
    done: list[str] = []

    def live(number: int) -> None:
        for n in range(10):
            assert queue.add(b"x", id=f"{number}.{n}")
            assert len(queue.add_many([b"y", NewJob(b"z", priority=n)])) == 2
        for _ in range(30):
            lease = queue.lease(60)
            assert lease
            assert queue.show(lease.id)
            assert queue.complete(lease)
            done.append(lease.id)

    together(live)
    assert len(done) == len(set(done)) == THREADS * 30
    assert queue.audit() == []
    counts = queue.counts()
    assert (counts.ready, counts.leased) == (0, 0)


def test_tokens_of_64_threads_are_all_different(live_queue: Queue) -> None:
    live_queue.add_many([b"x"] * THREADS * 5)
    tokens: list[str] = []

    def lease(_: int) -> None:
        for _ in range(5):
            found = live_queue.lease(60)
            assert found
            tokens.append(found.token)

    together(lease)
    assert len(set(tokens)) == THREADS * 5


def test_64_threads_declare_handlers_and_schedules_and_make_each_tick_once(
    queue: Queue, clock: Clock
) -> None:
    def declare(number: int) -> Schedule:
        queue.handler(f"h{number}")(lambda: None)
        return queue.every(300, name=f"s{number}")

    together(declare)
    assert len(queue.handlers) == len(queue.schedules) == THREADS
    assert queue.tick() == []
    clock.advance(100)
    made = Counter(
        receipt.id for receipts in together(lambda _: queue.tick()) for receipt in receipts
    )
    assert len(made) == THREADS
    assert set(made.values()) == {1}


def test_64_threads_add_parts_to_a_request_that_appends(live_queue: Queue) -> None:
    def add(number: int) -> None:
        request: Request = live_queue.request("r", append=True)
        request.open()
        for _ in range(5):
            assert request.add(b"x")

    together(add)
    assert live_queue.request("r").status().total == THREADS * 5
    assert live_queue.audit() == []
