"""Producers and a worker that go on through whatever happens, and know what they were told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from holdfast import (
    AsyncQueue,
    AsyncServer,
    HoldfastError,
    Hooks,
    LeaseLost,
    Queue,
    RunningJob,
    Server,
    ServerUnavailable,
    Worker,
)
from support import wait_until

PAUSE = 0.005
"""Between two adds of a producer."""
PATIENCE = 60.0
"""Of producers: longer than a failover, as users are told to have it."""
ON_WITHIN = 8.0
"""Seconds within which workers go on when the servers do: a lost reply takes three of them."""
LAG = 2.0
"""What was acknowledged in the seconds before a primary died may not have reached its replica."""
NOTED_WITHIN = 1.0
"""Of what was acknowledged before a cut it may be noted so long after it: a thread is held up."""


@dataclass
class Told:
    """What was acknowledged, and when."""

    added: dict[str, float] = field(default_factory=dict)
    done: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: list[str] = field(default_factory=list)
    """What a producer, or a handler, should never have heard."""


class Load(Hooks):
    """Adds to queues and works them off, from `with` to its end."""

    def __init__(self, names: Sequence[str], url: str) -> None:
        self.told = Told()
        self.names = list(names)
        self._url = url
        self._stop = threading.Event()
        self._queues = [Queue(name, url) for name in names]
        self._worker = Worker(self._queues, lease=3, concurrency=8, hooks=[self])
        self._worker.handler(self._handle)
        self._threads = [
            threading.Thread(target=self._produce),
            threading.Thread(target=lambda: asyncio.run(self._produce_async())),
        ]

    def __enter__(self) -> Self:
        self._worker.start()
        for thread in self._threads:
            thread.start()
        for name in self.names:
            self.wait_until_it_goes_on(name)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        try:
            if not _[0]:
                wait_until(self._is_over, "all jobs to be done")
        finally:
            self._worker.stop(grace=5)
            self.problems = [problem for queue in self._queues for problem in queue.audit()]
            self.failures = sum(queue.counts().failed for queue in self._queues)
            for queue in self._queues:
                queue.close()

    def _is_over(self) -> bool:
        counts = [queue.counts() for queue in self._queues]
        return not any(count.waiting + count.leased for count in counts)

    # ------------------------------------------------------------------ those who act

    def _produce(self) -> None:
        server = Server(self._url, patience=PATIENCE)
        queues = [Queue(name, server) for name in self.names]
        number = 0
        while not self._stop.wait(PAUSE):
            number += 1
            id = f"{number % len(queues)}-sync-{number}"
            try:
                queues[number % len(queues)].add(b"x", id=id)
                self.told.added[id] = time.monotonic()
            except HoldfastError as error:
                self.told.refused.append(f"add: {error!r}")
        server.close()

    async def _produce_async(self) -> None:
        server = AsyncServer(self._url, patience=PATIENCE)
        queues = [AsyncQueue(name, server) for name in self.names]
        number = 0
        while not self._stop.is_set():
            number += 1
            id = f"{number % len(queues)}-async-{number}"
            try:
                await queues[number % len(queues)].add(b"x", id=id)
                self.told.added[id] = time.monotonic()
            except HoldfastError as error:
                self.told.refused.append(f"add: {error!r}")
            await asyncio.sleep(PAUSE)
        await server.close()

    def _handle(self, job: RunningJob) -> None:
        try:
            job.extend()
        except (LeaseLost, ServerUnavailable):
            pass  # Its lease went with the old primary, or there was none for too long.
        except HoldfastError as error:
            self.told.refused.append(f"extend: {error!r}")

    def done(self, job: RunningJob) -> None:
        self.told.done[job.id].append(time.monotonic())

    def retried(self, job: RunningJob, error: str) -> None:
        self.told.refused.append(f"{job.id}: {error}")

    # ------------------------------------------------------------------ what comes of it

    def wait_until_it_goes_on(self, name: str) -> float:
        """Wait until a job of this queue that is added from now on is done; return how long."""
        begun = time.monotonic()
        prefix = f"{self.names.index(name)}-"

        def is_on() -> bool:
            new = [id for id, at in self.told.added.copy().items() if at > begun]
            return any(id in self.told.done for id in new if id.startswith(prefix))

        wait_until(is_on, f"{name} to go on")
        return time.monotonic() - begun

    def missing(self) -> dict[str, float]:
        """Return what was acknowledged and never done, with the time of the acknowledgement."""
        return {id: at for id, at in self.told.added.items() if not self.told.done.get(id)}

    def doubled(self) -> dict[str, float]:
        """Return what was done twice, with the time of the first."""
        return {id: at[0] for id, at in self.told.done.items() if len(at) > 1}


def unexplained(losses: dict[str, float], cuts: Sequence[float]) -> dict[str, float]:
    """Return what is no loss of the last moments before a cut."""
    return {
        id: at
        for id, at in losses.items()
        if not any(-NOTED_WITHIN < cut - at < LAG for cut in cuts)
    }


Cut = Callable[[str], float | None]
"""Does something to who serves a queue; returns when it was cut off, if it was."""


@dataclass
class Gone:
    """What load went through."""

    cuts: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """How long it took to go on, each time."""


def go_through(
    load: Load,
    faults: Sequence[tuple[str, Cut]],
    heal: Callable[[], None] = lambda: None,
    *,
    healed: bool = False,
) -> Gone:
    """Let faults happen one by one. It must go on before all is healed, unless said otherwise."""
    gone = Gone()
    for name, fault in faults:
        cut = fault(name)
        if cut:
            gone.cuts.append(cut)
        if healed:
            heal()
        gone.waits.append(load.wait_until_it_goes_on(name))
        heal()
    return gone
