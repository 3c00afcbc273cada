"""Checks arguments about jobs: leases, ids, payloads, `on_conflict`. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

from msgspec import UNSET

from holdfast import arguments, codec
from holdfast.codec import Json
from holdfast.engine import calls
from holdfast.engine.call import Call, Entry, Settle
from holdfast.errors import InvalidArgument, JobNotFound, LeaseLost
from holdfast.job import Lease, OnConflict, Receipt
from holdfast.names import utf8_name

T = TypeVar("T")

Done: TypeAlias = Lease | tuple[Lease, Any]
"""A lease to complete, or a lease and its result."""


def adding(on_conflict: OnConflict) -> Callable[[Sequence[Entry]], Call[list[Receipt]]]:
    """Return the function that makes the call to add jobs, for this `on_conflict`."""
    if how := arguments.update_words(on_conflict):
        return lambda entries: calls.update(entries, how)
    if on_conflict not in ("ignore", "raise"):
        raise InvalidArgument(
            "on_conflict must be 'ignore', 'raise', 'update' or an Update, "
            f"not {arguments.shown(on_conflict)}"
        )
    return lambda entries: calls.add(entries, on_conflict=on_conflict)


def lease_of(lease: object) -> Lease:
    """Check that an argument is a lease."""
    if not isinstance(lease, Lease):
        raise InvalidArgument(f"a Lease is needed here, not {type(lease).__name__}")
    return lease


def id_of(job: Lease | Receipt | str) -> str:
    """Return the id of a job, given its id, receipt or lease."""
    if isinstance(job, Lease | Receipt):
        return job.id
    utf8_name("id", job)
    return job


def json_payload(data: object, json: object) -> Json:
    """Return the argument json= as a payload. Exactly one of data and json must be given."""
    if json is UNSET:
        raise InvalidArgument("give the payload: data, or json= for any value as JSON")
    if data is not UNSET:
        raise InvalidArgument("give data or json=, not both")
    return Json(json)


def settles_of_done(done: Iterable[Done]) -> list[Settle]:
    """Convert leases, or pairs of lease and result, to settles."""
    settles: list[Settle] = []
    for item in arguments.several("leases", done):
        if isinstance(item, tuple) and len(item) == 2:
            lease, result = lease_of(item[0]), codec.encode_result(item[1])
        else:
            lease, result = lease_of(item), None
        settles.append((lease.id, lease.token, result))
    return settles


def not_found(id: str) -> JobNotFound:
    """Return the error for an unknown id."""
    return JobNotFound(
        f"{id}: no job has this id. A job that ended is remembered only if it has result_for "
        "or remember_for"
    )


def only(call: Call[list[T]]) -> Call[T]:
    """Return the only answer of a call about one job."""
    return call.then(itemgetter(0))


def or_lost(lease: Lease, call: Call[list[T]]) -> Call[T]:
    """Return the only answer of a call about one lease; raise LeaseLost if it is False."""

    def read_one(answers: list[T]) -> T:
        answer = answers[0]
        if not answer:
            raise LeaseLost(
                f"{lease.id}: the lease is over: the job was taken back or has ended. "
                "Drop this run: it does not count any more"
            )
        return answer

    return call.then(read_one)
