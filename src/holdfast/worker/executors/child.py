"""The code of a child process: runs the jobs that it is sent, one after another."""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from holdfast import arguments
from holdfast.engine.call import Entry
from holdfast.errors import LeaseLost
from holdfast.job import Duration, Lease, NewJob
from holdfast.worker import queues
from holdfast.worker.executors import messages
from holdfast.worker.executors.messages import Board
from holdfast.worker.handlers import Handler, Handlers, Hooks
from holdfast.worker.job import Batch, Run, RunContext, RunningJob, run
from holdfast.worker.outcomes import GIVEN_BACK, Fail, Release, Retry, trace_of
from holdfast.worker.wakeup import show_stacks

with suppress(ModuleNotFoundError):  # Windows has neither, and no workers.
    import fcntl
    import resource

_FAR_DESCRIPTOR: Final = 900
"""The connection gets a descriptor from here on: jobs that close low descriptors miss it."""


class Channel:
    """A child's side of its connection to the worker, and the memory that they share."""

    def __init__(
        self, connection: socket.socket, take: socket.socket, board: Board, slot: int
    ) -> None:
        connection, self._tickets = _far(connection), _far(take)
        self.line = messages.Line(connection, messages.read_by_child)
        self._given: deque[messages.Jobs] = deque()
        """Runs that were read while a handler waited for an answer."""
        self.board = board
        self.slot = slot
        self.asking = threading.Lock()
        """Held while a thread sends to the worker for a run: a handler may have threads."""
        self._pid = os.getpid()
        self._peak_at_start = _peak_megabytes()
        # A copy in a forked process would hide the end of this process from the worker.
        for one in (connection, self._tickets):
            os.register_at_fork(after_in_child=one.close)

    def next(self) -> messages.Jobs:
        """Wait for the next run; raise EOFError when the worker is gone."""
        number = messages.take(self._tickets)
        while True:
            given = self._given.popleft() if self._given else self.line.read()
            # Skip runs that were taken back, and answers whose run is over.
            if isinstance(given, messages.Jobs) and given.number == number:
                return given

    def answer(self) -> messages.Extended:
        """Wait for the answer to a handler's question."""
        while isinstance(message := self.line.read(), messages.Jobs):
            self._given.append(message)
        assert isinstance(message, messages.Extended)
        return message

    def is_ours(self) -> bool:
        """Return whether this is the child itself, not a process that its handler forked."""
        return os.getpid() == self._pid

    def grown_by(self) -> float:
        """Return by how many megabytes the peak memory has grown since the fork.

        Memory from before the fork, such as the loaded program, is shared with other processes.
        """
        return _peak_megabytes() - self._peak_at_start


def live(channel: Channel, handlers: Handlers) -> None:
    """Run jobs until the worker closes the connection."""
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    signal.signal(signal.SIGQUIT, show_stacks)
    with suppress(OSError, ValueError):
        faulthandler.enable(2)  # Writes the stacks if the process crashes.
    with suppress(EOFError, OSError):
        while True:
            given = channel.next()
            control = _ControlStub(given, channel)
            _run(given, control, handlers)


def _far(connection: socket.socket) -> socket.socket:
    try:
        descriptor = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, _FAR_DESCRIPTOR)
    except OSError:  # The limit of descriptors is lower.
        return connection
    connection.close()
    return socket.socket(fileno=descriptor)


def _run(given: messages.Jobs, control: _ControlStub, handlers: Handlers) -> None:
    handler = handlers.for_lease(control.called, given.leases[0])
    jobs = [_ChildJob(lease, handler, control, n) for n, lease in enumerate(given.leases)]
    work: Run = Batch(jobs) if handler.batch else jobs[0]
    if time.monotonic() < given.lapses_at:
        run(work)
        control.finished(work)
    else:  # This process or the machine was suspended.
        control.returned(work)


def _peak_megabytes() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 2**10 if sys.platform == "linux" else used / 2**20


class _ChildJob(RunningJob):
    """A running job in a child process."""

    __slots__ = ("_here", "number")

    def __init__(self, lease: Lease, handler: Handler, control: _ControlStub, number: int) -> None:
        super().__init__(lease, handler, control, math.inf)
        self._here = control
        self.number = number

    @property
    def cancelled(self) -> bool:
        channel = self._here.channel
        return channel.board.should_stop(channel.slot, self._here.run, self.number)

    def progress(self, fraction: float, note: str = "") -> None:
        super().progress(fraction, note)
        assert self._progress is not None
        with suppress(OSError), self._here.channel.asking:  # Progress is only information.
            if not self._here.over:
                self._here.channel.line.send(messages.Progress(self.number, *self._progress))


class _ControlStub(RunContext):
    """Stands for the control loop, which runs in the worker."""

    hooks: Sequence[Hooks] = ()

    def __init__(self, given: messages.Jobs, channel: Channel) -> None:
        self.called, self.origin = given.origin.queue, given.origin
        self.run = given.number
        self.channel = channel
        self.over = False
        """Whether the run is over. Threads that it left behind must not speak for the next run."""

    def finished(self, work: Run) -> None:
        """Send the answers for the jobs of this run."""
        answered = []
        for job in work.jobs:
            assert job.answer is not None
            trace = ""
            if job.raised is not None and not issubclass(type(job.raised), Retry | Fail | Release):
                trace = trace_of(job.raised)
            answered.append(messages.Answered(job.answer, job.follow_ups, trace))
        channel = self.channel
        answers = messages.Answers(answered, channel.grown_by())
        if not channel.is_ours():
            os._exit(0)
        with channel.asking:
            self.over = True
        try:
            channel.line.send(answers)
        except OSError:  # The handler closed it.
            channel.board.leave(channel.slot, msgspec.msgpack.encode(answers))
            raise

    def returned(self, work: Run) -> None:
        """Answer that the jobs of this run were not started."""
        for job in work.jobs:
            job.answer = GIVEN_BACK
        self.finished(work)

    def extend_now(self, job: RunningJob, seconds: Duration | None) -> None:
        assert isinstance(job, _ChildJob)
        wanted = arguments.seconds_or_none("seconds", seconds)
        with self.channel.asking:
            if self.over:
                raise LeaseLost(f"{job.id}: its run is over")
            try:
                self.channel.line.send(messages.Extend(job.number, wanted))
                answer = self.channel.answer()
            except (OSError, EOFError):
                raise LeaseLost(f"{job.id}: the connection to the worker is closed") from None
        answer.check()

    def entries(self, new: Iterable[NewJob]) -> list[Entry]:
        return queues.entries(self.origin, new)
