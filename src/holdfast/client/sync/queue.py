"""The queue, for threads. Generated from aio/queue.py: do not edit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import UNSET

from holdfast import arguments, codec, failures
from holdfast.client import inputs, schedules, sharding, status
from holdfast.client.inputs import Done, Entries, OnFailure, Requeue
from holdfast.client.schedules import Missed, Schedule, Ticked
from holdfast.client.sharding import Spread
from holdfast.client.status import GroupStatus, RequestStatus
from holdfast.client.sync.batches import Reader, Write
from holdfast.client.sync.handlers import Declare, QueueHandler
from holdfast.client.sync.requests import Request
from holdfast.codec import new_id, utf8_name
from holdfast.connection.protocol import packer_of
from holdfast.connection.server import Server, repeat
from holdfast.engine import calls, request_calls, walks, write_calls
from holdfast.engine.call import Call, Entry, Settle
from holdfast.engine.calls import Granted
from holdfast.engine.library import MAX_JOBS
from holdfast.engine.request_calls import Found
from holdfast.engine.walks import Flow
from holdfast.errors import (
    GroupNotFound,
    HoldfastError,
    InvalidArgument,
    JobNotFound,
    LeaseLost,
    WrongState,
)
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
    summed,
)

if TYPE_CHECKING:
    from datetime import tzinfo
    from typing import Self, Unpack

T = TypeVar("T")
A = TypeVar("A")
N = TypeVar("N", bound=int)

_NO_JOBS: Final = ()


class Queue:
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
        utf8_name("queue name", name)
        self._packer = packer_of(name)
        if requeue not in ("rank", "back"):
            raise InvalidArgument(
                f"requeue must be 'rank' or 'back', not {arguments.shown(requeue)}"
            )
        self._to_the_back = requeue == "back"
        self._entries = Entries(defaults)
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {str(self.server.address)!r})"

    def _run(self, call: Call[T], of: str = "") -> T:  # noqa: ARG002
        """Make a call. In a sharded queue, it goes to the shard of the job `of`."""
        now = self._now() if self.clock else b""
        return self.server.run(self._packer, call, now)

    def _now(self) -> bytes:
        return b"%d" % self.clock() if self.clock else b""

    def _drive(self, flow: Flow[T]) -> T:
        """Make the calls of a flow and return its result."""
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

    def _spread(
        self,
        items: Iterable[A],
        kind: Spread,  # noqa: ARG002
        act: Callable[[Iterable[A]], Flow[list[T]]],
    ) -> list[T]:
        """Run a flow over items. In a sharded queue, each shard gets its own."""
        return self._drive(act(items))

    def _shard_of(self, id: str) -> Queue:  # noqa: ARG002
        """Return the shard that has a job: this queue, unless it is sharded."""
        return self

    def _shard_named(self, name: str) -> Queue:  # noqa: ARG002
        """Return the shard that has a request, group or schedule."""
        return self

    def _all(self) -> Sequence[Queue]:
        """Return all shards."""
        return (self,)

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
            data = inputs.json_payload(data, json)
        entry = self._entries.one(data, id, delay, at, options)
        if on_conflict == "ignore":
            return self._run(calls.add_one(entry), entry.id)
        [receipt] = self._run(inputs.adding(on_conflict)([entry]), entry.id)
        return receipt

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
        arguments.several("jobs", jobs)
        call = inputs.adding(on_conflict)
        entries = self._entries.many(jobs, options)
        return self._spread(entries, sharding.JOBS, lambda some: walks.add_many(some, call))

    # ----------------------------------------------------------------- lease

    def lease(
        self, seconds: Duration, *, wait: Duration | None = None, failed: bool = False
    ) -> Lease | None:
        """Lease the best job for `seconds`. Wait up to `wait` seconds for one.

        With `failed`, lease a failed job, for its failure handler: complete it when the failure is
        dealt with, or retry to handle it later.
        """
        leases = self.lease_many(1, seconds, wait=wait, failed=failed)
        return leases[0] if leases else None

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
        arguments.whole("count", count, 1, MAX_JOBS)
        lease_ms = arguments.duration_ms("seconds", seconds, least=1)
        patience = arguments.seconds("wait", wait, 0)
        arguments.flag("failed", failed)
        done = inputs.settles_of_done(complete)
        *before, riding = walks.chunks(done, walks.result_size) if done else [[]]
        completed: list[bool] = []
        try:
            for chunk in before:
                flags = self._run(calls.complete(chunk))
                completed += flags
            granted = self._lease(count, lease_ms, failed, riding)
            completed += granted.leases.completed
            deadline = time.monotonic() + patience
            while not granted.leases:
                left = deadline - time.monotonic()
                if granted.ask_again == 0:
                    pause = 0.0  # One call could not do all the maintenance.
                elif left > 0:
                    pause = max(0.001, min(left, granted.ask_again))
                else:
                    break
                granted = self._lease(count, lease_ms, failed, wait=pause)
        except HoldfastError as error:
            error.answers = completed
            raise
        granted.leases.completed = completed
        return granted.leases

    def _lease(
        self,
        count: int,
        lease_ms: int,
        failed: bool,
        complete: Sequence[Settle] = (),
        wait: float = 0,
    ) -> Granted:
        """Wait, and make one call that completes and leases."""
        call = calls.lease(
            self.server.session.next_token(),
            lease_ms,
            count,
            to_the_back=self._to_the_back,
            failed=failed,
            complete=complete,
            wait=wait,
        )
        return self._run(call)

    def extend(self, lease: Lease, seconds: Duration) -> Extended:
        """Extend a lease to `seconds` from now. Raises `LeaseLost` if it is over.

        Returns `Extended.CANCELLED` if the job was cancelled meanwhile.
        """
        lease_ms = arguments.duration_ms("seconds", seconds, least=1)
        return self._settle(lease, calls.extend([inputs.settle_of(lease)], lease_ms))

    def extend_many(self, leases: Iterable[Lease], seconds: Duration) -> list[Extended]:
        """Extend leases to `seconds` from now. The answer for a lost lease is false."""
        lease_ms = arguments.duration_ms("seconds", seconds, least=1)
        return self._settle_many(leases, lambda some: calls.extend(some, lease_ms))

    # ---------------------------------------------------------------- settle

    def complete(
        self,
        lease: Lease | str,
        result: object = None,
        *,
        add: Iterable[object | NewJob] = _NO_JOBS,
        force: bool = False,
    ) -> bool:
        """Complete a job. Return True for exactly one caller in the life of a job.

        Return False if the job was leased again, failed, was cancelled or has ended: then neither
        the result nor the follow-ups in `add` are stored. A result is stored if the job has
        `result_for`. A full server accepts no result: it raises `QueueFull` and changes nothing.
        With `force` the id is enough, whoever holds the lease.
        """
        kept = None if result is None else codec.encode_result(result)
        if arguments.flag("force", force):
            id, token = inputs.id_of(lease), "-"
        else:
            id, token, _ = inputs.settle_of(lease)
        entries: list[Entry] = []
        if add is not _NO_JOBS:
            entries += self._shard_of(id)._entries.many(arguments.several("add", add))
            inputs.check_follow_ups(entries)
        call = calls.complete([(id, token, kept)], force=force, add=entries)
        [completed] = self._run(call, id)
        return completed

    def complete_many(self, done: Iterable[Done]) -> list[bool]:
        """Complete many jobs, given as leases or as pairs of lease and result."""
        return self._settle_many(done, calls.complete)

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
        held = inputs.lease_of(lease)
        due = arguments.due(after, at, "after") or b"+%d" % failures.retry_ms(held.facts)
        self._settle(held, calls.retry([inputs.failed_of(held, error, due)]))

    def fail(self, lease: Lease, *, error: str | BaseException) -> None:
        """Fail a job without a retry. Raises `LeaseLost` if the lease is over.

        It stays failed until it is revived or cancelled, or its failure handler completes it.
        """
        self._settle(lease, calls.fail([inputs.failed_of(lease, error)]))

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
        call = self._releasing(after, lapsed)
        self._settle(lease, call([inputs.settle_of(lease)]))

    def release_many(
        self,
        leases: Iterable[Lease],
        *,
        after: Duration | None = None,
        lapsed: str | BaseException | None = None,
    ) -> list[bool]:
        """Release many jobs. The answer for a lost lease is False."""
        return self._settle_many(leases, self._releasing(after, lapsed))

    def _releasing(
        self, after: Duration | None, lapsed: str | BaseException | None
    ) -> Callable[[Sequence[Settle]], Call[list[bool]]]:
        after_ms = arguments.optional_ms("after", after)
        reason = b"" if lapsed is None else arguments.reason("lapsed", lapsed)
        return lambda settles: calls.release(
            settles, after_ms=after_ms, to_the_back=self._to_the_back, lapsed=reason
        )

    def _settle(self, lease: Lease, call: Call[list[N]]) -> N:
        """Make a call about one lease; raise LeaseLost if its answer is false."""
        [answer] = self._run(call, lease.id)
        if not answer:
            raise LeaseLost(
                f"{lease.id}: the lease is over: the job was taken back or has ended. "
                "Drop this run: it does not count any more"
            )
        return answer

    def _settle_many(
        self, done: Iterable[Done], call: Callable[[Sequence[Settle]], Call[list[N]]]
    ) -> list[N]:
        settles = inputs.settles_of_done(done)
        return self._spread(settles, sharding.SETTLES, lambda some: walks.settle_many(some, call))

    # ----------------------------------------------------------------- watch

    def counts(self) -> Counts:
        """Count the jobs of each state, at one moment."""
        return summed([one._run(calls.counts()) for one in self._all()])

    def totals(self) -> Totals:
        """Return lifetime counters (added, leased, completed, …). Subtract two for a rate."""
        return summed([one._run(calls.totals()) for one in self._all()])

    def show(self, id: str) -> Job | None:
        """Return the current state of a job, or None if no job has this id."""
        utf8_name("id", id)
        shown = self._run(calls.show(id), id)
        return shown.job if shown else None

    def explain(self, id: str) -> str:
        """Return why a job is not running, in words."""
        utf8_name("id", id)
        shown = self._run(calls.show(id), id)
        if shown is None:
            found = self._shard_named(id)._run(request_calls.requests(id))
            if found and not found[0].record.group:
                return status.of_a_request(id)
        return status.explain(shown, self.workers() if status.needs_workers(shown) else ())

    def data(self, id: str) -> bytes | None:
        """Return the payload of a job, or None. The payload of an ended job needs `keep`."""
        utf8_name("id", id)
        shown = self._run(calls.show(id), id)
        return shown.job.data if shown else None

    def peek(self, count: int = 1, *, state: State = "ready", first: int = 0) -> list[Job]:
        """Return jobs of one state in their order, starting at `first`, without leasing them."""
        arguments.whole("count", count, 1, MAX_JOBS)
        arguments.whole("first", first, 0, arguments.NEVER_MS)
        if state not in ("ready", "delayed", "leased", "parked", "failed", "ended"):
            raise InvalidArgument(
                "state must be 'ready', 'delayed', 'leased', 'parked', 'failed' or 'ended', "
                f"not {arguments.shown(state)}"
            )
        return self._drive(walks.peek(state, first, count))

    def failed(self, count: int = 100, *, first: int = 0) -> list[Job]:
        """Return failed jobs with their payloads, errors and counts."""
        return self.peek(count, state="failed", first=first)

    def result(self, id: str | Receipt, *, wait: Duration | None = None) -> Outcome | None:
        """Return how a job ended, with its result. Wait up to `wait` seconds; None if it has not.

        Takes the id of the job or the receipt of `add`.

        Raises `JobNotFound` if no job has this id. An ended job is remembered only if it has
        `result_for` or `remember_for`.
        """
        name = inputs.id_of(id)
        patience = arguments.seconds("wait", wait, 0)

        def ask() -> Outcome | None:
            shown = self._run(calls.show(name), name)
            if shown is None:
                raise _not_found(name)
            return shown.outcome()

        return self._watch(ask, name, patience, lambda outcome: outcome is not None)

    def audit(self) -> list[Problem]:
        """Check the invariants of the queue, changing nothing. Return the problems found."""
        return self._in_shards([one._drive(walks.audit()) for one in self._all()])

    @contextmanager
    def events(self, *, idle: Duration | None = None) -> Iterator[Iterator[Event]]:
        """Listen to events. Ends after `idle` seconds without an event.

        Events are hints: they may be missed while the connection is down.
        """
        patience = arguments.seconds("idle", idle, math.inf)
        queues = [one._packer for one in self._all()]
        with self.server.subscribe(queues, patience) as messages:
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
        name = new_id() if id is None else id
        shard = self._shard_named(inputs.request_name(name))
        arguments.flag("append", append)
        entry = inputs.follow_up_of(shard._entries, follow_up)
        said = inputs.opening(priority, limit, on_failure, keep_for, open_for, entry)
        return Request(shard, name, said, append)

    def requests(self) -> list[RequestStatus]:
        """Return current and remembered requests, the oldest first."""
        found = self._records()
        statuses = [status.status_of(one) for one in found if not one.record.group]
        return sorted(statuses, key=lambda status: (status.opened_at, status.id))

    def groups(self) -> list[GroupStatus]:
        """Return the groups that have jobs, by name."""
        found = self._records()
        return sorted(
            (status.group_of(one) for one in found if one.record.group), key=lambda g: g.name
        )

    def set_group_limit(self, group: str, limit: int | None) -> None:
        """Change how many jobs of a group may run at a time, from the next lease on."""
        utf8_name("group", group)
        arguments.group(group)
        call = request_calls.change_request(group, limit=inputs.limit_words(limit), group=True)
        letter, _ = self._shard_named(group)._run(call)
        if letter != "1":
            raise GroupNotFound(f"{group}: no group has jobs under this name")

    def _records(self) -> list[Found]:
        """Return the records of all requests and groups."""
        found: list[Found] = []
        for one in self._all():
            records: dict[str, Found] = {}
            more, position = True, 0
            while more:
                some, position = one._run(request_calls.some_requests(position))
                records |= {record.name: record for record in some}
                more = position > 0
            found += records.values()
        return found

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
        rhythm, rule = schedules.every(interval), schedules.every_rule(interval)
        made = schedules.made(rhythm, rule, data, name, missed, options)
        return schedules.declare(self.schedules, made, self._shard_named(made.name)._entries.many)

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
        rhythm, rule = schedules.cron(expression, tz), schedules.cron_rule(expression, tz)
        made = schedules.made(rhythm, rule, data, name, missed, options)
        return schedules.declare(self.schedules, made, self._shard_named(made.name)._entries.many)

    def tick(self) -> list[Receipt]:
        """Make the ticks of all schedules that are due. Return the receipts of the added jobs.

        Workers do this by themselves. Without workers, call it at least once a minute.
        """
        receipts: list[Receipt] = []
        for schedule in list(self.schedules.values()):
            ticked = self._make_ticks(schedule)
            receipts += ticked.receipts
            while ticked.receipts and ticked.again_in == 0:
                ticked = self._make_ticks(schedule)
                receipts += ticked.receipts
        return [receipt for receipt in receipts if receipt]

    def last_tick(self, schedule: str) -> datetime | None:
        """Return the last tick of a schedule that was made, or None; of a new one, its start."""
        utf8_name("schedule", schedule)
        looked = self._shard_named(schedule)._run(calls.tick(schedule))
        return None if looked.last is None else datetime.fromtimestamp(looked.last / 1000, UTC)

    def _make_ticks(self, schedule: Schedule) -> Ticked:
        """Make the ticks of a schedule that are due, as many as fit into one call."""
        one = self._shard_named(schedule.name)
        return one._drive(schedules.make(schedule, one._entries.many))

    # ----------------------------------------------------------------- spark

    def write(self, name: str | None = None) -> Write:
        """Return a write: many processes stage rows, and one commits them.

        Every run needs a new name; by default a random name is used.
        """
        return Write(self, name)

    def reader(self, name: str, *, epoch: int | None = None) -> Reader:
        """Return a reader, which claims jobs in batches. `epoch` is that of an open reader.

        Nothing is sent until it is opened.
        """
        return Reader(self, name, epoch)

    def publish(self) -> int:
        """Turn committed rows into jobs if their process died before. Return how many."""
        return sum([one._drive(walks.publish()) for one in self._all()])

    def last_batch(self, writer: str) -> int | None:
        """Return the last batch that a writer has committed, or None."""
        [record] = self._run(write_calls.ledger(f"writer {inputs.checked_name('writer', writer)}"))
        return int(record["batch"]) if record else None

    # ---------------------------------------------------------------- manage

    def cancel(self, id: str, *, running: bool = True) -> bool:
        """Cancel a job. Return True if this call cancelled it.

        A waiting or failed job is removed. A running job is marked: its holder learns of it by an
        event and by `extend`, and however the job is settled, it ends as cancelled. With
        `running=False` a running job is left alone; only an update that waits for it is dropped.
        """
        utf8_name("id", id)
        call = calls.cancel([id], running=arguments.flag("running", running))
        [cancelled] = self._run(call, id)
        return cancelled

    def cancel_matching(self, data: object, *, running: bool = True) -> int:
        """Cancel every job with this payload. Return how many. Checks 1000 jobs per call."""
        payload = codec.encode(data)
        arguments.flag("running", running)
        return sum(
            [one._drive(walks.cancel_matching(payload, running=running)) for one in self._all()]
        )

    def revive(self, id: str) -> bool:
        """Run a failed job again with fresh counts. Return False if it is not failed."""
        utf8_name("id", id)
        [revived] = self._run(calls.revive([id]), id)
        return revived

    def set_result(self, id: str, result: object) -> None:
        """Store or replace the result of a job, with or without a lease, even after it has ended.

        Raises `JobNotFound`, or `WrongState` if the job keeps no result.
        """
        utf8_name("id", id)
        stored = self._run(calls.set_result(id, codec.encode_result(result)), id)
        if stored == "0":
            raise _not_found(id)
        if stored == "n":
            raise WrongState(f"{id}: the job keeps no result: add it with result_for")

    def pause(self) -> None:
        """Grant no leases until `resume`. Leased jobs continue."""
        for one in self._all():
            one._run(calls.pause())

    def resume(self) -> None:
        """Grant leases again."""
        for one in self._all():
            one._run(calls.resume())

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
        arguments.flag("force", force)
        held = arguments.optional_ms("held_longer_than", held_longer_than)
        failed = arguments.optional_ms("failed_longer_than", failed_longer_than)
        back = self._to_the_back

        def call() -> Call[calls.Step]:
            return calls.tidy(to_the_back=back, force=force, failed_for_ms=failed)

        def take_back(position: int) -> Call[tuple[int, int]]:
            # 0 means every lease, even one granted in this millisecond.
            return calls.recall(longer_than_ms=held or None, to_the_back=back, position=position)

        moved = []
        for one in self._all():
            recall = None if held is None else walks.recall(take_back)
            moved.append(one._drive(walks.tidy(call, recall)))
        return summed(moved)

    @contextmanager
    def keep_tidy(self, *, every: Duration = 30) -> Iterator[None]:
        """Call `tidy` periodically while the block runs. Errors are logged."""
        pause = arguments.duration_ms("every", every, least=1) / 1000
        with repeat(pause, self.tidy, f"tidy {self.name}"):
            yield

    def repair(self) -> list[Problem]:
        """Repair the problems that `audit` finds, scanning all jobs. Return what was done.

        A job with a payload is never dropped: if it was in no set, it becomes ready.
        """
        return self._in_shards([one._drive(walks.repair()) for one in self._all()])

    def _in_shards(self, found: list[list[Problem]]) -> list[Problem]:
        """Join the problems of all shards; in a sharded queue, with the name of the shard."""
        [problems] = found
        return problems

    def register(self, *, alive_for: Duration = 60, **about: object) -> None:
        """Register this process in the directory of workers for `alive_for` seconds.

        The directory is only information: leases lapse whether or not their holder is registered.
        """
        alive_ms = arguments.duration_ms("alive_for", alive_for, least=1)
        entry = inputs.about_worker(about)
        for one in self._all():
            one._run(calls.register(self.holder, alive_ms, entry))

    def workers(self) -> list[WorkerInfo]:
        """Return the registered workers, alive or not."""
        found = [one._run(calls.workers()) for one in self._all()]
        return sharding.merged_workers(found)

    def fail_worker(self, worker: WorkerInfo | Lease | str) -> int:
        """Reclaim all jobs of a worker at once, counting a lapse for each. Return how many."""
        holder = inputs.holder_of(worker)

        def call(position: int) -> Call[tuple[int, int]]:
            return calls.recall(holder=holder, to_the_back=self._to_the_back, position=position)

        return sum([one._drive(walks.recall(call)) for one in self._all()])

    def delete(self, *, idle_for: Duration | None = None) -> bool:
        """Delete the queue with all its jobs. Return whether nothing remains.

        With `idle_for`, delete it only if it is empty and not paused, and if no call changed or
        leased anything for so many seconds: to remove queues that are no longer used.
        """
        idle_ms = arguments.optional_ms("idle_for", idle_for)
        deleted = [one._run(calls.delete(idle_ms)) for one in self._all()]
        return all(deleted)

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        self.server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __bool__(self) -> bool:
        """Return True, even if the queue is empty."""
        return True

    def __len__(self) -> int:
        """Return how many jobs wait: ready, parked and delayed."""
        return (self.counts()).waiting


def _not_found(id: str) -> JobNotFound:
    return JobNotFound(
        f"{id}: no job has this id. A job that ended is remembered only if it has result_for "
        "or remember_for"
    )
