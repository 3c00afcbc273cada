"""What a worker tells while it works, for metrics and logs of one's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.worker.job import RunningJob


class Hooks:
    """Override what you want to hear of, and give it to `Worker(hooks=[…])`.

    `started` is called where the handler runs, the others in the control loop of the queue, after
    the server has confirmed it: they should be quick. What a hook raises is logged.
    """

    def started(self, job: RunningJob) -> None:
        """The handler is about to be called."""

    def done(self, job: RunningJob) -> None:
        """The job is completed."""

    def retried(self, job: RunningJob, error: str) -> None:
        """The handler raised, and the job is tried again."""

    def failed(self, job: RunningJob, error: str) -> None:
        """The job is failed: the handler said so, or its tries are spent."""

    def released(self, job: RunningJob) -> None:
        """The job was given back at no cost."""

    def lapsed(self, job: RunningJob, reason: str) -> None:
        """The run did not answer, and the job is given to somebody else."""

    def cancelled(self, job: RunningJob) -> None:
        """Somebody cancelled the job, and its handler is told."""

    def lost(self, job: RunningJob) -> None:
        """The lease is over: how this run ends counts only if nobody else was given the job."""

    def unknown(self, job: RunningJob) -> None:
        """No handler of this name is here: the job is given back, for a worker that has it."""


def hear_of_beginnings(hooks: Iterable[Hooks]) -> bool:
    """Tell whether one of them wants to know when a handler is about to be called."""
    return any(type(hook).started is not Hooks.started for hook in hooks)
