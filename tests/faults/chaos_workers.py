"""Workers for the chaos, and the warm parent that forks them (see victims.py).

    python -m faults.chaos_workers <url> <queue> <seed>

Their handlers do what the job tells them, and write down that they did.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

from faults.journal import Began, Ended, Journal, Left, Order, Over, encode, now, read_order
from faults.victims import raise_children
from holdfast import AsyncRunningJob, Fail, Queue, Retry, RunningJob, Worker
from holdfast.worker.executors import processes
from holdfast.worker.job import Run as AnyRun

LEASE_SECONDS = 1.0
GRACE_SECONDS = 0.3
LINGER_SECONDS = 0.2
FOR_EVER = 3600.0


def journals(url: str) -> Path:
    """Return where workers write, beside the socket of their server."""
    return Path(url.removeprefix("unix://")).parent / "journals"


class Unlucky(Worker):
    """A worker that writes down when it is told to stop."""

    journal: Journal

    def ask_to_stop(self) -> None:
        self.journal.write(Left(now()))
        super().ask_to_stop()


class Mortal(processes.Child):
    """A child whose end is written down."""

    journal: Journal

    def attend(self) -> list[AnyRun]:
        over = super().attend()
        if not self.alive:
            for job in (job for work in over for job in work.jobs):
                self.journal.write(Ended(job.id, job.token, now()))
        return over


class Run:
    """One run of a handler."""

    def __init__(self, job: RunningJob, journal: Journal, dice: random.Random) -> None:
        self._job = job
        self._journal = journal
        self.in_process = os.getpid() != journal.pid
        self.order = read_order(job.data)
        self.way = self.order.way(job.failures + job.lapses)
        self._after = dice.uniform(0, 0.2)
        if job.failed:
            self.way = dice.choices(("return", "retry", "linger"), (8, 1, 1))[0]
        self._write_that_it_began()

    def _write_that_it_began(self) -> None:
        job = self._job
        self._journal.write(Began(job.id, job.token, self.order.name, job.failed, now()))

    def hang(self) -> None:
        """Give no answer: for ever, or by a crash."""
        if self.in_process and self._after < 0.1:
            self.stopped()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(FOR_EVER)

    def end(self) -> None:
        """Return or raise, as the order says; lingering was done before."""
        if self.order.follow_up and not self._job.failed:
            self._add(self.order.next())
        how = "return" if self.way == "linger" else self.way
        self._journal.write(Over(self._job.id, self._job.token, how, self._after, now()))
        match how:
            case "raise":
                raise ValueError("as the order says")
            case "retry":
                raise Retry("as the order says", after=self._after)
            case "fail":
                raise Fail("as the order says")

    def stopped(self) -> None:
        self._journal.write(Over(self._job.id, self._job.token, "stopped", 0, now()))

    def _add(self, order: Order) -> None:
        self._job.add(encode(order), id=order.name, max_failures=order.max_failures)


def hire(queue: Queue, journal: Journal, dice: random.Random) -> Worker:
    """Return a worker with coroutines, and with threads or processes."""
    worker = Unlucky(
        queue,
        executor=dice.choice(("thread", "process")),
        concurrency=dice.randint(2, 6),
        lease=LEASE_SECONDS,
        grace=GRACE_SECONDS,
        ahead=dice.choice((0, 0.02)),
    )
    worker.journal = Mortal.journal = journal
    processes.Child = Mortal  # type: ignore[misc]

    @worker.handler
    @worker.failure_handler
    def plainly(job: RunningJob) -> None:
        run = Run(job, journal, dice)
        if run.way == "hang":
            run.hang()
        if run.way == "linger":
            time.sleep(LINGER_SECONDS)
        run.end()

    @worker.handler("coroutine")
    async def waiting(job: AsyncRunningJob) -> None:
        run = Run(job, journal, dice)
        if run.way in ("hang", "linger"):
            try:
                await asyncio.sleep(FOR_EVER if run.way == "hang" else LINGER_SECONDS)
            except asyncio.CancelledError:
                run.stopped()
                raise
        run.end()

    return worker


def live(url: str, queue: str, dice: random.Random, parent: int) -> None:
    """Work until told to stop, or as long as the parent lives."""

    def leave_with_the_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=leave_with_the_parent, daemon=True).start()
    # What handlers raise is no news; that the worker itself did is.
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: "unexpected" in record.msg)
    logging.getLogger("holdfast").addHandler(handler)
    with Queue(queue, url) as opened:
        hire(opened, Journal(journals(url)), dice).run()


def main(url: str, queue: str, seed: str) -> None:
    raise_children(partial(live, url, queue), seed)


if __name__ == "__main__":
    main(*sys.argv[1:])
