"""The chaos: workers are killed, frozen and told to stop, while jobs do all that jobs can do."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from itertools import count

from faults.chaos_proof import Sent
from faults.chaos_workers import LEASE_SECONDS
from faults.journal import Order, Way, encode, now
from faults.massacre import Herd
from holdfast import Queue, Update
from holdfast.job import OnConflict
from support import DEADLINE

WORKERS = 5
BACKLOG = 40
"""So many jobs wait at least, as long as it lasts."""

SHARED_IDS = 8
"""Ids that are used again and again, also while they run."""

KILL_EVERY = 0.4
FREEZE_EVERY = 1.0
RETIRE_EVERY = 1.5


class Every:
    """Something that is done again and again, at about this distance."""

    def __init__(self, seconds: float, dice: random.Random, do: Callable[[], None]) -> None:
        self._seconds = seconds
        self._dice = dice
        self._do = do
        self._next_at = time.monotonic() + seconds

    def tick(self) -> None:
        if time.monotonic() >= self._next_at:
            self._do()
            self._next_at = time.monotonic() + self._dice.uniform(0.5, 1.5) * self._seconds


class Chaos:
    """Adds jobs, and is cruel to those who run them."""

    def __init__(self, queue: Queue, herd: Herd, dice: random.Random) -> None:
        self._queue = queue
        self._herd = herd
        self._dice = dice
        self._names = count()
        self._frozen: dict[int, float] = {}
        """Who is frozen, and until when."""
        self._leaving: dict[int, float] = {}
        """Who was told to stop, and until when it may."""
        self.sent: list[Sent] = []
        self.frozen = self.retired = 0
        self._cruelty = [
            Every(KILL_EVERY, dice, self._kill),
            Every(FREEZE_EVERY, dice, self._freeze),
            Every(RETIRE_EVERY, dice, self._retire),
        ]

    def run(self, seconds: float) -> None:
        """Let it last for so long; then let everything come to its end."""
        for _ in range(WORKERS):
            self._herd.fork()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._feed()
            self._tick()
            time.sleep(0.02)
        self._drain()
        for pid in list(self._leaving):
            self._herd.end(pid)
        self._herd.kill_all()

    def _drain(self) -> None:
        # What hangs ends with its worker: kill as before, and faster when nothing else is left.
        kill, kill_fast = (Every(KILL_EVERY / n, self._dice, self._kill) for n in (1, 4))
        deadline = time.monotonic() + 2 * DEADLINE
        while (counts := self._queue.counts()).waiting or counts.leased or counts.failed:
            assert time.monotonic() < deadline, f"still there: {counts}"
            (kill if counts.ready else kill_fast).tick()
            self._end_pauses()
            if not (counts.waiting or counts.leased):
                self._replace_failed()
            time.sleep(0.02)

    def _replace_failed(self) -> None:
        """Replace failed jobs whose handler was killed: it would be asked again in 10 s or more."""
        for job in self._queue.failed(1000):
            if job.facts.handlings:
                order = Order(str(next(self._names)), ["return"], max_lapses=3)
                self._queue.add(encode(order), id=job.id, max_failures=0, on_conflict="update")
                self.sent.append(Sent(job.id, order))

    # ------------------------------------------------------------------ jobs

    def _feed(self) -> None:
        while len(self._queue) < BACKLOG:
            self._add()

    def _add(self) -> None:
        dice, order = self._dice, self._order()
        id, how = f"job {order.name}", self._dice.choice(("ignore", "update"))
        on_conflict: OnConflict = "ignore"
        if dice.random() < 0.3:
            id = f"shared {dice.randrange(SHARED_IDS)}"
            if how == "update":
                on_conflict = Update(due=dice.random() < 0.8, counts=dice.choice((None, False)))
        delay = dice.uniform(0.05, 1.0) if dice.random() < 0.2 else 0.0
        # An update that leaves the time alone may run sooner.
        exact = isinstance(on_conflict, str) or on_conflict.due is True
        asked_at = now()
        receipt = self._queue.add(
            encode(order),
            id=id,
            delay=delay,
            on_conflict=on_conflict,
            priority=order.priority,
            max_failures=order.max_failures,
            max_lapses=order.max_lapses,
            min_backoff=0.02,
            max_backoff=0.1,
            handler="coroutine" if dice.random() < 0.4 else None,
            timeout=0.4 if dice.random() < 0.5 else None,
        )
        not_before = asked_at + delay * 1000 if exact or receipt.created else 0
        self.sent.append(Sent(id, order, not_before, kept=receipt.created or receipt.updated))

    def _order(self) -> Order:
        dice = self._dice
        ways: tuple[Way, ...] = ("return", "raise", "retry", "hang", "linger", "fail")
        first = dice.choices(ways, (50, 12, 12, 4, 8, 2), k=dice.randint(0, 3))
        (last,) = dice.choices(ways, (80, 5, 3, 2, 5, 5))
        return Order(
            name=str(next(self._names)),
            plan=[*first, last],
            max_failures=dice.randint(0, 3),
            max_lapses=dice.randint(0, 2),
            priority=dice.choice((20, 50, 50, 80)),
            follow_up=dice.random() < 0.2,
        )

    # --------------------------------------------------------------- workers

    def _tick(self) -> None:
        for one in self._cruelty:
            one.tick()
        self._end_pauses()

    def _end_pauses(self) -> None:
        for pid, until in list(self._frozen.items()):
            if time.monotonic() >= until:
                del self._frozen[pid]
                os.kill(pid, signal.SIGCONT)
        for pid, until in list(self._leaving.items()):
            if time.monotonic() >= until:
                del self._leaving[pid]
                self._herd.end(pid)

    def _kill(self) -> None:
        """Kill any of them, also one that is frozen."""
        before = set(self._herd.pids)
        self._herd.kill_one()
        for pid in before - set(self._herd.pids):
            self._frozen.pop(pid, None)

    def _freeze(self) -> None:
        """Let one do nothing for longer than its leases last."""
        pid = self._dice.choice(self._herd.pids)
        if pid not in self._frozen:
            os.kill(pid, signal.SIGSTOP)
            self._frozen[pid] = time.monotonic() + LEASE_SECONDS * self._dice.uniform(1.2, 2.0)
            self.frozen += 1

    def _retire(self) -> None:
        """Tell one to stop; what it cannot finish it gives back."""
        pid = self._dice.choice(self._herd.pids)
        if pid in self._frozen:
            return
        os.kill(pid, signal.SIGTERM)
        self._herd.pids.remove(pid)
        self._herd.fork()
        self._leaving[pid] = time.monotonic() + 5.0
        self.retired += 1
