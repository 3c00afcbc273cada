"""Measure one queue in this process, and print what was measured as JSON.

    python run.py <peer> drain|latency <url> <count> <concurrency>

Runs in the environment of the peer, so it needs nothing but the standard library. A peer is a
module with two functions: `fill(url, payloads)` adds jobs, and `work(url, concurrency, handle)`
starts a worker that calls `handle(payload)` for each, and returns a function that adds one job.
One whose worker wants the main thread runs it in `main()`.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

PAYLOAD = "x" * 100


def drain(peer: object, url: str, count: int, concurrency: int) -> dict[str, object]:
    """Jobs per second from the first handler to the last, all of them waiting before."""
    peer.fill(url, [PAYLOAD] * count)  # type: ignore[attr-defined]
    numbers, seen, over = itertools.count(1), [0.0, 0.0], threading.Event()

    def handle(_payload: object) -> None:
        number = next(numbers)
        if number == 1:
            seen[0] = time.monotonic()
        if number == count:
            seen[1] = time.monotonic()
            over.set()

    peer.work(url, concurrency, handle)  # type: ignore[attr-defined]
    if not over.wait(300):
        raise SystemExit(f"{next(numbers) - 1} of {count} jobs were done in five minutes")
    return {"jobs_per_second": (count - 1) / (seen[1] - seen[0])}


def latency(peer: object, url: str, count: int, concurrency: int) -> dict[str, object]:
    """Milliseconds from the call that adds a job to its handler, the worker being idle."""
    heard: list[float] = []
    came = threading.Event()

    def handle(payload: object) -> None:
        text = payload.decode() if isinstance(payload, bytes) else str(payload)
        heard.append(1000 * (time.monotonic() - float(text)))
        came.set()

    add: Callable[[str], object] = peer.work(url, concurrency, handle)  # type: ignore[attr-defined]
    time.sleep(1)
    for _ in range(count):
        came.clear()
        add(f"{time.monotonic():.9f}")
        if not came.wait(30):
            raise SystemExit("a job was not run within half a minute")
        time.sleep(0.01)
    return {"milliseconds": heard}


def main() -> None:
    name, what, url, count, concurrency = sys.argv[1:]
    measure = {"drain": drain, "latency": latency}[what]
    peer = importlib.import_module(name)

    def run() -> None:
        try:
            print(json.dumps(measure(peer, url, int(count), int(concurrency))), flush=True)
            os._exit(0)  # Whatever threads the peer has: they have nothing more to do.
        except BaseException:  # noqa: BLE001  # The process shall end, whatever it is.
            traceback.print_exc()
            os._exit(1)

    thread = threading.Thread(target=run)
    thread.start()
    getattr(peer, "main", thread.join)()


if __name__ == "__main__":
    main()
