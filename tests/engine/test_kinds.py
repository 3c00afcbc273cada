"""A run with --server-kind is given what it asked for."""

from __future__ import annotations

import redis

from engine_support import refused
from holdfast import Queue, Server
from support import Kind


def test_the_server_is_of_the_kind_that_was_asked_for(
    server: Server, client: redis.Redis, server_kind: Kind
) -> None:
    assert client.info("cluster")["cluster_enabled"] == (server_kind in ("cluster", "nodes"))
    error = refused(Queue("elsewhere", server).counts)
    assert (error.word if error else "") == ("NOPERM" if server_kind == "acl" else "")
