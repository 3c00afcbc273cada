"""Print which files of ours a job passes, step by step, as JSON: for a test, in a new process."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast
from holdfast import Queue, Worker

HOME = Path(holdfast.__file__).parent


def files_of(act: Callable[[], object]) -> list[str]:
    """Return the files of ours that run, in any thread."""
    seen: set[str] = set()

    def follow(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":  # It is imported just now.
            seen.add(frame.f_code.co_filename)

    threading.setprofile(follow)
    sys.setprofile(follow)
    try:
        act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    found = (Path(name) for name in seen if name.startswith(f"{HOME}{os.sep}"))
    return sorted(str(path.relative_to(HOME)) for path in found)


def main(url: str) -> None:
    queue = Queue("walk", url)
    queue.add(b"warm", result_for=60, id="warm")
    lease = queue.lease(10)
    assert lease
    queue.complete(lease, "done")
    queue.result("warm")
    worker = Worker(queue, concurrency=1)
    worker.handler(lambda _: "done")
    steps: dict[str, Callable[[], object]] = {
        "add": lambda: queue.add({"n": 1}, id="walked", result_for=60),
        "run": lambda: worker.run(until_empty=True),
        "result": lambda: queue.result("walked"),
    }
    print(json.dumps({step: files_of(act) for step, act in steps.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
