"""Workers to be killed, and the warm parent that forks them.

    python -m faults.victims <url> <queue> <seed>

The parent has imported everything and has neither threads nor connections. It answers line by line:

    fork        -> the pid of a new worker
    kill <pid>  -> how that worker ended: a signal as a negative number, or an exit code

It alone waits for its children, so a pid is theirs until it has said how they ended. When its
input ends, all of them are killed, and it ends too.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from holdfast import Lease, LeaseLost, Queue
from holdfast.client.inputs import Done

LEASE_SECONDS = 1.0
"""The places of a worker that was killed are free after so long."""

HELD_SECONDS = 0.03
"""A part is held for up to so long."""

LATE_SECONDS = 1.5
"""Longer than a lease."""

WAYS = {
    "ride": 8,
    "complete": 8,
    "extend": 3,
    "release": 2,
    "release later": 1,
    "lapse": 1,
    "retry": 2,
    "fail": 1,
    "dawdle": 0.2,
}
"""What becomes of a lease, and how often."""


class Victim:
    """A worker that does with its leases whatever can be done with a lease."""

    def __init__(self, queue: Queue, dice: random.Random) -> None:
        self._queue = queue
        self._dice = dice
        self._done: list[Done] = []

    def work(self) -> None:
        """Lease a few jobs, and settle them one after the other."""
        for lease in self._lease():
            time.sleep(self._dice.uniform(0, HELD_SECONDS))
            (way,) = self._dice.choices(list(WAYS), list(WAYS.values()))
            with suppress(LeaseLost):
                self._settle(lease, way)
        if self._dice.random() < 0.1:
            self._handle_failed()

    def _lease(self) -> list[Lease]:
        done, self._done = self._done, []
        wanted = self._dice.randint(1, 3)
        return self._queue.lease_many(wanted, LEASE_SECONDS, wait=0.2, complete=done)

    def _settle(self, lease: Lease, way: str) -> None:
        queue = self._queue
        match way:
            case "ride":
                self._done.append((lease, b"result") if self._dice.random() < 0.5 else lease)
            case "complete":
                queue.complete(lease, lease.id)
            case "extend":
                queue.extend(lease, LEASE_SECONDS)
                self._done.append(lease)
            case "release":
                queue.release(lease)
            case "release later":
                queue.release(lease, after=self._dice.uniform(0, 0.2))
            case "lapse":
                queue.release(lease, lapsed="it crashed")
            case "retry":
                queue.retry(lease, error="not yet", after=self._dice.uniform(0, 0.2))
            case "fail":
                queue.fail(lease, error="never")
            case "dawdle":
                time.sleep(self._dice.uniform(LEASE_SECONDS, LATE_SECONDS))
                queue.complete(lease, b"late")

    def _handle_failed(self) -> None:
        for lease in self._queue.lease_many(2, LEASE_SECONDS, failed=True):
            time.sleep(self._dice.uniform(0, HELD_SECONDS))
            with suppress(LeaseLost):
                match self._dice.choice(("complete", "complete", "fail", "release")):
                    case "complete":
                        self._queue.complete(lease)
                    case "fail":
                        self._queue.fail(lease, error="nobody knows what to do")
                    case "release":
                        self._queue.release(lease)


def live(url: str, queue: str, dice: random.Random, parent: int) -> None:
    """Work as long as the parent lives."""
    with Queue(queue, url) as opened:
        victim = Victim(opened, dice)
        while os.getppid() == parent:
            victim.work()


Life: TypeAlias = Callable[[random.Random, int], None]
"""What a child does, with dice of its own, as long as this pid is its parent."""


class Parent:
    """Forks, kills, and waits for who was killed."""

    def __init__(self, life: Life, seed: str) -> None:
        self._life = life
        self._seed = seed
        self._born = 0
        self._children: set[int] = set()

    def answer(self, line: str) -> int:
        match line.split():
            case ["fork"]:
                return self._fork()
            case ["kill", pid]:
                return self.kill(int(pid))
        raise AssertionError(f"what is {line!r}?")

    def kill(self, pid: int) -> int:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        self._children.remove(pid)
        return os.waitstatus_to_exitcode(status)

    def kill_all(self) -> None:
        for pid in list(self._children):
            self.kill(pid)

    def _fork(self) -> int:
        self._born += 1
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._children.add(pid)
            return pid
        code = 1
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for pipe in (0, 1):  # They are between the parent and who talks to it.
                os.dup2(nowhere, pipe)
            self._life(random.Random(f"{self._seed} {self._born}"), parent)
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)


def raise_children(life: Life, seed: str) -> None:
    """Answer line by line, until there are no more lines."""
    parent = Parent(life, seed)
    try:
        for line in sys.stdin:
            print(parent.answer(line), flush=True)
    finally:
        parent.kill_all()


def main(url: str, queue: str, seed: str) -> None:
    raise_children(partial(live, url, queue), seed)


if __name__ == "__main__":
    main(*sys.argv[1:])
