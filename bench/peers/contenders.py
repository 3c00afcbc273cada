"""Who is measured: each queue, what it promises, and the settings it is tried with.

Every peer runs as its documentation tells for throughput, with hiredis and uvloop where it can use
them, and keeps no results. Its sweep is tried first, and it is measured with the setting that was
fastest. Holdfast is not swept: it runs with its defaults.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers import environments

Settings = dict[str, Any]
RUN = str(Path(__file__).parent / "run.py")


@dataclass(frozen=True)
class Contender:
    """A queue with a way to run its jobs."""

    name: str
    delivery: str
    """What becomes of a job whose worker dies, in a word or two."""
    module: str
    jobs: int
    """How many a round has: enough for a second or two."""
    sweep: tuple[Settings, ...]
    environment: str = ""
    """The peer's environment; empty: the one of the project."""
    bulk: bool = False
    """Has a call that adds many."""
    asynchronous: bool = False
    node: bool = False
    pause: float = 0.02
    """Seconds between jobs that find its worker idle."""
    recovers: bool = True

    @property
    def is_peer(self) -> bool:
        return bool(self.environment)

    @property
    def is_python_peer(self) -> bool:
        return self.is_peer and not self.node

    def command(self) -> list[str]:
        """Return the program that measures it, installed where it was not yet."""
        if self.node:
            return ["node", str(environments.bullmq())]
        python = environments.python_of(self.environment) if self.environment else sys.executable
        return [str(python), RUN, self.module]

    def version(self) -> str:
        return environments.version_of(self.environment, node=self.node)


def _each(**settings: list[Any]) -> tuple[Settings, ...]:
    """Return a setting per place of the lists."""
    rows = zip(*settings.values(), strict=True)
    return tuple(dict(zip(settings, row, strict=True)) for row in rows)


def _holdfast(kind: str, jobs: int, concurrency: int, *, bulk: bool = True) -> Contender:
    settings = {"kind": kind, "concurrency": concurrency}
    return Contender(f"Holdfast, {kind}", "lease", "of_holdfast", jobs, (settings,), bulk=bulk)


def _floor(
    name: str, delivery: str, client: str, jobs: int = 60_000, concurrency: int = 100
) -> Contender:
    settings = {"client": client, "concurrency": concurrency}
    return Contender(name, delivery, "of_floor", jobs, (settings,), bulk=True, recovers=False)


OURS = (
    _holdfast("threads", 60_000, 16),
    _holdfast("coroutines", 60_000, 100),
    _holdfast("batch", 60_000, 100),
    _holdfast("single", 6_000, 1),
    _holdfast("processes", 20_000, 2),
    _holdfast("limited", 30_000, 16, bulk=False),
)

FLOORS = (
    _floor("floor, redis-py", "none", "redis-py"),
    _floor("floor, own client", "none", "own client"),
    _floor("floor of the design", "lease", "lean", 10_000, 1),
)

PEERS = (
    Contender(
        "redis-work-queue",
        "lease, cleaned by hand",
        "of_redis_work_queue",
        4_000,
        _each(concurrency=[1, 4, 16, 64]),
        "redis_work_queue",
        bulk=True,
    ),
    Contender(
        "BullMQ (Node)",
        "lock",
        "",
        15_000,
        _each(concurrency=[1, 50, 100, 400, 1000]),
        "bullmq",
        bulk=True,
        node=True,
    ),
    Contender(
        "BullMQ (Node), one at a time",
        "lock",
        "",
        6_000,
        _each(concurrency=[1]),
        "bullmq",
        bulk=True,
        node=True,
    ),
    Contender(
        "Dramatiq",
        "worker heartbeat",
        "of_dramatiq",
        6_000,
        _each(concurrency=[1, 8, 8, 16, 64], prefetch=[0, 0, 100, 100, 400]),
        "dramatiq",
    ),
    Contender(
        "Huey",
        "none (pop)",
        "of_huey",
        4_000,
        _each(concurrency=[1, 4, 16, 64]),
        "huey",
        recovers=False,
    ),
    Contender(
        "taskiq",
        "ack, lease not renewed",
        "of_taskiq",
        4_000,
        _each(concurrency=[10, 100, 100, 1000], prefetch=[10, 0, 100, 1000]),
        "taskiq",
        asynchronous=True,
    ),
    Contender(
        "BullMQ (Python)",
        "lock",
        "of_bullmq_python",
        3_000,
        _each(concurrency=[1, 10, 100, 400]),
        "bullmq_python",
        bulk=True,
        asynchronous=True,
    ),
    Contender(
        "SAQ",
        "active list + sweep",
        "of_saq",
        3_000,
        _each(concurrency=[1, 10, 50, 200]),
        "saq",
        asynchronous=True,
    ),
    Contender(
        "arq",
        "in-progress key",
        "of_arq",
        2_500,
        _each(concurrency=[10, 50, 100, 500]),
        "arq",
        asynchronous=True,
    ),
    Contender(
        "Celery",
        "visibility timeout",
        "of_celery",
        2_000,
        _each(
            pool=["solo", "solo", "threads", "prefork", "prefork"],
            concurrency=[1, 1, 8, 1, 2],
            prefetch=[4, 100, 16, 100, 100],
            forks=[False, False, False, True, True],
        ),
        "celery",
    ),
    Contender(
        "streaq",
        "stream claim",
        "of_streaq",
        2_000,
        _each(concurrency=[16, 64, 64, 256], prefetch=[None, None, 200, None]),
        "streaq",
        bulk=True,
        asynchronous=True,
    ),
    Contender(
        "RQ, simple", "worker heartbeat", "of_rq", 500, _each(concurrency=[1]), "rq", bulk=True
    ),
    Contender(
        "RQ, fork",
        "worker heartbeat",
        "of_rq",
        100,
        _each(concurrency=[1], forks=[True]),
        "rq",
        bulk=True,
        pause=0.2,
    ),
)

EVERYBODY = (*FLOORS, *OURS, *PEERS)


def chosen(names: str) -> tuple[Contender, ...]:
    """Return those whose name has one of these words; all when there are none."""
    words = [word.strip().lower() for word in names.split(",") if word.strip()]
    found = tuple(
        one for one in EVERYBODY if not words or any(word in one.name.lower() for word in words)
    )
    if not found:
        raise SystemExit(
            f"nobody is called {names}; there are {', '.join(o.name for o in EVERYBODY)}"
        )
    return found
