"""Events: hints about what happened, one message per call."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterable

import pytest
import redis

from conftest import Clock
from engine_support import Behind, take
from faults.shells import SHELLS, Shell
from holdfast import AsyncQueue, AsyncServer, Event, NewJob, Queue
from holdfast.connection import protocol
from holdfast.job import read_events
from support import (
    DEADLINE,
    TestServer,
    await_replies_for,
    command_on,
    documented_user,
    wait_until,
    with_login,
)


def heard(events: Iterable[Event], count: int) -> list[tuple[str, int, list[str]]]:
    return [(event.kind, event.count, event.ids) for event in itertools.islice(events, count)]


def everything_that_is_told(queue: Queue, clock: Clock) -> list[tuple[str, int, list[str]]]:
    """Do everything, and return what should be told about it."""
    queue.add(b"", id="a")
    queue.add_many([NewJob(b"", id="b", max_lapses=0), NewJob(b"", id="c", delay=3)])
    a, b = queue.lease_many(2, 60)
    queue.release(a)
    a = take(queue, 60)
    queue.complete(a, add=[NewJob(b"", id="d")])
    queue.release(b, lapsed="crashed")
    take(queue, 3)
    clock.advance(3)
    queue.tidy()
    queue.pause()
    queue.resume()
    queue.delete()
    return [
        ("added", 1, ["a"]),
        ("added", 2, ["b", "c"]),
        ("leased", 2, ["a", "b"]),
        ("released", 1, ["a"]),
        ("leased", 1, ["a"]),
        ("completed", 1, ["a"]),
        ("added", 1, ["d"]),
        ("failed", 1, ["b"]),
        ("leased", 1, ["d"]),
        ("promoted", 1, ["c"]),
        ("reclaimed", 1, ["d"]),
        ("paused", 0, []),
        ("resumed", 0, []),
        ("deleted", 0, []),
    ]


def test_what_happens_is_told_in_order(queue: Queue, clock: Clock) -> None:
    with queue.events() as events:
        told = everything_that_is_told(queue, clock)
        assert heard(events, len(told)) == told


def test_what_happens_is_told_in_order_to_an_event_loop(
    queue: Queue, clock: Clock, test_server: TestServer
) -> None:
    async def listen() -> None:
        listener = AsyncQueue(queue.name, test_server.url)
        async with listener, listener.events() as events:
            told = everything_that_is_told(queue, clock)
            for kind, count, ids in told:
                event = await anext(events)
                assert (event.kind, event.count, event.ids) == (kind, count, ids)

    asyncio.run(listen())


@pytest.mark.parametrize(("count", "named"), [(100, 100), (101, 0)])
def test_ids_are_named_where_a_call_moved_at_most_a_hundred(
    queue: Queue, count: int, named: int
) -> None:
    with queue.events() as events:
        receipts = queue.add_many([b""] * count)
        event = next(events)
        assert event.count == count
        assert event.ids == [receipt.id for receipt in receipts][:named]


def test_what_changes_nothing_is_not_told(queue: Queue) -> None:
    queue.add(b"", id="a")
    lease = take(queue)
    with queue.events() as events:
        queue.add(b"", id="a")
        queue.lease(30)
        queue.extend(lease, 60)
        queue.tidy()
        queue.counts()
        queue.audit()
        queue.complete("nobody", force=True)
        queue.complete(lease)
        assert heard(events, 1) == [("completed", 1, ["a"])]


def test_listening_ends_after_a_while_without_an_event(queue: Queue) -> None:
    with queue.events(idle=1) as events:
        queue.add(b"", id="a")
        assert [event.ids for event in events] == [["a"]]
    with queue.events(idle=0) as events:
        assert list(events) == []


def test_listening_ends_after_a_while_without_an_event_in_an_event_loop(
    queue: Queue, test_server: TestServer
) -> None:
    async def listen() -> list[Event]:
        listener = AsyncQueue(queue.name, test_server.url)
        async with listener, listener.events(idle=1) as events:
            await listener.add(b"", id="a")
            return [event async for event in events]

    assert [event.ids for event in asyncio.run(listen())] == [["a"]]


def be_slow(seconds: float) -> None:
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() > begun + seconds)


def test_who_is_slow_to_take_an_event_misses_none(queue: Queue) -> None:
    with queue.events(idle=1) as events:
        for id in "ab":
            queue.add(b"", id=id)
        for id in "ab":
            be_slow(1.1)
            assert next(events).ids == [id]


def test_what_a_slow_listener_has_not_taken_does_not_pile_up(
    test_server: TestServer, queue: Queue, client: redis.Redis
) -> None:
    many = 30_000

    def publish() -> None:
        with client.pipeline(transaction=False) as pipeline:
            for _ in range(many):
                pipeline.publish(queue._packer.events, b"x")
            pipeline.execute()

    async def main() -> None:
        server = AsyncServer(test_server.url)
        link = await server.connect(queue._packer.slot)
        await link.send(protocol.pack(b"SUBSCRIBE", queue._packer.events))
        await link.read()
        await asyncio.to_thread(publish)
        await link.send(protocol.PING)
        async with asyncio.timeout(DEADLINE):
            while link._transport.is_reading():  # noqa: ASYNC110  # Nobody tells.
                await asyncio.sleep(0)
        assert len(link._replies) < many / 2
        for _ in range(many):
            assert (await link.read())[2] == b"x"
        assert await link.read() == [b"pong", b""]
        link.close()

    asyncio.run(main())


def test_who_listens_is_not_disturbed_by_another_queue(queue: Queue, clock: Clock) -> None:
    other = Queue(queue.name + "2", queue.server, clock=clock)
    with queue.events() as events:
        other.add(b"", id="other")
        queue.add(b"", id="mine")
        assert heard(events, 1) == [("added", 1, ["mine"])]
    other.delete()


def test_a_listener_whose_connection_was_lost_listens_again(
    queue: Queue, client: redis.Redis
) -> None:
    with queue.events(idle=DEADLINE) as events:
        queue.add(b"", id="first")
        assert heard(events, 1) == [("added", 1, ["first"])]
        command_on(client, "CLIENT", "KILL", "TYPE", "pubsub")
        channel = Behind(client, queue).keys["events"]

        def told() -> bool:
            """Say something until somebody hears it."""
            return bool(client.publish(channel, b"\x91\x93\xa5added\x01\x91\xa5again"))

        heard_again: list[object] = []
        listener = threading.Thread(target=lambda: heard_again.extend(heard(events, 1)))
        listener.start()
        wait_until(told, "a listener")
        listener.join(DEADLINE)
        assert heard_again == [("added", 1, ["again"])]


@pytest.mark.parametrize("shell", SHELLS)
def test_who_may_not_ping_listens_for_as_long_as_others(
    test_server: TestServer, queue_name: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented user: that a ping is refused shows that there is a server, too."""
    await_replies_for(0.1, monkeypatch)
    with test_server.client() as client:
        user = documented_user("q*")
        command_on(client, "ACL", "SETUSER", *user)
    url = with_login(test_server.url, f"{user[0]}:secret")

    async def listen() -> list[Event]:
        async with AsyncQueue(queue_name, url) as queue, queue.events(idle=0.5) as events:
            return [event async for event in events]

    if shell == "AsyncQueue":
        assert asyncio.run(listen()) == []
        return
    with Queue(queue_name, url) as queue, queue.events(idle=0.5) as events:
        assert list(events) == []


def test_leaving_early_closes_the_connection(queue: Queue, client: redis.Redis) -> None:
    with queue.events() as events:
        queue.add(b"")
        next(events)
    wait_until(lambda: not command_on(client, "CLIENT", "LIST", "TYPE", "pubsub"))


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x07", b"\x91\x07", b"not msgpack", b"\x80"])
def test_a_message_that_cannot_be_read_is_no_event(message: bytes) -> None:
    assert read_events(message) == []


def test_a_foreign_message_does_not_end_the_listening(queue: Queue, client: redis.Redis) -> None:
    with queue.events() as events:
        client.publish(Behind(client, queue).keys["events"], b"garbage")
        queue.add(b"", id="a")
        assert heard(events, 1) == [("added", 1, ["a"])]
