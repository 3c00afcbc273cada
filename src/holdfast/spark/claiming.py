"""The driver's side of a stream's source: which claim comes next, and keeping what is open.

Offset n names claim n: a batch of leases, taken under the reader's name. A claim is settled
when Spark asks for what comes after it, for then it has committed it. Spark says so with
`commit` too, but only when there is a next batch.

While Spark works on a batch, the one before it is settled, and where there is a backlog the next
one is claimed already: see `ahead.py`.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import Final

from holdfast.errors import Fenced, HoldfastError, LeaseLost, WrongState
from holdfast.job import Claim
from holdfast.spark.ahead import AHEAD_SECONDS, Ahead
from holdfast.spark.options import SourceOptions

log = logging.getLogger("holdfast")

BEFORE_ALL: Final = -1
"""The offset of a stream that has just begun: wherever its reader stands."""

MOST_JOBS: Final = 1_000_000
"""Of one claim: what is more comes with the next."""

RENEW_SECONDS: Final = 60.0
PARENT_SECONDS: Final = 1.0


class Claiming:
    """One life of a reader: opening it fences whoever had this name before."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._parent = os.getppid()
        self._queue = options.place.open()
        self._reader = self._queue.reader(options.reader)
        opened = self._reader.open()
        self.epoch = opened.epoch
        self._settled, self._next = opened.settled, opened.next
        # What was begun and not finished: Spark never heard of it.
        self._reader.give_back(opened.next)
        self._claims: dict[int, Claim] = {}
        self._budget: int | None = None
        self._ahead: Ahead | None = None
        self._untold: int | None = None
        self._asked_at = -math.inf
        self._stopped = threading.Event()
        threading.Thread(target=self._keep, name=f"claims of {options.reader}", daemon=True).start()

    def only_what_waits(self) -> None:
        """Claim no more from now on than what waits now."""
        self._queue.tidy()
        self._budget = self.waiting()

    def waiting(self) -> int:
        """Return how many jobs could be claimed, if no limit held them back."""
        counts = self._queue.counts()
        return counts.ready + counts.parked

    def settle(self, last: int) -> None:
        """Complete the claims up to this one, where that is not being done: they are committed."""
        if last >= self._settled:
            self._catch_up()
            self._reader.settle(last + 1)
            self._is_settled(last)

    def after(self, start: int, count: int) -> int | None:
        """Return the claim that comes after this one; None when there is nothing to claim.

        This one is settled, before a claim or, when the next claim is there already, meanwhile.
        """
        self._catch_up()
        self._check(start)
        count = min(count, MOST_JOBS)
        n = self._unheard_of(start)
        if n is None:
            self.settle(start)
            n = self._claim(count)
        if n is None:
            return None
        before, self._asked_at = self._asked_at, time.monotonic()
        is_soon = self._asked_at - before < AHEAD_SECONDS
        # One claim ahead at most, and only where there is a backlog that Spark asks for soon.
        is_worth_it = is_soon and n == self._next - 1 and self._claims[n].jobs >= count
        more = self._within_budget(count) if is_worth_it else 0
        if more or start >= self._settled:
            self._leave_when_orphaned()
            self._ahead = Ahead(self._reader, start + 1, self._next, more, self._options.claim_for)
            self._is_settled(start)
        self._untold = None
        return n

    def _unheard_of(self, start: int) -> int | None:
        """Return a claim that was taken and not heard of; None for none.

        It is no replay: Spark asks for what comes next only when it knows of nothing that it has
        still to do.
        """
        for n in range(max(start + 1, self._settled), self._next):
            try:
                # One that is held is returned as it is, to the newest reader only.
                self._claims[n] = self._reader.claim(n, 1, claim_for=self._options.claim_for)
            except (LeaseLost, WrongState):
                # Its jobs come again, all of them: what would be left of it would be settled.
                self._reader.give_back(n)
            else:
                return n
        return None

    def _claim(self, count: int) -> int | None:
        count = self._within_budget(count)
        if count < 1:
            return None
        self._leave_when_orphaned()
        claim = self._reader.claim(self._next, count, claim_for=self._options.claim_for)
        return self._taken(claim) if claim.jobs else None

    def _taken(self, claim: Claim) -> int:
        self._next = claim.n + 1
        self._claims[claim.n] = claim
        self._untold = claim.n
        if self._budget is not None:
            self._budget -= claim.jobs
        return claim.n

    def _within_budget(self, count: int) -> int:
        return count if self._budget is None else min(count, self._budget)

    def _is_settled(self, last: int) -> None:
        self._settled = max(self._settled, last + 1)
        self._claims = {n: claim for n, claim in self._claims.items() if n > last}

    def _catch_up(self) -> None:
        """Wait for what is done meanwhile; raises what went wrong with it."""
        if self._ahead is None:
            return
        ahead = self._ahead
        try:
            claim = ahead.ask()
        except HoldfastError:
            self._ahead = None  # It is told once.
            raise
        self._ahead = None
        if claim:
            self._taken(claim)
            if ahead.is_given_back and self._budget is not None:
                self._budget += claim.jobs

    def chunks(self, n: int) -> tuple[int, ...]:
        """Return how many jobs each chunk of a claim has; a replay finds the same, or fails."""
        if n not in self._claims:
            try:
                self._claims[n] = self._reader.look(n)
            except (LeaseLost, WrongState) as error:
                raise type(error)(
                    f"claim {n} of reader {self._options.reader!r} cannot be replayed: {error}. "
                    "Its jobs are, or were, somebody else's. Start the stream with a new "
                    "checkpointLocation, and give a claimFor longer than it may be down"
                ) from None
        return self._claims[n].chunks

    def stop(self) -> None:
        """Renew no more, and give back what Spark has not heard of.

        What it has heard of stays open: the stream may be started again.
        """
        self._stopped.set()
        try:
            self._catch_up()
            if self._untold is not None:
                self._reader.give_back(self._untold)
        except HoldfastError as error:
            log.warning("reader %r: %s", self._options.reader, error)

    def _check(self, start: int) -> None:
        """Refuse a checkpoint that is not of this reader."""
        if start == BEFORE_ALL:
            return
        what = None
        if start + 1 < self._settled:
            what = "behind it: another stream has gone on under this name"
        elif start >= self._next:
            what = "ahead of it: the queue was deleted or is another, or the reader was forgotten"
        if what:
            raise WrongState(
                f"the checkpoint (claim {start}) is not that of reader {self._options.reader!r}, "
                f"but {what}. Give the stream a name of its own with option 'reader', or a new "
                "checkpointLocation"
            )

    def _keep(self) -> None:
        """Renew what is open, until the stream stops, is fenced, or its Spark is gone."""
        every = min(RENEW_SECONDS, self._options.claim_for / 4)
        waited = 0.0
        tick = min(PARENT_SECONDS, every)
        while not self._stopped.wait(tick):
            self._leave_when_orphaned()
            waited += tick
            if waited < every:
                continue
            waited = 0.0
            try:
                self._reader.renew(claim_for=self._options.claim_for)
            except Fenced:
                return  # The next question of Spark is told so.
            except HoldfastError as error:
                log.warning("reader %r: %s; trying again", self._options.reader, error)

    def _leave_when_orphaned(self) -> None:
        """End this process when its Spark is gone: a kill of the JVM leaves it running."""
        if os.getppid() != self._parent:
            os._exit(1)
