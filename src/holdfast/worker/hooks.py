"""Hooks: callbacks of a worker, for your own metrics and logs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.worker.job import RunningJob


class Hooks:
    """Base class for callbacks: override methods and pass it to `Worker(hooks=[…])`.

    `started` is called where the handler runs. The others are called in the control loop of the
    queue, after the server has confirmed the event, so they should be quick. An exception in a hook
    is logged.
    """

    def started(self, job: RunningJob) -> None:
        """The handler is about to be called."""

    def done(self, job: RunningJob) -> None:
        """The job is completed."""

    def retried(self, job: RunningJob, error: str) -> None:
        """The handler raised, and the job will be retried."""

    def failed(self, job: RunningJob, error: str) -> None:
        """The job has failed: the handler raised `Fail`, or the job used up its retries."""

    def released(self, job: RunningJob) -> None:
        """The job was released, at no cost."""

    def lapsed(self, job: RunningJob, reason: str) -> None:
        """The run ended without an answer, and the job goes to another worker."""

    def cancelled(self, job: RunningJob) -> None:
        """The job was cancelled, and its handler is asked to stop."""

    def lost(self, job: RunningJob) -> None:
        """The lease is over: the result of this run counts only if the job was not leased again."""

    def unknown(self, job: RunningJob) -> None:
        """The worker has no such handler: the job is released for a worker that has it."""


def any_hears_starts(hooks: Iterable[Hooks]) -> bool:
    """Return whether any hook overrides `started`."""
    return any(type(hook).started is not Hooks.started for hook in hooks)
