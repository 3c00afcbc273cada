"""Threads that take runs from one line. Their number may change while they work.

Who sleeps is roused one at a time: whoever takes a run and leaves others in the line rouses the
next. So short runs are done by the few who are awake, and do not cost a switch between threads
each; where runs take long, all are awake within a millisecond.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue

from holdfast.worker.job import Run

log = logging.getLogger("holdfast")


class Crew:
    """So many threads. Each has a number of its own, below the most that there ever shall be."""

    def __init__(self, name: str, labour: Callable[[int, Iterator[Run]], None], count: int) -> None:
        self._name = name
        self._labour = labour
        self._works: deque[Run] = deque()
        self._calls: SimpleQueue[None] = SimpleQueue()
        """One for each who is to wake up."""
        self._lock = threading.Lock()
        self._asleep = 0
        """Those for whom there is no call."""
        self._rousing = False
        """Whether somebody was called, and is not awake yet."""
        self._wanted = 0
        self._there: set[int] = set()
        self._leaving = 0
        self._too_many = False
        """Whether one more is to leave than are about to."""
        self._moved_at = time.monotonic()
        try:
            self.resize(count)
        except RuntimeError:  # So many threads cannot be started: all, or none.
            self.resize(0)
            raise

    def resize(self, count: int) -> None:
        """Be so many from now on. Those that are too many leave when their run is over."""
        with self._lock:
            self._wanted = count
            self._too_many = len(self._there) - self._leaving > count
            for _ in range(count - len(self._there)):
                number = next(n for n in range(count) if n not in self._there)
                threading.Thread(
                    target=self._work, args=(number,), name=f"{self._name} {number}", daemon=True
                ).start()
                self._there.add(number)
            for _ in range(min(self._asleep, len(self._there) - self._leaving - count)):
                self._call()  # Whoever works leaves by itself.

    def _work(self, number: int) -> None:
        leaves = False
        while not leaves:
            try:
                self._labour(number, self._take())
                leaves = self._leave(number)
            except Exception:  # A worker that silently stops is the worst of all.
                log.exception("%s %d: unexpected, it goes on", self._name, number)

    def _leave(self, number: int) -> bool:
        """Leave, unless it is wanted again by now."""
        with self._lock:
            self._leaving -= 1
            too_many = len(self._there) - self._leaving > self._wanted
            if too_many:
                self._there.remove(number)
            return too_many

    # ------------------------------------------------------------------- the line

    def _take(self) -> Iterator[Run]:
        """Take what waits, one after the other, until there are too many who do."""
        works = self._works
        while not (self._too_many and self._may_leave()):
            try:
                work = works.popleft()
            except IndexError:
                self._sleep()
                continue
            self._moved_at = time.monotonic()
            if works and self._asleep and not self._rousing:
                self._rouse()
            yield work

    def _may_leave(self) -> bool:
        with self._lock:
            may = len(self._there) - self._leaving > self._wanted
            self._leaving += may
            self._too_many = len(self._there) - self._leaving > self._wanted
            return may

    def _sleep(self) -> None:
        """Wait until something may be in the line, or somebody is to leave."""
        with self._lock:
            if self._works or self._too_many:  # It came just now.
                return
            self._asleep += 1
        self._calls.get()
        self._rousing = False

    def _rouse(self) -> None:
        """Wake somebody up, if nobody is about to."""
        with self._lock:
            if self._works and self._asleep and not self._rousing:
                self._rousing = True
                self._call()

    def _call(self) -> None:
        self._asleep -= 1
        self._calls.put(None)

    def _also(self, most: int) -> list[Run]:
        """Take what else waits: so many at most."""
        taken: list[Run] = []
        with suppress(IndexError):
            while len(taken) < most:
                taken.append(self._works.popleft())
        if taken:
            self._moved_at = time.monotonic()
        return taken

    def _put_back(self, works: Sequence[Run]) -> None:
        """Begin these before all others."""
        if works:
            self._works.extendleft(reversed(works))
            self._rouse()

    # -------------------------------------------------------- for control loops

    def submit(self, works: Iterable[Run]) -> None:
        """Begin these as soon as possible, in order."""
        self._moved_at = time.monotonic()
        self._works.extend(works)
        self._rouse()

    def waiting(self) -> int:
        """Return how many have not begun."""
        return len(self._works)

    def stuck_for(self) -> float:
        """Return for how many seconds something waits here and nothing begins."""
        return time.monotonic() - self._moved_at if self.waiting() else 0.0

    def take_back(self) -> list[Run]:
        """Return those that have not begun; they will not."""
        return self._also(len(self._works))

    def close(self) -> None:
        """Begin nothing more."""
        self.resize(0)
