"""What the user said, as calls: arguments are checked and encoded here, for both shells. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import UNSET

from holdfast import arguments, codec, flows
from holdfast.engine import calls
from holdfast.engine.calls import Call, Entry, Granted, Settle
from holdfast.engine.script import MAX_BYTES, MAX_JOBS
from holdfast.errors import InvalidArgument, LeaseLost
from holdfast.flows import Flow
from holdfast.ids import new_id
from holdfast.job import Duration, Instant, JobOptions, Lease, Leases, NewJob, Receipt, Tidied
from holdfast.keys import utf8_name

T = TypeVar("T")

Done: TypeAlias = Lease | tuple[Lease, Any]
"""A lease to complete, or a lease and its result."""

Requeue: TypeAlias = Literal["rank", "back"]


class Asker:
    """Turns the methods of one queue into calls and flows."""

    def __init__(
        self,
        next_token: Callable[[], str],
        defaults: Mapping[str, Any] | None = None,
        requeue: Requeue = "rank",
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
        self._defaults = dict(defaults or {})
        self._to_the_back = requeue == "back"
        arguments.options(self._defaults)

    # ------------------------------------------------------------------- add

    def add(
        self,
        data: object,
        id: str | None,
        delay: Duration | None,
        at: Instant | None,
        on_conflict: str,
        options: Mapping[str, Any],
    ) -> Call[Receipt]:
        entry = self._entry(data, id, delay, at, options)
        call = calls.add([entry], on_conflict=_on_conflict(on_conflict))
        read = call.read
        return Call(call.script, call.args, lambda reply: read(reply)[0], ids=call.ids)

    def add_many(
        self, jobs: Iterable[object], on_conflict: str, options: Mapping[str, Any]
    ) -> Flow[list[Receipt]]:
        arguments.several("jobs", jobs)
        return flows.add_many(self._entries(jobs, options), _on_conflict(on_conflict))

    def _entries(self, jobs: Iterable[object], options: Mapping[str, Any]) -> Iterator[Entry]:
        priority, packed = arguments.options({**self._defaults, **options})
        for job in jobs:
            if isinstance(job, NewJob):
                own = {
                    name: value
                    for name in JobOptions.__annotations__
                    if (value := getattr(job, name)) is not UNSET
                }
                yield self._entry(job.data, job.id, job.delay, job.at, {**options, **own})
            else:
                yield Entry(new_id(), codec.encode(job), True, priority, b"", packed)

    def _entry(
        self,
        data: object,
        id: str | None,
        delay: Duration | None,
        at: Instant | None,
        options: Mapping[str, Any],
    ) -> Entry:
        if id is not None:
            utf8_name("id", id)
        if options or self._defaults:
            priority, packed = arguments.options({**self._defaults, **options})
        else:
            priority, packed = arguments.DEFAULT_PRIORITY, b""
        due = b"" if delay is None and at is None else arguments.due(delay, at)
        return Entry(id or new_id(), codec.encode(data), id is None, priority, due, packed)

    # ----------------------------------------------------------------- lease

    def lease_many(
        self, count: int, seconds: Duration, wait: Duration | None, complete: Iterable[Done]
    ) -> Flow[Leases]:
        arguments.whole("count", count, 1, MAX_JOBS)
        lease_ms = arguments.duration_ms("seconds", seconds, least=1)
        patience = 0.0 if wait is None else _seconds("wait", wait)
        done = _settles(complete)

        def ask(riding: Sequence[Settle], wait: float) -> Call[Granted]:
            back = self._to_the_back
            token = self._next_token()
            return calls.lease(token, lease_ms, count, to_the_back=back, complete=riding, wait=wait)

        return flows.lease(ask, done, patience)

    def lease(self, seconds: Duration, wait: Duration | None) -> Flow[Lease | None]:
        leases = yield from self.lease_many(1, seconds, wait, ())
        return leases[0] if leases else None

    # ---------------------------------------------------------------- settle

    def complete(
        self, lease: Lease | str, result: object, add: Iterable[object], force: bool
    ) -> Call[bool]:
        kept = None if result is None else codec.encode_result(result)
        if arguments.flag("force", force):
            settle = (_id_of(lease), "-", kept)
        else:
            held = _lease(lease)
            settle = (held.id, held.token, kept)
        entries = list(self._entries(arguments.several("add", add), {}))
        if len(list(flows.chunks(entries, flows.payload_size))) > 1:
            raise InvalidArgument(
                f"one call adds at most {MAX_JOBS} follow-ups and {MAX_BYTES} bytes: "
                "add one job that adds the rest"
            )
        call = calls.complete([settle], force=force, add=entries)
        read = call.read
        return Call(call.script, call.args, lambda reply: read(reply)[0])

    def complete_many(self, done: Iterable[Done]) -> Flow[list[bool]]:
        return flows.settle_many(_settles(done), calls.complete)

    def release(self, lease: Lease, after: Duration | None, lapsed: str | None) -> Call[None]:
        return _or_lost(lease, self._release(after, lapsed)(calls.settles_of([_lease(lease)])))

    def release_many(
        self, leases: Iterable[Lease], after: Duration | None, lapsed: str | None
    ) -> Flow[list[bool]]:
        return flows.settle_many(_settles(leases), self._release(after, lapsed))

    def _release(
        self, after: Duration | None, lapsed: str | None
    ) -> Callable[[Sequence[Settle]], Call[list[bool]]]:
        after_ms = None if after is None else arguments.duration_ms("after", after)
        reason = b"" if lapsed is None else arguments.reason("lapsed", lapsed)
        return lambda settles: calls.release(
            settles, after_ms=after_ms, to_the_back=self._to_the_back, lapsed=reason
        )

    def extend(self, lease: Lease, seconds: Duration) -> Call[None]:
        lease_ms = arguments.duration_ms("seconds", seconds, least=1)
        return _or_lost(lease, calls.extend(calls.settles_of([_lease(lease)]), lease_ms))

    def extend_many(self, leases: Iterable[Lease], seconds: Duration) -> Flow[list[bool]]:
        lease_ms = arguments.duration_ms("seconds", seconds, least=1)
        return flows.settle_many(_settles(leases), lambda settles: calls.extend(settles, lease_ms))

    def idle(self, seconds: Duration | None) -> float:
        return math.inf if seconds is None else _seconds("idle", seconds)

    def tidy(self, force: bool) -> Flow[Tidied]:
        arguments.flag("force", force)
        return flows.tidy(lambda: calls.tidy(to_the_back=self._to_the_back, force=force))


def _on_conflict(value: str) -> str:
    if value not in ("ignore", "raise"):
        raise InvalidArgument(
            f"on_conflict must be 'ignore' or 'raise', not {arguments.shown(value)}"
        )
    return value


def _seconds(name: str, value: Duration) -> float:
    return arguments.duration_ms(name, value, forever=True) / 1000


def _lease(lease: object) -> Lease:
    if not isinstance(lease, Lease):
        raise InvalidArgument(f"a Lease is needed here, not {type(lease).__name__}")
    return lease


def _id_of(lease: Lease | str) -> str:
    if isinstance(lease, Lease):
        return lease.id
    utf8_name("id", lease)
    return lease


def _settles(done: Iterable[Done]) -> list[Settle]:
    settles: list[Settle] = []
    for item in arguments.several("leases", done):
        if isinstance(item, tuple) and len(item) == 2:
            lease, result = _lease(item[0]), codec.encode_result(item[1])
        else:
            lease, result = _lease(item), None
        settles.append((lease.id, lease.token, result))
    return settles


def _or_lost(lease: Lease, call: Call[list[bool]]) -> Call[None]:
    """Raise where the many-form of a call would answer False."""
    read = call.read

    def read_one(reply: Any) -> None:
        if not read(reply)[0]:
            raise LeaseLost(
                f"{lease.id}: the lease is over, the job was taken back or has ended. "
                "Drop this run: somebody else has the job"
            )

    return Call(call.script, call.args, read_one)
