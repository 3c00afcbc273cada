"""The queue for asyncio: `queue.py` with `await`. A test keeps the two equal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from holdfast import flows
from holdfast.aserver import AsyncServer
from holdfast.asking import Asker, Done, Requeue
from holdfast.engine import calls
from holdfast.engine.calls import Call
from holdfast.errors import HoldfastError
from holdfast.flows import Flow
from holdfast.job import (
    Counts,
    Duration,
    Event,
    Instant,
    JobOptions,
    Lease,
    Leases,
    NewJob,
    OnConflict,
    Problem,
    Receipt,
    Tidied,
    read_events,
)
from holdfast.wire import Packer

if TYPE_CHECKING:
    from typing import Self, Unpack

T = TypeVar("T")


class AsyncQueue:
    """A named queue of jobs on a Redis or Valkey server.

    name      1 to 512 bytes, not beginning with `}`
    url       where the server is, or the `AsyncServer` to share; without one HOLDFAST_URL,
              else the embedded server
    defaults  options for every job added here that does not say otherwise
    requeue   where a job goes that is given back or reclaimed: at the "rank" it had,
              or to the "back" of its priority
    clock     for tests: the time in milliseconds, instead of the server's
    """

    def __init__(
        self,
        name: str,
        url: str | AsyncServer | None = None,
        *,
        defaults: JobOptions | None = None,
        requeue: Requeue = "rank",
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.name = name
        self.server = url if isinstance(url, AsyncServer) else AsyncServer(url)
        self._packer = Packer(name)
        self._ask = Asker(self.server.incarnation.next_token, defaults, requeue)
        self._clock = clock

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {str(self.server.address)!r})"

    async def _run(self, call: Call[T]) -> T:
        now = b"%d" % self._clock() if self._clock else b""
        return await self.server.run(self._packer, call, now)

    async def _drive(self, flow: Flow[T]) -> T:
        try:
            call = next(flow)
            while True:
                try:
                    answer = await self._run(call)
                except HoldfastError as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result

    # ------------------------------------------------------------------- add

    async def add(
        self,
        data: object,
        *,
        id: str | None = None,
        delay: Duration | None = None,
        at: Instant | None = None,
        on_conflict: OnConflict = "ignore",
        **options: Unpack[JobOptions],
    ) -> Receipt:
        """Add a job: bytes and str as they are, everything else as JSON.

        When it returns, the job is stored. An id that is taken is left alone (`ignore`,
        the receipt is false and says where that job stands) or raises `JobExists`.
        For the options see `JobOptions`.
        """
        return await self._run(self._ask.add(data, id, delay, at, on_conflict, options))

    async def add_many(
        self,
        jobs: Iterable[object | NewJob],
        *,
        on_conflict: OnConflict = "ignore",
        **options: Unpack[JobOptions],
    ) -> list[Receipt]:
        """Add any number of payloads or `NewJob` values, in calls of at most 1000.

        Each call is atomic, the whole is not: an error carries `receipts` of what was
        added before it.
        """
        return await self._drive(self._ask.add_many(jobs, on_conflict, options))

    # ----------------------------------------------------------------- lease

    async def lease(self, seconds: Duration, *, wait: Duration | None = None) -> Lease | None:
        """Lease the best job for so many seconds; wait for one up to `wait` seconds."""
        return await self._drive(self._ask.lease(seconds, wait))

    async def lease_many(
        self,
        count: int,
        seconds: Duration,
        *,
        wait: Duration | None = None,
        complete: Iterable[Done] = (),
    ) -> Leases:
        """Lease up to `count` jobs (at most 1000, at most 8 MB), best first.

        In the same call it can complete what is done: leases, or pairs of lease and
        result; `.completed` of what it returns says which of them counted.
        """
        return await self._drive(self._ask.lease_many(count, seconds, wait, complete))

    async def extend(self, lease: Lease, seconds: Duration) -> None:
        """Hold a lease for so many seconds from now. Raises `LeaseLost` when it is over."""
        await self._run(self._ask.extend(lease, seconds))

    async def extend_many(self, leases: Iterable[Lease], seconds: Duration) -> list[bool]:
        """Hold leases for so many seconds from now; False for each that is lost."""
        return await self._drive(self._ask.extend_many(leases, seconds))

    # ---------------------------------------------------------------- settle

    async def complete(
        self,
        lease: Lease | str,
        result: object = None,
        *,
        add: Iterable[object | NewJob] = (),
        force: bool = False,
    ) -> bool:
        """End a job well. True for exactly one caller in the life of a job.

        False when the job was given to another, failed or has ended: then nothing is
        changed, and neither the result nor the follow-ups in `add` are kept. A result is
        kept where the job says `result_for`. With `force` the id is enough, whoever
        holds it.
        """
        return await self._run(self._ask.complete(lease, result, add, force))

    async def complete_many(self, done: Iterable[Done]) -> list[bool]:
        """End many jobs well: leases, or pairs of lease and result."""
        return await self._drive(self._ask.complete_many(done))

    async def release(
        self, lease: Lease, *, after: Duration | None = None, lapsed: str | None = None
    ) -> None:
        """Give a job back at no cost, at once or after some seconds.

        With `lapsed`, the reason why a run did not answer, it counts as a lapse. Raises
        `LeaseLost` when the lease is over.
        """
        await self._run(self._ask.release(lease, after, lapsed))

    async def release_many(
        self,
        leases: Iterable[Lease],
        *,
        after: Duration | None = None,
        lapsed: str | None = None,
    ) -> list[bool]:
        """Give many jobs back; False for each lease that was lost."""
        return await self._drive(self._ask.release_many(leases, after, lapsed))

    # ----------------------------------------------------------------- watch

    async def counts(self) -> Counts:
        """Count the jobs of each state, at one moment."""
        return await self._run(calls.counts())

    async def audit(self) -> list[Problem]:
        """Look for broken invariants; changes nothing. Empty when all is well."""
        return await self._drive(flows.audit())

    @asynccontextmanager
    async def events(self, *, idle: Duration | None = None) -> AsyncIterator[AsyncIterator[Event]]:
        """Listen to what happens; ends after `idle` seconds without an event.

        Events are hints: some may be missed while the connection is down.
        """
        async with self.server.subscribe(self._packer.events, self._ask.idle(idle)) as messages:
            yield (event async for message in messages for event in read_events(message))

    # ---------------------------------------------------------------- manage

    async def pause(self) -> None:
        """Grant no lease until `resume`; what is leased goes on."""
        await self._run(calls.pause())

    async def resume(self) -> None:
        """Grant leases again."""
        await self._run(calls.resume())

    async def tidy(self, *, force: bool = False) -> Tidied:
        """Promote what is due, reclaim what lapsed, forget old endings: now.

        Every lease does so by itself; this is for those who do not lease. With `force`
        it also reclaims right after nobody called for a while.
        """
        return await self._drive(self._ask.tidy(force))

    async def delete(self) -> None:
        """Remove the queue and everything in it."""
        await self._run(calls.delete())

    async def close(self) -> None:
        """Close the connections. The queue can be used again, and opens new ones."""
        await self.server.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
