"""The client for threads is made from the one for asyncio."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tools import generate_client

SOURCE = '''"""Things, for asyncio."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any


class AsyncQueue:
    """An `AsyncQueue`, used by `async with AsyncQueue() as queue`."""

    async def run(self) -> Any:
        """Run: `await queue.run()`."""
        async with self.server as link:  # An AsyncServer, awaited.
            await asyncio.sleep(1)
            return [one async for one in link], await anext(link), time.time()

    async def results(self) -> AsyncIterator[int]:
        yield await self.run()
'''

MADE = '''"""Things, for threads. Generated from aio/things.py: do not edit."""

import time
from collections.abc import Iterator
from typing import Any


class Queue:
    """A `Queue`, used by `with Queue() as queue`."""

    def run(self) -> Any:
        """Run: `queue.run()`."""
        with self.server as link:  # A Server, awaited.
            time.sleep(1)
            return [one for one in link], next(link), time.time()

    def results(self) -> Iterator[int]:
        yield self.run()
'''


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    source, target = tmp_path / "aio", tmp_path / "sync"
    source.mkdir()
    target.mkdir()
    monkeypatch.setattr(generate_client, "SOURCE", source)
    monkeypatch.setattr(generate_client, "TARGET", target)
    return source, target


def test_async_and_await_go_and_names_change_also_in_comments(
    folders: tuple[Path, Path],
) -> None:
    (folders[0] / "things.py").write_text(SOURCE)
    assert generate_client.generate("things.py", Counter()) == MADE


def test_a_rule_that_matches_nothing_is_an_error(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (folders[0] / "things.py").write_text(SOURCE)
    assert generate_client.main([]) == 1
    assert "nothing matches 'AsyncReader': remove the rule" in capsys.readouterr().out


def test_what_is_stale_or_too_much_is_told_and_not_written(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = folders
    (source / "things.py").write_text(SOURCE)
    (target / "things.py").write_text(MADE.replace("Run", "Walk"))
    (target / "gone.py").write_text(MADE)
    assert generate_client.main(["--check"]) == 1
    assert "client/sync is out of date (gone.py, things.py)" in capsys.readouterr().out
    assert "Walk" in (target / "things.py").read_text()
    generate_client.main([])
    assert (target / "things.py").read_text() == MADE
    assert not (target / "gone.py").exists()


def test_what_is_there_is_what_would_be_written() -> None:
    assert generate_client.main(["--check"]) == 0
