"""The queue, for threads. Generated from aio/queue.py: do not edit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET

from holdfast.client import schedules
from holdfast.client.asking import Asker, Requeue
from holdfast.client.inputs import Done, id_of, json_payload
from holdfast.client.requests import OnFailure
from holdfast.client.schedules import Missed, Schedule
from holdfast.client.sized import Sized
from holdfast.client.status import GroupStatus, RequestStatus, group_of, status_of
from holdfast.client.sync.handlers import Declare, QueueHandler
from holdfast.client.sync.readers import Reader
from holdfast.client.sync.requests import Request
from holdfast.client.sync.writes import Write
from holdfast.connection.protocol import Packer
from holdfast.connection.server import Server, repeat
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


class Queue(Sized):
    """A named queue of jobs on a Redis or Valkey server.

    name      1 to 512 bytes, not beginning with `}`
    url       the address of the server, or a `Server` to share; by default HOLDFAST_URL,
              else the embedded server
    defaults  default options of jobs that are added here
    requeue   where a released or reclaimed job goes: to the "rank" it had, or to the "back" of
              its priority
    clock     for tests: a function that returns the time in milliseconds, instead of the
              server's
    """

    def __init__(
        self,
        name: str,
        url: str | Server | None = None,
        *,
        defaults: JobOptions | None = None,
        requeue: Requeue = "rank",
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.name = name
        self.server = url if isinstance(url, Server) else Server(url)
        self._packer = Packer(name)
        self._packers = [self._packer]
        self._ask = Asker(self.server.session.next_token, defaults, requeue)
        self.defaults = defaults
        self.requeue = requeue
        self.clock = clock
        self.handlers: dict[str, QueueHandler[..., Any, ..., Any]] = {}
        """The handlers made by `@queue.handler`, by name. Every worker of this queue uses them."""
        self.schedules: dict[str, Schedule] = {}
        """The schedules made by `every` and `cron`, by name. Workers of this queue run them."""

    @property
    def holder(self) -> str:
        """The holder of leases of this queue: the first half of every token."""
        return self.server.session.holder

    def _home(self, request: str) -> Queue:  # noqa: ARG002  # A plain queue has one shard.
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {str(self.server.address)!r})"

    def _run(self, call: Call[T]) -> T:
        return self.server.run(self._packer, call, self._now())

    def _now(self) -> bytes:
        return b"%d" % self.clock() if self.clock else b""

    def _drive(self, flow: Flow[T]) -> T:
        try:
            call = next(flow)
            while True:
                try:
                    answer = self._run(call)
                except HoldfastError as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result

    def _watch(
        self, ask: Callable[[], T], id: str, patience: float, over: Callable[[T], bool]
    ) -> T:
        """Call `ask` after each event about this id, until `over` accepts the answer."""
        deadline = time.monotonic() + patience
        found = ask()
        while not over(found) and (left := deadline - time.monotonic()) > 0:
            # Events may be missed, so ask at least once a second.
            with self.events(idle=min(left, 1.0)) as events:
                found = ask()
                asked_at = time.monotonic()
                while not over(found) and time.monotonic() < deadline:
                    event = next(events, None)
                    if event is None:
                        break
                    if event.concerns(id) or time.monotonic() - asked_at > 1.0:
                        found = ask()
                        asked_at = time.monotonic()
        return found

    # ------------------------------------------------------------------- add

    @property
    def handler(self) -> Declare:
        """Make a function a handler of this queue: `@queue.handler`.

        Its name and the options of its jobs can be given: `@queue.handler(name="send",
        priority=90)`. The default name is that of the function.
        """
        return Declare(self, None, {})

    def add(
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
        """Add a job. bytes and str are stored as they are, other values as JSON.

        With `json=value` or `Json(value)`, a str is stored as JSON too, so that every value is
        decoded unchanged. Values that JSON would change, such as bytes or keys that are not str,
        are refused: see `Json`.

        When this returns, the job is stored. If a job with this id exists, `on_conflict` decides:
        `ignore` leaves it alone and returns a false receipt with its state; `update` or an `Update`
        changes it, once its run is over if it is running; `raise` raises `JobExists`. For the other
        options see `JobOptions`.
        """
        if data is UNSET or json is not UNSET:
            data = json_payload(data, json)
        return self._run(self._ask.add(data, id, delay, at, on_conflict, options))

    def add_many(
        self,
        jobs: Iterable[object | NewJob],
        *,
        on_conflict: OnConflict = "ignore",
        **options: Unpack[JobOptions],
    ) -> list[Receipt]:
        """Add any number of payloads or `NewJob` values, at most 1000 per call to the server.

        Each call is atomic, the whole is not. An error has `receipts` of the jobs that were added
        before it.
        """
        return self._drive(self._ask.add_many(jobs, on_conflict, options))

    # ----------------------------------------------------------------- lease

    def lease(
        self, seconds: Duration, *, wait: Duration | None = None, failed: bool = False
    ) -> Lease | None:
        """Lease the best job for `seconds`. Wait up to `wait` seconds for one.

        With `failed`, lease a failed job, for its failure handler: complete it when the failure is
        dealt with, or retry to handle it later.
        """
        return self._drive(self._ask.lease(seconds, wait, failed))

    def lease_many(
        self,
        count: int,
        seconds: Duration,
        *,
        wait: Duration | None = None,
        complete: Iterable[Done] = (),
        failed: bool = False,
    ) -> Leases:
        """Lease up to `count` jobs (at most 1000, at most 8 MB), best first.

        The same call can complete finished jobs: leases, or pairs of lease and result. `.completed`
        of the return value says which of them counted.
        """
        return self._drive(self._ask.lease_many(count, seconds, wait, complete, failed))

    def extend(self, lease: Lease, seconds: Duration) -> Extended:
        """Extend a lease to `seconds` from now. Raises `LeaseLost` if it is over.

        Returns `Extended.CANCELLED` if the job was cancelled meanwhile.
        """
        return self._run(self._ask.extend(lease, seconds))

    def extend_many(self, leases: Iterable[Lease], seconds: Duration) -> list[Extended]:
        """Extend leases to `seconds` from now. The answer for a lost lease is false."""
        return self._drive(self._ask.extend_many(leases, seconds))

    # ---------------------------------------------------------------- settle

    def complete(
        self,
        lease: Lease | str,
        result: object = None,
        *,
        add: Iterable[object | NewJob] = (),
        force: bool = False,
    ) -> bool:
        """Complete a job. Return True for exactly one caller in the life of a job.

        Return False if the job was leased again, failed, was cancelled or has ended: then neither
        the result nor the follow-ups in `add` are stored. A result is stored if the job has
        `result_for`. A full server accepts no result: it raises `QueueFull` and changes nothing.
        With `force` the id is enough, whoever holds the lease.
        """
        return self._run(self._ask.complete(lease, result, add, force))

    def complete_many(self, done: Iterable[Done]) -> list[bool]:
        """Complete many jobs, given as leases or as pairs of lease and result."""
        return self._drive(self._ask.complete_many(done))

    def retry(
        self,
        lease: Lease,
        *,
        error: str | BaseException,
        after: Duration | None = None,
        at: Instant | None = None,
    ) -> None:
        """Count a failure and retry the job later: after a growing backoff, or when given.

        The job fails when `max_failures` is used up. Raises `LeaseLost` if the lease is over.
        """
        self._run(self._ask.retry(lease, error, after, at))

    def fail(self, lease: Lease, *, error: str | BaseException) -> None:
        """Fail a job without a retry. Raises `LeaseLost` if the lease is over.

        It stays failed until it is revived or cancelled, or its failure handler completes it.
        """
        self._run(self._ask.fail(lease, error))

    def release(
        self,
        lease: Lease,
        *,
        after: Duration | None = None,
        lapsed: str | BaseException | None = None,
    ) -> None:
        """Release a job at no cost, to run at once or `after` some seconds.

        With `lapsed`, the reason why the run did not end, it counts as a lapse. Raises `LeaseLost`
        if the lease is over.
        """
        self._run(self._ask.release(lease, after, lapsed))

    def release_many(
        self,
        leases: Iterable[Lease],
        *,
        after: Duration | None = None,
        lapsed: str | BaseException | None = None,
    ) -> list[bool]:
        """Release many jobs. The answer for a lost lease is False."""
        return self._drive(self._ask.release_many(leases, after, lapsed))

    # ----------------------------------------------------------------- watch

    def counts(self) -> Counts:
        """Count the jobs of each state, at one moment."""
        return self._drive(self._ask.counts())

    def totals(self) -> Totals:
        """Return lifetime counters (added, leased, completed, …). Subtract two for a rate."""
        return self._drive(self._ask.totals())

    def show(self, id: str) -> Job | None:
        """Return the current state of a job, or None if no job has this id."""
        shown = self._run(self._ask.show(id))
        return shown.job if shown else None

    def explain(self, id: str) -> str:
        """Return why a job is not running, in words."""
        return self._drive(self._ask.explain(id))

    def data(self, id: str) -> bytes | None:
        """Return the payload of a job, or None. The payload of an ended job needs `keep`."""
        shown = self._run(self._ask.show(id))
        return shown.job.data if shown else None

    def peek(self, count: int = 1, *, state: State = "ready", first: int = 0) -> list[Job]:
        """Return jobs of one state in their order, starting at `first`, without leasing them."""
        return self._drive(self._ask.peek(count, state, first))

    def failed(self, count: int = 100, *, first: int = 0) -> list[Job]:
        """Return failed jobs with their payloads, errors and counts."""
        return self._drive(self._ask.peek(count, "failed", first))

    def result(self, id: str | Receipt, *, wait: Duration | None = None) -> Outcome | None:
        """Return how a job ended, with its result. Wait up to `wait` seconds; None if it has not.

        Takes the id of the job or the receipt of `add`.

        Raises `JobNotFound` if no job has this id. An ended job is remembered only if it has
        `result_for` or `remember_for`.
        """
        name = id_of(id)
        ask = partial(self._run, self._ask.outcome(name))
        return self._watch(ask, name, self._ask.wait(wait), lambda outcome: outcome is not None)

    def audit(self) -> list[Problem]:
        """Check the invariants of the queue, changing nothing. Return the problems found."""
        return self._drive(self._ask.audit())

    @contextmanager
    def events(self, *, idle: Duration | None = None) -> Iterator[Iterator[Event]]:
        """Listen to events. Ends after `idle` seconds without an event.

        Events are hints: they may be missed while the connection is down.
        """
        with self.server.subscribe(self._packers, self._ask.idle(idle)) as messages:
            yield (event for message in messages for event in read_events(message))

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
    ) -> Request:
        """Return a request: work in parts, with a priority, a limit and one ending.

        priority    among requests and jobs: 0 to 99, higher runs sooner
        limit       how many parts may run at a time; None = no limit
        on_failure  when a part fails: "continue" with the others, or "fail_fast"
        keep_for    seconds for which its status and results are kept after it has ended, at
                    least 10; then its id is free again
        open_for    seconds after which it fails if it is not sealed
        follow_up   a job to add in the call that ends it, as `<id>/end/<n>`
        append      number new parts after the existing ones, not from 0

        Nothing is sent until it is opened: `with queue.request("report") as request`, or
        `request.open()`.
        """
        ask = self._ask.request(
            id, priority, limit, on_failure, keep_for, open_for, follow_up, append
        )
        return Request(self._home(ask.id), ask)

    def requests(self) -> list[RequestStatus]:
        """Return current and remembered requests, the oldest first."""
        found = self._drive(self._ask.walk())
        statuses = [status_of(one) for one in found if not one.record.group]
        return sorted(statuses, key=lambda status: (status.opened_at, status.id))

    def groups(self) -> list[GroupStatus]:
        """Return the groups that have jobs, by name."""
        found = self._drive(self._ask.walk())
        return sorted((group_of(one) for one in found if one.record.group), key=lambda g: g.name)

    def set_group_limit(self, group: str, limit: int | None) -> None:
        """Change how many jobs of a group may run at a time, from the next lease on."""
        self._run(self._ask.set_group_limit(group, limit))

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
        """Declare a schedule at an interval: `queue.every("5m", name="refresh")`.

        interval  seconds, or text such as "30s", "5m", "1h 30m", "1d", counted from the epoch, so
                  "1d" is at midnight UTC; or a cron nickname such as "@daily", in UTC
        data      the payload, or a `NewJob`
        name      the name of the schedule; by default that of the job's handler
        missed    what to do about ticks that were missed: "skip" them, or make "all" of them

        Workers of this queue add the jobs, as do calls of `tick`. However many processes do, each
        tick adds one job, `<name>@<time>`.
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
        """Declare a schedule by a cron expression: see `every`.

        The expression has five fields, or is a nickname: `@hourly`, `@daily`, `@midnight`,
        `@weekly`, `@monthly`, `@yearly`. `tz` is the name of a time zone. When its clock is put
        forward, a skipped time ticks right after the gap. When it is put back, a repeated time
        ticks once.
        """
        found = schedules.cron(expression, tz)
        return self._ask.schedule(self.schedules, found, data, name, missed, options)

    def tick(self) -> list[Receipt]:
        """Make the ticks of all schedules that are due. Return the receipts of the added jobs.

        Workers do this by themselves. Without workers, call it at least once a minute.
        """
        return self._drive(self._ask.make_all(self.schedules))

    # ----------------------------------------------------------------- spark

    def write(self, name: str | None = None) -> Write:
        """Return a write: many processes stage rows, and one commits them.

        Every run needs a new name; by default a random name is used.
        """
        return Write(self, self._ask.write(name))

    def reader(self, name: str, *, epoch: int | None = None) -> Reader:
        """Return a reader, which claims jobs in batches. `epoch` is that of an open reader.

        Nothing is sent until it is opened.
        """
        return Reader(self, self._ask.reader(name, epoch))

    def publish(self) -> int:
        """Turn committed rows into jobs if their process died before. Return how many."""
        return self._drive(self._ask.publish())

    def last_batch(self, writer: str) -> int | None:
        """Return the last batch that a writer has committed, or None."""
        return self._run(self._ask.last_batch(writer))

    # ---------------------------------------------------------------- manage

    def cancel(self, id: str, *, running: bool = True) -> bool:
        """Cancel a job. Return True if this call cancelled it.

        A waiting or failed job is removed. A running job is marked: its holder learns of it by an
        event and by `extend`, and however the job is settled, it ends as cancelled. With
        `running=False` a running job is left alone; only an update that waits for it is dropped.
        """
        return self._run(self._ask.cancel(id, running))

    def cancel_matching(self, data: object, *, running: bool = True) -> int:
        """Cancel every job with this payload. Return how many. Checks 1000 jobs per call."""
        return self._drive(self._ask.cancel_matching(data, running))

    def revive(self, id: str) -> bool:
        """Run a failed job again with fresh counts. Return False if it is not failed."""
        return self._run(self._ask.revive(id))

    def set_result(self, id: str, result: object) -> None:
        """Store or replace the result of a job, with or without a lease, even after it has ended.

        Raises `JobNotFound`, or `WrongState` if the job keeps no result.
        """
        self._run(self._ask.set_result(id, result))

    def pause(self) -> None:
        """Grant no leases until `resume`. Leased jobs continue."""
        self._drive(self._ask.pause())

    def resume(self) -> None:
        """Grant leases again."""
        self._drive(self._ask.resume())

    def tidy(
        self,
        *,
        force: bool = False,
        held_longer_than: Duration | None = None,
        failed_longer_than: Duration | None = None,
    ) -> Tidied:
        """Promote due jobs, reclaim lapsed leases and forget old endings.

        Every lease call does this too; use `tidy` where no worker leases. With `force` it reclaims
        even if there was no call for a while before, when leases otherwise get extra time. It can
        also reclaim jobs that are held for more than `held_longer_than` seconds, whatever their
        lease, and drop failed jobs that were left alone for more than `failed_longer_than` seconds.
        """
        return self._drive(self._ask.tidy(force, held_longer_than, failed_longer_than))

    @contextmanager
    def keep_tidy(self, *, every: Duration = 30) -> Iterator[None]:
        """Call `tidy` periodically while the block runs. Errors are logged."""
        with repeat(self._ask.every(every), self.tidy, f"tidy {self.name}"):
            yield

    def repair(self) -> list[Problem]:
        """Repair the problems that `audit` finds, scanning all jobs. Return what was done.

        A job with a payload is never dropped: if it was in no set, it becomes ready.
        """
        return self._drive(self._ask.repair())

    def register(self, *, alive_for: Duration = 60, **about: object) -> None:
        """Register this process in the directory of workers for `alive_for` seconds.

        The directory is only information: leases lapse whether or not their holder is registered.
        """
        self._drive(self._ask.register(self.holder, alive_for, about))

    def workers(self) -> list[WorkerInfo]:
        """Return the registered workers, alive or not."""
        return self._drive(self._ask.workers())

    def fail_worker(self, worker: WorkerInfo | Lease | str) -> int:
        """Reclaim all jobs of a worker at once, counting a lapse for each. Return how many."""
        return self._drive(self._ask.fail_worker(worker))

    def delete(self, *, idle_for: Duration | None = None) -> bool:
        """Delete the queue with all its jobs. Return whether nothing remains.

        With `idle_for`, delete it only if it is empty and not paused, and if no call changed or
        leased anything for so many seconds: to remove queues that are no longer used.
        """
        return self._drive(self._ask.delete(idle_for))

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        self.server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
