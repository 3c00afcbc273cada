"""What the driver's side of a source does while Spark works on a batch.

The batch before is settled; and the next one is claimed, where it will be asked for soon. So Spark
waits for neither. A claim that is not asked for soon is given back: others may want its jobs.
"""

from __future__ import annotations

import threading
from typing import Final

from holdfast.client.sync.readers import Reader
from holdfast.job import Claim

AHEAD_SECONDS: Final = 10.0
"""How long a claim waits to be asked for; a batch that takes longer has none claimed ahead."""


class Ahead:
    """One thread that settles, claims, and then waits to be asked what became of it."""

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
        """Return what was claimed, if anything was; raises what went wrong."""
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
        except BaseException as error:  # noqa: BLE001 - who asks is told
            self._error = error
