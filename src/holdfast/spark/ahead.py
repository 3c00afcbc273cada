"""Settle the previous batch and claim the next one while Spark works on a batch.

A thread on the driver makes these calls, so Spark does not wait for them. It claims the next batch
only if Spark is expected to ask for it soon. A claim that Spark does not ask for in time is given
back, so that other workers get its jobs.
"""

from __future__ import annotations

import threading
from typing import Final

from holdfast.client.sync.batches import Reader
from holdfast.job import Claim

AHEAD_SECONDS: Final = 10.0
"""How long a claim waits for Spark. While batches take longer, nothing is claimed ahead."""


class Ahead:
    """A thread that settles, claims, and then waits for `ask`."""

    def __init__(self, reader: Reader, below: int, n: int, count: int, claim_for: float) -> None:
        self._reader = reader
        self._below = below
        self._n = n
        self._count = count
        self._claim_for = claim_for
        self._claim: Claim | None = None
        self._error: BaseException | None = None
        self._asked = threading.Event()
        self.is_given_back = False
        self._thread = threading.Thread(
            target=self._run, name=f"claim {n} of {reader.name}", daemon=True
        )
        self._thread.start()

    def ask(self) -> Claim | None:
        """Return the claim, if any jobs were claimed. Raises the error of the thread."""
        self._asked.set()
        self._thread.join()
        if self._error:
            raise self._error
        return self._claim

    def _run(self) -> None:
        try:
            self._reader.settle(self._below)
            if not self._count:
                return
            claim = self._reader.claim(self._n, self._count, claim_for=self._claim_for)
            if not claim.jobs:
                return
            self._claim = claim
            if not self._asked.wait(AHEAD_SECONDS):
                self._reader.give_back(self._n)
                self.is_given_back = True
        except BaseException as error:  # noqa: BLE001 - `ask` raises it
            self._error = error
