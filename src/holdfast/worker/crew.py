"""Threads that take runs from one plain queue. Their number may change while they work."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from holdfast.worker.running import Run

log = logging.getLogger("holdfast")


class Crew:
    """So many threads. Each has a number of its own, below the most that there ever shall be."""

    def __init__(self, name: str, labour: Callable[[int, Iterator[Run]], None], count: int) -> None:
        self._name = name
        self._labour = labour
        self._works: deque[Run] = deque()
        # A plain queue: an executor object with a future per job costs fifty times as much.
        self._calls: SimpleQueue[bool] = SimpleQueue()
        """One for each of the works. Whoever takes a False leaves, if there are too many."""
        self._calls_to_leave = 0
        self._lock = threading.Lock()
        self._wanted = 0
        self._there: set[int] = set()
        self._leaving = 0
        self._moved_at = time.monotonic()
        try:
            self.resize(count)
        except RuntimeError:  # So many threads cannot be started: all, or none.
            self.resize(0)
            raise

    def resize(self, count: int) -> None:
        """Be so many from now on. Those that are too many leave once they have nothing to do."""
        with self._lock:
            self._wanted = count
            for _ in range(count - len(self._there)):
                number = next(n for n in range(count) if n not in self._there)
                threading.Thread(
                    target=self._work, args=(number,), name=f"{self._name} {number}", daemon=True
                ).start()
                self._there.add(number)
            for _ in range(len(self._there) - self._leaving - count):
                self._calls_to_leave += 1
                self._calls.put(False)

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

    def _take(self) -> Iterator[Run]:
        while True:
            if self._calls.get():
                self._moved_at = time.monotonic()
                yield self._works.popleft()
            elif self._may_leave():
                return

    def _also(self, most: int) -> list[Run]:
        """Take what else waits: so many at most."""
        taken: list[Run] = []
        with suppress(Empty):
            while len(taken) < most:
                if not self._calls.get_nowait():  # Somebody is to leave.
                    self._calls.put(False)
                    break
                taken.append(self._works.popleft())
        if taken:
            self._moved_at = time.monotonic()
        return taken

    def _may_leave(self) -> bool:
        with self._lock:
            self._calls_to_leave -= 1
            too_many = len(self._there) - self._leaving > self._wanted
            self._leaving += too_many
            return too_many

    # -------------------------------------------------------- for control loops

    def submit(self, works: Iterable[Run]) -> None:
        """Begin these as soon as possible, in order."""
        self._moved_at = time.monotonic()
        for work in works:
            self._works.append(work)
            self._calls.put(True)

    def _put_back(self, works: Sequence[Run]) -> None:
        """Begin these before all others."""
        self._works.extendleft(reversed(works))
        for _ in works:
            self._calls.put(True)

    def waiting(self) -> int:
        """Return how many have not begun."""
        return max(0, self._calls.qsize() - self._calls_to_leave)

    def stuck_for(self) -> float:
        """Return for how many seconds something waits here and nothing begins."""
        return time.monotonic() - self._moved_at if self.waiting() else 0.0

    def take_back(self) -> list[Run]:
        """Return those that have not begun; they will not."""
        taken, to_leave = [], 0
        with suppress(Empty):
            while True:
                if self._calls.get_nowait():
                    taken.append(self._works.popleft())
                else:
                    to_leave += 1
        for _ in range(to_leave):
            self._calls.put(False)
        return taken

    def close(self) -> None:
        """Begin nothing more."""
        self.resize(0)
