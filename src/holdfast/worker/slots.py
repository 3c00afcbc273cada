"""Who gets a place: a worker has so many, and its queues share them.

A queue that may have work is hungry, and gets free places by its weight, or before all that come
after it. One that had less than it was given gives the rest back, and waits until it hears of more.
One that asks for work and is not answered, as its server is lost, has its places lent to others.

A queue that joins, or comes back, is given nothing before all others have said whether they have
work too. Else the one that is answered first would have all places, whatever its order or weight.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.engine.scripts import MAX_JOBS

LEND_SECONDS: Final = 1.0
"""A queue that does not hear from its server for so long does not need its places."""

FIRST_WORD_SECONDS: Final = 2.0
"""The longest that a queue waits for others that have not said yet whether they have work."""


@dataclass(eq=False, slots=True)
class Asking:
    """Places for which work was asked for, and no answer came yet."""

    count: int
    since: float


class Share:
    """One queue's part in the places. Its control loop is its only user."""

    def __init__(self, places: Places, weight: int, rouse: Callable[[], None]) -> None:
        self._places = places
        self.weight = weight
        self.rouse = rouse
        self.hungry = False
        self.has_spoken = False
        """Whether its server answers, so that it knows whether there may be work."""
        self.waits_until = 0.0
        """Until when it waits for those that have not spoken."""
        self.given = 0
        self.credit = 0
        self.asking: list[Asking] = []
        self.lent = 0
        """Places that were lent to others while it asked for work for them."""

    def take(self, most: int = MAX_JOBS) -> int:
        """Return how many places there are for this queue now: it has them until it frees them."""
        with self._places.lock:
            taken = min(self.given, most)
            self.given -= taken
            return taken

    def ask(self, count: int) -> Asking:
        """Ask for work for so many places: while there is no answer they may be lent to others."""
        asking = Asking(count, time.monotonic())
        with self._places.lock:
            self.asking.append(asking)
        return asking

    def answered(self, asking: Asking) -> None:
        """There was an answer, or there will be none."""
        with self._places.lock:
            if asking in self.asking:
                self.asking.remove(asking)

    def free(self, count: int) -> None:
        """So many places are free again."""
        with self._places.lock:
            repaid = min(count, self.lent)
            self.lent -= repaid
        self._places.add(count - repaid)

    def need(self, more: int) -> None:
        """Have so many places more, as soon as there are any; or fewer."""
        if more > 0:
            self._places.add(-more)
        else:
            self.free(-more)

    def hunger(self) -> None:
        """There may be work for more places."""
        if not self.has_spoken:
            self._places.hear(self)
        elif not self.hungry:
            self.hungry = True
            self._places.add(0)

    def had_enough(self) -> None:
        """There was no work for more places."""
        self.hungry = False

    def rest(self) -> None:
        """Want nothing until its server answers again, not even what was given and not taken."""
        with self._places.lock:
            self.hungry = self.has_spoken = False
            unused, self.given = self.given, 0
        self._places.add(unused)

    def leave(self) -> None:
        """Want nothing any more."""
        self._places.remove(self)


class Places:
    """The places of a worker."""

    def __init__(self, total: int, *, strict: bool) -> None:
        self.lock = threading.Lock()
        self.free = total
        self._total = total
        self._strict = strict
        self._shares: list[Share] = []

    def join(self, weight: int, rouse: Callable[[], None]) -> Share:
        """Let a queue take part, after those that are there."""
        share = Share(self, weight, rouse)
        with self.lock:
            self._shares.append(share)
        self.add(0)
        return share

    def remove(self, share: Share) -> None:
        """Let a queue take no part any more."""
        with self.lock:
            if share in self._shares:
                self._shares.remove(share)
            share.hungry = False
            self.free += share.given
            share.given = 0
        self.add(0)

    def hear(self, share: Share) -> None:
        """Note that the server of a queue answers. Those that are lost try again at once, too."""
        with self.lock:
            share.has_spoken = share.hungry = True  # At once: who waits for it sees both.
            share.waits_until = time.monotonic() + FIRST_WORD_SECONDS
            silent = [one for one in self._shares if not one.has_spoken]
        for one in silent:
            one.rouse()
        self.add(0)

    def resize(self, total: int) -> None:
        """Have so many places from now on. Those that are too many vanish as they become free."""
        with self.lock:
            more, self._total = total - self._total, total
        if more:
            self.add(more)

    def are_wanted(self) -> bool:
        """Tell whether all are taken, and somebody would have more."""
        with self.lock:
            return self.free <= 0 and any(share.hungry for share in self._shares)

    def rouse(self) -> None:
        """Have all queues look what there is to do."""
        for share in list(self._shares):
            share.rouse()

    def lend(self) -> None:
        """Let others have the places of those who are not answered."""
        late = time.monotonic() - LEND_SECONDS
        with self.lock:
            for share in self._shares:
                for asking in [one for one in share.asking if one.since < late]:
                    self.free += asking.count
                    share.lent += asking.count
                    share.asking.remove(asking)
                    share.hungry = False
        self.add(0)

    def add(self, count: int) -> None:
        """Give free places to those who are hungry. When some are left, all may listen again."""
        roused = set()
        with self.lock:
            was_full = self.free <= 0
            self.free += count
            hungry = self._ready()
            if len(hungry) == 1 or (hungry and self._strict):
                if self.free > 0:
                    hungry[0].given += self.free
                    self.free = 0
                    roused.add(hungry[0])
            else:
                while hungry and self.free > 0:
                    chosen = _next_by_weight(hungry)
                    chosen.given += 1
                    self.free -= 1
                    roused.add(chosen)
            if was_full and self.free > 0:
                roused.update(self._shares)
        for share in roused:
            share.rouse()

    def _ready(self) -> list[Share]:
        """Return who is hungry, and does not wait for what others will say."""
        hungry = [share for share in self._shares if share.hungry]
        if all(share.has_spoken for share in self._shares):
            return hungry
        now = time.monotonic()
        return [share for share in hungry if now >= share.waits_until]


def _next_by_weight(hungry: list[Share]) -> Share:
    """Take turns, each as often as its weight says, evenly spread."""
    for share in hungry:
        share.credit += share.weight
    chosen = max(hungry, key=lambda share: share.credit)
    chosen.credit -= sum(share.weight for share in hungry)
    return chosen
