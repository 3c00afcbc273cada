"""Turns the methods of requests and groups into calls and flows. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Literal, TypeAlias, cast

from holdfast import arguments, codec
from holdfast.client.status import Part, RequestStatus, part_of, status_of
from holdfast.engine import request_calls, walks
from holdfast.engine.call import Call, Entry
from holdfast.engine.calls import Step
from holdfast.engine.library import MAX_BYTES, MAX_JOBS, MAX_REQUEST_BYTES
from holdfast.engine.request_calls import Found, PartsFound, PartsSent
from holdfast.engine.walks import Flow
from holdfast.errors import (
    GroupNotFound,
    HoldfastError,
    InvalidArgument,
    RequestNotFound,
    WrongState,
)
from holdfast.job import Duration, Instant, NewJob, Receipt, Row, own_options
from holdfast.names import utf8_name

OnFailure: TypeAlias = Literal["continue", "fail_fast"]

MAX_FOLLOW_UP_BYTES: Final = MAX_BYTES // MAX_JOBS
"""The most bytes of a request's follow-up: a thousand requests may end in one call."""

PARTS_PER_CALL: Final = 500
"""Parts per call of `add_many`. With a million others, a thousand would take the server 25 ms."""

_PART_OPTIONS: Final = frozenset(
    {"priority", "handler", "timeout", "max_failures", "max_lapses", "min_backoff", "max_backoff"}
)

_OF_THE_REQUEST: Final = frozenset({"result_for", "remember_for", "keep"})
"""Options that a request sets for its parts, whatever their handler declares."""

Said: TypeAlias = tuple[int, bytes, bytes]
"""What all parts of one call share: priority, due time, packed options."""


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
        tidy: Call[Step],
    ) -> None:
        self.id = request_name(id)
        self._tidy = tidy
        self._append = arguments.flag("append", append)
        self.next: int | None = None if append else 0
        """The number of the next part; None to append after the last."""
        if on_failure not in ("continue", "fail_fast"):
            raise InvalidArgument(
                f"on_failure must be 'continue' or 'fail_fast', not {arguments.shown(on_failure)}"
            )
        if follow_up is not None and len(follow_up.payload) > MAX_FOLLOW_UP_BYTES:
            raise InvalidArgument(
                f"the follow-up of a request has at most {MAX_FOLLOW_UP_BYTES} bytes, "
                f"not {len(follow_up.payload)}: store its data elsewhere and refer to it"
            )
        self._opening = (
            arguments.priority(priority),
            _limit(limit),
            on_failure == "fail_fast",
            arguments.duration_ms("keep_for", keep_for, forever=True),
            None if open_for is None else arguments.duration_ms("open_for", open_for, least=1),
            follow_up,
        )

    def open(self) -> Flow[int]:
        priority, limit, fail_fast, keep_for_ms, open_for_ms, follow_up = self._opening
        letter, total = "f", 0
        while letter == "f":  # Each call removes some parts of an earlier request.
            letter, total = yield request_calls.open_request(
                self.id,
                priority=priority,
                limit=limit,
                fail_fast=fail_fast,
                keep_for_ms=keep_for_ms,
                open_for_ms=open_for_ms,
                follow_up=follow_up,
            )
        if letter not in ("1", "o"):
            raise _closed(self.id, letter)
        self.next = None if self._append else 0
        return total

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
        said, payload = self._part(data, delay, at, options)

        def receipt(sent: PartsSent) -> Receipt:
            place = sent.before if first is None else first
            if number is None and first is not None:
                self._count(first, 1)
            return Receipt(f"{self.id}/{place}", place >= sent.before)

        return self._send(first, said, [payload]).then(receipt)

    def add_many(self, pieces: Iterable[object], options: Mapping[str, Any]) -> Flow[int]:
        arguments.several("parts", pieces)
        parts: Iterable[tuple[Said, bytes]] = self._parts(pieces, options)
        if isinstance(pieces, list | tuple):
            parts = list(parts)  # Check all before the first is written.
        new = 0
        for said, alike in groupby(parts, itemgetter(0)):
            for chunk in walks.chunks(map(itemgetter(1), alike), len, PARTS_PER_CALL):
                first = self.next
                sent: PartsSent = yield self._send(first, said, chunk)
                new += sent.total - sent.before
                if first is not None:
                    self._count(first, len(chunk))
        return new

    def _parts(
        self, pieces: Iterable[object], options: Mapping[str, Any]
    ) -> Iterator[tuple[Said, bytes]]:
        priority, packed = part_options(options)
        shared = priority, b"", packed
        for piece in pieces:
            if isinstance(piece, NewJob):
                yield self._part(piece, None, None, options)
            else:
                yield shared, codec.encode(piece)

    def _part(
        self,
        data: object,
        delay: Duration | None,
        at: Instant | None,
        options: Mapping[str, Any],
    ) -> tuple[Said, bytes]:
        if isinstance(data, NewJob):
            if isinstance(data, Row) and data.request not in (None, self.id):
                raise InvalidArgument(
                    f"a row of the request {arguments.shown(data.request)} is not for {self.id}"
                )
            if (delay is not None or at is not None) and (
                data.delay is not None or data.at is not None
            ):
                raise InvalidArgument("the NewJob has its own time: do not give delay or at too")
            delay = data.delay if delay is None else delay
            at = data.at if at is None else at
            options = {**options, **options_of_part(data)}
            data = data.data
        priority, packed = part_options(options)
        due = b"" if delay is None and at is None else arguments.due(delay, at)
        return (priority, due, packed), codec.encode(data)

    def _count(self, first: int, parts: int) -> None:
        """Continue after the parts that were sent, unless another call used the same numbers."""
        if self.next != first:
            raise WrongState(
                f"{self.id}: two calls added parts at once, both from number {first} on, so some "
                "were taken for repetitions and were not added. Add one after the other, or use "
                "append=True"
            )
        self.next = first + parts

    def _send(self, first: int | None, said: Said, payloads: Sequence[bytes]) -> Call[PartsSent]:
        priority, due, packed = said

        def check(sent: PartsSent) -> PartsSent:
            if sent.letter != "1":
                raise _closed(self.id, sent.letter)
            return sent

        return request_calls.add_parts(
            self.id, first, payloads, priority=priority, due=due, options=packed
        ).then(check)

    # ---------------------------------------------------------------- manage

    def seal(self) -> Call[None]:
        return self._change("seal", request_calls.change_request(self.id, seal=True))

    def cancel(self) -> Flow[bool]:
        letter, waiting = yield request_calls.change_request(self.id, cancel=True)
        if letter in ("0", "g"):
            raise _closed(self.id, letter)
        cancelled: bool = letter == "1"
        while waiting:
            _, left = yield request_calls.change_request(self.id, cancel=True)
            if left >= waiting:
                break  # The next lease call continues with the rest.
            waiting = left
        return cancelled

    def set_limit(self, limit: int | None) -> Call[None]:
        return self._change(
            "limit", request_calls.change_request(self.id, limit=limit_words(limit))
        )

    def set_priority(self, priority: int) -> Call[None]:
        call = request_calls.change_request(self.id, priority=arguments.priority(priority))
        return self._change("priority", call)

    def _change(self, what: str, call: Call[tuple[str, int]]) -> Call[None]:
        def check(answer: tuple[str, int]) -> None:
            letter, _ = answer
            if letter == "e" and what != "seal":
                raise WrongState(
                    f"{self.id}: this request has ended: its {what} cannot be changed any more"
                )
            if letter not in ("1", "e"):
                raise _closed(self.id, letter)

        return call.then(check)

    # ----------------------------------------------------------------- watch

    def status(self) -> Flow[RequestStatus]:
        found = yield self._look()
        if found.overdue:  # Without a worker nothing else would end it.
            yield self._tidy
            found = yield self._look()
        return status_of(found)

    def _look(self) -> Call[Found]:
        def read(found: list[Found]) -> Found:
            if not found or found[0].record.group:
                raise _not_found(self.id)
            return found[0]

        return request_calls.requests(self.id).then(read)

    def parts(self, first: int, count: int) -> Call[list[Part]]:
        arguments.whole("first", first, 0, 2**53 - 1)

        def read(found: PartsFound) -> list[Part]:
            if found.total < 0:
                raise _not_found(self.id)
            return [part_of(self.id, first + i, *part) for i, part in enumerate(found.parts)]

        return request_calls.parts(self.id, first, count).then(read)


def request_name(id: object) -> str:
    """Check the name of a request: the ids of its parts are made from it."""
    raw = utf8_name("request", id)
    if len(raw) > MAX_REQUEST_BYTES or raw.endswith(b"/end"):
        raise InvalidArgument(
            f"a request must have 1 to {MAX_REQUEST_BYTES} bytes and not end in '/end', "
            f"since its parts and follow-ups are named after it: {arguments.shown(id)}"
        )
    return cast("str", id)


def part_options(options: Mapping[str, Any]) -> tuple[int, bytes]:
    """Return the priority and packed options of a part."""
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
    return arguments.options(options)


def refuse_id(job: NewJob) -> None:
    """Refuse a part that has an id."""
    if job.id is not None:
        raise InvalidArgument(
            f"{arguments.shown(job.id)}: a part is named after its request: give no id"
        )


def options_of_part(job: NewJob) -> dict[str, Any]:
    """Return the options of a part, without options that the request sets."""
    refuse_id(job)
    own = {name: one for name, one in own_options(job).items() if name not in _OF_THE_REQUEST}
    if own.get("group", ...) is None:
        own.pop("group")
        own.pop("group_limit", None)
    return own


def set_group_limit(group: str, limit: int | None) -> Call[None]:
    """Return the call that changes the limit of a group."""
    utf8_name("group", group)
    arguments.group(group)
    call = request_calls.change_request(group, limit=limit_words(limit), group=True)

    def check(answer: tuple[str, int]) -> None:
        if answer[0] != "1":
            raise GroupNotFound(f"{group}: no group has jobs under this name")

    return call.then(check)


def limit_words(limit: int | None) -> bytes:
    """Encode a limit."""
    checked = _limit(limit)
    return b"-" if checked is None else b"%d" % checked


def walk() -> Flow[list[Found]]:
    """Return all requests and groups."""
    found: dict[str, Found] = {}
    position = 0
    while True:
        some: list[Found]
        some, position = yield request_calls.some_requests(position)
        found |= {one.name: one for one in some}
        if not position:
            return list(found.values())


def _limit(limit: object) -> int | None:
    return None if limit is None else arguments.whole("limit", limit, 0, 2**31)


def _closed(id: str, letter: str) -> HoldfastError:
    match letter:
        case "0":
            return _not_found(id)
        case "g":
            return WrongState(f"{id}: a group of jobs has this name")
        case "s":
            return WrongState(f"{id}: this request is sealed and accepts no more parts")
        case _:
            return WrongState(
                f"{id}: this request has ended and is remembered (keep_for): use another id"
            )


def _not_found(id: str) -> RequestNotFound:
    return RequestNotFound(
        f"{id}: no request has this id: it was never opened, or it ended and is forgotten"
    )
