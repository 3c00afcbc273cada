"""`Server.queues`: which queues a server has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from engine_support import own_server
from holdfast import AsyncServer, Queue, Server, ServerRefused, ServerUnavailable
from holdfast.engine.keys import queue_keys, queue_of
from proxy import PASS, Proxy, cut_reply
from support import TestServer, command_on, with_login

NAMES = ["emails", "a}:b", "hf:{x}:meta", "ü {} \n\0", "*", "[a-z]?"]


@pytest.fixture(scope="module")
def own() -> Iterator[TestServer]:
    """A server with these queues, and with keys that are none."""
    with own_server() as server:
        opened = Server(server.url)
        for name in (*NAMES, "deleted"):
            Queue(name, opened).add(b"")
        Queue("deleted", opened).delete()
        Queue("looked at", opened).counts()
        opened.close()
        with server.client() as client, client.pipeline() as pipeline:
            for n in range(5000):
                pipeline.set(f"other:{n}", "")
            for foreign in (b"", b"\xff", b"}x", b"x" * 513):
                pipeline.hset(b"hf:{%b}:meta" % foreign, "layout", "1")
            pipeline.execute()
        yield server


def test_the_queues_that_are_there_are_named(own: TestServer) -> None:
    server = Server(own.url)
    assert server.queues() == sorted(NAMES)
    server.close()


def test_to_a_task_too(own: TestServer) -> None:
    async def ask() -> list[str]:
        server = AsyncServer(own.url)
        try:
            return await server.queues()
        finally:
            await server.close()

    assert asyncio.run(ask()) == sorted(NAMES)


def test_a_lost_connection_is_made_anew(own: TestServer) -> None:
    with Proxy(own.socket) as proxy:
        server = Server(proxy.url)
        proxy.plan([PASS, PASS, cut_reply()])  # INFO, the first look, the second
        assert server.queues() == sorted(NAMES)
        server.close()


def test_a_server_that_is_not_there_is_said_to_be_so(own: TestServer) -> None:
    server = Server("redis://127.0.0.1:1", patience=0)
    with pytest.raises(ServerUnavailable, match="Nothing was changed"):
        server.queues()
    asynchronous = AsyncServer("redis://127.0.0.1:1", patience=0)
    with pytest.raises(ServerUnavailable, match="Nothing was changed"):
        asyncio.run(asynchronous.queues())


def test_who_may_not_scan_is_refused(own: TestServer) -> None:
    with own.client() as client:
        command_on(client, "ACL", "SETUSER", "u", "reset", "on", ">secret", "~*", "+@all", "-scan")
    server = Server(with_login(own.url, "u:secret"))
    with pytest.raises(ServerRefused) as refused:
        server.queues()
    assert refused.value.word == "NOPERM"
    server.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_comes_back_exactly(name: str) -> None:
    keys = queue_keys(name)
    assert [queue_of(key) for key in keys if key.endswith(b"}:meta")] == [name]
    assert {queue_of(key) for key in keys} == {name, None}
