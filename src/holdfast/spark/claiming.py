"""The driver's side of a stream's source: make the next claim, and keep open claims alive.

Offset n names claim n: a batch of leases, taken under the reader's name. Spark asks for the offset
after n when it has committed n, so claim n is settled then. Spark also calls `commit`, but only
when there is a next batch.

While Spark works on a batch, the previous claim is settled and, if there is a backlog, the next one
is made: see `ahead.py`.
"""

from __future__ import annotations

import math
import os
import threading
import time
from typing import Final

from holdfast.errors import Fenced, HoldfastError, LeaseLost, WrongState
from holdfast.escaping import logger
from holdfast.job import Claim
from holdfast.spark.ahead import AHEAD_SECONDS, Ahead
from holdfast.spark.options import SourceOptions

log = logger(__name__)

BEFORE_ALL: Final = -1
"""The offset of a new stream, which starts wherever its reader stands."""

MOST_JOBS: Final = 1_000_000
"""The most jobs of one claim. The next claim takes the rest."""

RENEW_SECONDS: Final = 60.0
PARENT_SECONDS: Final = 1.0


class Claiming:
    """One incarnation of a reader. Opening it fences older readers of the same name."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._parent = os.getppid()
        self._queue = options.place.open()
        self._reader = self._queue.reader(options.reader)
        opened = self._reader.open()
        self.epoch = opened.epoch
        self._settled, self._next = opened.settled, opened.next
        # A claim that was begun but not finished: Spark does not know its offset.
        self._reader.give_back(opened.next)
        self._claims: dict[int, Claim] = {}
        self._budget: int | None = None
        self._ahead: Ahead | None = None
        self._unreported: int | None = None
        self._asked_at = -math.inf
        self._stopped = threading.Event()
        threading.Thread(target=self._keep, name=f"claims of {options.reader}", daemon=True).start()

    def limit_to_waiting(self) -> None:
        """Claim, from now on, at most as many jobs as are waiting now."""
        self._queue.tidy()
        self._budget = self.waiting()

    def waiting(self) -> int:
        """Return how many jobs could be claimed, if no limit held them back."""
        counts = self._queue.counts()
        return counts.ready + counts.parked

    def settle(self, last: int) -> None:
        """Settle the committed claims up to this one, unless that is done or under way."""
        if last >= self._settled:
            self._catch_up()
            self._reader.settle(last + 1)
            self._is_settled(last)

    def after(self, start: int, count: int) -> int | None:
        """Return the number of the claim after `start`; None when there is nothing to claim.

        Claim `start` is settled: before the next claim is made or, if that exists already, in the
        background.
        """
        self._catch_up()
        self._check(start)
        count = min(count, MOST_JOBS)
        n = self._existing(start)
        if n is None:
            self.settle(start)
            n = self._claim(count)
        if n is None:
            return None
        before, self._asked_at = self._asked_at, time.monotonic()
        is_soon = self._asked_at - before < AHEAD_SECONDS
        # At most one claim ahead, and only if there is a backlog and Spark asks soon.
        is_worth_it = is_soon and n == self._next - 1 and self._claims[n].jobs >= count
        more = self._within_budget(count) if is_worth_it else 0
        if more or start >= self._settled:
            self._exit_if_orphaned()
            self._ahead = Ahead(self._reader, start + 1, self._next, more, self._options.claim_for)
            self._is_settled(start)
        self._unreported = None
        return n

    def _existing(self, start: int) -> int | None:
        """Return a claim after `start` that exists, but whose offset Spark does not know, or None.

        This is not a replay: Spark asks for the next offset only after it has run all batches that
        it knows.
        """
        for n in range(max(start + 1, self._settled), self._next):
            try:
                # A claim that is held is returned as it is, but only to the newest reader.
                self._claims[n] = self._reader.claim(n, 1, claim_for=self._options.claim_for)
            except (LeaseLost, WrongState):
                # Give back the rest too: a later settle would complete jobs that never ran.
                self._reader.give_back(n)
            else:
                return n
        return None

    def _claim(self, count: int) -> int | None:
        count = self._within_budget(count)
        if count < 1:
            return None
        self._exit_if_orphaned()
        claim = self._reader.claim(self._next, count, claim_for=self._options.claim_for)
        return self._taken(claim) if claim.jobs else None

    def _taken(self, claim: Claim) -> int:
        self._next = claim.n + 1
        self._claims[claim.n] = claim
        self._unreported = claim.n
        if self._budget is not None:
            self._budget -= claim.jobs
        return claim.n

    def _within_budget(self, count: int) -> int:
        return count if self._budget is None else min(count, self._budget)

    def _is_settled(self, last: int) -> None:
        self._settled = max(self._settled, last + 1)
        self._claims = {n: claim for n, claim in self._claims.items() if n > last}

    def _catch_up(self) -> None:
        """Wait for the calls in the background; raise their error."""
        if self._ahead is None:
            return
        ahead = self._ahead
        try:
            claim = ahead.ask()
        except HoldfastError:
            self._ahead = None  # Raise the error once.
            raise
        self._ahead = None
        if claim:
            self._taken(claim)
            if ahead.is_given_back and self._budget is not None:
                self._budget += claim.jobs

    def chunks(self, n: int) -> tuple[int, ...]:
        """Return the number of jobs in each chunk of a claim. A replay gets the same, or fails."""
        if n not in self._claims:
            try:
                self._claims[n] = self._reader.look(n)
            except (LeaseLost, WrongState) as error:
                raise type(error)(
                    f"claim {n} of reader {self._options.reader!r} cannot be replayed: {error}. "
                    "Other workers may have run its jobs. Start the stream with a new "
                    "checkpointLocation, and a claimFor longer than the stream may be down"
                ) from None
        return self._claims[n].chunks

    def stop(self) -> None:
        """Stop renewing, and give back a claim whose offset Spark does not know.

        Other claims stay open, as the stream may be started again.
        """
        self._stopped.set()
        try:
            self._catch_up()
            if self._unreported is not None:
                self._reader.give_back(self._unreported)
        except HoldfastError as error:
            log.warning("reader %r: %s", self._options.reader, error)

    def _check(self, start: int) -> None:
        """Refuse a checkpoint that does not match this reader."""
        if start == BEFORE_ALL:
            return
        what, reader = None, f"reader {self._options.reader!r}"
        if start + 1 < self._settled:
            what = f"behind {reader}: another stream has used its name"
        elif start >= self._next:
            what = f"ahead of {reader}: the queue was deleted or replaced, or the reader forgotten"
        if what:
            raise WrongState(
                f"the checkpoint (claim {start}) is {what}. Give the stream a name of its own with "
                "option 'reader', or a new checkpointLocation"
            )

    def _keep(self) -> None:
        """Renew open claims until the stream stops or is fenced, or Spark is gone."""
        every = min(RENEW_SECONDS, self._options.claim_for / 4)
        waited = 0.0
        tick = min(PARENT_SECONDS, every)
        while not self._stopped.wait(tick):
            self._exit_if_orphaned()
            waited += tick
            if waited < every:
                continue
            waited = 0.0
            try:
                self._reader.renew(claim_for=self._options.claim_for)
            except Fenced:
                return  # Spark's next call raises it.
            except HoldfastError as error:
                log.warning("reader %r: %s; trying again", self._options.reader, error)

    def _exit_if_orphaned(self) -> None:
        """End this process if Spark is gone. When the JVM is killed, this process keeps running."""
        if os.getppid() != self._parent:
            os._exit(1)
