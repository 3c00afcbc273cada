"""What a child of a worker does: run the jobs that it is given, one after the other."""

from __future__ import annotations

import fcntl
import math
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from holdfast import arguments
from holdfast.asking import Asker
from holdfast.engine.call import Entry
from holdfast.errors import LeaseLost
from holdfast.job import Duration, JobOptions, Lease, NewJob
from holdfast.worker import frames
from holdfast.worker.handlers import Handler, Handlers
from holdfast.worker.hooks import Hooks
from holdfast.worker.outcomes import Fail, Release, Retry
from holdfast.worker.running import Batch, Run, RunningJob, run

if TYPE_CHECKING:
    from holdfast.worker.control import Control

_FAR_DESCRIPTOR: Final = 900
"""Where the connection is kept, out of the way of jobs that close what they find."""


def live(
    connection: socket.socket,
    flag: memoryview,
    handlers: Handlers,
    defaults: dict[str, JobOptions | None],
) -> None:
    """Run jobs until the worker closes the connection."""
    line = frames.Line(_far(connection), frames.ToChild)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    with suppress(EOFError, OSError):
        while True:
            given = line.read()
            assert isinstance(given, frames.Jobs)
            line.send(_answers(_work(given, line, flag, handlers, defaults)))


def _far(connection: socket.socket) -> socket.socket:
    try:
        descriptor = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, _FAR_DESCRIPTOR)
    except OSError:  # So many are not allowed here.
        return connection
    connection.close()
    return socket.socket(fileno=descriptor)


def _work(
    given: frames.Jobs,
    line: frames.Line,
    flag: memoryview,
    handlers: Handlers,
    defaults: dict[str, JobOptions | None],
) -> Run:
    control = _Control(given.queue, line, defaults.get(given.queue))
    handler = handlers.for_lease(given.queue, given.leases[0])
    jobs = [
        _ChildJob(lease, handler, control, flag, number)
        for number, lease in enumerate(given.leases)
    ]
    work: Run = Batch(jobs) if handler.batch else jobs[0]
    run(work)
    return work


def _answers(work: Run) -> frames.Answers:
    answered = []
    for job in work.jobs:
        assert job.answer is not None
        answered.append(frames.Answered(job.answer, job.follow_ups, _trace(job.raised)))
    return frames.Answers(answered, work.took, _megabytes())


def _trace(raised: BaseException | None) -> str:
    if raised is None or isinstance(raised, Retry | Fail | Release):
        return ""
    return "".join(traceback.format_exception(raised))[-8000:]


def _megabytes() -> float:
    """Return how much memory this process had at most."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 2**10 if sys.platform == "linux" else used / 2**20


class _ChildJob(RunningJob):
    """A job in a child: the worker sets its flag when the handler should stop."""

    __slots__ = ("_flag", "_line", "number")

    def __init__(
        self, lease: Lease, handler: Handler, control: _Control, flag: memoryview, number: int
    ) -> None:
        super().__init__(lease, handler, cast("Control", control), math.inf)
        self.number = number
        self._flag = flag
        self._line = control.line

    @property
    def cancelled(self) -> bool:
        return bool(self._flag[0])

    def progress(self, fraction: float, note: str = "") -> None:
        super().progress(fraction, note)
        assert self._progress is not None
        self._line.send(frames.Progress(self.number, *self._progress))


class _Queue:
    def __init__(self, name: str) -> None:
        self.name = name


class _Control:
    """Stands for the control loop, which is in the worker."""

    hooks: Sequence[Hooks] = ()

    def __init__(self, queue: str, line: frames.Line, defaults: JobOptions | None) -> None:
        self.queue = _Queue(queue)
        self.line = line
        self._ask = Asker(lambda: "", defaults, "rank")

    def extend_now(self, job: _ChildJob, seconds: Duration | None) -> None:
        wanted = arguments.seconds_or_none("seconds", seconds)
        self.line.send(frames.Extend(job.number, wanted))
        answer = self.line.read()
        assert isinstance(answer, frames.Extended)
        if answer.refused:
            raise LeaseLost(answer.refused)

    def entries(self, new: Iterable[NewJob]) -> list[Entry]:
        return list(self._ask.entries(new, {}))
