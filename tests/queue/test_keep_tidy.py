"""keep_tidy: maintenance in the background, for those who run no worker."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from holdfast import AsyncQueue, AsyncServer, InvalidArgument, Queue, ServerRefused
from support import TestServer, wait_until


def test_what_is_due_and_what_lapsed_comes_back_without_a_worker(live_queue: Queue) -> None:
    live_queue.add(b"", id="due", delay=0.02)
    live_queue.add(b"", id="lapsed")
    assert live_queue.lease(0.02)
    with live_queue.keep_tidy(every=0.01):
        wait_until(lambda: live_queue.counts().ready == 2, "both to be ready")


def test_it_stops_with_its_block_and_can_begin_again(live_queue: Queue) -> None:
    for _ in range(3):
        with live_queue.keep_tidy(every=0.001):
            assert f"tidy {live_queue.name}" in {thread.name for thread in threading.enumerate()}
        assert f"tidy {live_queue.name}" not in {thread.name for thread in threading.enumerate()}


def test_an_error_is_logged_and_the_next_time_it_tries_again(
    live_queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def refuse() -> None:
        tried.append(1)
        raise ServerRefused("the server is out of sorts")

    monkeypatch.setattr(live_queue, "tidy", refuse)
    with caplog.at_level(logging.ERROR), live_queue.keep_tidy(every=0.001):
        wait_until(lambda: len(tried) > 2, "it to try again")
    assert "could not tidy" in caplog.text


def test_an_event_loop_is_kept_tidy_too(test_server: TestServer, live_queue: Queue) -> None:
    async def run() -> int:
        async with AsyncQueue(live_queue.name, AsyncServer(test_server.url)) as queue:
            await queue.add(b"", delay=0.02)
            async with queue.keep_tidy(every=0.01):
                async with asyncio.timeout(30):
                    while not (await queue.counts()).ready:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
            before = asyncio.all_tasks()
            async with queue.keep_tidy():
                (task,) = asyncio.all_tasks() - before
            assert task.done()
            return (await queue.counts()).ready

    assert asyncio.run(run()) == 1


def test_an_error_does_not_end_the_task(
    test_server: TestServer, live_queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with AsyncQueue(live_queue.name, AsyncServer(test_server.url)) as queue:
            tried = []

            async def refuse() -> None:
                tried.append(1)
                raise ServerRefused("the server is out of sorts")

            queue.tidy = refuse  # type: ignore[assignment,method-assign]
            async with queue.keep_tidy(every=0.001), asyncio.timeout(30):
                while len(tried) < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "could not tidy" in caplog.text


def test_an_exception_in_the_block_goes_through(live_queue: Queue) -> None:
    with pytest.raises(ZeroDivisionError), live_queue.keep_tidy():
        raise ZeroDivisionError


def test_it_must_be_told_how_often(live_queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="every"), live_queue.keep_tidy(every=0):
        pass
