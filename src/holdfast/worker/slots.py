"""Distributes the slots of a worker, each for one job, among its queues.

A queue that may have work wants slots. It gets free slots by its weight or, with `strict`, before
all queues after it. A queue that had less work than slots frees the rest, and waits until it hears
of more work. While the server of a queue does not answer a lease call, the slots of that call are
lent to other queues.

A queue that joins, or whose server returns, gets no slots until all others know whether they have
work too. Otherwise the first server to answer would get all slots, whatever its order or weight.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.engine.library import MAX_JOBS

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

    def take(self, most: int = MAX_JOBS) -> int:
        """Take up to `most` of the slots given to this queue. It keeps them until it frees them."""
        with self._slots.lock:
            taken = min(self.given, most)
            self.given -= taken
            return taken

    def ask(self, count: int) -> Asking:
        """Record a lease call for `count` slots, which may be lent while it is unanswered."""
        asking = Asking(count, time.monotonic())
        with self._slots.lock:
            self.asking.append(asking)
        return asking

    def answered(self, asking: Asking) -> None:
        """Record that a lease call was answered or failed."""
        with self._slots.lock:
            if asking in self.asking:
                self.asking.remove(asking)

    def free(self, count: int) -> None:
        """Free `count` slots."""
        with self._slots.lock:
            repaid = min(count, self.lent)
            self.lent -= repaid
        self._slots.add(count - repaid)

    def need(self, more: int) -> None:
        """Occupy `more` slots in addition, as soon as they are free; if negative, free some."""
        if more > 0:
            self._slots.add(-more)
        else:
            self.free(-more)

    def want_more(self) -> None:
        """Record that there may be more work."""
        if not self.has_answered:
            self._slots.hear(self)
        elif not self.wants_more:
            self.wants_more = True
            self._slots.add(0)

    def want_no_more(self) -> None:
        """Record that all available work has been leased."""
        self.wants_more = False

    def rest(self) -> None:
        """Want no slots until the server answers again; free those given but not taken."""
        with self._slots.lock:
            self.wants_more = self.has_answered = False
            unused, self.given = self.given, 0
        self._slots.add(unused)

    def leave(self) -> None:
        """Take no part any more."""
        self._slots.remove(self)


class Slots:
    """The slots of a worker."""

    def __init__(self, total: int, *, strict: bool) -> None:
        self.lock = threading.Lock()
        self.free = total
        self._total = total
        self._strict = strict
        self._shares: list[Share] = []

    def join(self, weight: int, rouse: Callable[[], None]) -> Share:
        """Add a queue, after the existing ones."""
        share = Share(self, weight, rouse)
        with self.lock:
            self._shares.append(share)
        self.add(0)
        return share

    def remove(self, share: Share) -> None:
        """Remove a queue."""
        with self.lock:
            if share in self._shares:
                self._shares.remove(share)
            share.wants_more = False
            self.free += share.given
            share.given = 0
        self.add(0)

    def hear(self, share: Share) -> None:
        """Record that the server of a queue answers. Queues with lost servers retry at once."""
        with self.lock:
            # Under one lock: other queues must see both.
            share.has_answered = share.wants_more = True
            share.waits_until = time.monotonic() + FIRST_WORD_SECONDS
            silent = [one for one in self._shares if not one.has_answered]
        for one in silent:
            one.rouse()
        self.add(0)

    def resize(self, total: int) -> None:
        """Change the number of slots. Surplus slots disappear as they become free."""
        with self.lock:
            more, self._total = total - self._total, total
        if more:
            self.add(more)

    def are_wanted(self) -> bool:
        """Return whether all slots are taken and a queue wants more."""
        with self.lock:
            return self.free <= 0 and any(share.wants_more for share in self._shares)

    def rouse(self) -> None:
        """Wake the control loops of all queues."""
        for share in list(self._shares):
            share.rouse()

    def lend(self) -> None:
        """Lend the slots of unanswered lease calls to other queues."""
        late = time.monotonic() - LEND_SECONDS
        with self.lock:
            for share in self._shares:
                for asking in [one for one in share.asking if one.since < late]:
                    self.free += asking.count
                    share.lent += asking.count
                    share.asking.remove(asking)
                    share.wants_more = False
        self.add(0)

    def add(self, count: int) -> None:
        """Free slots, and give them to queues that want some. If some are left, all may listen."""
        roused = set()
        with self.lock:
            was_full = self.free <= 0
            self.free += count
            wants_more = self._ready()
            if len(wants_more) == 1 or (wants_more and self._strict):
                if self.free > 0:
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
                roused.update(self._shares)
        for share in roused:
            share.rouse()

    def _ready(self) -> list[Share]:
        """Return the queues that want slots and need not wait for other servers to answer."""
        wants_more = [share for share in self._shares if share.wants_more]
        if all(share.has_answered for share in self._shares):
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
