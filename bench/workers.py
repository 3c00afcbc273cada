"""Workers beside those of the peers, in one run: `make bench-workers`.

No-op jobs of 100 bytes, one process each, all on one server; every row alternates Holdfast and the
peers, several rounds each, and compares medians. Peers are swept over their concurrency first, so
that each is measured where it is fastest.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.floor import Floor, PlainFloor
from bench.measure import BenchServer, bench_server, seconds, steady_cores
from bench.peers import environments
from bench.queue import PAYLOAD, Row, show

RUN = Path(__file__).parent / "peers" / "run.py"


@dataclass(frozen=True)
class Contender:
    """A queue with a way to run its jobs."""

    name: str
    command: Sequence[str]
    jobs: int
    """How many a round has: enough for a second or two."""
    sweep: Sequence[int]
    """The concurrencies to try."""


THREADS, COROUTINES, BATCH, SINGLE, PROCESSES = (
    Contender(kind, [sys.executable, str(RUN), "of_holdfast"], jobs, [concurrency])
    for kind, jobs, concurrency in (
        ("threads", 60_000, 16),
        ("coroutines", 60_000, 100),
        ("batch", 100_000, 100),
        ("single", 6_000, 1),
        ("processes", 20_000, 2),
    )
)


def peers() -> list[Contender]:
    found = [
        Contender(
            "Dramatiq",
            [str(environments.python_of("dramatiq")), str(RUN), "of_dramatiq"],
            6_000,
            [1, 8, 16],
        ),
        Contender("RQ", [str(environments.python_of("rq")), str(RUN), "of_rq"], 600, [1]),
    ]
    if program := environments.bullmq():
        found.append(Contender("BullMQ", ["node", str(program)], 15_000, [1, 100, 400, 1000]))
    return found


class Bench:
    def __init__(self, server: BenchServer, rounds: int, scale: float) -> None:
        self.server, self.rounds, self.scale = server, rounds, scale

    def ask(self, contender: Contender, what: str, count: int, concurrency: int) -> Any:
        """Run a contender in a process of its own on an empty server."""
        self.server.client.flushall()
        url = self.server.url
        where = url.rpartition(":")[2] if contender.name == "BullMQ" else url
        command = [*contender.command, what, where, str(count), str(concurrency)]
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env={**os.environ, "BENCH_KIND": contender.name},
        )
        if run.returncode:
            raise SystemExit(f"{contender.name}: {run.stderr[-2000:]}")
        return json.loads(run.stdout.splitlines()[-1])

    def rate(self, contender: Contender, concurrency: int) -> float:
        jobs = max(300, int(contender.jobs * self.scale))
        answer = self.ask(contender, "drain", jobs, concurrency)
        return float(answer["jobs_per_second"])

    def median_ms(self, contender: Contender) -> float:
        answer = self.ask(contender, "latency", max(50, int(200 * self.scale)), 8)
        return float(statistics.median(answer["milliseconds"]))

    def fastest(self, contender: Contender) -> int:
        """Return the concurrency with which a contender drains fastest."""
        if len(contender.sweep) == 1:
            return contender.sweep[0]
        rates = {n: self.rate(contender, n) for n in contender.sweep}
        return max(rates, key=lambda n: rates[n])

    def floor(self, drain: Callable[[int], int]) -> float:
        """Drain by a hundred without any reliability."""
        self.server.client.flushall()
        floor, jobs = Floor(self.server.url), max(10_000, int(100_000 * self.scale))
        for _ in range(jobs // 1000):
            floor.add_many([PAYLOAD] * 1000)
        return jobs / seconds(lambda: [*iter(lambda: drain(100), 0)])

    def alternate(self, measures: Sequence[Callable[[], float]]) -> list[list[float]]:
        results: list[list[float]] = [[] for _ in measures]
        for _ in range(self.rounds):
            for place, measure in enumerate(measures):
                results[place].append(measure())
        return results


def faster(what: str, mine: list[float], name: str, theirs: list[float], least: float) -> Row:
    ratio = statistics.median(mine) / statistics.median(theirs)
    row = Row(what, "jobs/s", mine, name, f"≥ {least} ×", theirs)
    row.ratio, row.reached = f"{ratio:.2f} ×", ratio >= least
    return row


def drains(bench: Bench, contenders: Sequence[Contender]) -> list[Row]:
    """Compare how fast a full queue is worked off."""
    tuned = {peer.name: bench.fastest(peer) for peer in contenders}
    for name, concurrency in tuned.items():
        print(f"{name} is fastest with a concurrency of {concurrency}", file=sys.stderr)
    everybody = [THREADS, COROUTINES, BATCH, SINGLE, PROCESSES, *contenders]
    measures = [partial(bench.rate, one, tuned.get(one.name, one.sweep[0])) for one in everybody]
    floors = [partial(bench.floor, floor(bench.server.url).drain) for floor in (PlainFloor, Floor)]
    *results, plain_floor, own_floor = bench.alternate([*measures, *floors])
    rates = dict(zip([one.name for one in everybody], results, strict=True))
    rows = [
        faster("drain, threads", rates["threads"], "Dramatiq", rates["Dramatiq"], 8),
        faster("drain, coroutines", rates["coroutines"], "Dramatiq", rates["Dramatiq"], 8),
        faster("drain, threads", rates["threads"], "RQ", rates["RQ"], 50),
        faster("drain, 2 processes", rates["processes"], "Dramatiq", rates["Dramatiq"], 2),
        faster("drain, 2 processes", rates["processes"], "RQ", rates["RQ"], 50),
        faster("drain, batch handler", rates["batch"], "floor, redis-py", plain_floor, 0.45),
        faster("drain, batch handler", rates["batch"], "floor, own client", own_floor, 0.45),
    ]
    if "BullMQ" in rates:
        theirs = rates["BullMQ"]
        rows += [
            faster("drain, threads", rates["threads"], "BullMQ", theirs, 3),
            faster("drain, batch handler", rates["batch"], "BullMQ", theirs, 8),
            faster("strictly one at a time", rates["single"], "BullMQ", theirs, 1),
        ]
    return rows


def latency(bench: Bench, contenders: Sequence[Contender]) -> Row:
    """Compare how soon an idle worker begins with a job, beside the best peer."""
    everybody = [THREADS, *contenders]
    ours, *theirs = bench.alternate([partial(bench.median_ms, one) for one in everybody])
    best = min(range(len(theirs)), key=lambda place: statistics.median(theirs[place]))
    ratio = statistics.median(ours) / statistics.median(theirs[best])
    row = Row("add to handler, p50", "ms", ours, contenders[best].name, "≤ 1.2 ×", theirs[best])
    row.ratio, row.reached = f"{ratio:.2f} ×", ratio <= 1.2
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="0.1 for a quick look")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with bench_server() as server, steady_cores():
        bench, contenders = Bench(server, options.rounds, options.scale), peers()
        show([*drains(bench, contenders), latency(bench, contenders)], server)


if __name__ == "__main__":
    main()
