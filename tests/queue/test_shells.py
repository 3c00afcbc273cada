"""Queue and AsyncQueue are one thing in two shells, and a cancelled call does no harm."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import Callable, Generator
from typing import Any

import msgspec
import pytest

from engine_support import ids
from holdfast import (
    AsyncQueue,
    AsyncQueueHandler,
    AsyncReader,
    AsyncRequest,
    AsyncServer,
    AsyncShardedQueue,
    AsyncTypedReceipt,
    AsyncWrite,
    Counts,
    HoldfastError,
    Job,
    Lease,
    Leases,
    NewJob,
    Queue,
    Reader,
    Request,
    Row,
    Schedule,
    Server,
    ShardedQueue,
    Update,
    WorkerInfo,
    Write,
)
from support import TestServer

SHELLS = [
    *(AsyncQueue, AsyncRequest, AsyncWrite, AsyncReader, AsyncQueueHandler, AsyncTypedReceipt),
    *(AsyncShardedQueue, Queue, ShardedQueue, Server, AsyncServer),
]
Step = tuple[Any, str, tuple[Any, ...], dict[str, Any]]
Scenario = Generator[Step, Any, None]


# ------------------------------------------------- two servers that are written by hand


FOR_THREADS = {"send"}
"""What an event loop does by itself: other things while it waits."""


def methods(shell: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in vars(shell).items()
        if inspect.isfunction(member) and (not name.startswith("_") or name == "__init__")
        if name not in FOR_THREADS
    }


def as_sync(text: object) -> str:
    """Say in the words of the one shell what the other says."""
    said = re.sub(r"\ban `Async", "a `", str(text))
    said = re.sub(r"\basync (?=with\b)|\bawait (?=\w)", "", said)
    return re.sub(r"\bAsync(?=[A-Z])", "", said)


def test_both_servers_have_the_same_methods() -> None:
    assert methods(Server).keys() == methods(AsyncServer).keys()


def test_both_servers_have_the_same_public_attributes(test_server: TestServer) -> None:
    def public(thing: object) -> set[str]:
        return {name for name in vars(thing) if not name.startswith("_")}

    assert public(Server(test_server.url)) == public(AsyncServer(test_server.url))


def test_both_servers_take_and_give_the_same() -> None:
    for name, method in methods(Server).items():
        twin = inspect.signature(methods(AsyncServer)[name])
        signature = inspect.signature(method)
        both = zip(signature.parameters.values(), twin.parameters.values(), strict=True)
        for mine, its in both:
            assert (mine.name, mine.kind, mine.default) == (its.name, its.kind, its.default)
            assert as_sync(mine.annotation) == as_sync(its.annotation), (name, mine.name)
        assert as_sync(signature.return_annotation) == as_sync(twin.return_annotation), name


def test_both_servers_say_the_same_first() -> None:
    for name, method in methods(Server).items():
        if name != "__init__":
            first, its = inspect.getdoc(method), inspect.getdoc(methods(AsyncServer)[name])
            assert first
            assert its
            assert first.splitlines()[0] == its.splitlines()[0]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_public_method_is_documented(shell: type) -> None:
    for name, method in methods(shell).items():
        assert name == "__init__" or inspect.getdoc(method), name


# ---------------------------------------------------------------- the same outcome


def scenario(clock: Callable[[float], None], told: list[object]) -> Scenario:
    """Use every method, and tell what came of it; yields what to call and is sent the answer."""

    def step(method: str, *args: Any, **options: Any) -> Generator[Step, Any, Any]:
        return (yield from step_of(None, method, *args, **options))

    def step_of(thing: Any, method: str, *args: Any, **options: Any) -> Generator[Step, Any, Any]:
        try:
            answer = yield thing, method, args, options
        except HoldfastError as error:
            told.append((method, type(error), str(error)))
            return None
        told.append((method, without_tokens(answer)))
        return answer

    yield from step("add", {"n": 1}, id="a", priority=90, result_for=60)
    yield from step("add", b"", id="a")
    yield from step("add", b"", id="a", on_conflict="raise")
    yield from step("add", b"", id="")
    yield from step("add", "later", id="d", delay=1)
    yield from step("add_many", [NewJob(b"%d" % n, id=f"m{n}") for n in range(1200)], handler="h")
    yield from step("add_many", [NewJob(b"", id="x"), NewJob(b"", id="m0")], on_conflict="raise")
    yield from step("counts")
    yield from step("totals")
    one = yield from step("lease", 30)
    yield from step("extend", one, 60)
    yield from step("complete", one, b"result", add=[NewJob(b"", id="f", priority=99)])
    yield from step("complete", one)
    yield from step("extend", one, 60)
    two = yield from step("lease_many", 3, 2, wait=0)
    three = yield from step("lease_many", 2, 2, complete=[two[0], (two[1], "result"), one])
    yield from step("extend_many", [*three, two[0]], 2)
    yield from step("release", two[2], after=1)
    yield from step("release", two[2])
    yield from step("release_many", three[:1], lapsed="crashed")
    clock(2)
    yield from step("tidy")
    yield from step("complete_many", [three[1], three[0]])
    yield from step("complete", "m7", force=True)
    yield from step("add", b"new", id="m8", on_conflict=Update(due="later"), delay=5)
    for settle in ("retry", "fail"):
        lease = yield from step("lease", 30)
        yield from step("add", b"next", id=lease.id, on_conflict="update")
        yield from step(settle, lease, error=ValueError("why"))
        yield from step(settle, lease, error="again")
    [failed] = yield from step("failed")
    handled = yield from step("lease", 30, failed=True)
    yield from step("release", handled)
    yield from step("revive", failed.id)
    yield from step("revive", failed.id)
    lease = yield from step("lease", 30)
    yield from step("cancel", lease.id)
    yield from step("extend", lease, 30)
    yield from step("complete", lease)
    yield from step("cancel_matching", b"100")
    yield from step("peek", 3, state="delayed")
    for look in ("show", "explain", "data", "result"):
        yield from step(look, "a")
        yield from step(look, "nobody")
        yield from step(look, "m11")
    yield from step("set_result", "a", {"sum": 3})
    yield from step("set_result", "m11", b"some")
    yield from step("result", "a", wait=0.01)
    yield from step("result", "m11", wait=0.01)
    yield from requests_in(step, step_of, clock)
    yield from step("every", "1s", {"n": 1}, name="second", priority=90)
    yield from step("cron", "* * * * *", NewJob(b"", handler="h"), tz="Europe/Berlin")
    yield from step("every", "often", name="x")
    yield from step("cron", "* * * *", name="x")
    yield from step("tick")
    clock(1)
    yield from step("tick")
    yield from step("last_tick", "second")
    yield from step("last_tick", "")
    yield from writes_in(step, step_of, clock)
    yield from claims_in(step, step_of, clock)
    yield from step("register", alive_for=5)
    workers = yield from step("workers")
    yield from step("fail_worker", workers[0])
    yield from step("tidy", held_longer_than=0, failed_longer_than=0)
    yield from step("repair")
    yield from step("pause")
    yield from step("lease", 30)
    yield from step("resume")
    yield from step("audit")
    yield from step("counts")
    yield from step("delete")
    yield from step("counts")
    yield from step("lease", 30, wait=0.001)
    yield from step("close")


def requests_in(step: Any, step_of: Any, clock: Callable[[float], None]) -> Scenario:
    """The part of the scenario that uses every method of a request, and groups."""
    request = yield from step("request", "r", priority=99, limit=2, follow_up=NewJob(b"end"))
    yield from step("request", "r/end")
    yield from step_of(request, "status")
    yield from step_of(request, "add", b"too soon")
    yield from step_of(request, "open")
    yield from step_of(request, "add", {"n": 0})
    yield from step_of(request, "add", b"again", number=0)
    yield from step_of(request, "add", b"a gap", number=7)
    yield from step_of(request, "add_many", [b"%d" % n for n in range(1200)], max_failures=0)
    yield from step_of(request, "add", b"later", delay=1)
    yield from step_of(request, "add", b"", result_for=5)
    leases = yield from step("lease_many", 9, 30)
    yield from step("complete", leases[0], b"result")
    yield from step("fail", leases[1], error="why")
    yield from step_of(request, "set_limit", 1)
    yield from step_of(request, "set_limit", -1)
    yield from step_of(request, "set_priority", 98)
    yield from step_of(request, "set_priority", 100)
    yield from step("explain", "r/5")
    yield from step_of(request, "seal")
    yield from step_of(request, "add", b"too late")
    yield from step_of(request, "wait", 0.01)
    yield from step_of(request, "wait", -1)
    yield from step_of(request, "cancel")
    yield from step_of(request, "cancel")
    yield from step_of(request, "wait", 5)
    yield from step_of(request, "results")
    yield from step_of(request, "results", first=1200)
    yield from step_of(request, "set_limit", 5)
    yield from step_of(request, "open")
    nobody = yield from step("request", "nobody")
    for method in ("status", "wait", "seal", "cancel", "results"):
        yield from step_of(nobody, method)
    yield from step_of(nobody, "set_limit", 1)
    yield from step("requests")
    yield from step("add", b"", id="g", group="a group", group_limit=1, priority=99)
    yield from step("add", b"", id="r", group="r")
    yield from step("groups")
    yield from step("set_group_limit", "a group", 0)
    yield from step("set_group_limit", "nobody", 0)
    yield from step("set_group_limit", "a group", 0.5)
    yield from step("groups")
    yield from step("cancel", "g")
    yield from step("groups")


def writes_in(step: Any, step_of: Any, clock: Callable[[float], None]) -> Scenario:
    """The part of the scenario that uses every method of a write."""
    request = yield from step("request", "rows")
    yield from step_of(request, "open")
    write = yield from step("write", "w")
    yield from step("write", "")
    rows = [NewJob(b"", id="row"), Row(b"", request="rows"), *(NewJob(b"", id="m0") for _ in "ab")]
    one = yield from step_of(write, "stage", rows, partition=0, attempt=0)
    two = yield from step_of(write, "stage", [b"", {"n": 1}], partition=1, attempt=0, priority=9)
    yield from step_of(write, "stage", [Row(b"", id="x", request="r")], partition=2, attempt=0)
    vain = yield from step_of(write, "stage", rows, partition=0, attempt=1, keep_for=5)
    yield from step_of(write, "abort", [vain, None])
    yield from step_of(write, "commit", [one, vain])
    yield from step_of(write, "commit", [one], on_conflict="raise")
    yield from step_of(write, "commit", [one], writer="stream")
    yield from step_of(write, "commit", [one, two], writer="stream", batch=1)
    yield from step_of(write, "commit", [one, two], writer="stream", batch=1)
    yield from step("last_batch", "stream")
    yield from step("last_batch", "nobody")
    yield from step("publish")
    yield from step_of(request, "status")


def claims_in(step: Any, step_of: Any, clock: Callable[[float], None]) -> Scenario:
    """The part of the scenario that uses every method of a reader."""
    reader = yield from step("reader", "etl")
    yield from step("reader", "two words")
    yield from step_of(reader, "claim", 0, 5)
    yield from step_of(reader, "open")
    yield from step_of(reader, "claim", 0, 1010)
    yield from step_of(reader, "claim", 0, 5)
    yield from step_of(reader, "claim", 1, 5, claim_for=5)
    yield from step_of(reader, "claim", 7, 5)
    yield from step_of(reader, "claim", 1, 0)
    yield from step_of(reader, "look", 1)
    yield from step_of(reader, "look", 9)
    yield from step_of(reader, "read", 1, 0)
    yield from step_of(reader, "read", 1, 9)
    yield from step_of(reader, "renew", claim_for=9)
    older = yield from step("reader", "etl", epoch=7)
    yield from step_of(older, "renew")
    yield from step_of(reader, "give_back", 1)
    yield from step_of(reader, "read", 1, 0)
    yield from step_of(reader, "settle", 9)
    yield from step_of(reader, "settle", 2)
    yield from step_of(reader, "read", 0, 0)


def without_tokens(answer: Any) -> Any:
    if isinstance(answer, Lease):
        return answer.id, answer.data, answer.facts
    if isinstance(answer, Leases):
        return [without_tokens(lease) for lease in answer], answer.completed
    if isinstance(answer, list):
        return [without_tokens(item) for item in answer]
    if isinstance(answer, Job):
        return msgspec.structs.replace(answer, token=None, at=answer.state)  # Waits are random.
    if isinstance(answer, WorkerInfo):
        return answer.alive, answer.about
    if isinstance(answer, Schedule):
        return answer.name, answer.job, answer.missed, answer.after(0)
    if isinstance(answer, Request | AsyncRequest):
        return answer.id
    if isinstance(answer, Write | AsyncWrite | Reader | AsyncReader):
        return answer.name
    return re.sub(r"[\d.]+ s\b|under \S+", "", answer) if isinstance(answer, str) else answer


def play(url: str, name: str) -> list[object]:
    told: list[object] = []
    now = [1_700_000_000_000]
    queue = Queue(name, url, clock=lambda: now[0])
    steps = scenario(lambda seconds: now.__setitem__(0, now[0] + round(seconds * 1000)), told)
    thing, method, args, options = next(steps)
    with contextlib.suppress(StopIteration):
        while True:
            try:
                answer = getattr(thing or queue, method)(*args, **options)
                if inspect.isgenerator(answer):
                    answer = list(answer)
            except HoldfastError as error:
                thing, method, args, options = steps.throw(error)
            else:
                thing, method, args, options = steps.send(answer)
    return told


async def aplay(url: str, name: str) -> list[object]:
    told: list[object] = []
    now = [1_700_000_000_000]
    queue = AsyncQueue(name, url, clock=lambda: now[0])
    steps = scenario(lambda seconds: now.__setitem__(0, now[0] + round(seconds * 1000)), told)
    thing, method, args, options = next(steps)
    with contextlib.suppress(StopIteration):
        while True:
            try:
                answer = getattr(thing or queue, method)(*args, **options)
                if inspect.isasyncgen(answer):
                    answer = [part async for part in answer]
                elif inspect.isawaitable(answer):
                    answer = await answer
            except HoldfastError as error:
                thing, method, args, options = steps.throw(error)
            else:
                thing, method, args, options = steps.send(answer)
    return told


def test_both_shells_come_to_the_same(test_server: TestServer, queue_name: str) -> None:
    sync = play(test_server.url, queue_name)
    assert sync == asyncio.run(aplay(test_server.url, queue_name))
    used = {str(step[0]) for step in sync if isinstance(step, tuple)}
    both = {method for shell in (Queue, Request, Write, Reader) for method in methods(shell)}
    assert used == both - {"__init__", "events", "keep_tidy"}


def test_the_block_of_a_request_comes_to_the_same_in_both_shells(
    test_server: TestServer, queue_name: str
) -> None:
    def blocks() -> list[object]:
        with Queue(queue_name, test_server.url) as queue:
            with queue.request("sealed") as request:
                request.add(b"x")
            with contextlib.suppress(KeyError), queue.request("cancelled") as broken:
                broken.add(b"x")
                raise KeyError
            found = [(status.id, status.state, status.total) for status in queue.requests()]
            queue.delete()
            return [repr(request), *sorted(found)]

    async def ablocks() -> list[object]:
        async with AsyncQueue(queue_name, test_server.url) as queue:
            async with queue.request("sealed") as request:
                await request.add(b"x")
            with contextlib.suppress(KeyError):
                async with queue.request("cancelled") as broken:
                    await broken.add(b"x")
                    raise KeyError
            found = [(status.id, status.state, status.total) for status in await queue.requests()]
            await queue.delete()
            return [repr(request).removeprefix("Async"), *sorted(found)]

    found = blocks()
    assert found == asyncio.run(ablocks())
    assert found[1:] == [("cancelled", "cancelled", 1), ("sealed", "sealed", 1)]


# -------------------------------------------------------------------- cancelling


async def turns(count: int) -> None:
    """Let others run for a while that is the same on every machine."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def test_a_cancelled_lease_hides_no_job(test_server: TestServer, queue_name: str) -> None:
    rounds = 150

    async def main() -> None:
        async with (
            AsyncQueue(queue_name, test_server.url) as queue,
            AsyncQueue(queue_name, test_server.url) as producer,
        ):
            kept: list[Lease] = []
            for n in range(rounds):
                waiting = asyncio.create_task(queue.lease(60, wait=20))
                await turns(n % 13)
                adding = asyncio.create_task(producer.add(b"%d" % n))
                await turns(n // 13)
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    lease = await waiting
                    if lease is not None:
                        kept.append(lease)
                await adding

            async def all_given_back() -> bool:
                return (await producer.counts()).leased == len(kept)

            await until(all_given_back)
            leases = await queue.lease_many(1000, 60)
            assert {lease.lapses for lease in (*leases, *kept)} == {0}
            assert sorted(int(lease.data) for lease in (*leases, *kept)) == list(range(rounds))
            assert await queue.audit() == []
            await queue.delete()

    asyncio.run(main())


def test_a_lease_cancelled_while_it_sleeps_hides_no_job_added_later(
    test_server: TestServer, queue_name: str
) -> None:
    async def main() -> None:
        with test_server.client() as client:
            async with AsyncQueue(queue_name, test_server.url) as queue:

                async def asleep() -> bool:
                    return bool(client.info("clients")["blocked_clients"])

                for n in range(10):
                    waiting = asyncio.create_task(queue.lease(60, wait=20))
                    await until(asleep)
                    waiting.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await waiting
                    await queue.add(b"%d" % n)
                    lease = await queue.lease(60, wait=20)
                    assert lease is not None
                    assert (lease.data, lease.lapses) == (b"%d" % n, 0)
                    await queue.complete(lease)
                await queue.delete()

    asyncio.run(main())


def test_what_a_cancelled_lease_had_completed_stays_completed(
    test_server: TestServer, queue_name: str
) -> None:
    async def main() -> None:
        async with AsyncQueue(queue_name, test_server.url) as queue:
            for n in range(30):
                await queue.add_many([NewJob(b"", id="done"), NewJob(b"", id="next")])
                done = await queue.lease(60)
                assert done is not None
                call = asyncio.create_task(queue.lease_many(5, 60, complete=[done]))
                await turns(n)
                call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await queue.release_many(await call)
                await queue.complete(done)
                await queue.close()  # What was cancelled, and may have come late, is given back.
                counts = await queue.counts()
                assert (counts.ready, counts.leased) == (1, 0)
                await queue.delete()

    asyncio.run(main())


def _settled(queue: AsyncQueue) -> Callable[[], Any]:
    async def settled() -> bool:
        return (await queue.counts()).leased == 0

    return settled


CALLS: dict[str, Callable[[AsyncQueue], Any]] = {
    "add": lambda q: q.add(b"x"),
    "add_many": lambda q: q.add_many([b"x"] * 1500),
    "lease": lambda q: q.lease(30),
    "counts": lambda q: q.counts(),
    "audit": lambda q: q.audit(),
    "tidy": lambda q: q.tidy(),
    "complete": lambda q: q.complete("nobody", force=True),
    "pause": lambda q: q.resume(),
}


@pytest.mark.parametrize("kind", CALLS)
def test_the_next_reply_is_not_that_of_a_cancelled_call(
    test_server: TestServer, queue_name: str, kind: str
) -> None:
    async def main() -> None:
        async with AsyncQueue(queue_name, test_server.url) as queue:
            for n in range(25):
                call = asyncio.create_task(CALLS[kind](queue))
                await turns(n % 25)
                call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await call
                receipt = await queue.add(b"", id=f"after-{n}")
                assert (receipt.id, receipt.created) == (f"after-{n}", True)
                assert isinstance(await queue.counts(), Counts)
                assert await queue.complete(f"after-{n}", force=True)
            await until(_settled(queue))
            assert await queue.audit() == []
            await queue.delete()

    asyncio.run(main())


def test_many_calls_at_once_are_answered_each_for_itself(
    test_server: TestServer, queue_name: str
) -> None:
    async def main() -> None:
        async with AsyncQueue(queue_name, test_server.url) as queue:
            receipts = await asyncio.gather(*(queue.add(b"%d" % n, id=f"{n}") for n in range(50)))
            assert [receipt.id for receipt in receipts] == [f"{n}" for n in range(50)]
            leases = await asyncio.gather(*(queue.lease_many(5, 60) for _ in range(12)))
            assert sorted(map(len, leases)) == [0, 0, *[5] * 10]
            held = [lease for batch in leases for lease in batch]
            assert {(lease.id, lease.data.decode()) for lease in held} == {
                (f"{n}", f"{n}") for n in range(50)
            }
            assert len(set(ids(held))) == 50
            await queue.delete()

    asyncio.run(main())


def test_closing_waits_until_what_was_cancelled_is_given_back(
    test_server: TestServer, queue_name: str
) -> None:
    async def main() -> None:
        queue = AsyncQueue(queue_name, test_server.url)
        for n in range(20):
            await queue.add(b"")
            call = asyncio.create_task(queue.lease(60))
            await turns(n)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                lease = await call
                assert lease is not None
                await queue.release(lease)
            await queue.close()
            counts = await queue.counts()
            assert (counts.ready, counts.leased) == (n + 1, 0)
        await queue.delete()
        await queue.close()

    asyncio.run(main())
