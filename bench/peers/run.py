"""One queue in a process of its own: add jobs to it, or work them off.

    python run.py <module> add|bulk|pace|work <url> <count> <settings as JSON>

Runs in the environment of the peer, so it needs nothing but the standard library. A peer is a
module with
    add_each(url, payloads, settings)   adds them one call at a time
    add_bulk(url, chunks, settings)     a call per chunk; not there when the peer has no such call
    work(url, settings, handle)         a worker that calls `handle(payload)` for each job
`payloads` and `chunks` are iterators that measure the time themselves, so that those who need an
event loop can have one. With the setting `forks` handlers run in child processes and are heard by
a pipe. What is measured is printed as a line of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

SIZE = 100
WARM = 20
"""Jobs that are added before the clock starts: they open the connection."""
RECORD = struct.Struct("dd")
Settings = dict[str, Any]


HELD = "held"
"""A word in the payload of a job whose handler shall not come back."""


def payload(word: str = "") -> str:
    """Return what a job carries: when it was made, a word, filled up to its size."""
    return f"{time.monotonic():.6f} {word} ".ljust(SIZE, "x")


def is_held(payload: str | bytes) -> bool:
    return HELD in (payload if isinstance(payload, str) else payload.decode())


def tell(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")  # At once: another thread may tell something, too.
    sys.stdout.flush()


# ------------------------------------------------------------------------------------ adding


class Clock:
    """Hands out payloads, and knows how long it took to use them."""

    def __init__(self) -> None:
        self.begun = self.ended = 0.0

    def each(self, count: int) -> Iterator[str]:
        text = payload()
        for number in range(count):
            if number == min(WARM, count - 1):
                self.begun = time.perf_counter()
            yield text
        self.ended = time.perf_counter()

    def chunks(self, count: int, size: int) -> Iterator[list[str]]:
        chunk = [payload()] * size
        for number in range(count // size):
            if number == 1:
                self.begun = time.perf_counter()
            yield chunk
        self.ended = time.perf_counter()


def add(peer: Any, url: str, count: int, settings: Settings) -> None:
    clock = Clock()
    peer.add_each(url, clock.each(count), settings)
    tell(jobs_per_second=(count - min(WARM, count - 1)) / (clock.ended - clock.begun))


def bulk(peer: Any, url: str, count: int, settings: Settings) -> None:
    clock, size = Clock(), settings.get("chunk", 100)
    peer.add_bulk(url, clock.chunks(count, size), settings)
    tell(jobs_per_second=(count // size * size - size) / (clock.ended - clock.begun))


def pace(peer: Any, url: str, count: int, settings: Settings) -> None:
    """Add now and then, so that the worker is idle each time."""

    def now_and_then() -> Iterator[str]:
        for _ in range(count):
            time.sleep(settings.get("pause", 0.02))
            yield payload(HELD if settings.get("held") else "")

    peer.add_each(url, now_and_then(), settings)
    tell(added=count)


# ----------------------------------------------------------------------------------- working


class Tally:
    """When handlers began, and how old their jobs were."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.waited: list[float] = []

    def count(self, _payload: object) -> None:
        self.begun.append(time.monotonic())

    def look(self, payload: str | bytes) -> None:
        now = time.monotonic()
        self.waited.append(now - float(payload.split()[0]))
        self.begun.append(now)

    def hold(self, payload: str | bytes) -> None:
        if is_held(payload):
            self.look(payload)
            time.sleep(600)

    def report(self) -> None:
        """Tell what was done, as long as there is somebody to tell."""
        told, parent = 0, os.getppid()
        while os.getppid() == parent:
            time.sleep(0.05)
            done = len(self.begun)
            if done != told:
                waited = self.waited[told:done]
                tell(done=done, first=self.begun[0], last=self.begun[done - 1], waited=waited)
                told = done
        os._exit(1)

    def listen(self, pipe: int) -> None:
        """Hear from handlers in other processes."""
        rest = b""
        while data := os.read(pipe, 65536):
            rest += data
            whole = len(rest) // RECORD.size * RECORD.size
            for now, waited in RECORD.iter_unpack(rest[:whole]):
                self.waited.append(waited)
                self.begun.append(now)
            rest = rest[whole:]


def from_child(pipe: int, watch: str) -> Callable[[Any], None]:
    """Return a handler that tells by the pipe what it does."""

    def handle(payload: str | bytes) -> None:
        if watch == "hold" and not is_held(payload):
            return
        now = time.monotonic()
        waited = 0.0 if watch == "count" else now - float(payload.split()[0])
        os.write(pipe, RECORD.pack(now, waited))
        if watch == "hold":
            time.sleep(600)

    return handle


def work(peer: Any, url: str, _count: int, settings: Settings) -> None:
    tally, watch = Tally(), settings.get("watch", "count")
    handle: Callable[[Any], None] = getattr(tally, watch)
    if settings.get("forks"):
        here, there = os.pipe()
        handle = from_child(there, watch)
        threading.Thread(target=tally.listen, args=(here,), daemon=True).start()
    tell(ready=True)
    sys.stdin.readline()
    threading.Thread(target=tally.report, daemon=True).start()
    peer.work(url, settings, handle)
    threading.Event().wait()  # Some start threads and return.


def main() -> None:
    module, what, url, count, settings = sys.argv[1:]
    peer = importlib.import_module(module)
    {"add": add, "bulk": bulk, "pace": pace, "work": work}[what](
        peer, url, int(count), json.loads(settings)
    )
    sys.stdout.flush()
    os._exit(0)  # Whatever threads the peer has: they have nothing more to do.


if __name__ == "__main__":
    main()
