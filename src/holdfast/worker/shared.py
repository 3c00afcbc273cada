"""The state that the control loops of a worker share: handlers, slots and executors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.worker.executors.base import Executor
from holdfast.worker.handlers import Handler, Handlers, Unknown
from holdfast.worker.hooks import Hooks
from holdfast.worker.pace import Pace
from holdfast.worker.slots import Slots


@dataclass
class Shared:
    """The state that the control loops of a worker share."""

    handlers: Handlers
    slots: Slots
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
    """How many runs are over: each may have added jobs to any of the queues."""
    quiet: dict[object, int] = field(default_factory=dict)
    """For each control loop, the value of `runs` at which it found no job; -1 if it has jobs."""

    def ran(self, count: int) -> None:
        """Record that `count` runs are over."""
        with self.lock:
            self.runs += count

    def found_nothing(self, one: object, after: int) -> tuple[bool, bool]:
        """Record that a control loop found no job when `after` runs were over.

        Return whether no loop has a job now, and whether no loop found one since the last run.
        """
        with self.lock:
            is_new, self.quiet[one] = self.quiet[one] != after, after
            known = list(self.quiet.values())
            still, over = -1 not in known, all(runs == self.runs for runs in known)
        if is_new:
            self.slots.rouse()  # The others may have waited for this loop only.
        return still, over

    def executors(self) -> list[Executor]:
        """Return the executors in use."""
        return [executor for executor in (self.plain, self.loop) if executor]

    def slots_wanted(self) -> int:
        """Return how many jobs to hold: none ahead if two executors share the concurrency."""
        return self.pace.least if self.handlers.are_mixed() else self.pace.slots()

    def resize(self, concurrency: int) -> None:
        """Change how many handlers run at a time."""
        with self.lock:
            self.concurrency = self.about["concurrency"] = concurrency
            self.pace.resize(concurrency)
            for executor in self.executors():
                executor.resize(concurrency)
        self.slots.resize(self.slots_wanted())

    def executor_for(self, handler: Handler) -> Executor:
        """Return the executor of a handler. It is created for the first handler that needs it."""
        with self.lock:
            if handler.is_async:
                self.loop = self.loop or self.make_loop(self.concurrency)
                return self.loop
            self.plain = self.plain or self.make_plain(self.concurrency)
            return self.plain
