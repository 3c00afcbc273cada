"""A worker inside a web application, or another program that has signal handlers of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import DOCS, blocks
from holdfast import AsyncRunningJob, Queue
from support import DEADLINE, TestServer, free_port, wait_until
from worker.support import program, worker_of

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


def asked(port: int) -> str | None:
    """Sign up with the application; return the id of the job, or None while it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    try:
        connection.request("POST", "/ann")
        id: str = json.load(connection.getresponse())["job"]
        return id
    except ConnectionError:
        return None
    finally:
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_web_server_whose_application_has_a_worker_ends_when_it_is_told_to(
    tmp_path: Path, test_server: TestServer, number: signal.Signals
) -> None:
    """The program is the one of the page."""
    [page] = [block for block in blocks(DOCS / "workers.md", "python") if block.file]
    (tmp_path / str(page.file)).write_text(page.code)
    port = free_port()
    web = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "signup:app", "--port", str(port)],
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_URL": test_server.url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: web.poll() is not None or asked(port), "the application")
        assert web.stdout
        assert any(line == "welcome, ann\n" for line in web.stdout)
        web.send_signal(number)
        _, log = web.communicate(timeout=DEADLINE)
    finally:
        web.kill()
        web.communicate()
    assert "Application shutdown complete" in log
    assert "Traceback" not in log
    with Queue("welcomes", test_server.url) as queue:
        assert not any(info.alive for info in queue.workers())
        queue.delete()


def test_no_signal_is_touched_where_a_worker_is_awaited(live_queue: Queue) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    seen: list[object] = []

    async def handle(job: AsyncRunningJob) -> None:
        seen.extend(signal.getsignal(number) for number in SIGNALS)

    async def run() -> bool:
        return await worker_of(live_queue, handle).run_async(until_empty=True)

    live_queue.add(b"")
    loop = asyncio.new_event_loop()  # Not asyncio.run, which has a handler for SIGINT.
    try:
        assert loop.run_until_complete(run())
    finally:
        loop.close()
    assert seen == before


PROGRAM = """
    import asyncio, signal, sys
    from holdfast import Queue, Worker

    worker = Worker(Queue(*sys.argv[1:]))

    @worker.handler
    async def handle(job):
        print("begun")

    async def main():
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        working = asyncio.create_task(worker.run_async())
        await stopped.wait()
        working.cancel()
        await asyncio.wait([working])
        print("ended")

    asyncio.run(main())
"""


def test_a_program_hears_the_signals_that_it_asked_for(
    tmp_path: Path, live_queue: Queue, test_server: TestServer
) -> None:
    live_queue.add(b"")
    name = live_queue.name
    with program(tmp_path, PROGRAM, name, test_server.queue_url) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        out, log = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (0, "ended\n"), log


@pytest.fixture
def queue_name(queue_name: str) -> str:
    """One that can be an argument of a program."""
    return queue_name.strip("\0\n")
