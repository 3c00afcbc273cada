"""The driver's side of a stream's source: which claim comes next, and keeping what is open.

Offset n names claim n: a batch of leases, taken under the reader's name. A claim is settled
when Spark asks for what comes after it, for then it has committed it. Spark says so with
`commit` too, but only when there is a next batch.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

from holdfast.errors import Fenced, HoldfastError, LeaseLost, WrongState
from holdfast.job import Claim
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
        """Complete the claims up to this one: Spark has committed them."""
        if last >= self._settled:
            self._reader.settle(last + 1)
            self._settled = last + 1
            self._claims = {n: claim for n, claim in self._claims.items() if n > last}

    def after(self, start: int, count: int) -> int | None:
        """Return the claim that comes after this one; None when there is nothing to claim.

        One that was taken and not heard of is found again. It is no replay: Spark asks for what
        comes next only when it knows of nothing that it has still to do.
        """
        self._check(start)
        first = max(start + 1, self._settled)
        for n in range(first, self._next):
            try:
                self._claims[n] = self._reader.look(n)
            except (LeaseLost, WrongState):
                continue  # It was given back, so its jobs come again.
            return n
        if self._budget is not None:
            count = min(count, self._budget)
        if count < 1:
            return None
        count = min(count, MOST_JOBS)
        self._leave_when_orphaned()
        claim = self._reader.claim(self._next, count, claim_for=self._options.claim_for)
        if not claim.jobs:
            return None
        self._next = claim.n + 1
        self._claims[claim.n] = claim
        if self._budget is not None:
            self._budget -= claim.jobs
        return claim.n

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
        """Renew no more. What is open stays open: the stream may be started again."""
        self._stopped.set()

    def _check(self, start: int) -> None:
        """Refuse a checkpoint that is not of this reader."""
        if start == BEFORE_ALL:
            return
        what = None
        if start + 1 < self._settled:
            what = "behind it: another stream has gone on under this name"
        elif start >= self._next:
            what = "ahead of it: the queue was deleted, or is another one"
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
