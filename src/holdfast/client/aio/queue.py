"""The queue, for asyncio."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET

from holdfast.client import schedules
from holdfast.client.aio.handlers import AsyncDeclare, AsyncQueueHandler
from holdfast.client.aio.readers import AsyncReader
from holdfast.client.aio.requests import AsyncRequest
from holdfast.client.aio.writes import AsyncWrite
from holdfast.client.asking import Asker, Requeue
from holdfast.client.requests import OnFailure
from holdfast.client.said import Done, id_of, json_payload
from holdfast.client.schedules import Missed, Schedule
from holdfast.client.status import GroupStatus, RequestStatus, group_of, status_of
from holdfast.connection.async_server import AsyncServer, repeat
from holdfast.connection.protocol import Packer
from holdfast.engine.call import Call
from holdfast.engine.walks import Flow
from holdfast.errors import HoldfastError
from holdfast.job import (
    Counts,
    Duration,
    Event,
    Extended,
    Instant,
    Job,
    JobOptions,
    Lease,
    Leases,
    NewJob,
    OnConflict,
    Outcome,
    Problem,
    Receipt,
    State,
    Tidied,
    Totals,
    WorkerInfo,
    read_events,
)

if TYPE_CHECKING:
    from datetime import tzinfo
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
        self._packers = [self._packer]
        self._ask = Asker(self.server.session.next_token, defaults, requeue)
        self.defaults = defaults
        self.requeue = requeue
        self.clock = clock
        self.handlers: dict[str, AsyncQueueHandler[..., Any, ..., Any]] = {}
        """What `@queue.handler` made, by name: every worker of this queue knows them."""
        self.schedules: dict[str, Schedule] = {}
        """What `every` and `cron` declared, by name: every worker of this queue adds their jobs."""

    @property
    def holder(self) -> str:
        """Who leases through this queue: the first half of every token."""
        return self.server.session.holder

    def _home(self, request: str) -> AsyncQueue:  # noqa: ARG002  # A queue is home to all of them.
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {str(self.server.address)!r})"

    async def _run(self, call: Call[T]) -> T:
        return await self.server.run(self._packer, call, self._now())

    def _now(self) -> bytes:
        return b"%d" % self.clock() if self.clock else b""

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

    async def _watch(
        self, ask: Callable[[], Awaitable[T]], id: str, patience: float, over: Callable[[T], bool]
    ) -> T:
        """Ask until it is over, whenever something happened to this id."""
        deadline = time.monotonic() + patience
        found = await ask()
        while not over(found) and (left := deadline - time.monotonic()) > 0:
            # An event may be missed, so we ask once a second too.
            async with self.events(idle=min(left, 1.0)) as events:
                found = await ask()
                asked_at = time.monotonic()
                while not over(found) and time.monotonic() < deadline:
                    event = await anext(events, None)
                    if event is None:
                        break
                    if event.concerns(id) or time.monotonic() - asked_at > 1.0:
                        found = await ask()
                        asked_at = time.monotonic()
        return found

    # ------------------------------------------------------------------- add

    @property
    def handler(self) -> AsyncDeclare:
        """Make a function a handler of this queue: `@queue.handler`.

        It can be given a name, else its own is used, and options for its jobs:
        `@queue.handler(name="send", priority=90)`.
        """
        return AsyncDeclare(self, None, {})

    async def add(
        self,
        data: object = UNSET,
        *,
        json: object = UNSET,
        id: str | None = None,
        delay: Duration | None = None,
        at: Instant | None = None,
        on_conflict: OnConflict = "ignore",
        **options: Unpack[JobOptions],
    ) -> Receipt:
        """Add a job: bytes and str as they are, everything else as JSON.

        With `json=value`, or `Json(value)`, a str is stored as JSON too, so that every value comes
        back as it was. What JSON would change, bytes and keys that are no str for example, is
        refused: see `Json`.

        When it returns, the job is stored. A job that has the id already is left alone
        (`ignore`, the receipt is false and says where it stands), or changed (`update`, or
        an `Update` that says what), or `JobExists` is raised. What is changed while it runs
        is applied when the run is over. For the options see `JobOptions`.
        """
        if data is UNSET or json is not UNSET:
            data = json_payload(data, json)
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

    async def lease(
        self, seconds: Duration, *, wait: Duration | None = None, failed: bool = False
    ) -> Lease | None:
        """Lease the best job for so many seconds; wait for one up to `wait` seconds.

        With `failed` it is a failed job, for its failure handler: complete it when the
        failure is dealt with, retry to be asked again later.
        """
        return await self._drive(self._ask.lease(seconds, wait, failed))

    async def lease_many(
        self,
        count: int,
        seconds: Duration,
        *,
        wait: Duration | None = None,
        complete: Iterable[Done] = (),
        failed: bool = False,
    ) -> Leases:
        """Lease up to `count` jobs (at most 1000, at most 8 MB), best first.

        In the same call it can complete what is done: leases, or pairs of lease and
        result; `.completed` of what it returns says which of them counted.
        """
        return await self._drive(self._ask.lease_many(count, seconds, wait, complete, failed))

    async def extend(self, lease: Lease, seconds: Duration) -> Extended:
        """Hold a lease for so many seconds from now. Raises `LeaseLost` when it is over.

        `Extended.CANCELLED` tells that somebody cancelled the job meanwhile.
        """
        return await self._run(self._ask.extend(lease, seconds))

    async def extend_many(self, leases: Iterable[Lease], seconds: Duration) -> list[Extended]:
        """Hold leases for so many seconds from now; false for each that is lost."""
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

        False when the job was given to another, failed, was cancelled or has ended: then
        neither the result nor the follow-ups in `add` are kept. A result is kept where the
        job says `result_for`; a full server takes none: `QueueFull`, and nothing is changed.
        With `force` the id is enough, whoever holds it.
        """
        return await self._run(self._ask.complete(lease, result, add, force))

    async def complete_many(self, done: Iterable[Done]) -> list[bool]:
        """End many jobs well: leases, or pairs of lease and result."""
        return await self._drive(self._ask.complete_many(done))

    async def retry(
        self,
        lease: Lease,
        *,
        error: str | BaseException,
        after: Duration | None = None,
        at: Instant | None = None,
    ) -> None:
        """Count a failure and try again later: after a growing wait, or just when it is told to.

        The job is failed when `max_failures` is spent. Raises `LeaseLost` when the lease
        is over.
        """
        await self._run(self._ask.retry(lease, error, after, at))

    async def fail(self, lease: Lease, *, error: str | BaseException) -> None:
        """Fail a job without another try. Raises `LeaseLost` when the lease is over.

        It stays until somebody revives or cancels it, or its failure handler completes it.
        """
        await self._run(self._ask.fail(lease, error))

    async def release(
        self,
        lease: Lease,
        *,
        after: Duration | None = None,
        lapsed: str | BaseException | None = None,
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
        lapsed: str | BaseException | None = None,
    ) -> list[bool]:
        """Give many jobs back; False for each lease that was lost."""
        return await self._drive(self._ask.release_many(leases, after, lapsed))

    # ----------------------------------------------------------------- watch

    async def counts(self) -> Counts:
        """Count the jobs of each state, at one moment."""
        return await self._drive(self._ask.counts())

    async def totals(self) -> Totals:
        """Tell how often what happened since the queue was first used: for rates."""
        return await self._drive(self._ask.totals())

    async def show(self, id: str) -> Job | None:
        """Return a job as it stands, or None when no job has this id."""
        shown = await self._run(self._ask.show(id))
        return shown.job if shown else None

    async def explain(self, id: str) -> str:
        """Return why a job is not running, in words."""
        return await self._drive(self._ask.explain(id))

    async def data(self, id: str) -> bytes | None:
        """Return the payload of a job; of one that has ended where it says `keep`."""
        shown = await self._run(self._ask.show(id))
        return shown.job.data if shown else None

    async def peek(self, count: int = 1, *, state: State = "ready", first: int = 0) -> list[Job]:
        """Return jobs of one state in its order, from the `first` on, without taking them."""
        return await self._drive(self._ask.peek(count, state, first))

    async def failed(self, count: int = 100, *, first: int = 0) -> list[Job]:
        """Return failed jobs: their payloads, errors and counts."""
        return await self._drive(self._ask.peek(count, "failed", first))

    async def result(self, id: str | Receipt, *, wait: Duration | None = None) -> Outcome | None:
        """Return how a job ended, with its result; None when it has not, after `wait` seconds.

        The job is named by its id or by the receipt of `add`.

        Raises `JobNotFound` when no job has this id: one that ended is remembered where it
        says `result_for`.
        """
        name = id_of(id)
        ask = partial(self._run, self._ask.outcome(name))
        return await self._watch(
            ask, name, self._ask.wait(wait), lambda outcome: outcome is not None
        )

    async def audit(self) -> list[Problem]:
        """Look for broken invariants; changes nothing. Empty when all is well."""
        return await self._drive(self._ask.audit())

    @asynccontextmanager
    async def events(self, *, idle: Duration | None = None) -> AsyncIterator[AsyncIterator[Event]]:
        """Listen to what happens; ends after `idle` seconds without an event.

        Events are hints: some may be missed while the connection is down.
        """
        async with self.server.subscribe(self._packers, self._ask.idle(idle)) as messages:
            yield (event async for message in messages for event in read_events(message))

    # -------------------------------------------------------------- requests

    def request(
        self,
        id: str | None = None,
        *,
        priority: int = 50,
        limit: int | None = None,
        on_failure: OnFailure = "continue",
        keep_for: Duration = 86400,
        open_for: Duration | None = None,
        follow_up: object | NewJob = None,
        append: bool = False,
    ) -> AsyncRequest:
        """Name a request: work in parts, with a priority, a limit and one ending.

        priority    between requests and jobs: 0 to 99, higher runs sooner
        limit       how many parts may run at a time; None = any number
        on_failure  when a part fails: "continue" with the others, or "fail_fast"
        keep_for    seconds for which its status and results are kept after it has ended, at
                    least 10; then its id is free again
        open_for    seconds after which it fails when it is still not sealed
        follow_up   a job to add in the call that ends it, as `<id>/end/<n>`
        append      number new parts after those that are there, rather than from 0

        Nothing is sent before it is opened: `async with queue.request("report") as request`, or
        `await request.open()`.
        """
        ask = self._ask.request(
            id, priority, limit, on_failure, keep_for, open_for, follow_up, append
        )
        return AsyncRequest(self._home(ask.id), ask)

    async def requests(self) -> list[RequestStatus]:
        """Return the requests that are there or remembered, the oldest first."""
        found = await self._drive(self._ask.walk())
        statuses = [status_of(one) for one in found if not one.record.group]
        return sorted(statuses, key=lambda status: (status.opened_at, status.id))

    async def groups(self) -> list[GroupStatus]:
        """Return the groups that have jobs, by name."""
        found = await self._drive(self._ask.walk())
        return sorted((group_of(one) for one in found if one.record.group), key=lambda g: g.name)

    async def set_group_limit(self, group: str, limit: int | None) -> None:
        """Let so many jobs of a group run at a time, from the next lease on."""
        await self._run(self._ask.set_group_limit(group, limit))

    # ------------------------------------------------------------- schedules

    def every(
        self,
        interval: str | Duration,
        data: object | NewJob = b"",
        *,
        name: str | None = None,
        missed: Missed = "skip",
        **options: Unpack[JobOptions],
    ) -> Schedule:
        """Declare that a job is to be added every so often: `queue.every("5m", name="refresh")`.

        interval  seconds, or text such as "30s", "5m", "1h 30m", "1d"; counted from the epoch, so
                  "1d" is at midnight UTC. Or a nickname of cron, such as "@daily", in UTC
        data      the payload, or a `NewJob`
        name      of the schedule; without one that of the job's handler
        missed    when nobody was there at a tick: "skip" it, or make up for "all" of them

        The workers of this queue add the jobs, or whoever calls `tick`. However many do, each
        tick makes one job, `<name>@<time>`.
        """
        found = schedules.every(interval)
        return self._ask.schedule(self.schedules, found, data, name, missed, options)

    def cron(
        self,
        expression: str,
        data: object | NewJob = b"",
        *,
        tz: str | tzinfo = "UTC",
        name: str | None = None,
        missed: Missed = "skip",
        **options: Unpack[JobOptions],
    ) -> Schedule:
        """Declare that a job is to be added when a cron expression says so: see `every`.

        The expression has five fields, or is a nickname: `@hourly`, `@daily`, `@midnight`,
        `@weekly`, `@monthly`, `@yearly`. `tz` is the name of a time zone. Where clocks are put
        forward or back there, a time that is left out comes right after, and one that comes twice
        counts once.
        """
        found = schedules.cron(expression, tz)
        return self._ask.schedule(self.schedules, found, data, name, missed, options)

    async def tick(self) -> list[Receipt]:
        """Add the jobs of all schedules whose time is near; return those that were added.

        Workers do so by themselves: this is for those who run none, at least once a minute.
        """
        return await self._drive(self._ask.make_all(self.schedules))

    # ----------------------------------------------------------------- spark

    def write(self, name: str | None = None) -> AsyncWrite:
        """Name a write that many processes stage and one commits; without a name it gets one.

        Every run of it needs a name of its own.
        """
        return AsyncWrite(self, self._ask.write(name))

    def reader(self, name: str, *, epoch: int | None = None) -> AsyncReader:
        """Name a reader, who claims jobs in batches; with the `epoch` of one that is open.

        Nothing is sent before it is opened.
        """
        return AsyncReader(self, self._ask.reader(name, epoch))

    async def publish(self) -> int:
        """Let what is committed become jobs, where somebody died over it; return how many."""
        return await self._drive(self._ask.publish())

    async def last_batch(self, writer: str) -> int | None:
        """Return the last batch that a writer has committed; None when there is none."""
        return await self._run(self._ask.last_batch(writer))

    # ---------------------------------------------------------------- manage

    async def cancel(self, id: str, *, running: bool = True) -> bool:
        """Let a job not run again; True when this call is the reason.

        One that waits, or has failed, is gone. One that runs is marked: its holder is told
        by an event and by `extend`, and however it is settled it ends as cancelled. With
        `running=False` it is left alone, and only an update that waits for it is dropped.
        """
        return await self._run(self._ask.cancel(id, running))

    async def cancel_matching(self, data: object, *, running: bool = True) -> int:
        """Cancel every job that has this payload; return how many. Looks at 1000 per call."""
        return await self._drive(self._ask.cancel_matching(data, running))

    async def revive(self, id: str) -> bool:
        """Let a failed job run again, as if it never had; False when it is not failed."""
        return await self._run(self._ask.revive(id))

    async def set_result(self, id: str, result: object) -> None:
        """Store or replace the result of a job, from anywhere, also after it has ended.

        Raises `JobNotFound`, or `WrongState` when the job keeps no result.
        """
        await self._run(self._ask.set_result(id, result))

    async def pause(self) -> None:
        """Grant no lease until `resume`; what is leased goes on."""
        await self._drive(self._ask.pause())

    async def resume(self) -> None:
        """Grant leases again."""
        await self._drive(self._ask.resume())

    async def tidy(
        self,
        *,
        force: bool = False,
        held_longer_than: Duration | None = None,
        failed_longer_than: Duration | None = None,
    ) -> Tidied:
        """Promote what is due, reclaim what lapsed, forget old endings: now.

        Every lease does so by itself; this is for those who do not lease. With `force`
        it also reclaims right after nobody called for a while. It can also take back what
        is held for longer than so many seconds, whatever its lease says, and drop failed
        jobs that nobody wanted for longer, neither a person nor a failure handler.
        """
        return await self._drive(self._ask.tidy(force, held_longer_than, failed_longer_than))

    @asynccontextmanager
    async def keep_tidy(self, *, every: Duration = 30) -> AsyncIterator[None]:
        """Tidy every so many seconds as long as the block lasts, whatever goes wrong meanwhile."""
        async with repeat(self._ask.every(every), self.tidy, f"tidy {self.name}"):
            yield

    async def repair(self) -> list[Problem]:
        """Mend what `audit` finds broken, walking every id; return what was done.

        Nothing that has a payload is dropped: a job that was in no set is ready again.
        """
        return await self._drive(self._ask.repair())

    async def register(self, *, alive_for: Duration = 60, **about: object) -> None:
        """Put this process into the directory of workers for so many seconds.

        For people: leases lapse whether or not anybody registered.
        """
        await self._drive(self._ask.register(self.holder, alive_for, about))

    async def workers(self) -> list[WorkerInfo]:
        """Return who registered, alive or not."""
        return await self._drive(self._ask.workers())

    async def fail_worker(self, worker: WorkerInfo | Lease | str) -> int:
        """Take back at once whatever a worker holds; return how many. Counts a lapse of each."""
        return await self._drive(self._ask.fail_worker(worker))

    async def delete(self, *, idle_for: Duration | None = None) -> bool:
        """Remove the queue and everything in it; return whether nothing remains.

        With `idle_for` only when it is empty, is not paused, and no call changed or leased anything
        for so many seconds: to clear away names that nobody uses any more.
        """
        return await self._drive(self._ask.delete(idle_for))

    async def close(self) -> None:
        """Close the connections. The queue can be used again, and opens new ones."""
        await self.server.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
