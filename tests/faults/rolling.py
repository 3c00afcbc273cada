"""A producer or a worker of either release, for `test_upgrade.py`.

    python -P rolling.py add|work <url> <queue> <journal>

It imports whatever `holdfast` is first on PYTHONPATH, so it uses only what both releases have. It
ends when it gets SIGTERM.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from itertools import count
from threading import Event

import holdfast
from holdfast import Queue, RunningJob, Worker

LEASE_SECONDS = 1.0
BACKLOG = 200
KEPT = 3600
REQUEST = "parts"


class Lines:
    """A file of events. One write per line, so that all of them survive kill -9."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words: str) -> None:
        os.write(self._file, "\t".join(words).encode() + b"\n")


def work(queue: Queue, lines: Lines) -> None:
    """Run jobs: some raise at first, some have a follow-up."""
    worker = Worker(queue, concurrency=4, lease=LEASE_SECONDS, grace=5)

    @worker.handler
    def run(job: RunningJob) -> str:
        lines.write("began", job.id, job.token)
        time.sleep(random.uniform(0, 0.01))
        if job.data == b"raise" and job.failures == 0:
            raise ValueError("once")
        if job.data == b"follow":
            job.add(b"plain", id=f"{job.id}+", result_for=KEPT, max_lapses=None)
        lines.write("over", job.id, job.token)
        return job.token

    worker.run()


def add(queue: Queue, lines: Lines) -> None:
    """Add jobs, also delayed and many at a time, and parts to a request that is open."""
    stopped = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    request = queue.request(REQUEST, limit=3, keep_for=KEPT, append=True)
    request.open()
    names = (f"{os.getpid()}-{number}" for number in count())
    while not stopped.wait(0.005):
        if len(queue) > BACKLOG:
            continue
        name = next(names)
        queue.add(
            random.choice((b"plain", b"raise", b"follow")),
            id=name,
            delay=random.choice((None, None, 0.05)),
            priority=random.randrange(100),
            result_for=KEPT,
            max_lapses=None,
            min_backoff=0.05,
        )
        lines.write("added", name)
        receipts = queue.add_many([b"plain"] * 3, result_for=KEPT, max_lapses=None)
        for receipt in receipts:
            lines.write("added", receipt.id)
        request.add(b"plain", max_lapses=None)
        lines.write("part")


def main(role: str, url: str, name: str, journal: str) -> None:
    lines = Lines(journal)
    lines.write("release", str(holdfast.__file__))
    with Queue(name, url) as queue:
        {"add": add, "work": work}[role](queue, lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
