"""Jobs, parts and leases as users give them: checked, and made into entries and settles. No I/O."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET

from holdfast import arguments, codec, failures
from holdfast.codec import MAX_ERROR_BYTES, Json, new_id, utf8_name
from holdfast.engine import calls, walks
from holdfast.engine.call import Call, Entry, Failed, Settle
from holdfast.engine.library import MAX_BYTES, MAX_JOBS, MAX_REQUEST_BYTES
from holdfast.errors import InvalidArgument
from holdfast.job import (
    Duration,
    Instant,
    Lease,
    NewJob,
    OnConflict,
    Receipt,
    Row,
    Staged,
    WorkerInfo,
    own_options,
)

Requeue: TypeAlias = Literal["rank", "back"]

Done: TypeAlias = Lease | tuple[Lease, Any]
"""A lease to complete, or a lease and its result."""

Namer: TypeAlias = Callable[[str | None, str | None], str]
"""Takes an id or None, and a group or None. Checks the id or makes one, in sharded queues."""

Said: TypeAlias = tuple[int, bytes, bytes]
"""What all parts of one call share: priority, due time, packed options."""

_NO_OPTIONS: Final[Mapping[str, Any]] = {}


class Entries:
    """Makes entries of jobs, with the default options of a queue."""

    def __init__(
        self, defaults: Mapping[str, Any] | None = None, namer: Namer | None = None
    ) -> None:
        if not isinstance(defaults, Mapping | None):
            raise InvalidArgument(
                f"defaults must be a dict of options, not {arguments.shown(defaults)}"
            )
        self._defaults = dict(defaults or {})
        self._namer = namer
        arguments.options(self._defaults)

    def one(
        self,
        data: object,
        id: str | None,
        delay: Duration | None,
        at: Instant | None,
        options: Mapping[str, Any],
    ) -> Entry:
        """Return the entry of a job."""
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

    def of(self, job: NewJob, options: Mapping[str, Any]) -> Entry:
        """Return the entry of a job that may have options of its own."""
        if isinstance(job, Row) and job.request is not None:
            raise InvalidArgument(
                f"a row of the request {arguments.shown(job.request)} is staged (queue.write), or "
                "added as a part (queue.request)"
            )
        return self.one(job.data, job.id, job.delay, job.at, {**options, **own_options(job)})

    def many(
        self,
        jobs: Iterable[object],
        options: Mapping[str, Any] = _NO_OPTIONS,
        *,
        staged: bool = False,
    ) -> Iterator[Entry]:
        """Yield the entries of payloads and `NewJob` values; staged rows may also be parts."""
        said = self._said(options)
        priority, packed = arguments.options(said)
        make_id = self._new_ids(said)
        grouped = said.get("group") is not None
        for job in jobs:
            if not isinstance(job, NewJob):
                yield Entry(make_id(), codec.encode(job), True, priority, b"", packed, grouped)
            elif staged and isinstance(job, Row) and job.request is not None:
                yield _row_of_part(make_id(), job, job.request, options)
            else:
                yield self.of(job, options)

    def _said(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return a job's options with the defaults filled in. A default limit needs a group."""
        said = {**self._defaults, **options}
        if said.get("group") is None and "group_limit" not in options:
            said.pop("group_limit", None)
        return said

    def _new_ids(self, said: Mapping[str, Any]) -> Callable[[], str]:
        return partial(self._namer, None, said.get("group")) if self._namer else new_id


def adding(on_conflict: OnConflict) -> Callable[[Sequence[Entry]], Call[list[Receipt]]]:
    """Return the function that makes the call to add jobs, for this `on_conflict`."""
    if on_conflict == "ignore":
        return calls.add
    if how := arguments.update_words(on_conflict):
        return lambda entries: calls.update(entries, how)
    if on_conflict != "raise":
        raise InvalidArgument(
            "on_conflict must be 'ignore', 'raise', 'update' or an Update, "
            f"not {arguments.shown(on_conflict)}"
        )
    return partial(calls.add, on_conflict="raise")


def check_follow_ups(entries: Sequence[Entry]) -> None:
    """Refuse more follow-ups than fit into one call."""
    if len(list(walks.chunks(entries, walks.payload_size))) > 1:
        raise InvalidArgument(
            f"one call adds at most {MAX_JOBS} follow-ups and {MAX_BYTES} bytes: "
            "add one job that adds the rest"
        )


def json_payload(data: object, json: object) -> Json:
    """Return the argument json= as a payload. Exactly one of data and json must be given."""
    if json is UNSET:
        raise InvalidArgument("give the payload: data, or json= for any value as JSON")
    if data is not UNSET:
        raise InvalidArgument("give data or json=, not both")
    return Json(json)


# ------------------------------------------------------------------------------- leases


def lease_of(lease: object) -> Lease:
    """Check that an argument is a lease."""
    if not isinstance(lease, Lease):
        raise _no_lease(lease)
    return lease


def _no_lease(value: object) -> InvalidArgument:
    return InvalidArgument(f"a Lease is needed here, not {type(value).__name__}")


def id_of(job: Lease | Receipt | str) -> str:
    """Return the id of a job, given its id, receipt or lease."""
    if isinstance(job, Lease | Receipt):
        return job.id
    utf8_name("id", job)
    return job


def settle_of(lease: object, result: bytes | None = None) -> Settle:
    """Return what a lease presents when it is settled."""
    held = lease_of(lease)
    return held.id, held.token, result


def id_of_done(done: Done) -> str:
    """Return the id of a lease to complete."""
    return lease_of(done[0] if isinstance(done, tuple) else done).id


def settles_of_done(done: Iterable[Done]) -> list[Settle]:
    """Convert leases, or pairs of lease and result, to settles."""
    settles: list[Settle] = []
    for item in arguments.several("leases", done):
        if isinstance(item, Lease):
            settles.append((item.id, item.token, None))
        elif isinstance(item, tuple) and len(item) == 2:
            settles.append(settle_of(item[0], codec.encode_result(item[1])))
        else:
            raise _no_lease(item)
    return settles


def failed_of(lease: Lease, error: str | BaseException, due: bytes = b"") -> Failed:
    """Return what a run that failed presents, with the time of the next try."""
    held = lease_of(lease)
    why = arguments.reason("error", error)
    return Failed(held.id, held.token, due, why, failures.packed(error, why))


# ------------------------------------------------------------------------------ workers


def about_worker(about: Mapping[str, Any]) -> bytes:
    """Return the entry of this process in the directory of workers."""
    entry = {"host": platform.node(), "pid": os.getpid(), **about}
    try:
        packed = msgspec.msgpack.encode(entry)
    except (TypeError, ValueError, msgspec.MsgspecError, OverflowError) as error:
        raise InvalidArgument(f"the entry of a worker must be plain values: {error}") from None
    if len(packed) > MAX_ERROR_BYTES:
        raise InvalidArgument(
            f"the entry of a worker has {len(packed)} bytes, more than {MAX_ERROR_BYTES}"
        )
    return packed


def holder_of(worker: WorkerInfo | Lease | str) -> str:
    """Return the holder of a worker."""
    holder = worker if isinstance(worker, str) else getattr(worker, "holder", None)
    if not isinstance(holder, str):
        raise InvalidArgument(
            f"a holder, a Lease or a WorkerInfo is needed here, not {arguments.shown(worker)}"
        )
    utf8_name("holder", holder)
    return holder


# ------------------------------------------------------------------- writes and readers

MAX_CHUNK_BYTES: Final = 1024 * 1024
"""The most bytes of a chunk of staged rows, unless it is a single row."""

KEEP_MS: Final = 86_400_000
"""How long adopted attempts wait for their commit, and how long a commit is remembered."""

_MOST_NAME_BYTES: Final = 440
"""The longest name of a write, a writer or a reader: other names are made from it."""


def checked_name(kind: str, name: object) -> str:
    """Check the name of a write, a writer or a reader."""
    if len(utf8_name(kind, name)) > _MOST_NAME_BYTES:
        raise InvalidArgument(f"{kind} must have 1 to {_MOST_NAME_BYTES} bytes")
    return str(name)


def staged_of(winners: Iterable[object]) -> Iterator[Staged]:
    """Check that all are what `stage` returned."""
    for one in arguments.several("winners", winners):
        if not isinstance(one, Staged):
            raise InvalidArgument(f"a Staged is needed here, not {arguments.shown(one)}")
        yield one


def attempt_of(staged: Staged) -> str:
    """Return the name under which an attempt staged its rows."""
    return f"{staged.write}/{staged.partition}.{staged.attempt}"


# ------------------------------------------------------------------- requests and parts

OnFailure: TypeAlias = Literal["continue", "fail_fast"]

PARTS_PER_CALL: Final = 500
"""Parts per call of `add_many`. With a million others, a thousand would take the server 25 ms."""

_MAX_FOLLOW_UP_BYTES: Final = MAX_BYTES // MAX_JOBS
"""The most bytes of a request's follow-up: a thousand requests may end in one call."""

_PART_OPTIONS: Final = frozenset(
    {"priority", "handler", "timeout", "max_failures", "max_lapses", "min_backoff", "max_backoff"}
)

_OF_THE_REQUEST: Final = frozenset({"result_for", "remember_for", "keep"})
"""Options that a request sets for its parts, whatever their handler declares."""


def request_name(id: object) -> str:
    """Check the name of a request: the ids of its parts are made from it."""
    raw = utf8_name("request", id)
    if len(raw) > MAX_REQUEST_BYTES or raw.endswith(b"/end"):
        raise InvalidArgument(
            f"a request must have 1 to {MAX_REQUEST_BYTES} bytes and not end in '/end', "
            f"since its parts and follow-ups are named after it: {arguments.shown(id)}"
        )
    return cast("str", id)


def follow_up_of(entries: Entries, follow_up: object) -> Entry | None:
    """Return the entry of a request's follow-up."""
    if follow_up is None:
        return None
    [entry] = entries.many([follow_up])
    if isinstance(follow_up, NewJob) and follow_up.id is not None:
        raise InvalidArgument("the follow-up of a request is named after it: give no id")
    return entry


def opening(
    priority: int,
    limit: int | None,
    on_failure: OnFailure,
    keep_for: Duration,
    open_for: Duration | None,
    follow_up: Entry | None,
) -> dict[str, Any]:
    """Return what a request is opened with: the arguments of `open_request`."""
    if on_failure not in ("continue", "fail_fast"):
        raise InvalidArgument(
            f"on_failure must be 'continue' or 'fail_fast', not {arguments.shown(on_failure)}"
        )
    if follow_up is not None and len(follow_up.payload) > _MAX_FOLLOW_UP_BYTES:
        raise InvalidArgument(
            f"the follow-up of a request has at most {_MAX_FOLLOW_UP_BYTES} bytes, "
            f"not {len(follow_up.payload)}: store its data elsewhere and refer to it"
        )
    return {
        "priority": arguments.priority(priority),
        "limit": _limit(limit),
        "fail_fast": on_failure == "fail_fast",
        "keep_for_ms": arguments.duration_ms("keep_for", keep_for, forever=True),
        "open_for_ms": arguments.optional_ms("open_for", open_for, least=1),
        "follow_up": follow_up,
    }


def limit_words(limit: int | None) -> bytes:
    """Encode a limit."""
    checked = _limit(limit)
    return b"-" if checked is None else b"%d" % checked


def _limit(limit: object) -> int | None:
    return None if limit is None else arguments.whole("limit", limit, 0, 2**31)


def parts(
    pieces: Iterable[object], request: str, options: Mapping[str, Any]
) -> Iterator[tuple[Said, bytes]]:
    """Yield what each part says and its payload."""
    shared = _of_parts(options)
    for piece in pieces:
        if isinstance(piece, NewJob):
            yield part(piece, request, None, None, options)
        else:
            yield shared, codec.encode(piece)


def part(
    data: object,
    request: str,
    delay: Duration | None,
    at: Instant | None,
    options: Mapping[str, Any],
) -> tuple[Said, bytes]:
    """Return what a part says and its payload."""
    if isinstance(data, NewJob):
        if isinstance(data, Row) and data.request not in (None, request):
            raise InvalidArgument(
                f"a row of the request {arguments.shown(data.request)} is not for {request}"
            )
        if (delay is not None or at is not None) and (
            data.delay is not None or data.at is not None
        ):
            raise InvalidArgument("the NewJob has its own time: do not give delay or at too")
        delay = data.delay if delay is None else delay
        at = data.at if at is None else at
        options = {**options, **_options_of_part(data)}
        data = data.data
    return _of_parts(options, delay, at), codec.encode(data)


def _row_of_part(id: str, row: Row, request: str, options: Mapping[str, Any]) -> Entry:
    """Return a row that becomes a part. Its id is used if the request is gone by then."""
    _refuse_id(row)
    priority, due, packed = _of_parts({**options, **own_options(row)}, row.delay, row.at)
    name = request_name(request)
    return Entry(id, codec.encode(row.data), True, priority, due, packed, False, name)


def _of_parts(
    options: Mapping[str, Any], delay: Duration | None = None, at: Instant | None = None
) -> Said:
    if others := options.keys() - _PART_OPTIONS:
        unknown = min(others)
        known = ", ".join(sorted(_PART_OPTIONS))
        handler = options.get("handler")
        advice = ""
        if handler and unknown.startswith("group"):
            advice = f". If the handler declares it, add {handler}.options(group=None).new(…)"
        raise InvalidArgument(
            f"unknown option {arguments.shown(unknown)}: a part may have {known}; "
            f"its result is kept as long as its request{advice}"
        )
    priority, packed = arguments.options(options)
    return priority, arguments.due(delay, at), packed


def _refuse_id(job: NewJob) -> None:
    if job.id is not None:
        raise InvalidArgument(
            f"{arguments.shown(job.id)}: a part is named after its request: give no id"
        )


def _options_of_part(job: NewJob) -> dict[str, Any]:
    """Return the options of a part, without options that the request sets."""
    _refuse_id(job)
    own = {name: one for name, one in own_options(job).items() if name not in _OF_THE_REQUEST}
    if own.get("group", ...) is None:
        own.pop("group")
        own.pop("group_limit", None)
    return own
