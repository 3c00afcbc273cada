"""Requests as values, and what the user said about them as calls and flows. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from holdfast import arguments, codec, flows
from holdfast.engine import calls
from holdfast.engine.calls import Call, Entry, Found, PartsFound, PartsSent
from holdfast.engine.replies import ENDINGS
from holdfast.engine.script import MAX_BYTES, MAX_JOBS, MAX_REQUEST_BYTES
from holdfast.errors import HoldfastError, InvalidArgument, JobNotFound, WrongState
from holdfast.flows import Flow
from holdfast.job import Duration, Instant, Receipt
from holdfast.keys import utf8_name

RequestState: TypeAlias = Literal["open", "sealed", "stopping", "completed", "failed", "cancelled"]
PartState: TypeAlias = Literal["waiting", "running", "done", "failed", "cancelled"]
OnFailure: TypeAlias = Literal["continue", "fail_fast"]

MAX_FOLLOW_UP_BYTES: Final = MAX_BYTES // MAX_JOBS
"""The most bytes of a follow-up, since a thousand requests may end in one call."""

PARTS_PER_CALL: Final = 500
"""Parts that `add_many` sends at a time: beside a million others a thousand take 25 ms."""

_PART_OPTIONS: Final = frozenset(
    {"priority", "handler", "timeout", "max_failures", "max_lapses", "min_backoff", "max_backoff"}
)
_STATES: Final[Mapping[str, PartState]] = {
    "l": "running",
    "f": "failed",
    "d": "waiting",
    "p": "waiting",
    "r": "waiting",
}


class RequestStatus(Struct, frozen=True, repr_omit_defaults=True):
    """How far a request is, at one moment. Times are in seconds since the epoch."""

    id: str
    state: RequestState
    """open: parts may be added. sealed: no more will come. stopping: cancelled, or failed for good,
    and what still runs is waited for. completed, failed, cancelled: it has ended."""
    total: int = 0
    """Parts so far."""
    done: int = 0
    failed: int = 0
    """Parts that ended badly, whether or not somebody dealt with that."""
    cancelled: int = 0
    running: int = 0
    parked: int = 0
    """Parts that wait for the request's turn and a free place."""
    delayed: int = 0
    """Parts that wait for their time: after a failure, or because they were added so."""
    priority: int = 50
    limit: int | None = None
    """How many parts may run at a time; 0 while it is held up, None for any number."""
    sealed: bool = False
    reason: str | None = None
    """Why it failed as a whole."""
    endings: int = 0
    """How often it has ended: a part that is revived opens it again."""
    opened_at: float = 0
    first_at: float | None = None
    """When the first part was given out."""
    last_at: float | None = None
    """When the last run of a part was over."""
    ended_at: float | None = None
    asked_at: float = 0

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.state in ("completed", "failed", "cancelled")

    @property
    def settled(self) -> int:
        """Parts that will not run again."""
        return self.done + self.failed + self.cancelled

    @property
    def rate(self) -> float | None:
        """Parts done per second since the first was given out; None before one is done."""
        if self.first_at is None or not self.done:
            return None
        until = self.ended_at or self.asked_at
        return self.done / (until - self.first_at) if until > self.first_at else None

    @property
    def ends_at(self) -> float | None:
        """When it ended, or will at this rate; None while nobody can know."""
        if self.ended:
            return self.ended_at
        rate = self.rate
        if rate is None or not self.sealed:
            return None
        return self.asked_at + (self.total - self.settled) / rate


class GroupStatus(Struct, frozen=True):
    """A group, as long as it has jobs."""

    name: str
    limit: int | None
    jobs: int
    running: int
    parked: int


class Part(Struct, frozen=True, repr_omit_defaults=True):
    """One part of a request: what became of it."""

    number: int
    id: str
    state: PartState
    result: bytes | None = None
    error: str | None = None
    """Why its last run did not end well."""

    def json(self) -> Any:
        """Decode the result as JSON."""
        return codec.decode_json(self.result or b"")


class RequestAsker:
    """Turns the methods of one request into calls and flows."""

    def __init__(
        self,
        id: str,
        priority: int,
        limit: int | None,
        on_failure: OnFailure,
        keep_for: Duration,
        open_for: Duration | None,
        follow_up: Entry | None,
        append: bool,
    ) -> None:
        self.id = request_name(id)
        self._append = arguments.flag("append", append)
        self.next: int | None = None if append else 0
        """The number of the next part; None for whatever comes after the last."""
        if on_failure not in ("continue", "fail_fast"):
            raise InvalidArgument(
                f"on_failure must be 'continue' or 'fail_fast', not {arguments.shown(on_failure)}"
            )
        if follow_up is not None and len(follow_up.payload) > MAX_FOLLOW_UP_BYTES:
            raise InvalidArgument(
                f"the follow-up of a request has at most {MAX_FOLLOW_UP_BYTES} bytes, "
                f"not {len(follow_up.payload)}: let it name where its data is"
            )
        self._opening = (
            arguments.priority(priority),
            _limit(limit),
            on_failure == "fail_fast",
            arguments.duration_ms("keep_for", keep_for, forever=True),
            None if open_for is None else arguments.duration_ms("open_for", open_for, least=1),
            follow_up,
        )

    def open(self) -> Call[int]:
        priority, limit, fail_fast, keep_for_ms, open_for_ms, follow_up = self._opening

        def check(answer: tuple[str, int]) -> int:
            letter, total = answer
            if letter not in ("1", "o"):
                raise _closed(self.id, letter)
            self.next = None if self._append else 0
            return total

        return _then(
            calls.open_request(
                self.id,
                priority=priority,
                limit=limit,
                fail_fast=fail_fast,
                keep_for_ms=keep_for_ms,
                open_for_ms=open_for_ms,
                follow_up=follow_up,
            ),
            check,
        )

    # ------------------------------------------------------------------- add

    def add(
        self,
        data: object,
        number: int | None,
        delay: Duration | None,
        at: Instant | None,
        options: Mapping[str, Any],
    ) -> Call[Receipt]:
        first = self.next if number is None else arguments.whole("number", number, 0, 2**40)
        send = self._sending(delay, at, options)

        def receipt(sent: PartsSent) -> Receipt:
            place = sent.before if first is None else first
            if number is None and self.next is not None:
                self.next = place + 1
            return Receipt(f"{self.id}/{place}", place >= sent.before)

        return _then(send(first, [codec.encode(data)]), receipt)

    def add_many(self, pieces: Iterable[object], options: Mapping[str, Any]) -> Flow[int]:
        arguments.several("parts", pieces)
        send = self._sending(None, None, options)
        new = 0
        for chunk in flows.chunks(map(codec.encode, pieces), len, PARTS_PER_CALL):
            sent: PartsSent = yield send(self.next, chunk)
            new += sent.total - sent.before
            if self.next is not None:
                self.next += len(chunk)
        return new

    def _sending(
        self, delay: Duration | None, at: Instant | None, options: Mapping[str, Any]
    ) -> Callable[[int | None, Sequence[bytes]], Call[PartsSent]]:
        unknown = sorted(option for option in options if option not in _PART_OPTIONS)
        if unknown:
            known = ", ".join(sorted(_PART_OPTIONS))
            raise InvalidArgument(
                f"unknown option {arguments.shown(unknown[0])}: a part may have {known}; "
                "its result is kept as long as its request"
            )
        priority, packed = arguments.options(options)
        due = b"" if delay is None and at is None else arguments.due(delay, at)

        def check(sent: PartsSent) -> PartsSent:
            if sent.letter != "1":
                raise _closed(self.id, sent.letter)
            return sent

        return lambda first, payloads: _then(
            calls.add_parts(self.id, first, payloads, priority=priority, due=due, options=packed),
            check,
        )

    # ---------------------------------------------------------------- manage

    def seal(self) -> Call[None]:
        return self._change("seal", calls.change_request(self.id, seal=True))

    def cancel(self) -> Flow[bool]:
        letter, waiting = yield calls.change_request(self.id, cancel=True)
        if letter in ("0", "g"):
            raise _closed(self.id, letter)
        cancelled: bool = letter == "1"
        while waiting:
            _, left = yield calls.change_request(self.id, cancel=True)
            if left >= waiting:
                break  # Somebody else's part of the work: whoever leases goes on with it.
            waiting = left
        return cancelled

    def set_limit(self, limit: int | None) -> Call[None]:
        return self._change("limit", calls.change_request(self.id, limit=limit_words(limit)))

    def set_priority(self, priority: int) -> Call[None]:
        call = calls.change_request(self.id, priority=arguments.priority(priority))
        return self._change("priority", call)

    def _change(self, what: str, call: Call[tuple[str, int]]) -> Call[None]:
        def check(answer: tuple[str, int]) -> None:
            letter, _ = answer
            if letter != "1" and not (letter == "e" and what == "seal"):
                raise _closed(self.id, letter)

        return _then(call, check)

    # ----------------------------------------------------------------- watch

    def status(self) -> Call[RequestStatus]:
        def read(found: list[Found]) -> RequestStatus:
            if not found or found[0].record.group:
                raise _not_found(self.id)
            return status_of(found[0])

        return _then(calls.requests(self.id), read)

    def parts(self, first: int, count: int) -> Call[list[Part]]:
        arguments.whole("first", first, 0, 2**53 - 1)

        def read(found: PartsFound) -> list[Part]:
            if found.total < 0:
                raise _not_found(self.id)
            return [_part(self.id, first + i, *part) for i, part in enumerate(found.parts)]

        return _then(calls.parts(self.id, first, count), read)


def request_name(id: object) -> str:
    """Return the name of a request; refuse what could not name its parts too."""
    raw = utf8_name("request", id)
    if len(raw) > MAX_REQUEST_BYTES or raw.endswith(b"/end"):
        raise InvalidArgument(
            f"a request must have 1 to {MAX_REQUEST_BYTES} bytes and not end in '/end', "
            f"since its parts and follow-ups are named after it: {arguments.shown(id)}"
        )
    return cast("str", id)


def status_of(found: Found) -> RequestStatus:
    """Return how far a request is."""
    record = found.record
    failed = record.failed + record.handled
    settled = record.done + failed + record.cancelled
    state = ENDINGS[record.outcome] or ("stopping" if record.stopping else "")
    return RequestStatus(
        id=found.name,
        state=cast("RequestState", state or ("sealed" if record.sealed else "open")),
        total=record.total,
        done=record.done,
        failed=failed,
        cancelled=record.cancelled,
        running=record.running,
        parked=record.parked,
        delayed=max(0, record.total - settled - record.running - record.parked),
        priority=record.priority,
        limit=None if record.limit < 0 else record.limit,
        sealed=bool(record.sealed),
        reason=record.reason or None,
        endings=record.endings,
        opened_at=record.opened_at / 1000,
        first_at=_seconds(record.first_at),
        last_at=_seconds(record.last_at),
        ended_at=_seconds(record.ended_at),
        asked_at=found.now / 1000,
    )


def group_of(found: Found) -> GroupStatus:
    """Return how many jobs a group has."""
    record = found.record
    limit = None if record.limit < 0 else record.limit
    return GroupStatus(found.name, limit, record.total, record.running, record.parked)


def set_group_limit(group: str, limit: int | None) -> Call[None]:
    """Give a group another limit."""
    utf8_name("group", group)
    arguments.group(group)
    call = calls.change_request(group, limit=limit_words(limit), group=True)

    def check(answer: tuple[str, int]) -> None:
        if answer[0] != "1":
            raise JobNotFound(f"{group}: no group has jobs under this name")

    return _then(call, check)


def limit_words(limit: int | None) -> bytes:
    """Return a limit as it goes over the wire."""
    checked = _limit(limit)
    return b"-" if checked is None else b"%d" % checked


def walk() -> Flow[list[Found]]:
    """Look at every request and group."""
    found: dict[str, Found] = {}
    position = 0
    while True:
        some: list[Found]
        some, position = yield calls.some_requests(position)
        found |= {one.name: one for one in some}
        if not position:
            return list(found.values())


def _limit(limit: object) -> int | None:
    return None if limit is None else arguments.whole("limit", limit, 0, 2**31)


def _part(request: str, number: int, letter: str, facts: Any, result: bytes | None) -> Part:
    state: PartState
    if letter:
        state = _STATES[letter]
    elif facts.outcome == "cancelled":
        state = "cancelled"
    else:
        state = "failed" if facts.outcome else "done"
    return Part(number, f"{request}/{number}", state, result, facts.error)


def _closed(id: str, letter: str) -> HoldfastError:
    match letter:
        case "0":
            return _not_found(id)
        case "g":
            return WrongState(f"{id}: a group of jobs has this name")
        case "s":
            return WrongState(f"{id}: this request is sealed and takes no more parts")
        case _:
            return WrongState(
                f"{id}: this request has ended and is remembered (keep_for): take another id"
            )


def _not_found(id: str) -> JobNotFound:
    return JobNotFound(
        f"{id}: no request has this id: it was never opened, or it ended and is forgotten"
    )


def _seconds(ms: int) -> float | None:
    return ms / 1000 if ms else None


def _then(call: Call[Any], read: Callable[[Any], Any]) -> Call[Any]:
    first = call.read
    return Call(call.script, call.args, lambda reply: read(first(reply)), ids=call.ids)
