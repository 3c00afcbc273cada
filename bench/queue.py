"""The queue beside the floor, in one run: `make bench`.

Every row alternates Holdfast and its yardstick, several rounds each, and compares medians.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from bench.floor import Floor, LeanFloor, PlainFloor
from bench.growth import Grower
from bench.measure import BenchServer, Load, bench_server, seconds, spread, steady_cores
from holdfast import Lease, Queue

PAYLOAD = bytes(100)


@dataclass
class Row:
    what: str
    unit: str
    ours: list[float]
    yardstick: str
    target: str
    """Empty: the row is shown without a verdict."""
    floor: list[float] = field(default_factory=list)
    reached: bool = False
    ratio: str = ""


def alternate(
    rounds: int, ours: Callable[[], float], floor: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Run both by turns; the first round of each warms up and does not count."""
    results: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for place, measure in enumerate((ours, floor)):
            value = measure()
            if number:
                results[place].append(value)
    return results


def faster(
    what: str, yardstick: str, least: float | None, results: tuple[list[float], list[float]]
) -> Row:
    ours, floor = results
    ratio = statistics.median(ours) / statistics.median(floor)
    row = Row(what, "jobs/s", ours, yardstick, f"≥ {least} ×" if least else "", floor)
    row.ratio, row.reached = f"{ratio:.2f} ×", ratio >= (least or 0)
    return row


class Bench:
    def __init__(self, server: BenchServer, rounds: int, scale: float) -> None:
        self.server, self.rounds, self.scale = server, rounds, scale
        self.queue = Queue("bench", server.url)
        self.floor = Floor(server.url)
        self.plain = PlainFloor(server.url)
        self.lean = LeanFloor(server.url)

    def many(self, count: int) -> int:
        return max(1000, int(count * self.scale))

    def clear(self) -> None:
        self.server.clear()

    # ------------------------------------------------------------------- add

    def add_one_by_one(self, least: float, floor: Callable[[bytes], object], name: str) -> Row:
        jobs = self.many(5_000)

        def rate(add: Callable[[bytes], object]) -> float:
            self.clear()
            return jobs / seconds(lambda: [add(PAYLOAD) for _ in range(jobs)])

        results = alternate(self.rounds, lambda: rate(self.queue.add), lambda: rate(floor))
        return faster("add, one by one", name, least, results)

    def add_in_bulk(self) -> Row:
        chunks, chunk = self.many(100_000) // 1000, [PAYLOAD] * 1000

        def rate(add: Callable[[list[bytes]], object]) -> float:
            self.clear()
            return 1000 * chunks / seconds(lambda: [add(chunk) for _ in range(chunks)])

        results = alternate(
            self.rounds, lambda: rate(self.queue.add_many), lambda: rate(self.floor.add_many)
        )
        return faster("add_many by 1000", "floor, bulk add", None, results)

    # ----------------------------------------------------------------- drain

    def drain_queue(self, batch: int, jobs: int) -> float:
        self.clear()
        self.queue.add_many([PAYLOAD] * jobs)
        return jobs / seconds(lambda: self.empty(batch))

    def empty(self, batch: int) -> None:
        done: list[Lease] = []
        while True:
            done = self.queue.lease_many(batch, 30, complete=done)
            if not done:
                return

    def drain_floor(self, floor: Floor | LeanFloor, batch: int, jobs: int) -> float:
        self.clear()
        for _ in range(jobs // 1000):
            floor.add_many([PAYLOAD] * 1000)

        def empty() -> None:
            while floor.drain(batch):
                pass

        return jobs / seconds(empty)

    def drain(self, batch: int, jobs: int) -> Row:
        """Beside the floor without reliability: no target, as leases cost what they cost."""
        what = "lease and complete, one by one" if batch == 1 else f"lease and complete by {batch}"
        yardstick = "floor, pop + get + delete" + ("" if batch == 1 else f" by {batch}")
        return self._drain(what, batch, jobs, self.floor, yardstick, None)

    def drain_beside_the_lean(self, jobs: int) -> Row:
        what = "lease and complete, one by one"
        return self._drain(what, 1, jobs, self.lean, "floor of the design", 0.75)

    def _drain(
        self,
        what: str,
        batch: int,
        jobs: int,
        floor: Floor | LeanFloor,
        yardstick: str,
        least: float | None,
    ) -> Row:
        jobs = self.many(jobs) // 1000 * 1000
        results = alternate(
            self.rounds,
            lambda: self.drain_queue(batch, jobs),
            lambda: self.drain_floor(floor, batch, jobs),
        )
        return faster(what, yardstick, least, results)

    # --------------------------------------------------------------- latency

    def latency(self) -> Row:
        jobs = 300
        ours, floor = alternate(
            self.rounds,
            lambda: waiting_time(self.server.url, "queue", jobs),
            lambda: waiting_time(self.server.url, "floor", jobs),
        )
        ratio = statistics.median(ours) / statistics.median(floor)
        row = Row("add → leased by a waiting lease, p50", "ms", ours, "BRPOP", "≤ 1.2 ×", floor)
        row.ratio, row.reached = f"{ratio:.2f} ×", ratio <= 1.2
        return row

    # ------------------------------------------------------------- the server

    def bytes_per_job(self) -> Row:
        jobs = self.many(100_000)
        self.clear()
        before = self.server.used_memory()
        self.queue.add_many([PAYLOAD] * jobs)
        size = (self.server.used_memory() - before) / jobs
        row = Row("memory per waiting job of 100 bytes", "bytes", [size], "", "≤ 260")
        row.reached = size <= 260
        return row

    def server_time(self) -> Row:
        jobs = self.many(20_000)
        times = []
        for _ in range(self.rounds):
            self.clear()
            self.queue.add(PAYLOAD)
            self.empty(1)
            before = self.server.script_usec()
            for _ in range(jobs // 100):
                self.queue.add_many([PAYLOAD] * 100)
            self.empty(100)
            times.append((self.server.script_usec() - before) / jobs)
        row = Row("server time per job's life, by 100", "µs", times, "", "≤ 16")
        row.reached = statistics.median(times) <= 16
        return row

    def depth(self) -> Row:
        """Server time to add, lease and complete beside many waiting jobs."""
        few, many = 1_000, self.many(1_000_000)
        grower = Grower(self.server, self.rounds, 50)
        shallow, deep = grower.waiting(few), grower.waiting(many)
        ratio = statistics.median(deep) / statistics.median(shallow)
        what = f"server time beside {many:,} waiting jobs"
        row = Row(what, "µs", deep, f"beside {few:,}", "≤ 1.5 ×", shallow)
        row.ratio, row.reached = f"{ratio:.2f} ×", ratio <= 1.5
        return row


def waiting_time(url: str, kind: str, jobs: int) -> float:
    """The median time in ms between an add and its lease in a process that waits for it."""
    here, there = multiprocessing.Pipe()
    waiter = multiprocessing.get_context("spawn").Process(
        target=wait_for_jobs, args=(url, kind, jobs, there)
    )
    waiter.start()
    here.recv()
    queue, floor = Queue("latency", url), Floor(url)
    add = queue.add if kind == "queue" else floor.push
    for _ in range(jobs):
        time.sleep(0.003)
        add(b"%d" % time.monotonic_ns())
        here.recv()
    waiter.join()
    times: list[float] = here.recv()
    return statistics.median(times)


def wait_for_jobs(url: str, kind: str, jobs: int, pipe: Connection) -> None:
    logging.disable(logging.WARNING)
    queue, floor = Queue("latency", url), Floor(url)
    times: list[float] = []
    done: list[Lease] = []
    queue.counts()
    pipe.send("ready")
    while len(times) < jobs:
        if kind == "queue":
            done = queue.lease_many(1, 30, wait=5, complete=done)
            sent = done[0].data
        else:
            sent = floor.blocking_pop(5) or b""
        times.append((time.monotonic_ns() - int(sent)) / 1e6)
        pipe.send("got it")
    pipe.send(times)


def number(values: list[float], unit: str) -> str:
    return f"{statistics.median(values):,.{0 if unit == 'jobs/s' else 2}f} {unit}"


def show(rows: list[Row], server: BenchServer, load: Load) -> None:
    print(f"\n{server.version()}, Python {platform.python_version()}, {os.cpu_count()} cores;")
    print(f"{load};")
    print("no-op jobs of 100 bytes, loopback TCP, no AOF; medians, ± half the range of the rounds")
    print()
    table = [("row", "Holdfast", "", "yardstick", "", "", "ratio", "target", "")]
    for row in rows:
        ours = (number(row.ours, row.unit), spread(row.ours))
        floor = ("", "", "")
        if row.floor:
            floor = (row.yardstick, number(row.floor, row.unit), spread(row.floor))
        mark = ("reached" if row.reached else "MISSED") if row.target else ""
        table.append((row.what, *ours, *floor, row.ratio, row.target, mark))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def main() -> None:
    logging.disable(logging.WARNING)  # The server has no persistence, and we know it.
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5, help="rounds that count (default 5)")
    arguments.add_argument("--scale", type=float, default=1.0, help="size of each round")
    given = arguments.parse_args()
    load = Load()
    with bench_server() as server, steady_cores():
        bench = Bench(server, max(3, given.rounds), given.scale)
        rows = [
            bench.add_one_by_one(1.1, bench.plain.add, "SET + LPUSH, redis-py"),
            bench.add_one_by_one(0.8, bench.floor.add, "SET + LPUSH, our client"),
            bench.add_in_bulk(),
            bench.drain(100, 50_000),
            bench.drain(1, 5_000),
            bench.drain_beside_the_lean(5_000),
            bench.latency(),
            bench.bytes_per_job(),
            bench.server_time(),
            bench.depth(),
        ]
        show(rows, server, load)


if __name__ == "__main__":
    main()
