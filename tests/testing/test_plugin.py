"""The plugin for pytest, as a project of somebody else's would use it."""

from __future__ import annotations

import fcntl
import tomllib
from pathlib import Path

import pytest

from docs.pages import DOCS, ROOT, blocks
from support import wait_until

pytestmark = pytest.mark.grid
OPTIONS = ("-p", "no:valkey", "-p", "pytest_holdfast", "-p", "no:cacheprovider", "-q")


def is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*OPTIONS, "-W", "error", *options)


def test_a_queue_is_fresh_and_its_clock_is_moved(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", range(3))
        def test_fresh(holdfast_queue, holdfast_clock, n):
            assert len(holdfast_queue) == 0
            holdfast_queue.add(b"", delay=3600)
            assert holdfast_queue.lease(30) is None
            holdfast_clock.advance(3600)
            assert holdfast_queue.lease(30)
        """
    )
    run(pytester).assert_outcomes(passed=3)


def test_a_queue_for_asyncio_is_the_same_queue(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio

        def test_both(holdfast_queue, holdfast_aqueue, holdfast_clock):
            async def use():
                async with holdfast_aqueue as queue:
                    await queue.add(b"", id="a", delay=5)
            asyncio.run(use())
            assert holdfast_queue.show("a").state == "delayed"
            holdfast_clock.advance(5)
            assert holdfast_queue.lease(30).id == "a"
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_a_queue_of_the_program_can_be_used(pytester: pytest.Pytester) -> None:
    """The program names a server that nobody has. What it declared stays with its queue."""
    pytester.makepyfile(
        app="""
        from holdfast import AsyncQueue, Queue

        queue = Queue("mails", "redis://localhost:1")
        aqueue = AsyncQueue("others", "redis://localhost:1")
        sent = []

        @queue.handler
        def send(to):
            sent.append(to)

        send.every("5m", "all")
        """,
        test_app="""
        import asyncio
        import pytest
        from app import aqueue, queue, send, sent
        from holdfast.testing import run_until_empty

        @pytest.mark.parametrize("n", range(2))
        def test_send(holdfast_use, holdfast_clock, n):
            sent.clear()
            assert holdfast_use(queue) is queue
            assert len(queue) == 0
            send.add("ann")
            send.options(delay=10).add("bob")
            run_until_empty(queue)
            assert sent == ["ann"]
            holdfast_clock.advance(300)
            run_until_empty(queue)
            assert sent == ["ann", "bob", "all"]
            send.add("left over")

        def test_async(holdfast_use):
            async def use():
                async with holdfast_use(aqueue) as mine:
                    await mine.add(b"")
                    return (await mine.counts()).ready
            assert asyncio.run(use()) == 1

        def test_afterwards():
            assert queue.name == "mails"
            assert str(queue.server.address) == "redis://localhost:1/0"
            assert queue.clock is None
            assert list(queue.handlers) == list(queue.schedules) == ["send"]
        """,
    )
    run(pytester).assert_outcomes(passed=4)


def test_the_server_is_private_and_ends_with_the_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pathlib import Path

        def test_where(holdfast_url, holdfast_server, tmp_path_factory):
            base = str(tmp_path_factory.getbasetemp())
            assert holdfast_url.startswith(f"embedded://{base}")
            Path("where").write_text(holdfast_url.removeprefix("embedded://"))
        """
    )
    run(pytester).assert_outcomes(passed=1)
    directory = Path((pytester.path / "where").read_text())
    with (directory / "server.lock").open() as lock:
        wait_until(lambda: is_free(lock.fileno()), "the end of the server")


def test_who_asks_for_nothing_pays_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing(request):
            assert not [name for name in sys.modules if name.split(".")[0] == "holdfast"]
            assert "pytest_holdfast" in sys.modules
            assert not [name for name in request.fixturenames if "holdfast" in name]
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_the_fixtures_say_what_they_are(pytester: pytest.Pytester) -> None:
    told = run(pytester, "--fixtures").stdout.str()
    for name in ("url", "server", "clock", "queue", "aqueue", "use"):
        assert f"holdfast_{name}" in told


def test_the_page_about_testing_is_a_file_of_tests(pytester: pytest.Pytester) -> None:
    page = DOCS / "testing.md"
    pytester.makepyfile("\n\n".join(block.code for block in blocks(page, "python")))
    outcomes = run(pytester).parseoutcomes()
    assert outcomes.keys() == {"passed"}
    assert outcomes["passed"] >= 4


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    """Under the name of its module, so that `-p pytest_holdfast` is the same one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"pytest_holdfast": "pytest_holdfast"}
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "src/pytest_holdfast.py" in wheel["packages"]
