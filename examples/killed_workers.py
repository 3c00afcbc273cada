"""Producers and workers as processes on the embedded server, one of each killed in the middle.

    python examples/killed_workers.py

It ends when every acknowledged job is done, and checks that each
was completed exactly once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection

from holdfast import Counts, Lease, Queue

LEASE_SECONDS = 3.0
BAR = 40


def produce(url: str, jobs: int, log: Connection) -> None:
    """Add jobs in small batches and report the ids that the server has acknowledged."""
    queue = Queue("demo", url)
    for start in range(0, jobs, 20):
        numbers = range(start, min(start + 20, jobs))
        receipts = queue.add_many(({"number": n} for n in numbers), result_for=600)
        log.send([receipt.id for receipt in receipts])
        time.sleep(0.01)


def work(url: str, log: Connection) -> None:
    """Lease, pretend to work, complete with the next call, and report what counted."""
    queue = Queue("demo", url)
    done: list[Lease] = []
    while True:
        leases = queue.lease_many(10, LEASE_SECONDS, wait=1, complete=done)
        completed = zip(done, leases.completed, strict=True)
        log.send([lease.id for lease, counted in completed if counted])
        for lease in leases:
            assert "number" in lease.json()
            time.sleep(random.uniform(0, 0.004))
        done = leases


class Process:
    """A child process, and the ids that it reported before it ended or was killed."""

    def __init__(self, target: object, *args: object) -> None:
        self.log, there = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.Process(target=target, args=(*args, there), daemon=True)  # type: ignore[arg-type]
        self.process.start()
        there.close()

    def reported(self) -> list[str]:
        ids: list[str] = []
        try:
            while self.log.poll():
                ids += self.log.recv()
        except EOFError:
            pass
        return ids

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


def show(counts: Counts, total: int) -> None:
    """Draw one line of progress; on a terminal over the last one."""
    full = BAR * counts.ended // total
    bar = "█" * full + "·" * (BAR - full)
    line = f"{counts.ended:>5} of {total} done   ready {counts.ready:<5} leased {counts.leased:<3}"
    say(f"[{bar}] {line}", end="" if sys.stdout.isatty() else "\n")


def say(line: str, end: str = "\n") -> None:
    clear = "\r\x1b[K" if sys.stdout.isatty() else ""
    print(f"{clear}{line}", end=end, flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--jobs", type=int, default=4000, help="jobs in all (default 4000)")
    total = arguments.parse_args().jobs
    multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as directory:
        url = f"embedded://{directory}/server"
        with Queue("demo", url) as queue:
            print(f"A private server at {url} (AOF, every write on disk before it is answered)")
            run(queue, url, total)


def run(queue: Queue, url: str, total: int) -> None:
    share = total // 2
    producers = [Process(produce, url, share), Process(produce, url, total - share)]
    workers = [Process(work, url) for _ in range(3)]
    acknowledged: set[str] = set()
    completed: Counter[str] = Counter()
    begun = time.monotonic()
    killed: set[Process] = set()
    try:
        while True:
            for producer in producers:
                acknowledged.update(producer.reported())
            for worker in workers:
                completed.update(worker.reported())
            counts = queue.counts()
            show(counts, total)
            if workers[0] not in killed and counts.ended > total * 0.3:
                workers[0].kill()
                killed.add(workers[0])
                say(f"-- a worker was killed with -9: its leases lapse in {LEASE_SECONDS:.0f} s")
            if producers[0] not in killed and len(acknowledged) > total * 0.6:
                producers[0].kill()
                killed.add(producers[0])
                workers.append(Process(work, url))
                say("-- a producer was killed with -9, and another worker joined")
            producing = any(producer.process.is_alive() for producer in producers)
            if not producing and counts.waiting == counts.leased == 0:
                break
            time.sleep(0.1 if sys.stdout.isatty() else 0.5)
    finally:
        for child in (*producers, *workers):
            if child.process.is_alive():
                child.kill()
    report(queue, acknowledged, completed, time.monotonic() - begun)


def report(queue: Queue, acknowledged: set[str], completed: Counter[str], seconds: float) -> None:
    """Say what happened; the queue remembers the ending of every job for a while."""
    done = queue.counts().ended
    twice = sum(times > 1 for times in completed.values())
    lost = max(0, len(acknowledged) - done)
    problems = queue.audit()
    print(f"\n\nacknowledged by the server   {len(acknowledged):>6}")
    print(f"completed                    {done:>6}")
    print(f"completed twice              {twice:>6}")
    print(f"lost                         {lost:>6}")
    print(f"broken invariants            {len(problems):>6}")
    print(f"seconds                      {seconds:>6.1f}")
    if lost or twice or problems:
        sys.exit("something is wrong: please report it")


if __name__ == "__main__":
    main()
