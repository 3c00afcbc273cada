"""Requests, for threads. Generated from aio/requests.py: do not edit."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import UNSET

from holdfast.client.requests import RequestAsker
from holdfast.client.said import json_payload
from holdfast.client.status import Part, RequestStatus
from holdfast.errors import HoldfastError
from holdfast.job import Duration, Instant, JobOptions, NewJob, Receipt

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self, Unpack

    from holdfast.client.sync.queue import Queue


log = logging.getLogger("holdfast")


class Request:
    """A big piece of work, in parts: made by `queue.request`.

    As a context it is opened at the start and sealed at the end; an exception cancels it.
    Without one nothing is opened, and it is just the name of a request that may be there.
    """

    def __init__(self, queue: Queue, ask: RequestAsker) -> None:
        self.queue = queue
        self.id = ask.id
        self._ask = ask

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r} in {self.queue.name!r})"

    # ------------------------------------------------------------------- add

    def open(self) -> int:
        """Open the request, or go on with it where it is open; return its parts so far.

        Raises `WrongState` when it is sealed, or has ended and is remembered.
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
        """Add the next part: bytes and str as they are, everything else as JSON.

        With `json=value` a str is stored as JSON too, as in `queue.add`.

        Or a `NewJob`, which says its own options: `request.add(send.new(to="a@b.c"))` is a part
        that calls a handler. It has no id, no group and keeps no result by itself.

        Parts are numbered from 0, in every `Request` that was opened anew. One whose number
        is there already is a repetition: it counts once, and the receipt is false. So a
        producer that died is followed by one that begins again, and no part is doubled.
        """
        if data is UNSET or json is not UNSET:
            data = json_payload(data, json)
        return self.queue._run(self._ask.add(data, number, delay, at, options))

    def add_many(self, pieces: Iterable[object | NewJob], **options: Unpack[JobOptions]) -> int:
        """Add any number of payloads or `NewJob` values as parts; return how many were new.

        A call carries at most 500 parts, all with the same options. A list or tuple is checked
        as a whole before the first part is written. Other iterables are read piece by piece, so
        they need not fit into memory.
        """
        return self.queue._drive(self._ask.add_many(pieces, options))

    def seal(self) -> None:
        """Say that no more parts come. It ends when its last part does, or now."""
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
            # Another process may have sealed it: then its parts are complete.
            status = self.status()
            if status.state == "open":
                self.cancel()
        except HoldfastError:
            # What went wrong in the block says more. It stays open, and can be gone on with.
            log.exception("%r: could not be cancelled", self)

    # ----------------------------------------------------------------- watch

    def status(self) -> RequestStatus:
        """Return how far it is. Raises `RequestNotFound` when it is not there, or forgotten.

        A request that is open for longer than its `open_for` is failed by this.
        """
        return self.queue._drive(self._ask.status())

    def wait(self, timeout: Duration | None = None) -> RequestStatus:
        """Wait until it has ended, up to `timeout` seconds; return how far it is then."""
        patience = self.queue._ask.patience(timeout)
        return self.queue._watch(self.status, self.id, patience, lambda status: status.ended)

    def results(self, *, first: int = 0) -> Iterator[Part]:
        """Go through the parts in their order, from the `first` on, with what became of each."""
        while some := self.queue._run(self._ask.parts(first, 1000)):
            for part in some:
                yield part
            first += len(some)

    # ---------------------------------------------------------------- manage

    def set_limit(self, limit: int | None) -> None:
        """Let so many parts run at a time, from the next lease on; what runs goes on.

        0 holds the request up, None is no limit.
        """
        self.queue._run(self._ask.set_limit(limit))

    def set_priority(self, priority: int) -> None:
        """Give it another priority, 0 to 99, from the next lease on."""
        self.queue._run(self._ask.set_priority(priority))

    def cancel(self) -> bool:
        """Let no more of its parts run. True when this call is the reason.

        What waits is gone; what runs is told, as by `queue.cancel`, and is waited for.
        """
        return self.queue._drive(self._ask.cancel())
