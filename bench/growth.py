"""What a job costs the server as things grow: `make bench-growth`.

Server time to add, lease and complete by a hundred, beside more and more waiting jobs and leases,
with bigger and bigger payloads; and to lease and complete parts of more and more requests.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence

from bench.measure import BenchServer, Load, bench_server, steady_cores
from bench.page import growth_table
from bench.peers.environments import ROOT
from bench.results import Growth, Results
from holdfast import Queue

PAYLOAD = bytes(100)
BATCH = 100
BYTES_AT_ONCE = 4_000_000
"""How much a call of the payload row moves: the limit of a call is 8 MB."""


class Grower:
    """One server, one queue, emptied before each size."""

    def __init__(self, server: BenchServer, rounds: int, lives: int) -> None:
        self.server, self.rounds = server, rounds
        self.queue = Queue("bench", server.url)
        self.lives = lives
        """How many batches a round has."""

    def cost(
        self, add: Callable[[], object], batch: int = BATCH, warm_rounds: int = 1
    ) -> list[float]:
        """Microseconds of the server per job that is added, leased and completed.

        The first rounds warm up and do not count.
        """
        times = []
        for _ in range(warm_rounds + self.rounds):
            before = self.server.script_usec()
            for _ in range(self.lives):
                add()
                taken = self.queue.lease_many(batch, 600)
                assert len(taken) == batch
                self.queue.complete_many(taken)
            times.append((self.server.script_usec() - before) / (self.lives * batch))
        return times[warm_rounds:]

    def add_plain(self) -> None:
        self.queue.add_many([PAYLOAD] * BATCH)

    def waiting(self, jobs: int) -> list[float]:
        self.server.clear()
        self.queue.add_many(PAYLOAD for _ in range(jobs))
        # A table that has just grown is moved step by step, and costs two or three times as much.
        return self.cost(self.add_plain, warm_rounds=max(1, jobs // 10 // (self.lives * BATCH)))

    def leases(self, leases: int) -> list[float]:
        self.server.clear()
        self.queue.add_many(PAYLOAD for _ in range(leases))
        held = 0
        while held < leases:
            held += len(self.queue.lease_many(min(1000, leases - held), 3600))
        return self.cost(self.add_plain)

    def requests(self, requests: int) -> list[float]:
        """Lease and complete only: adding is as many calls as requests.

        Parts are taken by turns, so with many requests every part of a batch is of another.
        """
        self.server.clear()
        each = -(-(1 + self.rounds) * self.lives * BATCH // requests)
        for number in range(requests):
            with self.queue.request(f"r{number}") as request:
                request.add_many([PAYLOAD] * each)
        return self.cost(lambda: None)

    def payload(self, size: int) -> list[float]:
        self.server.clear()
        batch = max(1, min(BATCH, BYTES_AT_ONCE // size))
        data = bytes(size)
        return self.cost(lambda: self.queue.add_many([data] * batch), batch)


BY_TURNS = (
    "taken by turns, every part of a call is of another request. Of 184,000 instructions per part, "
    "35,000 read and write its request's record, when it is leased and when it ends, and 16,000 "
    "find its next part; a plain job takes 36,000 in all. Tried: records as doubles, one command "
    "for all records, parts of a request that has the turn alone taken together. Leased by one it "
    "is 1.9 times a plain job, by ten 2.9."
)


def grow(
    what: str, most: float, sizes: Sequence[int], measure: Callable[[int], list[float]]
) -> Growth:
    return Growth(what, list(sizes), [measure(size) for size in sizes], most)


def explained(growth: Growth) -> str:
    """Say what the bytes themselves cost: a payload of a megabyte is a megabyte to move."""
    (small, big), times = (growth.sizes[0], growth.sizes[-1]), growth.microseconds
    more = sorted(times[-1])[len(times[-1]) // 2] - sorted(times[0])[len(times[0]) // 2]
    rate = (big - small) / max(more, 1e-9)
    return f"the bytes are moved in and out, {rate:,.0f} MB of payload per second of server time."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="does it work? No numbers")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    quick, load = given.quick, Load()
    with bench_server() as server, steady_cores():
        grower = Grower(server, 1 if quick else given.rounds, 3 if quick else 50)
        deep = (1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
        held = (10, 1_000) if quick else (10, 100, 1_000, 10_000)
        many = (1, 100) if quick else (1, 10, 100, 1_000, 10_000)
        sizes = (100, 100_000) if quick else (100, 1_000, 10_000, 100_000, 1_000_000)
        growth = [
            grow("waiting jobs", 1.5, deep, grower.waiting),
            grow("leases", 1.2, held, grower.leases),
            grow("requests", 3, many, grower.requests),
            grow("bytes of payload", 2, sizes, grower.payload),
        ]
        growth[-2].remark = BY_TURNS
        growth[-1].remark = explained(growth[-1])
    print(f"\n{load}\n\n{growth_table(growth)}")
    file = ROOT / ("quick.json" if quick else "results.json")
    results = Results.load(file)
    results.growth, results.busy["growth"] = growth, str(load)
    results.save(file)
    print('\n`make bench-peers ARGS="--page"` writes it into docs/benchmarks.md')


if __name__ == "__main__":
    main()
