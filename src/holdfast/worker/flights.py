"""Calls for jobs that are under way: sent, and read when their answers are wanted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.engine import calls
from holdfast.engine.scripts import MAX_JOBS
from holdfast.worker.outcomes import settle_of

if TYPE_CHECKING:
    from holdfast.client.sync.queue import Queue
    from holdfast.connection.server import Sent
    from holdfast.engine.calls import Granted
    from holdfast.worker.job import RunningJob
    from holdfast.worker.leases import Held
    from holdfast.worker.shared import Shared
    from holdfast.worker.slots import Asking, Share


@dataclass(frozen=True, slots=True)
class Flight:
    """A lease call from when it was sent until its answer is read."""

    sent: Sent[Granted]
    asking: Asking
    """The places that it asks for work for."""
    most: int
    """How many jobs it may bring."""
    completed: Sequence[RunningJob]
    """What it tells the server to be done."""
    asked_at: float
    asked_after: int
    """How many runs of this worker were over by then."""


class Flights:
    """Sends calls for jobs of one queue, and reads their answers.

    Whatever becomes of a call, the places that it asked for are its control loop's again, and what
    it should have told is told again.
    """

    def __init__(self, queue: Queue, share: Share, held: Held, shared: Shared) -> None:
        self._queue = queue
        self._share = share
        self._held = held
        self._shared = shared

    def send(self, count: int, completed: Sequence[RunningJob], *, failed: bool = False) -> Flight:
        """Ask for jobs for so many places, and complete what is done."""
        most = min(count, MAX_JOBS)
        call = calls.lease(
            self._queue.server.session.next_token(),
            round(self._shared.lease_seconds * 1000),
            most,
            to_the_back=self._queue._ask.to_the_back,
            failed=failed,
            complete=[settle_of(job) for job in completed],
        )
        queue = self._queue
        asked_at, asked_after = time.monotonic(), self._shared.runs
        asking = self._share.ask(count)
        try:
            with self._held.telling(completed):
                sent = queue.server.send(queue._packer, call, queue._now())
        except BaseException:
            self._free(asking)
            raise
        return Flight(sent, asking, most, completed, asked_at, asked_after)

    def read(self, flight: Flight) -> Granted:
        """Return the answer, with a place for each job that it brought."""
        try:
            granted = flight.sent.result()
        except BaseException:
            self._held.tell_again(flight.completed)
            self._free(flight.asking)
            raise
        self._share.answered(flight.asking)
        return granted

    def forget(self, flight: Flight) -> None:
        """Do without the answer."""
        flight.sent.forget()
        self._free(flight.asking)

    def _free(self, asking: Asking) -> None:
        self._share.answered(asking)
        self._share.free(asking.count)
