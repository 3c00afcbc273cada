"""Producers and holders in processes of their own, to be killed and frozen.

    python -m faults.actors <part> <directory> <name> <shell> <url> <queue>

An actor writes what it is about to do, and then what it was told, line by line and unbuffered
into the file of its name. It plays until there is a file `stop` in the directory.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import get_args

from faults.shells import Shell, open_queue
from holdfast import Lease, LeaseLost, NewJob, Queue
from holdfast.client.inputs import Done

HELD_SECONDS = 1.0
"""A lease of a holder that was killed comes back after so long."""

MAX_ADDED = 100_000


class Log:
    """What an actor knows, safe from its own death."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *words: object) -> None:
        os.write(self._file, ("\t".join(map(str, words)) + "\n").encode())


class Actor:
    """One process with one queue."""

    def __init__(self, queue: Queue, directory: Path, name: str) -> None:
        self._queue = queue
        self._stop = directory / "stop"
        self._name = name
        self._log = Log(directory / f"{name}.log")
        self._dice = random.Random(name)

    # -------------------------------------------------------------- producer

    def produce(self) -> None:
        """Add jobs, alone and by the handful."""
        number = 0
        while not self._stop.exists() and number < MAX_ADDED:
            ids = [f"{self._name}-{number + n}" for n in range(self._dice.choice((1, 1, 1, 5)))]
            number += len(ids)
            self._add(ids)

    def _add(self, ids: list[str]) -> None:
        for id in ids:
            self._log.write("adding", id)
        if len(ids) == 1:
            receipts = [self._queue.add(ids[0], id=ids[0], max_lapses=None)]
        else:
            jobs = [NewJob(id, id=id) for id in ids]
            receipts = self._queue.add_many(jobs, max_lapses=None)
        assert all(receipts), receipts
        for receipt in receipts:
            self._log.write("added", receipt.id)

    # ---------------------------------------------------------------- holder

    def hold(self) -> None:
        """Lease jobs and settle them in every way there is."""
        done: list[Done] = []
        while not self._stop.exists():
            leases, done = self._complete_and_lease(done), []
            for lease in leases:
                assert lease.data == lease.id.encode(), lease
                match self._dice.choice(("ride", "ride", "alone", "add", "extend", "release")):
                    case "ride":
                        done.append((lease, b"result") if self._dice.random() < 0.5 else lease)
                    case "alone":
                        self._complete(lease)
                    case "add":
                        self._complete_and_add(lease)
                    case "extend":
                        self._extend(lease)
                        done.append(lease)
                    case "release":
                        self._release(lease)
        self._complete_many(done)

    def _complete_and_lease(self, done: list[Done]) -> list[Lease]:
        ids = self._log_completing(done)
        leases = self._queue.lease_many(5, HELD_SECONDS, wait=0.2, complete=done)
        self._log_completed(ids, leases.completed)
        return leases

    def _complete_many(self, done: list[Done]) -> None:
        ids = self._log_completing(done)
        self._log_completed(ids, self._queue.complete_many(done))

    def _complete(self, lease: Lease) -> None:
        ids = self._log_completing([lease])
        self._log_completed(ids, [self._queue.complete(lease)])

    def _complete_and_add(self, lease: Lease) -> None:
        """Complete a job with a follow-up: both are done, or neither."""
        if lease.id.endswith("+"):
            self._complete(lease)
            return
        follow_up = f"{lease.id}+"
        self._log.write("adding", follow_up)
        ids = self._log_completing([lease])
        job = NewJob(follow_up, id=follow_up, max_lapses=None)
        completed = self._queue.complete(lease, add=[job])
        if completed:
            self._log.write("added", follow_up)
        self._log_completed(ids, [completed])

    def _extend(self, lease: Lease) -> None:
        try:
            self._queue.extend(lease, HELD_SECONDS)
        except LeaseLost:
            self._log.write("lost", lease.id)

    def _release(self, lease: Lease) -> None:
        try:
            self._queue.release(lease)
        except LeaseLost:
            self._log.write("lost", lease.id)

    def _log_completing(self, done: list[Done]) -> list[str]:
        ids = [(item[0] if isinstance(item, tuple) else item).id for item in done]
        for id in ids:
            self._log.write("completing", id)
        return ids

    def _log_completed(self, ids: list[str], answers: list[bool]) -> None:
        for id, answer in zip(ids, answers, strict=True):
            self._log.write("completed", id, answer)

    # ---------------------------------------------------------------- sitter

    def sit(self) -> None:
        """Lease three jobs for a moment, and settle them much too late: when told to."""
        leases = self._queue.lease_many(3, 0.5)
        for lease in leases:
            self._log.write("leased", lease.id)
        sys.stdin.readline()
        for lease in leases:
            for late in (lambda held: self._queue.extend(held, 30), self._queue.release):
                try:
                    late(lease)
                except LeaseLost:
                    self._log.write("lost", lease.id)
                else:
                    self._log.write("held", lease.id)
            self._complete(lease)


def main(part: str, directory: str, name: str, shell: str, url: str, queue: str) -> None:
    (chosen,) = (known for known in get_args(Shell) if known == shell)
    with open_queue(chosen, queue, url) as opened:
        actor = Actor(opened, Path(directory), name)
        {"producer": actor.produce, "holder": actor.hold, "sitter": actor.sit}[part]()


if __name__ == "__main__":
    main(*sys.argv[1:])
