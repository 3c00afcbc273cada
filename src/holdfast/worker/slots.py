"""What the control loops of a worker share: its slots, its executors, and how long runs take.

A worker distributes its slots, each for one job, among its queues.

A queue that may have work wants slots. It gets free slots by its weight or, with `strict`, before
all queues after it. A queue that had less work than slots frees the rest, and waits until it hears
of more work. While the server of a queue does not answer a lease call, the slots of that call are
lent to other queues.

A queue that joins, or whose server returns, gets no slots until all others know whether they have
work too. Otherwise the first server to answer would get all slots, whatever its order or weight.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from holdfast.engine.library import MAX_JOBS
from holdfast.worker.handlers import Handler, Handlers, Hooks
from holdfast.worker.job import Run, RunningJob

LEND_SECONDS: Final = 1.0
"""When a lease call is unanswered for this long, its slots are lent to other queues."""

FIRST_WORD_SECONDS: Final = 2.0
"""The longest that a queue waits for queues whose servers have not answered yet."""


@dataclass(eq=False, slots=True)
class Asking:
    """Slots of a lease call that is not answered yet."""

    count: int
    since: float


class Share:
    """The slots of one queue. Only its control loop uses it."""

    def __init__(self, slots: Slots, weight: int, rouse: Callable[[], None]) -> None:
        self._slots = slots
        self.weight = weight
        self.rouse = rouse
        self.wants_more = False
        self.has_answered = False
        """Whether its server answers, so that the queue knows whether there may be work."""
        self.waits_until = 0.0
        """Until when it waits for queues whose servers have not answered."""
        self.given = 0
        self.credit = 0
        self.asking: list[Asking] = []
        self.lent = 0
        """Slots that were lent to other queues while a lease call was unanswered."""

    def ask(self, most: int = MAX_JOBS) -> Asking | None:
        """Take up to `most` of the slots given to this queue, for a lease call.

        The queue keeps the slots of the jobs that it gets. All may be lent while it is unanswered.
        """
        with self._slots.lock:
            count = min(self.given, most)
            if not count:
                return None
            self.given -= count
            asking = Asking(count, time.monotonic())
            self.asking.append(asking)
            return asking

    def reserve(self, most: int, spare: int) -> Asking | None:
        """Reserve up to `most` free slots, except `spare`, for a call that waits for work.

        For the only queue of a worker. They are not lent.
        """
        with self._slots.lock:
            count = min(self._slots.free - spare, most)
            if count <= 0:
                return None
            self._slots.free -= count
            self._slots.reserved = count
        return Asking(count, math.inf)

    def answered(self, asking: Asking, used: int = 0) -> None:
        """Record that a lease call was answered or failed, and free the slots that it left."""
        with self._slots.lock:
            if asking in self.asking:
                self.asking.remove(asking)
            elif asking.since == math.inf:
                self._slots.reserved = 0
        if used != asking.count:
            self.free(asking.count - used)

    def free(self, count: int) -> None:
        """Free `count` slots. If negative, occupy more, as soon as they are free."""
        with self._slots.lock:
            repaid = max(0, min(count, self.lent))
            self.lent -= repaid
        self._slots.add(count - repaid)

    def want_more(self) -> None:
        """Record that the server answers and there may be more work."""
        if self.has_answered:
            if not self.wants_more:
                self.wants_more = True
                self._slots.add(0)
            return
        with self._slots.lock:
            # Under one lock: other queues must see both.
            self.has_answered = self.wants_more = True
            self.waits_until = time.monotonic() + FIRST_WORD_SECONDS
        self._slots.rouse(silent=True)  # Queues with lost servers retry at once.
        self._slots.add(0)

    def rest(self) -> None:
        """Want no slots until the server answers again; free those given but not taken."""
        with self._slots.lock:
            self.wants_more = self.has_answered = False
            unused, self.given = self.given, 0
        self._slots.add(unused)

    def leave(self) -> None:
        """Take no part any more."""
        with self._slots.lock:
            if self in self._slots.shares:
                self._slots.shares.remove(self)
            self.wants_more = False
            unused, self.given = self.given, 0
        self._slots.add(unused)


class Slots:
    """The slots of a worker."""

    def __init__(self, total: int, *, strict: bool) -> None:
        self.lock = threading.Lock()
        self.free = total
        self.reserved = 0
        """Slots of a call that waits for work."""
        self._total = total
        self._strict = strict
        self.shares: list[Share] = []

    def join(self, weight: int, rouse: Callable[[], None]) -> Share:
        """Add a queue, after the existing ones."""
        share = Share(self, weight, rouse)
        with self.lock:
            self.shares.append(share)
        self.add(0)
        return share

    def resize(self, total: int) -> None:
        """Change the number of slots. Surplus slots disappear as they become free."""
        with self.lock:
            more, self._total = total - self._total, total
        if more:
            self.add(more)

    def are_wanted(self) -> bool:
        """Return whether all slots are taken and a queue wants more."""
        with self.lock:
            return self.free + self.reserved <= 0 and any(share.wants_more for share in self.shares)

    def rouse(self, *, silent: bool = False) -> None:
        """Wake the control loops of all queues; if `silent`, only where no server has answered."""
        for share in list(self.shares):
            if not (silent and share.has_answered):
                share.rouse()

    def lend(self) -> None:
        """Lend the slots of unanswered lease calls to other queues."""
        late = time.monotonic() - LEND_SECONDS
        with self.lock:
            for share in self.shares:
                for asking in [one for one in share.asking if one.since < late]:
                    self.free += asking.count
                    share.lent += asking.count
                    share.asking.remove(asking)
                    share.wants_more = False
        self.add(0)

    def add(self, count: int) -> None:
        """Free slots, and give them to queues that want some. If some are left, all may listen."""
        roused: set[Share] = set()
        with self.lock:
            was_full = self.free <= 0
            self.free += count
            if self.free <= 0:
                return
            wants_more = self._ready()
            if len(wants_more) == 1 or (wants_more and self._strict):
                wants_more[0].given += self.free
                self.free = 0
                roused.add(wants_more[0])
            else:
                while wants_more and self.free > 0:
                    chosen = _next_by_weight(wants_more)
                    chosen.given += 1
                    self.free -= 1
                    roused.add(chosen)
            if was_full and self.free > 0:
                roused.update(self.shares)
        for share in roused:
            share.rouse()

    def _ready(self) -> list[Share]:
        """Return the queues that want slots and need not wait for other servers to answer."""
        wants_more, all_known = [], True
        for share in self.shares:
            all_known = all_known and share.has_answered
            if share.wants_more:
                wants_more.append(share)
        if all_known:
            return wants_more
        now = time.monotonic()
        return [share for share in wants_more if now >= share.waits_until]


def _next_by_weight(wants_more: list[Share]) -> Share:
    """Return the next queue in a weighted round robin, turns evenly spread."""
    for share in wants_more:
        share.credit += share.weight
    chosen = max(wants_more, key=lambda share: share.credit)
    chosen.credit -= sum(share.weight for share in wants_more)
    return chosen


# ------------------------------------------------------------------ how many jobs are held
# A call costs as much as many short jobs, so short jobs are leased many at a time. A longer job is
# leased only when it can start, so it never waits in this worker behind another.


MOST_AHEAD: Final = 500
"""A call leases half of this, which occupies the server for a millisecond or two. With more, other
clients would wait."""

MOST_PATIENCE: Final = 0.002
"""The longest that a finished job waits to be settled, in seconds."""

_FORGETTING: Final = 0.1
"""The weight of a new, shorter run in the estimate."""


class Pace:
    """Estimates how long runs take: a longer run counts at once, shorter runs little by little."""

    def __init__(self, concurrency: int, ahead: float, most_at_once: int = 1) -> None:
        self.most_at_once = most_at_once
        """Jobs that one call of a handler runs."""
        self._ahead = ahead
        self._seconds: float | None = None
        self.slots = self.per_call = self.worth_another = 0
        self.resize(concurrency)

    def resize(self, concurrency: int) -> None:
        """Change how many run at a time."""
        self._concurrency = concurrency
        self.least = concurrency * self.most_at_once
        self.update()

    def saw(self, seconds: float) -> None:
        """Update the estimate with the duration of a run."""
        known = self._seconds
        if known is None or seconds > known:
            self._seconds = seconds
        else:
            self._seconds = known + (seconds - known) * _FORGETTING

    def update(self) -> None:
        """Calculate how many jobs to hold and to lease per call.

        slots          jobs to hold: `ahead` seconds of work, at least what can run at once
        per_call       jobs to lease per call: half, so that the other half runs meanwhile
        worth_another  free slots that justify a second call while one is pending; 0 for never
        """
        ahead = 0
        if self._ahead and self._seconds is not None:
            worth = self._ahead / max(self._seconds, 1e-6) - 1
            ahead = max(0, min(MOST_AHEAD, int(self._concurrency * worth)))
        self.slots = self.least + ahead
        self.per_call = max(self.least, self.slots // 2)
        self.worth_another = self.slots // 2 if ahead else 0

    def worth(self, waiting: int) -> float:
        """Return for how many seconds no lease call is needed while `waiting` jobs wait here."""
        if not self._seconds:
            return 0.0
        return min(MOST_PATIENCE, waiting * self._seconds / self._concurrency / 2)


def extend_every(lease_seconds: float, held: int) -> float:
    """Return the seconds between extensions: 1, since an extension also reports cancelled jobs.

    With thousands of jobs it is longer, but two more extensions always fit into the lease.
    """
    return min(lease_seconds / 3, max(1.0, held / 1000))


# ---------------------------------------------------------------------------- the whole worker


class Executor:
    """Where handlers run: the interface that control loops use, and the runs that wait.

    Loops submit runs and are notified when each is finished. An executor starts runs in order, as
    soon as it can; `take_back` returns those that it has not started.
    """

    ends_within = 0.0
    """Seconds within which a stopped run has ended; 0 where a run cannot be ended."""

    def __init__(self) -> None:
        self._works: deque[Run] = deque()
        """The runs that have not started."""
        self._moved_at = time.monotonic()
        """When runs were last submitted or taken."""

    @property
    def is_one_thread(self) -> bool:
        """Whether all its runs are carried out in one thread, one at a time."""
        return False

    def submit(self, works: Iterable[Run]) -> None:
        """Start these runs in order, as soon as possible."""
        self._moved_at = time.monotonic()
        self._works.extend(works)

    def waiting(self) -> int:
        """Return how many runs have not started."""
        return len(self._works)

    def stuck_for(self) -> float:
        """Return for how many seconds runs have been waiting while none started."""
        return time.monotonic() - self._moved_at if self.waiting() else 0.0

    def take_back(self) -> list[Run]:
        """Remove and return the runs that have not started."""
        return self._take(len(self._works))

    def _take(self, most: int) -> list[Run]:
        """Remove up to `most` of the waiting runs. Other threads may take some at the same time."""
        taken: list[Run] = []
        with suppress(IndexError):
            while len(taken) < most:
                taken.append(self._works.popleft())
        if taken:
            self._moved_at = time.monotonic()
        return taken

    def stop_job(self, job: RunningJob) -> None:
        """End the run of this job where possible. `job.stop_reason` says why."""

    def begun(self) -> list[tuple[Run, str]]:
        """Return the active runs with readable locations. Called in a signal handler: no locks."""
        return []

    def resize(self, count: int) -> None:
        """Change how many runs are active at a time."""

    def close(self) -> None:
        """Stop starting runs."""


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
    executors: dict[bool, Executor] = field(default_factory=dict)
    """Those in use, by whether their handlers are coroutine functions."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    runs: int = 0
    """How many runs are over: each may have added jobs to any of the queues."""
    quiet: dict[object, int] = field(default_factory=dict)
    """For each control loop, the value of `runs` at which it found no job; -1 if it has jobs."""

    def ran(self, count: int) -> None:
        """Record that `count` runs are over, and adjust the number of slots to the pace."""
        with self.lock:
            self.runs += count
        self.pace.update()
        # None ahead if two executors share the concurrency.
        self.slots.resize(self.pace.least if self.handlers.are_mixed else self.pace.slots)

    def found_nothing(self, one: object, after: int) -> tuple[bool, bool]:
        """Record that a control loop found no job when `after` runs were over.

        Return whether no loop has a job now, and whether no loop found one since the last run.
        """
        with self.lock:
            is_new, self.quiet[one] = self.quiet[one] != after, after
            known = set(self.quiet.values())
            still, over = -1 not in known, known == {self.runs}
        if is_new:
            self.slots.rouse()  # The others may have waited for this loop only.
        return still, over

    def resize(self, concurrency: int) -> None:
        """Change how many handlers run at a time."""
        with self.lock:
            self.concurrency = self.about["concurrency"] = concurrency
            self.pace.resize(concurrency)
            for executor in self.executors.values():
                executor.resize(concurrency)
        self.ran(0)

    def executor_for(self, handler: Handler) -> Executor:
        """Return the executor of a handler. It is created for the first handler that needs it."""
        with self.lock:
            if handler.is_async not in self.executors:
                make = self.make_loop if handler.is_async else self.make_plain
                self.executors[handler.is_async] = make(self.concurrency)
            return self.executors[handler.is_async]
