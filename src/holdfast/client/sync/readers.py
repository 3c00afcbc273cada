"""Readers, for threads. Generated from aio/readers.py: do not edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.client.readers import ReaderAsker
from holdfast.job import Claim, Duration, Lease, Opened

if TYPE_CHECKING:
    from holdfast.client.sync.queue import Queue


class Reader:
    """One who takes jobs in numbered batches that can be read again: made by `queue.reader`.

    A claim is a batch of leases, named by the reader and a number. It is held until it is
    settled or given back, or lapses as a whole.
    """

    def __init__(self, queue: Queue, ask: ReaderAsker) -> None:
        self.queue = queue
        self.name = ask.name
        self._ask = ask

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} of {self.queue.name!r})"

    @property
    def epoch(self) -> int:
        """What it presents with every call: give it to those who read for it."""
        return self._ask.epoch

    def open(self) -> Opened:
        """Become the newest reader of this name: every call of an older one raises `Fenced`."""
        return self.queue._run(self._ask.open())

    def claim(self, n: int, count: int, *, claim_for: Duration = 3600) -> Claim:
        """Take up to `count` jobs, the best first, as the claim of this number.

        The number is the next one; or one that is held, which is returned as it is. With no
        jobs nothing is claimed, and the number can be asked for again. It lapses `claim_for`
        seconds after the last sign of life; then its jobs go back at no cost, and `LeaseLost`
        is raised for it.
        """
        return self.queue._drive(self._ask.claim(n, count, claim_for))

    def look(self, n: int) -> Claim:
        """Return a claim as it is held. Raises `LeaseLost` when it is not any more."""
        return self.queue._run(self._ask.look(n))

    def read(self, n: int, chunk: int) -> list[Lease]:
        """Return the jobs of one chunk of a claim: always the same, in the same order.

        Raises `LeaseLost` when the claim lapsed or was given back, `WrongState` when it is
        settled, or when somebody took one of its jobs away by force.
        """
        return self.queue._run(self._ask.read(n, chunk))

    def renew(self, *, claim_for: Duration = 3600) -> int:
        """Hold all claims for so many seconds from now; return how many that is."""
        return self.queue._run(self._ask.renew(claim_for))

    def settle(self, below: int) -> int:
        """Complete the jobs of all claims below a number; return how many.

        Those of a claim that lapsed before are not among them: they may run again.
        """
        return self.queue._drive(self._ask.settle(below))

    def give_back(self, n: int) -> int:
        """Give the jobs of a claim back at no cost; return how many. It cannot be read again."""
        return self.queue._drive(self._ask.give_back(n))
