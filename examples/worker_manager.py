"""Run the parts of requests in threads: make an object of each, and print it.

    python examples/worker_manager.py -n 4

Start as many of these as you like, on as many machines: no request has more of its parts running
than its limit allows. When one is killed, its parts go to the others. See `create_requests.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from typing import Any

from holdfast import Queue, RunningJob, Worker


def transform(job: RunningJob) -> dict[str, Any]:
    """Return a part as an object, which is also its result."""
    text = job.data.decode()
    request, _, number = job.id.rpartition("/")
    return {"request": request, "part": int(number), "text": text.upper(), "letters": len(text)}


def handle(job: RunningJob) -> dict[str, Any]:
    made = transform(job)
    said = {**made, "worker": threading.current_thread().name}
    print(json.dumps(said), flush=True)
    return made


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("-n", type=int, default=4, help="threads (default 4)")
    arguments.add_argument("--queue", default="requests", help="default: requests")
    arguments.add_argument("--url", help="of the server; else HOLDFAST_URL, else the embedded one")
    arguments.add_argument("--until-empty", action="store_true", help="end when nothing is left")
    said = arguments.parse_args()
    worker = Worker(Queue(said.queue, said.url), concurrency=said.n)
    worker.handler(handle)
    if not worker.run(until_empty=said.until_empty):
        sys.exit("some parts were given back: start another worker")


if __name__ == "__main__":
    main()
