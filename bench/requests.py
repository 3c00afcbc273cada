"""Parts of requests beside plain jobs, in one run: `make bench-requests`.

What a part costs from its adding to its end, client and server together, as a ratio to a plain
job; and one request of a million parts, with the longest call that the server saw.
"""

from __future__ import annotations

import argparse
import logging
import resource
import statistics
from collections.abc import Callable

from bench.measure import BenchServer, Load, bench_server, seconds, steady_cores
from bench.queue import Row, alternate, show
from bench.results import keep
from bench.targets import BY_TURNS
from holdfast import Queue

PAYLOAD = bytes(100)
BATCH = 100


class Requests:
    """One server, one queue, emptied before each measure."""

    def __init__(self, server: BenchServer, rounds: int, scale: float) -> None:
        self.server = server
        self.rounds = rounds
        self.queue = Queue("bench", server.url)
        self.jobs = max(2000, int(20_000 * scale))
        self.scale = scale

    # ------------------------------------------------------------ lives of jobs

    def work_off(self, batch: int = BATCH) -> int:
        """Lease and complete so many at a time until nothing is left; return how many."""
        done, count = self.queue.lease_many(batch, 60), 0
        while done:
            count += len(done)
            done = self.queue.lease_many(batch, 60, complete=done)
        return count

    def plain(self) -> float:
        """Return microseconds per plain job: added by a thousand, leased and completed."""
        self.queue.delete()

        def live() -> None:
            self.queue.add_many([PAYLOAD] * self.jobs)
            self.work_off()

        return 1e6 * seconds(live) / self.jobs

    def parts_of(self, requests: int, limit: int | None = None) -> float:
        """Return microseconds per part: added, leased and completed, by turns."""
        self.queue.delete()
        each = max(1, self.jobs // requests)
        opened = [self.queue.request(f"r{n}", limit=limit) for n in range(requests)]
        for request in opened:
            request.open()

        def live() -> None:
            for request in opened:
                request.add_many([PAYLOAD] * each)
            assert self.work_off() == each * requests

        return 1e6 * seconds(live) / (each * requests)

    def against_plain(self, what: str, most: float, measure: Callable[[], float]) -> Row:
        ours, plain = alternate(self.rounds, measure, self.plain)
        ratio = statistics.median(ours) / statistics.median(plain)
        row = Row(what, "µs", ours, "plain jobs", f"≤ {most} ×", plain)
        row.ratio, row.reached = f"{ratio:.2f} ×", ratio <= most
        return row

    def many_requests(self, batch: int) -> Row:
        """Few parts each. What is added before is not measured: it is as many calls as requests.

        Taken by turns, every part of a batch is of another request. What a call costs by itself is
        the same for both, so a worker that asks for one job at a time sees least of the difference.
        """
        requests, each = max(1000, int(10_000 * self.scale)), 10 if batch > 1 else 2
        parts = requests * each

        def ours() -> float:
            self.queue.delete()
            for n in range(requests):
                with self.queue.request(f"r{n}") as request:
                    request.add_many([PAYLOAD] * each)
            return 1e6 * seconds(lambda: self.work_off(batch)) / parts

        def plain() -> float:
            self.queue.delete()
            self.queue.add_many([PAYLOAD] * parts)
            return 1e6 * seconds(lambda: self.work_off(batch)) / parts

        rows = alternate(self.rounds, ours, plain)
        ratio = statistics.median(rows[0]) / statistics.median(rows[1])
        if batch == BATCH and self.scale >= 1:
            keep(BY_TURNS, ratio)
        what = f"lease and complete by {batch} in turns, {requests:,} requests"
        row = Row(what, "µs", rows[0], "plain jobs", "≤ 2.5 ×", rows[1])
        row.ratio, row.reached = f"{ratio:.2f} ×", ratio <= 2.5
        return row

    # --------------------------------------------------------------- one that is big

    def big(self) -> list[Row]:
        """A request of a million parts: limit 4 is held, and no call is long."""
        self.queue.delete()
        parts = max(20_000, int(1_000_000 * self.scale))
        client = self.server.client
        client.config_set("slowlog-log-slower-than", 10_000)
        client.slowlog_reset()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with self.queue.request("big", limit=4) as request:
            added = seconds(lambda: request.add_many(PAYLOAD for _ in range(parts)))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

        def work_off() -> int:
            done, count = self.queue.lease_many(BATCH, 60), 0
            while done:
                assert len(done) <= 4
                count += len(done)
                done = self.queue.lease_many(BATCH, 60, complete=done)
            return count

        took = seconds(work_off)
        assert request.status().state == "completed"
        slow = [entry["duration"] / 1000 for entry in client.slowlog_get(128)]
        longest = max(slow, default=10.0)
        rows = [
            Row(f"memory of a client that adds {parts:,} parts", "MB", [grown], "", "≤ 50"),
            Row("the longest call on the server", "ms", [longest], "", "≤ 50"),
            Row("parts added", "jobs/s", [parts / added], "", ""),
            Row("parts leased and completed, limit 4", "jobs/s", [parts / took], "", ""),
        ]
        rows[0].reached, rows[1].reached = grown <= 50, longest <= 50
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="0.1 for a quick look")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    load = Load()
    with bench_server() as server:
        bench = Requests(server, options.rounds, options.scale)
        with steady_cores():
            rows = [
                bench.against_plain(
                    "the life of a part, one request", 2, lambda: bench.parts_of(1)
                ),
                bench.against_plain("the same, with a limit", 2, lambda: bench.parts_of(1, 1000)),
                *map(bench.many_requests, (1, 10, BATCH)),
            ]
        # Without spinners: a call that one of them interrupts is not a long call.
        show([*rows, *bench.big()], server, load)


if __name__ == "__main__":
    main()
