"""The same for asyncio: every method of a request, and of a queue about requests."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable

import pytest

from conftest import Clock
from holdfast import (
    AsyncQueue,
    AsyncRequest,
    Extended,
    GroupStatus,
    InvalidArgument,
    JobExists,
    JobNotFound,
    Part,
    Queue,
    Request,
    WrongState,
)
from request_support import counters
from support import DEADLINE, TestServer

Scenario = Callable[[AsyncQueue], Awaitable[None]]


@pytest.fixture
def play(test_server: TestServer, queue: Queue, clock: Clock) -> Callable[[Scenario], None]:
    """Run a scenario on the test's queue; it is audited when the test is over."""

    async def main(scenario: Scenario) -> None:
        async with AsyncQueue(queue.name, test_server.queue_url, clock=clock) as aqueue:
            async with asyncio.timeout(DEADLINE):
                await scenario(aqueue)

    return lambda scenario: asyncio.run(main(scenario))


async def fill(request: AsyncRequest, parts: int, *, seal: bool = True) -> AsyncRequest:
    await request.open()
    await request.add_many(b"%d" % n for n in range(parts))
    if seal:
        await request.seal()
    return request


async def parts_of(request: AsyncRequest, first: int = 0) -> list[Part]:
    return [part async for part in request.results(first=first)]


Play = Callable[[Scenario], None]


def test_a_request_from_its_begin_to_its_end(play: Play) -> None:
    async def scenario(queue: AsyncQueue) -> None:
        async with queue.request("r", priority=80, limit=2, follow_up=b"") as request:
            assert (await request.add(b"0")).id == "r/0"
            assert await request.add_many(b"%d" % n for n in range(1, 5)) == 4
            assert (await request.status()).state == "open"
        status = await request.status()
        assert (status.state, status.priority, status.limit) == ("sealed", 80, 2)
        done, failed = await queue.lease_many(9, 60)
        assert (done.request, failed.request) == ("r", "r")
        assert await queue.lease(60) is None
        await request.set_limit(None)
        [cancelled, *others] = await queue.lease_many(9, 60)
        assert await queue.complete(done, b"result")
        await queue.fail(failed, error="why")
        await queue.cancel(cancelled.id)
        assert await queue.extend(cancelled, 60) is Extended.CANCELLED
        assert await queue.complete_many([cancelled, *others]) == [False, True, True]
        status = await request.wait(DEADLINE)
        assert status.state == "failed"
        assert counters(status) == {"total": 5, "done": 3, "failed": 1, "cancelled": 1}
        assert await parts_of(request) == [
            Part(0, "r/0", "done", b"result"),
            Part(1, "r/1", "failed", None, "why"),
            Part(2, "r/2", "cancelled"),
            Part(3, "r/3", "done"),
            Part(4, "r/4", "done"),
        ]
        assert [part.number for part in await parts_of(request, 3)] == [3, 4]
        follow_up = await queue.lease(60)
        assert follow_up
        assert follow_up.id == "r/end/1"
        assert [found.id for found in await queue.requests()] == ["r"]

    play(scenario)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, asyncio.CancelledError])
def test_an_exception_in_the_block_cancels(
    play: Play, queue: Queue, error: type[BaseException]
) -> None:
    async def scenario(aqueue: AsyncQueue) -> None:
        async with aqueue.request("r") as request:
            await request.add_many([b"", b""])
            raise error

    with pytest.raises(error):
        play(scenario)
    assert queue.request("r").status().state == "cancelled"


def test_an_exception_in_the_block_leaves_a_request_alone_that_another_has_sealed(
    play: Play, queue: Queue
) -> None:
    async def scenario(aqueue: AsyncQueue) -> None:
        async with aqueue.request("r") as request:
            await request.add(b"")
            queue.request("r").seal()
            await request.add(b"")

    with pytest.raises(WrongState):
        play(scenario)
    assert queue.request("r").status().state == "sealed"


def test_a_task_that_is_cancelled_cancels_its_request(play: Play, queue: Queue) -> None:
    """Wherever it is cancelled, once the request is open."""

    async def produce(request: AsyncRequest) -> None:
        async with request:
            n = 0
            while True:
                await request.add(b"%d" % n)
                n += 1

    async def scenario(aqueue: AsyncQueue) -> None:
        for turns in range(1, 30):
            request = aqueue.request(f"r{turns}")
            await request.open()
            producing = asyncio.create_task(produce(request))
            while (await request.status()).total < 1:
                pass
            for _ in range(turns):
                await asyncio.sleep(0)
            producing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await producing
            assert (await request.status()).state == "cancelled"

    play(scenario)


def test_who_waits_is_told(play: Play) -> None:
    async def scenario(queue: AsyncQueue) -> None:
        request = await fill(queue.request("r"), 1)
        assert (await request.wait(0)).state == "sealed"
        assert (await request.wait(0.01)).state == "sealed"
        waiting = [asyncio.create_task(queue.request("r").wait()) for _ in range(2)]
        lease = await queue.lease(60)
        assert lease
        await queue.complete(lease)
        assert [status.state for status in await asyncio.gather(*waiting)] == ["completed"] * 2
        assert (await request.wait()).state == "completed"

    play(scenario)


def test_a_request_that_is_open_for_too_long_ends_without_a_worker(
    play: Play, clock: Clock
) -> None:
    async def scenario(queue: AsyncQueue) -> None:
        awaited = await fill(queue.request("awaited", open_for=60), 3, seal=False)
        waiting = asyncio.create_task(awaited.wait())
        await queue.counts()  # Meanwhile the task asks for the first time.
        clock.advance(60)
        assert (await waiting).state == "failed"
        read = await fill(queue.request("read", open_for=60), 3, seal=False)
        clock.advance(60)
        assert (await read.status()).state == "failed"

    play(scenario)


def test_who_begins_again_and_who_appends(play: Play) -> None:
    async def scenario(queue: AsyncQueue) -> None:
        await fill(queue.request("r"), 2, seal=False)
        again = queue.request("r")
        assert await again.open() == 2
        assert [bool(await again.add(b"%d" % n)) for n in range(3)] == [False, False, True]
        appending = queue.request("r", append=True)
        await appending.open()
        assert (await appending.add(b"3")).id == "r/3"
        assert await appending.add_many([b"4"]) == 1
        with pytest.raises(WrongState, match=r"\b5\b"):
            await again.add(b"", number=6)
        many = [queue.request("r", append=True) for _ in range(4)]
        receipts = await asyncio.gather(*(request.add(b"") for request in many * 25))
        assert len({receipt.id for receipt in receipts}) == 100
        assert all(receipts)
        assert (await again.status()).total == 105

    play(scenario)


@pytest.mark.parametrize("many", [False, True])
def test_parts_that_are_added_at_once_are_not_dropped_in_silence(play: Play, many: bool) -> None:
    def add(request: AsyncRequest, part: int) -> Awaitable[object]:
        return request.add_many([b"%d" % part]) if many else request.add(b"%d" % part)

    async def scenario(queue: AsyncQueue) -> None:
        async with queue.request("kept", append=True) as request:
            await asyncio.gather(*(add(request, part) for part in range(5)))
        assert (await request.status()).total == 5
        request = queue.request("refused")
        with pytest.raises(WrongState, match="append=True"):
            async with request:
                await asyncio.gather(*(add(request, part) for part in range(5)))
        assert (await request.status()).state == "cancelled"

    play(scenario)


def test_thousands_of_parts(play: Play) -> None:
    async def scenario(queue: AsyncQueue) -> None:
        request = queue.request("r")
        await request.open()
        assert await request.add_many(b"%d" % n for n in range(2500)) == 2500
        leases = await queue.lease_many(1000, 60)
        await queue.complete_many((lease, lease.data) for lease in leases)
        assert await request.cancel()
        assert not await request.cancel()
        found = await parts_of(request)
        assert [part.result for part in found[:1000]] == [b"%d" % n for n in range(1000)]
        assert [part.state for part in found[1000:]] == ["cancelled"] * 1500

    play(scenario)


def test_refusals(play: Play) -> None:
    async def scenario(queue: AsyncQueue) -> None:
        await queue.add(b"", id="r/0", group="g", group_limit=1)
        assert await queue.groups() == [GroupStatus("g", 1, 1, 0, 1)]
        await queue.set_group_limit("g", 2)
        assert (await queue.groups())[0].limit == 2
        request = queue.request("r")
        for ask in (request.status, request.seal, request.cancel, request.wait):
            with pytest.raises(JobNotFound):
                await ask()
        with pytest.raises(WrongState):
            await queue.request("g").open()
        await request.open()
        with pytest.raises(JobExists):
            await request.add(b"")
        with pytest.raises(InvalidArgument):
            await request.add(b"", group="g")
        with pytest.raises(InvalidArgument):
            queue.request("r/end")
        await request.set_priority(60)
        assert (await request.status()).priority == 60
        await request.seal()
        with pytest.raises(WrongState):
            await request.add(b"")
        with pytest.raises(JobNotFound):
            await queue.set_group_limit("r", 1)
        assert "waits in group g" in await queue.explain("r/0")

    play(scenario)


# --------------------------------------------------------------------------------- parity


def methods(shell: type) -> dict[str, Callable[..., object]]:
    return {name: found for name, found in vars(shell).items() if inspect.isfunction(found)}


def as_sync(text: object) -> str:
    return re.sub(r"\bAsync(?=[A-Z])", "", str(text)).replace("__a", "__")


def test_both_shells_have_the_same_methods() -> None:
    assert set(methods(Request)) == {as_sync(name) for name in methods(AsyncRequest)}


def test_both_shells_take_give_and_say_the_same() -> None:
    for name, its in methods(AsyncRequest).items():
        method = methods(Request)[as_sync(name)]
        mine, other = inspect.signature(method), inspect.signature(its)
        assert as_sync(other) == str(mine), name
        assert as_sync(inspect.getdoc(its)) == str(inspect.getdoc(method)), name
    assert inspect.getdoc(AsyncRequest) == inspect.getdoc(Request)


def test_what_is_awaited_is_what_does_io() -> None:
    for name, method in methods(AsyncRequest).items():
        waits = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        assert waits or name.startswith("_"), name


def test_a_request_says_what_it_is(queue: Queue) -> None:
    assert repr(queue.request("r")) == f"Request('r' in {queue.name!r})"
    assert repr(AsyncQueue("q").request("r")) == "AsyncRequest('r' in 'q')"
