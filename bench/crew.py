"""The processes of one contender: those that add jobs, and those that work them off.

Workers load everything first and begin together when they are told, so that the start of a
process is no part of what is measured. What they did comes back as lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import psutil

from bench.peers.contenders import Contender, Settings

ROOT = Path(__file__).parent.parent


class Trouble(Exception):
    """A contender did not do what it was asked; the message says what it said."""


@dataclass
class Report:
    """What one worker has done so far."""

    done: int = 0
    first: float = 0.0
    last: float = 0.0
    waited: list[float] = field(default_factory=list)
    """Seconds from adding to the start of the handler, of each job."""


def run(contender: Contender, what: str, url: str, count: int, settings: Settings) -> Any:
    """Let a contender add jobs; return what it measured."""
    command = [*contender.command(), what, url, str(count), json.dumps(settings)]
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env=_environment(contender),
        )
    except subprocess.TimeoutExpired:
        raise Trouble(f"{what} took more than ten minutes") from None
    if ended.returncode:
        raise Trouble(f"{what}: {last_line(ended.stderr)}")
    return json.loads(ended.stdout.splitlines()[-1])


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it ended without a word"


def _environment(contender: Contender) -> dict[str, str]:
    """Return the variables of a process; a peer sees nothing of the project."""
    if contender.is_peer:
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return {**os.environ, "PYTHONPATH": path}


class Hand:
    """One worker process."""

    def __init__(self, contender: Contender, url: str, settings: Settings) -> None:
        self.report = Report()
        self._lines: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # Closed by `kill`.
        self.process = subprocess.Popen(
            [*contender.command(), "work", url, "0", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=_environment(contender),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):  # Some peers print.
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def ready(self) -> None:
        self._next(60)

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def listen(self, seconds: float) -> None:
        """Take in what was reported; wait so long for something."""
        with contextlib.suppress(Empty):
            said = self._next(seconds)
            while True:
                waited = self.report.waited + said.pop("waited")
                self.report = Report(**said, waited=waited)
                said = self._next(0)

    def _next(self, seconds: float) -> dict[str, Any]:
        said = self._lines.get(timeout=seconds) if seconds else self._lines.get_nowait()
        if said is None:
            self._errors.seek(0)
            raise Trouble(f"its worker ended: {last_line(self._errors.read())}")
        return said

    def kill(self) -> None:
        """Kill it with all that it started, also what has a session of its own."""
        with contextlib.suppress(psutil.NoSuchProcess):
            worker = psutil.Process(self.process.pid)
            for one in (worker, *worker.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()


@contextlib.contextmanager
def crew(contender: Contender, url: str, settings: Settings, size: int) -> Iterator[list[Hand]]:
    """Give so many workers that stand ready; they are killed at the end."""
    hands: list[Hand] = []
    try:
        hands += [Hand(contender, url, settings) for _ in range(size)]
        for hand in hands:
            try:
                hand.ready()
            except Empty:
                raise Trouble("its worker was not ready within a minute") from None
        yield hands
    finally:
        for hand in hands:
            hand.kill()


@contextlib.contextmanager
def trickle(contender: Contender, url: str, settings: Settings, pause: float) -> Iterator[None]:
    """Add a job now and then: some do what is due only when something comes."""
    told = json.dumps({**settings, "pause": pause})
    adder = subprocess.Popen(
        [*contender.command(), "pace", url, "1000000", told],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_environment(contender),
    )
    try:
        yield
    finally:
        adder.kill()
        adder.wait()


def until(hands: list[Hand], jobs: int, seconds: float) -> list[Report]:
    """Wait until the workers have done so many jobs together; return what each did."""
    deadline = time.monotonic() + seconds
    while (done := sum(hand.report.done for hand in hands)) < jobs:
        if time.monotonic() > deadline:
            raise Trouble(f"{done} of {jobs} jobs were done in {seconds:.0f} s")
        for hand in hands:
            hand.listen(0.1 / len(hands))
    return [hand.report for hand in hands]
