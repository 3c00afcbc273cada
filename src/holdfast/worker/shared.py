"""What the control loops of a worker share: handlers, places, and where handlers run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.worker.executors.base import Executor
from holdfast.worker.handlers import Handler, Handlers, Unknown
from holdfast.worker.hooks import Hooks
from holdfast.worker.pace import Pace
from holdfast.worker.slots import Places


@dataclass
class Shared:
    """What the control loops of a worker share."""

    handlers: Handlers
    places: Places
    pace: Pace
    lease_seconds: float
    concurrency: int
    make_plain: Callable[[int], Executor]
    make_loop: Callable[[int], Executor]
    hooks: Sequence[Hooks] = ()
    about: dict[str, object] = field(default_factory=dict)
    until_empty: bool = False
    plain: Executor | None = None
    loop: Executor | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    unknown: Unknown = field(default_factory=Unknown)
    runs: int = 0
    """How many are over: each may have added something to any of the queues."""
    quiet: dict[object, int] = field(default_factory=dict)
    """The control loops, each with the `runs` after which it found nothing; -1 if it has jobs."""

    def ran(self, count: int) -> None:
        """Note that so many runs are over."""
        with self.lock:
            self.runs += count

    def found_nothing(self, one: object, after: int) -> tuple[bool, bool]:
        """Note that a control loop found nothing after so many runs.

        Return whether nobody has a job now, and whether nobody found any since the last one ran.
        """
        with self.lock:
            is_new, self.quiet[one] = self.quiet[one] != after, after
            known = list(self.quiet.values())
            still, over = -1 not in known, all(runs == self.runs for runs in known)
        if is_new:
            self.places.rouse()  # It may have been the last that the others wait for.
        return still, over

    def executors(self) -> list[Executor]:
        """Return those that are in use."""
        return [executor for executor in (self.plain, self.loop) if executor]

    def places_wanted(self) -> int:
        """Return how many jobs to hold: none ahead where two executors share the concurrency."""
        return self.pace.least if self.handlers.are_mixed() else self.pace.places()

    def resize(self, concurrency: int) -> None:
        """Have so many handlers run at a time from now on."""
        with self.lock:
            self.concurrency = self.about["concurrency"] = concurrency
            self.pace.resize(concurrency)
            for executor in self.executors():
                executor.resize(concurrency)
        self.places.resize(self.places_wanted())

    def executor_for(self, handler: Handler) -> Executor:
        """Return where a handler runs; made for the first one, which may come late."""
        with self.lock:
            if handler.is_async:
                self.loop = self.loop or self.make_loop(self.concurrency)
                return self.loop
            self.plain = self.plain or self.make_plain(self.concurrency)
            return self.plain
