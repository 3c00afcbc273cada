"""Lease calls: sent first, their answers read later, so that work goes on in between."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.engine import calls
from holdfast.engine.library import MAX_JOBS
from holdfast.worker.outcomes import settle_of

if TYPE_CHECKING:
    from holdfast.client.sync.queue import Queue
    from holdfast.connection.server import Sent
    from holdfast.engine.calls import Granted
    from holdfast.worker.job import RunningJob
    from holdfast.worker.leases import HeldJobs
    from holdfast.worker.shared import Shared
    from holdfast.worker.slots import Asking, Share


@dataclass(frozen=True, slots=True)
class LeaseCall:
    """A lease call that was sent and whose answer has not been read."""

    sent: Sent[Granted]
    asking: Asking
    """The slots that it asks to fill."""
    most: int
    """The most jobs that it may return."""
    completed: Sequence[RunningJob]
    """The jobs that it completes."""
    asked_at: float
    asked_after: int
    """How many runs of this worker were over when it was sent."""


class LeaseCalls:
    """Sends lease calls for one queue and reads their answers.

    When a call fails, its slots are freed, and the jobs that it should have completed are sent
    again.
    """

    def __init__(self, queue: Queue, share: Share, held: HeldJobs, shared: Shared) -> None:
        self._queue = queue
        self._share = share
        self._held = held
        self._shared = shared

    def send(
        self, count: int, completed: Sequence[RunningJob], *, failed: bool = False
    ) -> LeaseCall:
        """Ask for up to `count` jobs, and complete these in the same call."""
        most = min(count, MAX_JOBS)
        call = calls.lease(
            self._queue.server.session.next_token(),
            round(self._shared.lease_seconds * 1000),
            most,
            to_the_back=self._queue._to_the_back,
            failed=failed,
            complete=[settle_of(job) for job in completed],
        )
        queue = self._queue
        asked_at, asked_after = time.monotonic(), self._shared.runs
        asking = self._share.ask(count)
        try:
            with self._held.settling(completed):
                sent = queue.server.send(queue._packer, call, queue._now())
        except BaseException:
            self._free(asking)
            raise
        return LeaseCall(sent, asking, most, completed, asked_at, asked_after)

    def read(self, pending: LeaseCall) -> Granted:
        """Return the answer. Its jobs keep the slots of the call."""
        try:
            granted = pending.sent.result()
        except BaseException:
            self._held.mark_unsent(pending.completed)
            self._free(pending.asking)
            raise
        self._share.answered(pending.asking)
        return granted

    def forget(self, pending: LeaseCall) -> None:
        """Ignore the answer, and free the slots."""
        pending.sent.forget()
        self._free(pending.asking)

    def _free(self, asking: Asking) -> None:
        self._share.answered(asking)
        self._share.free(asking.count)
