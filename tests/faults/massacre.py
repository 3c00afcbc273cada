"""The massacre: requests whose limits change while their workers are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self

from holdfast import Queue, Request, RequestStatus
from support import DEADLINE, wait_until

LIMITS = (7, 3, 11, 1, 7)
"""The limits of the request that all is about, in order."""

WORKERS = 12
HELD = 3 * WORKERS
"""The most parts that they can hold at a time."""

BACKLOG = 60
"""So many parts wait at least, as long as a request is open."""


class Herd:
    """Workers forked from one warm parent. Whatever happens, none is left."""

    def __init__(
        self,
        directory: Path,
        url: str,
        queue: str,
        dice: random.Random,
        program: str = "faults.victims",
    ) -> None:
        self._errors = directory / "errors"
        self._dice = dice
        self.pids: list[int] = []
        self.killed = 0
        with self._errors.open("wb") as errors:
            self._parent = subprocess.Popen(
                [sys.executable, "-m", program, url, queue, str(dice.random())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the parent, which ends its children; they also end by themselves without it."""
        with self._parent:
            assert self._parent.stdin is not None
            with suppress(BrokenPipeError):
                self._parent.stdin.close()
            try:
                self._parent.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                self._parent.kill()

    def fork(self) -> None:
        """Add a worker."""
        self.pids.append(self._ask("fork"))

    def kill_one(self) -> None:
        """Kill any of them with -9, and let another take its place."""
        self.kill(self._dice.choice(self.pids))
        self.killed += 1
        self.fork()

    def kill_all(self) -> None:
        """Kill every one of them."""
        for pid in list(self.pids):
            self.kill(pid)

    def kill(self, pid: int) -> None:
        """Kill this one of them."""
        self.pids.remove(pid)
        ended = self.end(pid)
        assert ended == -signal.SIGKILL, f"it had ended before with {ended}:\n{self.said()}"

    def end(self, pid: int) -> int:
        """Kill a worker, if it has not ended by itself; return how it ended."""
        return self._ask(f"kill {pid}")

    def _ask(self, words: str) -> int:
        stdin, stdout = self._parent.stdin, self._parent.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(words.encode() + b"\n")
        stdin.flush()
        answer = stdout.readline()
        assert answer, f"the warm parent has ended:\n{self.said()}"
        return int(answer)

    def said(self) -> str:
        """Return the last that any of them wrote to stderr."""
        return self._errors.read_text()[-3000:]


@dataclass
class Plan:
    """How long, and how cruel."""

    kill_every: float
    kills: Sequence[int]
    """Under each limit, round and round the limits."""
    parts: int
    """So many at least are done."""


class Massacre:
    """One request that all is about, one beside it, one that is cancelled, and plain jobs."""

    def __init__(self, queue: Queue, herd: Herd, dice: random.Random) -> None:
        self._queue = queue
        self._herd = herd
        self._dice = dice
        self._plain = count()
        self._doomed = count()
        self._main = self._open("main", LIMITS[0])
        self._beside = self._open("beside", 4)

    def run(self, plan: Plan) -> None:
        """Kill one worker after the other; then let everything come to its end."""
        for _ in range(WORKERS):
            self._herd.fork()
        for reign, kills in enumerate(plan.kills):
            self._reign(LIMITS[reign % len(LIMITS)], kills, plan.kill_every)
        wait_until(lambda: self._feed_and_look().done >= plan.parts, f"{plan.parts} parts")
        self._drain()

    def _reign(self, limit: int, kills: int, kill_every: float) -> None:
        self._main.set_limit(limit)
        done_before = self._main.status().done
        doomed = self._open(f"doomed-{next(self._doomed)}", 5)
        for _ in range(kills):
            next_kill = time.monotonic() + kill_every
            while time.monotonic() < next_kill:
                self._feed(self._main, self._beside, doomed)
                time.sleep(min(0.05, kill_every / 4))
            self._herd.kill_one()

        def has_been_full() -> bool:
            """More were done than ran before, so those that run now were given out since."""
            status = self._feed_and_look()
            return status.done > done_before + HELD and status.running == limit

        wait_until(has_been_full, f"{limit} parts to run at a time")
        assert doomed.cancel()

    def _feed_and_look(self) -> RequestStatus:
        self._feed(self._main, self._beside)
        return self._main.status()

    def _feed(self, *requests: Request) -> None:
        """Keep everybody busy, and let a part be cancelled now and then, wherever it is."""
        for request in requests:
            status = request.status()
            if status.parked < BACKLOG:
                request.add_many([b"part"] * BACKLOG)
                recent = range(max(0, status.total - BACKLOG), status.total + BACKLOG)
                self._queue.cancel(f"{request.id}/{self._dice.choice(recent)}")
        if self._queue.counts().ready < 2:
            self._queue.add(b"plain", id=f"plain-{next(self._plain)}")

    def _drain(self) -> None:
        requests = (self._main, self._beside)
        for request in requests:
            request.seal()
        for request in requests:
            assert request.wait(4 * DEADLINE).ended, request.status()
        wait_until(self._is_idle, "everything to be over")
        self._herd.kill_all()
        # Only a failure handler can have been killed at something.
        wait_until(self._is_at_rest, "the last lease to lapse")

    def _is_idle(self) -> bool:
        counts = self._queue.counts()
        return not (counts.waiting or counts.leased)

    def _is_at_rest(self) -> bool:
        self._queue.tidy()
        return not self._queue.counts().leased

    def _open(self, id: str, limit: int) -> Request:
        request = self._queue.request(id, limit=limit, follow_up=f"{id} is over")
        request.open()
        return request
