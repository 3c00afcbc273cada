"""Many at once: threads that start together, and processes that can be killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeAlias, TypeVar

from holdfast import Lease, Queue
from support import DEADLINE

T = TypeVar("T")
Process: TypeAlias = "subprocess.Popen[bytes]"

_HEAD = """
import json, sys
from holdfast import Queue
queue = Queue(json.loads(sys.argv[2]), sys.argv[1])
"""


def race(*doers: Callable[[], T]) -> list[T]:
    """Let all begin at the same moment, each in a thread; return what each of them returns."""
    barrier = threading.Barrier(len(doers))

    def run(do: Callable[[], T]) -> T:
        barrier.wait(DEADLINE)
        return do()

    with ThreadPoolExecutor(len(doers)) as threads:
        running = [threads.submit(run, do) for do in doers]
        return [future.result(DEADLINE) for future in running]


def until(done: threading.Event, do: Callable[[], T]) -> Callable[[], list[T]]:
    """Do it again and again until somebody is done, at least once; return what came of it."""

    def repeat() -> list[T]:
        deadline = time.monotonic() + DEADLINE
        answers = [do()]
        while not done.is_set() and time.monotonic() < deadline:
            answers.append(do())
        return answers

    return repeat


class Work:
    """Jobs that several workers share: lease, run, complete, until so many were completed."""

    def __init__(self, queue: Queue, total: int, seconds: float = 60) -> None:
        self.queue = queue
        self.total = total
        self.seconds = seconds
        self.done = threading.Event()
        self.leased: list[Lease] = []
        """Every lease that was granted, by whomever."""
        self.completed: list[str] = []
        """The id of every complete that was answered True."""

    def work(self) -> None:
        deadline = time.monotonic() + DEADLINE
        while not self.done.is_set() and time.monotonic() < deadline:
            lease = self.queue.lease(self.seconds, wait=0.02)
            if lease is None:
                continue
            self.leased.append(lease)
            if self.queue.complete(lease):
                self.completed.append(lease.id)
            if len(self.completed) >= self.total:
                self.done.set()


@contextmanager
def running(program: str, url: str, queue: Queue, times: int = 1) -> Iterator[list[Process]]:
    """Run a program in processes of its own, which have the `queue`; what still runs is killed."""
    command = [sys.executable, "-c", _HEAD + program, url, json.dumps(queue.name)]
    with ExitStack() as stack:
        processes = []
        for _ in range(times):
            process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            stack.callback(process.kill)
            processes.append(process)
        yield processes
