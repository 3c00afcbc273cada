"""Do something every so many seconds, beside a block of code: in a thread, or in a task."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

log = logging.getLogger("holdfast")


@contextmanager
def repeat(seconds: float, act: Callable[[], object], failed: str) -> Iterator[None]:
    """Act every so many seconds until the block ends. Errors are logged as `failed`."""
    stop = threading.Event()

    def go_on() -> None:
        while not stop.wait(seconds):
            try:
                act()
            except Exception:
                log.exception("%s; trying again", failed)

    thread = threading.Thread(target=go_on, name="holdfast repeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@asynccontextmanager
async def repeat_async(
    seconds: float, act: Callable[[], Awaitable[object]], failed: str
) -> AsyncIterator[None]:
    """Act every so many seconds until the block ends. Errors are logged as `failed`."""

    async def go_on() -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await act()
            except Exception:
                log.exception("%s; trying again", failed)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
