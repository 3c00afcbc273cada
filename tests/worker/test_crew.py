"""Threads that take runs from one line, and rouse each other."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from holdfast.worker.executors.threads import ThreadPool
from holdfast.worker.job import Run
from support import DEADLINE, wait_until


def runs(count: int) -> list[Run]:
    """Return something to hand over: a crew does not look at it."""
    return [cast("Run", number) for number in range(count)]


@contextmanager
def crew_of(count: int, labour: Callable[[Run], object]) -> Iterator[ThreadPool]:
    def take_all(_number: int, works: Iterator[Run]) -> None:
        for work in works:
            labour(work)

    crew = ThreadPool("crew of a test", take_all, count)
    yield crew
    crew.close()
    wait_until(lambda: not crew._there, "all to leave")


def test_all_are_awake_where_runs_take_long() -> None:
    inside = threading.Barrier(9)
    with crew_of(8, lambda _work: inside.wait(DEADLINE)) as crew:
        crew.submit(runs(8))
        inside.wait(DEADLINE)
        assert crew.waiting() == 0


def test_runs_begin_in_the_order_in_which_they_were_handed_over() -> None:
    begun: list[Run] = []
    with crew_of(1, begun.append) as crew:
        crew.submit(runs(100))
        wait_until(lambda: len(begun) == 100, "all")
    assert begun == runs(100)


def test_who_is_too_many_leaves_though_something_waits() -> None:
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def labour(_work: Run) -> None:
        begun.release()
        assert go_on.acquire(timeout=DEADLINE)

    with crew_of(4, labour) as crew:
        crew.submit(runs(100))
        for _ in range(4):
            assert begun.acquire(timeout=DEADLINE)
        crew.resize(1)
        go_on.release(4)
        wait_until(lambda: len(crew._there) == 1, "three to leave")
        assert begun.acquire(timeout=DEADLINE)
        assert crew.waiting() == 95
        assert len(crew.take_back()) == 95
        go_on.release(100)


def test_what_waits_when_it_is_closed_does_not_begin() -> None:
    begun, go_on = threading.Event(), threading.Event()
    seen: list[Run] = []

    def labour(work: Run) -> None:
        seen.append(work)
        begun.set()
        assert go_on.wait(DEADLINE)

    with crew_of(1, labour) as crew:
        crew.submit(runs(3))
        assert begun.wait(DEADLINE)
        crew.close()
        go_on.set()
    assert seen == runs(1)
    assert crew.take_back() == runs(3)[1:]


def test_everything_is_done_once_however_many_there_are_meanwhile() -> None:
    done: Counter[Run] = Counter()
    lock = threading.Lock()

    def labour(work: Run) -> None:
        with lock:
            done[work] += 1

    chance = random.Random(7)
    with crew_of(3, labour) as crew:
        works = runs(3000)
        while works:
            crew.submit(works[: (size := chance.randint(1, 40))])
            del works[:size]
            crew.resize(chance.randint(1, 6))
        wait_until(lambda: len(done) == 3000, "all to be done")
    assert set(done.values()) == {1}
