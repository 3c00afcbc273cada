"""Turns the methods of a queue into calls: checks and encodes the arguments. No I/O."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast import arguments, codec, failures
from holdfast.client import schedules
from holdfast.client.explain import explain, needs_workers, of_a_request, outcome_of
from holdfast.client.inputs import (
    Done,
    adding,
    id_of,
    lease_of,
    not_found,
    only,
    or_lost,
    settles_of_done,
)
from holdfast.client.readers import ReaderAsker
from holdfast.client.requests import OnFailure, RequestAsker, set_group_limit, walk
from holdfast.client.schedules import Missed, Rhythm, Schedule, Ticked
from holdfast.client.writes import WriteAsker, last_batch
from holdfast.codec import MAX_ERROR_BYTES
from holdfast.engine import calls, request_calls, walks
from holdfast.engine.call import Call, Entry, Failed, Settle
from holdfast.engine.calls import Granted
from holdfast.engine.library import MAX_BYTES, MAX_JOBS
from holdfast.engine.replies import Shown
from holdfast.engine.request_calls import Found
from holdfast.engine.walks import Flow
from holdfast.errors import InvalidArgument, WrongState
from holdfast.failures import retry_ms
from holdfast.job import (
    Counts,
    Duration,
    Extended,
    Instant,
    Job,
    Lease,
    Leases,
    NewJob,
    OnConflict,
    Outcome,
    Problem,
    Receipt,
    Row,
    State,
    Tidied,
    Totals,
    WorkerInfo,
    own_options,
)
from holdfast.names import new_id, utf8_name

Requeue: TypeAlias = Literal["rank", "back"]

Namer: TypeAlias = Callable[[str | None, str | None], str]
"""Takes an id or None, and a group or None. Checks the id or makes one, in sharded queues."""


class Asker:
    """Turns the methods of one queue into calls and flows."""

    def __init__(
        self,
        next_token: Callable[[], str],
        defaults: Mapping[str, Any] | None = None,
        requeue: Requeue = "rank",
        namer: Namer | None = None,
    ) -> None:
        if requeue not in ("rank", "back"):
            raise InvalidArgument(
                f"requeue must be 'rank' or 'back', not {arguments.shown(requeue)}"
            )
        if not isinstance(defaults, Mapping | None):
            raise InvalidArgument(
                f"defaults must be a dict of options, not {arguments.shown(defaults)}"
            )
        self._next_token = next_token
        self._namer = namer
        self._defaults = dict(defaults or {})
        self.to_the_back = requeue == "back"
        arguments.options(self._defaults)

    # ------------------------------------------------------------------- add

    def add(
        self,
        data: object,
        id: str | None,
        delay: Duration | None,
        at: Instant | None,
        on_conflict: OnConflict,
        options: Mapping[str, Any],
    ) -> Call[Receipt]:
        return only(adding(on_conflict)([self.entry(data, id, delay, at, options)]))

    def add_many(
        self, jobs: Iterable[object], on_conflict: OnConflict, options: Mapping[str, Any]
    ) -> Flow[list[Receipt]]:
        arguments.several("jobs", jobs)
        return walks.add_many(self.entries(jobs, options), adding(on_conflict))

    def entries(self, jobs: Iterable[object], options: Mapping[str, Any]) -> Iterator[Entry]:
        shared = self._said(options)
        priority, packed = arguments.options(shared)
        make_id = self.new_ids(options)
        grouped = shared.get("group") is not None
        for job in jobs:
            if isinstance(job, NewJob):
                yield self.entry_of(job, options)
            else:
                yield Entry(make_id(), codec.encode(job), True, priority, b"", packed, grouped)

    def new_ids(self, options: Mapping[str, Any]) -> Callable[[], str]:
        if self._namer is None:
            return new_id
        return partial(self._namer, None, self._said(options).get("group"))

    def entry_of(self, job: NewJob, options: Mapping[str, Any]) -> Entry:
        if isinstance(job, Row) and job.request is not None:
            raise InvalidArgument(
                f"a row of the request {arguments.shown(job.request)} is staged (queue.write), or "
                "added as a part (queue.request)"
            )
        return self.entry(job.data, job.id, job.delay, job.at, {**options, **own_options(job)})

    def entry(
        self,
        data: object,
        id: str | None,
        delay: Duration | None,
        at: Instant | None,
        options: Mapping[str, Any],
    ) -> Entry:
        if id is not None:
            utf8_name("id", id)
        priority, packed, group = arguments.DEFAULT_PRIORITY, b"", None
        if options or self._defaults:
            said = self._said(options)
            priority, packed = arguments.options(said)
            group = said.get("group")
        due = b"" if delay is None and at is None else arguments.due(delay, at)
        payload = codec.encode(data)
        name = self._namer(id, group) if self._namer else id or new_id()
        return Entry(name, payload, id is None, priority, due, packed, group is not None)

    def _said(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return a job's options with the defaults filled in. A default limit needs a group."""
        said = {**self._defaults, **options}
        if said.get("group") is None and "group_limit" not in options:
            said.pop("group_limit", None)
        return said

    # ----------------------------------------------------------------- lease

    def lease_many(
        self,
        count: int,
        seconds: Duration,
        wait: Duration | None,
        complete: Iterable[Done],
        failed: bool,
    ) -> Flow[Leases]:
        arguments.whole("count", count, 1, MAX_JOBS)
        lease_ms = arguments.duration_ms("seconds", seconds, least=1)
        patience = self.wait(wait)
        arguments.flag("failed", failed)
        done = settles_of_done(complete)

        def ask(riding: Sequence[Settle], wait: float) -> Call[Granted]:
            return calls.lease(
                self._next_token(),
                lease_ms,
                count,
                to_the_back=self.to_the_back,
                failed=failed,
                complete=riding,
                wait=wait,
            )

        return walks.lease(ask, done, patience)

    def lease(self, seconds: Duration, wait: Duration | None, failed: bool) -> Flow[Lease | None]:
        leases = yield from self.lease_many(1, seconds, wait, (), failed)
        return leases[0] if leases else None

    # ---------------------------------------------------------------- settle

    def complete(
        self, lease: Lease | str, result: object, add: Iterable[object], force: bool
    ) -> Call[bool]:
        kept = None if result is None else codec.encode_result(result)
        if arguments.flag("force", force):
            settle = (id_of(lease), "-", kept)
        else:
            held = lease_of(lease)
            settle = (held.id, held.token, kept)
        entries = list(self.entries(arguments.several("add", add), {}))
        check_follow_ups(entries)
        return only(calls.complete([settle], force=force, add=entries))

    def complete_many(self, done: Iterable[Done]) -> Flow[list[bool]]:
        return walks.settle_many(settles_of_done(done), calls.complete)

    def release(
        self, lease: Lease, after: Duration | None, lapsed: str | BaseException | None
    ) -> Call[bool]:
        return or_lost(lease, self._release(after, lapsed)(calls.settles_of([lease_of(lease)])))

    def release_many(
        self, leases: Iterable[Lease], after: Duration | None, lapsed: str | BaseException | None
    ) -> Flow[list[bool]]:
        return walks.settle_many(settles_of_done(leases), self._release(after, lapsed))

    def _release(
        self, after: Duration | None, lapsed: str | BaseException | None
    ) -> Callable[[Sequence[Settle]], Call[list[bool]]]:
        after_ms = None if after is None else arguments.duration_ms("after", after)
        reason = b"" if lapsed is None else arguments.reason("lapsed", lapsed)
        return lambda settles: calls.release(
            settles, after_ms=after_ms, to_the_back=self.to_the_back, lapsed=reason
        )

    def retry(
        self,
        lease: Lease,
        error: str | BaseException,
        after: Duration | None,
        at: Instant | None,
    ) -> Call[bool]:
        held = lease_of(lease)
        due = arguments.due(after, at, "after") or b"+%d" % retry_ms(held.facts)
        why = arguments.reason("error", error)
        failed = Failed(held.id, held.token, due, why, failures.packed(error, why))
        return or_lost(lease, calls.retry([failed]))

    def fail(self, lease: Lease, error: str | BaseException) -> Call[bool]:
        held = lease_of(lease)
        why = arguments.reason("error", error)
        failed = Failed(held.id, held.token, b"", why, failures.packed(error, why))
        return or_lost(lease, calls.fail([failed]))

    def extend(self, lease: Lease, seconds: Duration) -> Call[Extended]:
        lease_ms = arguments.duration_ms("seconds", seconds, least=1)
        return or_lost(lease, calls.extend(calls.settles_of([lease_of(lease)]), lease_ms))

    def extend_many(self, leases: Iterable[Lease], seconds: Duration) -> Flow[list[Extended]]:
        lease_ms = arguments.duration_ms("seconds", seconds, least=1)
        return walks.settle_many(
            settles_of_done(leases), lambda settles: calls.extend(settles, lease_ms)
        )

    def idle(self, seconds: Duration | None) -> float:
        return math.inf if seconds is None else _seconds("idle", seconds)

    def wait(self, seconds: Duration | None) -> float:
        return 0.0 if seconds is None else _seconds("wait", seconds)

    def patience(self, timeout: Duration | None) -> float:
        return math.inf if timeout is None else _seconds("timeout", timeout)

    def every(self, seconds: Duration) -> float:
        return arguments.duration_ms("every", seconds, least=1) / 1000

    def tidy(
        self, force: bool, held_longer_than: Duration | None, failed_longer_than: Duration | None
    ) -> Flow[Tidied]:
        arguments.flag("force", force)
        back = self.to_the_back
        held = _age("held_longer_than", held_longer_than)
        failed = _age("failed_longer_than", failed_longer_than)
        take_back = None
        if held is not None:
            # 0 means every lease, even one granted in this millisecond.
            take_back = walks.recall(
                lambda position: calls.recall(
                    longer_than_ms=held or None, to_the_back=back, position=position
                )
            )
        return walks.tidy(
            lambda: calls.tidy(to_the_back=back, force=force, failed_for_ms=failed), take_back
        )

    def pause(self) -> Flow[None]:
        return walks.one(calls.pause())

    def resume(self) -> Flow[None]:
        return walks.one(calls.resume())

    def delete(self, idle_for: Duration | None) -> Flow[bool]:
        idle_ms = None if idle_for is None else arguments.duration_ms("idle_for", idle_for)
        return walks.one(calls.delete(idle_ms))

    def audit(self) -> Flow[list[Problem]]:
        return walks.audit()

    def repair(self) -> Flow[list[Problem]]:
        return walks.repair()

    # ------------------------------------------------------------------- jobs

    def cancel(self, id: str, running: bool) -> Call[bool]:
        utf8_name("id", id)
        return only(calls.cancel([id], running=arguments.flag("running", running)))

    def cancel_matching(self, data: object, running: bool) -> Flow[int]:
        return walks.cancel_matching(codec.encode(data), running=arguments.flag("running", running))

    def revive(self, id: str) -> Call[bool]:
        utf8_name("id", id)
        return only(calls.revive([id]))

    def set_result(self, id: str, result: object) -> Call[None]:
        utf8_name("id", id)

        def check(stored: str) -> None:
            if stored == "0":
                raise not_found(id)
            if stored == "n":
                raise WrongState(f"{id}: the job keeps no result: add it with result_for")

        return calls.set_result(id, codec.encode_result(result)).then(check)

    def show(self, id: str) -> Call[Shown | None]:
        utf8_name("id", id)
        return calls.show(id)

    def explain(self, id: str) -> Flow[str]:
        shown: Shown | None = yield self.show(id)
        if shown is None:
            found: list[Found] = yield request_calls.requests(id)
            if found and not found[0].record.group:
                return of_a_request(id)
        workers = (yield from self.workers()) if needs_workers(shown) else ()
        return explain(shown, workers)

    def outcome(self, id: str) -> Call[Outcome | None]:
        def read(shown: Shown | None) -> Outcome | None:
            if shown is None:
                raise not_found(id)
            return outcome_of(shown)

        return self.show(id).then(read)

    def counts(self) -> Flow[Counts]:
        return walks.one(calls.counts())

    def totals(self) -> Flow[Totals]:
        return walks.one(calls.totals())

    def peek(self, count: int, state: State, first: int) -> Flow[list[Job]]:
        arguments.whole("count", count, 1, MAX_JOBS)
        arguments.whole("first", first, 0, arguments.NEVER_MS)
        if state not in ("ready", "delayed", "leased", "parked", "failed", "ended"):
            raise InvalidArgument(
                "state must be 'ready', 'delayed', 'leased', 'parked', 'failed' or 'ended', "
                f"not {arguments.shown(state)}"
            )
        return walks.peek(state, first, count)

    # --------------------------------------------------------------- requests

    def request(
        self,
        id: str | None,
        priority: int,
        limit: int | None,
        on_failure: OnFailure,
        keep_for: Duration,
        open_for: Duration | None,
        follow_up: object,
        append: bool,
    ) -> RequestAsker:
        entry = None
        if follow_up is not None:
            [entry] = self.entries([follow_up], {})
            if isinstance(follow_up, NewJob) and follow_up.id is not None:
                raise InvalidArgument("the follow-up of a request is named after it: give no id")
        name = new_id() if id is None else id
        tidy = calls.tidy(to_the_back=self.to_the_back)
        return RequestAsker(
            name, priority, limit, on_failure, keep_for, open_for, entry, append, tidy
        )

    def walk(self) -> Flow[list[Found]]:
        return walk()

    def set_group_limit(self, group: str, limit: int | None) -> Call[None]:
        return set_group_limit(group, limit)

    # ----------------------------------------------------------------- spark

    def write(self, name: str | None) -> WriteAsker:
        return WriteAsker(name, self)

    def reader(self, name: str, epoch: int | None) -> ReaderAsker:
        return ReaderAsker(name, epoch, self.to_the_back)

    def publish(self) -> Flow[int]:
        return walks.publish()

    def last_batch(self, writer: str) -> Call[int | None]:
        return last_batch(writer)

    # -------------------------------------------------------------- schedules

    def schedule(
        self,
        known: dict[str, Schedule],
        rhythm: Rhythm,
        data: object,
        name: str | None,
        missed: Missed,
        options: Mapping[str, Any],
    ) -> Schedule:
        return schedules.declare(known, rhythm, data, name, missed, options, self._new_entries)

    def make(self, schedule: Schedule) -> Flow[Ticked]:
        return schedules.make(schedule, self._new_entries)

    def make_all(self, declared: Mapping[str, Schedule]) -> Flow[list[Receipt]]:
        return schedules.make_all(list(declared.values()), self._new_entries)

    def _new_entries(self, jobs: Iterable[NewJob]) -> Iterator[Entry]:
        return self.entries(jobs, {})

    # ---------------------------------------------------------------- workers

    def register(self, holder: str, alive_for: Duration, about: Mapping[str, Any]) -> Flow[None]:
        alive_ms = arguments.duration_ms("alive_for", alive_for, least=1)
        entry = {"host": platform.node(), "pid": os.getpid(), **about}
        try:
            packed = msgspec.msgpack.encode(entry)
        except (TypeError, ValueError, msgspec.MsgspecError, OverflowError) as error:
            raise InvalidArgument(f"the entry of a worker must be plain values: {error}") from None
        if len(packed) > MAX_ERROR_BYTES:
            raise InvalidArgument(
                f"the entry of a worker has {len(packed)} bytes, more than {MAX_ERROR_BYTES}"
            )
        return walks.one(calls.register(holder, alive_ms, packed))

    def workers(self) -> Flow[list[WorkerInfo]]:
        return walks.one(calls.workers())

    def fail_worker(self, worker: WorkerInfo | Lease | str) -> Flow[int]:
        holder = worker if isinstance(worker, str) else getattr(worker, "holder", None)
        if not isinstance(holder, str):
            raise InvalidArgument(
                f"a holder, a Lease or a WorkerInfo is needed here, not {arguments.shown(worker)}"
            )
        utf8_name("holder", holder)
        return walks.recall(
            lambda position: calls.recall(
                holder=holder, to_the_back=self.to_the_back, position=position
            )
        )


def check_follow_ups(entries: Sequence[Entry]) -> None:
    """Refuse more follow-ups than fit into one call."""
    if len(list(walks.chunks(entries, walks.payload_size))) > 1:
        raise InvalidArgument(
            f"one call adds at most {MAX_JOBS} follow-ups and {MAX_BYTES} bytes: "
            "add one job that adds the rest"
        )


def _seconds(name: str, value: Duration) -> float:
    return arguments.duration_ms(name, value, forever=True) / 1000


def _age(name: str, value: Duration | None) -> int | None:
    return None if value is None else arguments.duration_ms(name, value)
