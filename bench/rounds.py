"""One round of one contender on an empty server: what its jobs' lives cost, how soon they begin."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from bench.crew import Hand, Report, Trouble, crew, run, trickle, until
from bench.measure import BenchServer
from bench.peers.contenders import Contender, Settings

PATIENCE = 120.0
LEASE = 5
"""Seconds after which a worker counts as dead, for the round of recovery."""
TRICKLE = 0.5
BULK = (100, 1000)
"""How many a call may add: the better counts."""


@dataclass(frozen=True)
class Life:
    """Jobs added one by one by one process, then worked off by another."""

    added_per_second: float
    drained_per_second: float
    bytes_per_job: float
    trips_per_job: float
    """How often the server read from a connection: a pipeline is one."""
    server_us_per_job: float
    """Processor time of the server."""


def rate(reports: list[Report]) -> float:
    """Jobs per second from the first handler of all to the last."""
    working = [report for report in reports if report.done]
    took = max(report.last for report in working) - min(report.first for report in working)
    return (sum(report.done for report in working) - 1) / took if took else 0.0


class Rounds:
    """A server, and how contenders reach it."""

    def __init__(self, server: BenchServer, url: str, scale: float) -> None:
        self.server, self.url, self.scale = server, url, scale

    def jobs(self, contender: Contender, least: int = 200) -> int:
        return max(min(least, contender.jobs), int(contender.jobs * self.scale))

    def life(self, contender: Contender, settings: Settings) -> Life:
        run(contender, "add", self.url, 1, settings)  # What a peer loads into the server is no job.
        self.server.clear()
        jobs, memory, before = self.jobs(contender), self.server.used_memory(), self.server.effort()
        added = run(contender, "add", self.url, jobs, settings)["jobs_per_second"]
        size = (self.server.used_memory() - memory) / jobs
        drained = rate(self._work_off(contender, settings, jobs, 1))
        after = self.server.effort()
        return Life(
            added,
            drained,
            size,
            (after.reads - before.reads) / jobs,
            1e6 * (after.seconds - before.seconds) / jobs,
        )

    def add(self, contender: Contender, settings: Settings) -> float:
        """Jobs per second, one call each; few, for servers that take long to answer."""
        self.server.clear()
        jobs = max(100, int(2_000 * self.scale))
        return float(run(contender, "add", self.url, jobs, settings)["jobs_per_second"])

    def drain(self, contender: Contender, settings: Settings, processes: int) -> float:
        """Jobs per second by so many processes, all waiting before."""
        self.server.clear()
        jobs = self.jobs(contender)
        if contender.bulk:
            jobs = max(200, jobs // 100 * 100)
            run(contender, "bulk", self.server.url, jobs, settings)
        else:
            run(contender, "add", self.server.url, jobs, settings)
        return rate(self._work_off(contender, settings, jobs, processes))

    def _work_off(
        self, contender: Contender, settings: Settings, jobs: int, processes: int
    ) -> list[Report]:
        with crew(contender, self.url, {**settings, "watch": "count"}, processes) as hands:
            for hand in hands:
                hand.go()
            return until(hands, jobs, PATIENCE)

    def bulk(self, contender: Contender, settings: Settings) -> float:
        """Jobs per second by the call that adds many."""
        jobs = max(3000, self.jobs(contender) // 1000 * 1000)
        rates = []
        for chunk in BULK:
            self.server.clear()
            with_chunk = {**settings, "chunk": chunk}
            rates.append(run(contender, "bulk", self.url, jobs, with_chunk)["jobs_per_second"])
        return float(max(rates))

    def latency(self, contender: Contender, settings: Settings) -> float:
        """Milliseconds from the call that adds a job to its handler, the worker being idle."""
        self.server.clear()
        jobs, warm = max(20, int(200 * self.scale)), 5
        with crew(contender, self.url, {**settings, "watch": "look"}, 1) as hands:
            hands[0].go()
            time.sleep(1.5)  # Until it is idle.
            run(contender, "pace", self.url, jobs + warm, {**settings, "pause": contender.pause})
            reports = until(hands, jobs + warm, 60)
        return 1000 * statistics.median(reports[0].waited[warm:])

    def recovery(self, contender: Contender, settings: Settings, patience: float) -> float:
        """Seconds from kill -9 of a worker to the start of its job in another.

        The other is idle but for a job now and then.
        """
        self.server.clear()
        told = {**settings, "watch": "hold", "lease": LEASE}
        with crew(contender, self.url, told, 2) as hands:
            for hand in hands:
                hand.go()
            time.sleep(1.5)
            run(contender, "pace", self.url, 1, {**told, "held": True})
            until(hands, 1, 60)
            victim, rescuer = sorted(hands, key=lambda hand: -hand.report.done)
            killed = time.monotonic()
            victim.kill()
            with trickle(contender, self.url, told, TRICKLE):
                return self._taken_over(rescuer, patience) - killed

    def _taken_over(self, rescuer: Hand, patience: float) -> float:
        try:
            return until([rescuer], 1, patience)[0].first
        except Trouble:
            raise Trouble(f"not taken over within {patience:.0f} s") from None
