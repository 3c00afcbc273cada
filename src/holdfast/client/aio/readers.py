"""Readers, for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.client.readers import ReaderAsker
from holdfast.job import Claim, Duration, Lease, Opened

if TYPE_CHECKING:
    from holdfast.client.aio.queue import AsyncQueue


class AsyncReader:
    """Claims jobs in numbered batches that can be read again. Made by `queue.reader`.

    A claim is a batch of leases, named by the reader and a number. It is held until it is settled,
    given back, or lapses as a whole.
    """

    def __init__(self, queue: AsyncQueue, ask: ReaderAsker) -> None:
        self.queue = queue
        self.name = ask.name
        self._ask = ask

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} of {self.queue.name!r})"

    @property
    def epoch(self) -> int:
        """The number that it presents with every call. Pass it to processes that read for it."""
        return self._ask.epoch

    async def open(self) -> Opened:
        """Become the newest reader of this name. Every call of an older reader raises `Fenced`."""
        return await self.queue._run(self._ask.open())

    async def claim(self, n: int, count: int, *, claim_for: Duration = 3600) -> Claim:
        """Claim up to `count` jobs, the best first, under this number.

        `n` must be the next number, or that of a held claim, which is returned unchanged. If there
        are no jobs, nothing is claimed, and the number can be used again. A claim lapses
        `claim_for` seconds after the last call of `claim` or `renew` for it: then its jobs go back
        at no cost, and using it raises `LeaseLost`.
        """
        return await self.queue._drive(self._ask.claim(n, count, claim_for))

    async def look(self, n: int) -> Claim:
        """Return a held claim. Raises `LeaseLost` if it is not held any more."""
        return await self.queue._run(self._ask.look(n))

    async def read(self, n: int, chunk: int) -> list[Lease]:
        """Return the jobs of one chunk of a claim, always the same in the same order.

        Raises `LeaseLost` if the claim lapsed or was given back, `WrongState` if it is settled or
        one of its jobs was taken away by force.
        """
        return await self.queue._run(self._ask.read(n, chunk))

    async def renew(self, *, claim_for: Duration = 3600) -> int:
        """Extend all claims to `claim_for` seconds from now. Return how many there are."""
        return await self.queue._run(self._ask.renew(claim_for))

    async def settle(self, below: int) -> int:
        """Complete the jobs of all claims below a number. Return how many.

        Jobs of a claim that lapsed before are not completed: they may run again.
        """
        return await self.queue._drive(self._ask.settle(below))

    async def give_back(self, n: int) -> int:
        """Release the jobs of a claim at no cost. Return how many. It cannot be read again."""
        return await self.queue._drive(self._ask.give_back(n))
