"""The calls whose instructions `bench.instructions` counts, the same for server and client.

    python -m bench.counted <url>

This runs them with marks that callgrind sees in this process, and prints how many jobs each row
had. Time and chance change no count: the clock stands still, and the garbage collector is off.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Callable

import redis

from bench.record import ADD, YARDSTICK
from holdfast import Leases, Queue

PAYLOAD = bytes(100)
BATCH = 100
LEASE = 60
NOW_MS = 1_800_000_000_000
WAITING = 3_000
"""Jobs that wait while others are added and leased."""
ONE_BY_ONE = 128
"""Calls that are counted. A multiple of 16: every 16th call of a client does more."""
BATCHES = 16
OWNERS = 100
"""Requests whose parts are leased by turns."""

Mark = Callable[[], object]


class Counted:
    """Makes each kind of call some times between two marks.

    still   give the time with each call, so that the server does what it does once a second only
            once. The time costs the client something, so the client is counted without it.
    """

    def __init__(self, url: str, mark: Mark, *, still: bool) -> None:
        self._mark = mark
        self._clock = (lambda: NOW_MS) if still else None
        self.calls: dict[str, int] = {}
        """How many jobs were between the two marks of each row, in the order of the marks."""
        self._url = url
        self._plain = redis.Redis.from_url(url)
        self._queues: list[Queue] = []

    def run(self) -> dict[str, int]:
        """Make all calls; return how many jobs each row had."""
        try:
            self._run()
        finally:
            self._plain.close()
            for queue in self._queues:
                queue.close()
        return self.calls

    def _run(self) -> None:
        self._count(YARDSTICK, ONE_BY_ONE, self._set_and_push)
        queue = self._queue("plain")
        queue.add_many([PAYLOAD] * WAITING)
        self._count(ADD, ONE_BY_ONE, lambda: queue.add(PAYLOAD))
        taken: list[Leases] = []
        self._count("lease", ONE_BY_ONE, lambda: taken.append(queue.lease_many(1, LEASE)))
        self._count("complete", ONE_BY_ONE, lambda: queue.complete(taken.pop()[0]))
        self._work_off("complete + lease", queue, 1)
        self._work_off("complete + lease of 100, per job", queue, BATCH)
        queue = self._queue("parts")
        with queue.request("one") as request:
            request.add_many([PAYLOAD] * WAITING)
        self._work_off("complete + lease, a part", queue, 1)
        self._work_off("complete + lease of 100 parts, per part", queue, BATCH)
        queue = self._queue("turns")
        for number in range(OWNERS):
            with queue.request(f"r{number}") as request:
                request.add_many([PAYLOAD] * (BATCHES + 8))
        self._work_off("the same, of 100 requests by turns", queue, BATCH)

    def _queue(self, name: str) -> Queue:
        self._queues.append(Queue(name, self._url, clock=self._clock))
        return self._queues[-1]

    def _set_and_push(self) -> None:
        pipeline = self._plain.pipeline(transaction=False)
        pipeline.set("job", PAYLOAD)
        pipeline.lpush("list", "job")
        pipeline.execute()

    def _work_off(self, what: str, queue: Queue, batch: int) -> None:
        """Count calls that complete the jobs of the last call and lease the next."""
        taken = queue.lease_many(batch, LEASE)

        def go_on() -> None:
            nonlocal taken
            taken = queue.lease_many(batch, LEASE, complete=taken)

        self._count(what, ONE_BY_ONE if batch == 1 else BATCHES, go_on, batch)
        assert len(taken) == batch
        queue.complete_many(taken)

    def _count(self, what: str, times: int, call: Callable[[], object], jobs: int = 1) -> None:
        warm = 16 if jobs == 1 else 2
        for _ in range(warm):
            call()
        self._mark()
        for _ in range(times):
            call()
        self._mark()
        self.calls[what] = times * jobs


def main() -> None:
    logging.disable(logging.WARNING)
    gc.disable()
    time.time_ns = itertools.repeat(NOW_MS * 1_000_000).__next__  # Ids are made of the time.
    jobs = Counted(sys.argv[1], os.getloadavg, still=False).run()
    print(json.dumps(jobs), flush=True)


if __name__ == "__main__":
    main()
