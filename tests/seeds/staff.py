"""Workers for a test, handlers that wait to be let go, and ears for what is told."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from holdfast import Hooks, Queue, RunningJob, Worker
from holdfast.worker.outcomes import GIVEN_BACK
from support import DEADLINE, wait_until

Hire: TypeAlias = Callable[..., Worker]
"""Takes queues, a handler and the options of a worker, and returns the worker, which works."""


class Held:
    """A handler that does not return before it is let go."""

    def __init__(self) -> None:
        self.jobs: list[RunningJob] = []
        """All that were given to it, in order."""
        self._go = threading.Event()

    def __call__(self, job: RunningJob) -> str:
        self.jobs.append(job)
        assert self._go.wait(DEADLINE)
        return job.token

    def has(self, count: int) -> list[RunningJob]:
        """Wait until so many were given to it, and return them."""
        wait_until(lambda: len(self.jobs) >= count, f"{count} runs")
        return self.jobs

    def let_go(self) -> None:
        self._go.set()


class Heard(Hooks):
    """What a worker told, by kind: the tokens of the runs that it is about."""

    def __init__(self) -> None:
        self.tokens: defaultdict[str, list[str]] = defaultdict(list)
        self.errors: dict[str, str] = {}

    def __getattribute__(self, name: str) -> Any:
        if name not in vars(Hooks) or name.startswith("_"):
            return super().__getattribute__(name)

        def hear(job: RunningJob, error: str = "") -> None:
            if name == "released" and job.started_at is None and job.answer == GIVEN_BACK:
                return  # The worker was held up: that costs nothing, and may happen to any job.
            self.tokens[name].append(job.token)
            self.errors[job.id] = error

        return hear

    def has(self, kind: str, count: int = 1) -> list[str]:
        """Wait until it was told of so many, and return their tokens."""
        wait_until(lambda: len(self.tokens[kind]) >= count, f"{count} {kind}")
        return self.tokens[kind]


class Staff:
    """All workers of a test."""

    def __init__(self) -> None:
        self._hired: list[tuple[Worker, object]] = []

    def hire(
        self,
        queues: Queue | Iterable[Queue] | Mapping[Queue, int],
        handler: Callable[..., object],
        **options: Any,
    ) -> Worker:
        worker = Worker(queues, **options)
        worker.handler(handler)
        worker.start()
        self._hired.append((worker, handler))
        return worker

    def dismiss(self) -> None:
        for _, handler in self._hired:
            if isinstance(handler, Held):
                handler.let_go()
        for worker, _ in self._hired:
            worker.stop(grace=5)


def is_gone(queue: Queue, *ids: str) -> bool:
    """Tell whether nothing is left of these jobs."""
    return not any(queue.show(id) for id in ids)


def wait_until_gone(queue: Queue, *ids: str) -> None:
    wait_until(lambda: is_gone(queue, *ids), f"{', '.join(ids)} to be gone")
