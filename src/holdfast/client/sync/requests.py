"""Requests, for threads. Generated from aio/requests.py: do not edit."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import UNSET

from holdfast.client.inputs import json_payload
from holdfast.client.requests import RequestAsker
from holdfast.client.status import Part, RequestStatus
from holdfast.errors import HoldfastError
from holdfast.job import Duration, Instant, JobOptions, NewJob, Receipt

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self, Unpack

    from holdfast.client.sync.queue import Queue


log = logging.getLogger("holdfast")


class Request:
    """A big piece of work in parts. Made by `queue.request`.

    As a context manager it opens the request at the start and seals it at the end; an exception
    cancels it. Otherwise it opens nothing and only refers to a request that may exist.
    """

    def __init__(self, queue: Queue, ask: RequestAsker) -> None:
        self.queue = queue
        self.id = ask.id
        self._ask = ask

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r} in {self.queue.name!r})"

    # ------------------------------------------------------------------- add

    def open(self) -> int:
        """Open the request, or continue an open request. Return how many parts it has.

        Raises `WrongState` if it is sealed, or has ended and is remembered.
        """
        return self.queue._drive(self._ask.open())

    def add(
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
        return self.queue._run(self._ask.add(data, number, delay, at, options))

    def add_many(self, pieces: Iterable[object | NewJob], **options: Unpack[JobOptions]) -> int:
        """Add any number of payloads or `NewJob` values as parts. Return how many were new.

        A call carries at most 500 parts, all with the same options. A list or tuple is checked
        as a whole before the first part is written. Other iterables are read piece by piece, so
        they need not fit into memory.
        """
        return self.queue._drive(self._ask.add_many(pieces, options))

    def seal(self) -> None:
        """Declare that no more parts will be added. The request ends when its last part does."""
        self.queue._run(self._ask.seal())

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.seal()
            return
        try:
            # If another process has sealed it, its parts are complete.
            status = self.status()
            if status.state == "open":
                self.cancel()
        except HoldfastError:
            # The exception of the block is more important. The request stays open for a retry.
            log.exception("%r: could not be cancelled", self)

    # ----------------------------------------------------------------- watch

    def status(self) -> RequestStatus:
        """Return its status. Raises `RequestNotFound` if it does not exist or was forgotten.

        If it has been open for longer than its `open_for`, this call fails it.
        """
        return self.queue._drive(self._ask.status())

    def wait(self, timeout: Duration | None = None) -> RequestStatus:
        """Wait until it has ended, up to `timeout` seconds. Return its status."""
        patience = self.queue._ask.patience(timeout)
        return self.queue._watch(self.status, self.id, patience, lambda status: status.ended)

    def results(self, *, first: int = 0) -> Iterator[Part]:
        """Iterate over the parts and their results, in order, starting at `first`."""
        while some := self.queue._run(self._ask.parts(first, 1000)):
            for part in some:
                yield part
            first += len(some)

    # ---------------------------------------------------------------- manage

    def set_limit(self, limit: int | None) -> None:
        """Change how many parts may run at a time, from the next lease on. Running parts continue.

        0 pauses the request, None removes the limit.
        """
        self.queue._run(self._ask.set_limit(limit))

    def set_priority(self, priority: int) -> None:
        """Change its priority, 0 to 99, from the next lease on."""
        self.queue._run(self._ask.set_priority(priority))

    def cancel(self) -> bool:
        """Cancel the request. Return True if this call cancelled it.

        Waiting parts are removed. Running parts are cancelled as by `queue.cancel`; the request
        ends when they have.
        """
        return self.queue._drive(self._ask.cancel())
