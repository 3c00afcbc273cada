"""On Windows all modules import, and programs add jobs; there is no worker and no server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import TestServer

WINDOWS = Path(__file__).with_name("windows.py")
PRODUCER = """
import pkgutil
from importlib import import_module

import holdfast
from holdfast import AsyncQueue, Fail, Queue, Worker

queue = Queue("emails", URL)
queue.add("hello", id="a")
lease = queue.lease(10)
assert queue.complete(lease, "sent")
print(queue.counts().leased)


async def main():
    async with AsyncQueue("emails", URL) as queue:
        await queue.add("again")
        print((await queue.counts()).ready)


asyncio.run(main())
for refused in (lambda: Queue("emails", "embedded://"), lambda: Worker(queue)):
    try:
        refused()
    except holdfast.HoldfastError as error:
        print(error)
queue.close()
for found in pkgutil.walk_packages(holdfast.__path__, "holdfast.", onerror=lambda name: None):
    if found.name not in ("holdfast.__main__", "holdfast.spark"):
        import_module(found.name)
"""

NO_SERVER = (
    "the embedded server needs Linux or macOS: use a server of your own with url= or HOLDFAST_URL"
)
NO_WORKER = (
    "a worker needs Linux or macOS: here, add jobs and read results, or lease jobs with "
    "Queue.lease()"
)


def test_producers_work_and_all_modules_import_on_windows(tmp_path: Path) -> None:
    (tmp_path / "producer.py").write_text(PRODUCER)
    server = TestServer(tmp_path, tcp=True)
    try:
        ran = subprocess.run(
            [sys.executable, WINDOWS, tmp_path / "producer.py", server.url],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        server.stop()
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "0",
        "1",
        NO_SERVER,
        NO_WORKER,
    ]
