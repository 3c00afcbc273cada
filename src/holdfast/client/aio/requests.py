"""Requests, for asyncio."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from holdfast import arguments
from holdfast.client.inputs import (
    PARTS_PER_CALL,
    Said,
    json_payload,
    limit_words,
    part,
    parts,
)
from holdfast.client.status import Part, RequestStatus, part_of, status_of
from holdfast.engine import calls, request_calls, walks
from holdfast.engine.call import Call
from holdfast.engine.request_calls import Found, PartsSent
from holdfast.errors import HoldfastError, RequestNotFound, WrongState
from holdfast.escaping import logger
from holdfast.job import Duration, Instant, JobOptions, NewJob, Receipt

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self, Unpack

    from holdfast.client.aio.queue import AsyncQueue


log = logger(__name__)


class AsyncRequest:
    """A big piece of work in parts. Made by `queue.request`.

    As a context manager it opens the request at the start and seals it at the end; an exception
    cancels it. Otherwise it opens nothing and only refers to a request that may exist.
    """

    def __init__(
        self, queue: AsyncQueue, id: str, opening: Mapping[str, Any], append: bool
    ) -> None:
        self.queue = queue
        self.id = id
        self._opening = opening
        self._append = append
        self._next: int | None = None if append else 0
        """The number of the next part; None to append after the last."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r} in {self.queue.name!r})"

    # ------------------------------------------------------------------- add

    async def open(self) -> int:
        """Open the request, or continue an open request. Return how many parts it has.

        Raises `WrongState` if it is sealed, or has ended and is remembered.
        """
        letter, total = "f", 0
        while letter == "f":  # Each call removes some parts of an earlier request.
            call = request_calls.open_request(self.id, **self._opening)
            letter, total = await self.queue._run(call)
        if letter not in ("1", "o"):
            raise _closed(self.id, letter)
        self._next = None if self._append else 0
        return total

    async def add(
        self,
        data: object | NewJob = UNSET,
        *,
        json: object = UNSET,
        number: int | None = None,
        delay: Duration | None = None,
        at: Instant | None = None,
        **options: Unpack[JobOptions],
    ) -> Receipt:
        """Add the next part. bytes and str are stored as they are, other values as JSON.

        With `json=value` a str is stored as JSON too, as in `queue.add`.

        A `NewJob` has its own options: `request.add(send.new(to="a@b.c"))` adds a part that calls a
        handler. It must have no id and no group, and its result is kept by the request.

        Parts are numbered from 0, again for every object that opens the request. A part whose
        number exists is a repetition: it is not added, and the receipt is false. So if a producer
        dies, another can start from the beginning without doubling parts.
        """
        if data is UNSET or json is not UNSET:
            data = json_payload(data, json)
        first = self._next if number is None else arguments.whole("number", number, 0, 2**40)
        said, payload = part(data, self.id, delay, at, options)
        sent = await self._send(first, said, [payload])
        place = sent.before if first is None else first
        if number is None and first is not None:
            self._count(first, 1)
        return Receipt(f"{self.id}/{place}", place >= sent.before)

    async def add_many(
        self, pieces: Iterable[object | NewJob], **options: Unpack[JobOptions]
    ) -> int:
        """Add any number of payloads or `NewJob` values as parts. Return how many were new.

        A call carries at most 500 parts, all with the same options. A list or tuple is checked
        as a whole before the first part is written. Other iterables are read piece by piece, so
        they need not fit into memory.
        """
        arguments.several("parts", pieces)
        pairs: Iterable[tuple[Said, bytes]] = parts(pieces, self.id, options)
        if isinstance(pieces, list | tuple):
            pairs = list(pairs)  # Check all before the first is written.
        new = 0
        for said, alike in groupby(pairs, itemgetter(0)):
            for chunk in walks.chunks(map(itemgetter(1), alike), len, PARTS_PER_CALL):
                first = self._next
                sent = await self._send(first, said, chunk)
                new += sent.total - sent.before
                if first is not None:
                    self._count(first, len(chunk))
        return new

    async def _send(self, first: int | None, said: Said, payloads: Sequence[bytes]) -> PartsSent:
        priority, due, packed = said
        call = request_calls.add_parts(
            self.id, first, payloads, priority=priority, due=due, options=packed
        )
        sent = await self.queue._run(call)
        if sent.letter != "1":
            raise _closed(self.id, sent.letter)
        return sent

    def _count(self, first: int, parts: int) -> None:
        """Continue after the parts that were sent, unless another call used the same numbers."""
        if self._next != first:
            raise WrongState(
                f"{self.id}: two calls added parts at once, both from number {first} on, so some "
                "were taken for repetitions and were not added. Add one after the other, or use "
                "append=True"
            )
        self._next = first + parts

    async def seal(self) -> None:
        """Declare that no more parts will be added. The request ends when its last part does."""
        await self._change("seal", request_calls.change_request(self.id, seal=True))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.seal()
            return
        try:
            # If another process has sealed it, its parts are complete.
            status = await self.status()
            if status.state == "open":
                await self.cancel()
        except HoldfastError:
            # The exception of the block is more important. The request stays open for a retry.
            log.exception("%r: could not be cancelled", self)

    # ----------------------------------------------------------------- watch

    async def status(self) -> RequestStatus:
        """Return its status. Raises `RequestNotFound` if it does not exist or was forgotten.

        If it has been open for longer than its `open_for`, this call fails it.
        """
        found = await self._look()
        if found.overdue:  # Without a worker nothing else would end it.
            await self.queue._run(calls.tidy(to_the_back=self.queue._to_the_back))
            found = await self._look()
        return status_of(found)

    async def _look(self) -> Found:
        found = await self.queue._run(request_calls.requests(self.id))
        if not found or found[0].record.group:
            raise _not_found(self.id)
        return found[0]

    async def wait(self, timeout: Duration | None = None) -> RequestStatus:  # noqa: ASYNC109
        """Wait until it has ended, up to `timeout` seconds. Return its status."""
        patience = arguments.seconds("timeout", timeout, math.inf)
        return await self.queue._watch(self.status, self.id, patience, lambda status: status.ended)

    async def results(self, *, first: int = 0) -> AsyncIterator[Part]:
        """Iterate over the parts and their results, in order, starting at `first`."""
        arguments.whole("first", first, 0, 2**53 - 1)
        while True:
            found = await self.queue._run(request_calls.parts(self.id, first))
            if found.total < 0:
                raise _not_found(self.id)
            if not found.parts:
                return
            for some in found.parts:
                yield part_of(self.id, first, *some)
                first += 1

    # ---------------------------------------------------------------- manage

    async def set_limit(self, limit: int | None) -> None:
        """Change how many parts may run at a time, from the next lease on. Running parts continue.

        0 pauses the request, None removes the limit.
        """
        call = request_calls.change_request(self.id, limit=limit_words(limit))
        await self._change("limit", call)

    async def set_priority(self, priority: int) -> None:
        """Change its priority, 0 to 99, from the next lease on."""
        call = request_calls.change_request(self.id, priority=arguments.priority(priority))
        await self._change("priority", call)

    async def cancel(self) -> bool:
        """Cancel the request. Return True if this call cancelled it.

        Waiting parts are removed. Running parts are cancelled as by `queue.cancel`; the request
        ends when they have.
        """
        call = request_calls.change_request(self.id, cancel=True)
        letter, waiting = await self.queue._run(call)
        if letter in ("0", "g"):
            raise _closed(self.id, letter)
        while waiting:
            _, left = await self.queue._run(call)
            if left >= waiting:
                break  # The next lease call continues with the rest.
            waiting = left
        return letter == "1"

    async def _change(self, what: str, call: Call[tuple[str, int]]) -> None:
        letter, _ = await self.queue._run(call)
        if letter == "e" and what != "seal":
            raise WrongState(
                f"{self.id}: this request has ended: its {what} cannot be changed any more"
            )
        if letter not in ("1", "e"):
            raise _closed(self.id, letter)


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
