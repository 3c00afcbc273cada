"""Topology: which node of a cluster serves a slot, and which server is primary under Sentinels.

No I/O: to look something up, a topology yields an address and a command, and is sent the reply or
thrown the error. Both shells drive the same code. Its knowledge may be out of date at any moment:
then a server redirects or does not answer, and the lookup is repeated.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from typing import Any, Final, TypeAlias

import hiredis

from holdfast.connection import protocol
from holdfast.connection.address import Address, Node, shown
from holdfast.errors import ServerRefused

FIND_SECONDS: Final = 2.0
"""The timeout for looking something up on one server: another may answer instead."""

Finding: TypeAlias = Generator[tuple[Address, bytes], Any, None]

CONFIRM_SECONDS: Final = 1.0
"""How long an answer of a Sentinel is used. A primary that was replaced while alive keeps accepting
writes until a Sentinel demotes it, which takes up to ten seconds; those writes are lost."""

_SLOTS: Final = protocol.pack(b"CLUSTER", b"SLOTS")
_ROLE: Final = protocol.pack(b"ROLE")


class Topology:
    """Knowledge about several servers. Threads share it; every change is one assignment."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lost: frozenset[Node] = frozenset()
        """The servers that were lost and have not answered since."""

    def where(self, slot: int) -> Node | None:
        """Return the node that serves a slot, or None if it must be looked up first."""
        raise NotImplementedError

    def primaries(self) -> list[Node] | None:
        """Return all nodes that serve slots; [] if the ACL hides them; None if to be looked up."""
        raise NotImplementedError

    def find(self) -> Finding:
        """Look up which nodes serve which slots."""
        raise NotImplementedError

    def forget(self, slot: int) -> None:
        """Look up this slot again before the next call."""
        raise NotImplementedError

    def moved(self, slot: int, node: Node) -> None:
        """Record the node that serves a slot, from a redirect. Only clusters redirect."""

    def lost(self, node: Node) -> None:
        """Record that a server does not answer, or may not: look up again before the next call."""
        self._lost |= {node}

    def found(self, node: Node) -> None:
        """Record that a server answers."""
        self._lost -= {node}

    def doubts(self, node: Node) -> bool:
        """Return whether a server has not answered since it was lost."""
        return node in self._lost

    def target(self, redirect: str, teller: Node) -> Node:
        """Return the node that a redirect names."""
        host, _, port = redirect.rpartition(" ")[2].rpartition(":")
        return self._reached(host, int(port), teller)

    def _in_order(self, nodes: tuple[Node, ...]) -> list[Node]:
        """Return nodes to ask, in random order, but lost nodes last."""
        return sorted(nodes, key=lambda node: (node in self._lost, random.random()))

    def _reached(self, host: str, port: int, teller: Node) -> Node:
        """Return how to reach a host that a server named; without a name, it means itself."""
        if self._address.reach:
            return self._address.reach, port
        return (teller[0] if host in ("", "?") else host), port


class Cluster(Topology):
    """Which node serves which slot, from CLUSTER SLOTS and later redirects."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._nodes = address.nodes
        self._ranges: list[tuple[int, int, Node]] | None = None
        self._owners: dict[int, Node] = {}

    def where(self, slot: int) -> Node | None:
        node = self._owners.get(slot)
        if node is None and self._ranges is not None:
            owners = (node for first, last, node in self._ranges if first <= slot <= last)
            # The slot is not served, or the ACL hides it: any node redirects, or reports the error.
            node = self._owners[slot] = next(owners, None) or random.choice(self._nodes)
        return node

    def primaries(self) -> list[Node] | None:
        ranges = self._ranges
        return None if ranges is None else list(dict.fromkeys(node for _, _, node in ranges))

    def forget(self, slot: int) -> None:
        self._ranges = None
        self._owners.pop(slot, None)

    def lost(self, node: Node) -> None:
        super().lost(node)
        self._ranges = None
        owners = self._owners.copy().items()  # A copy: other threads add to it meanwhile.
        self._owners = {slot: owner for slot, owner in owners if owner != node}

    def moved(self, slot: int, node: Node) -> None:
        self._owners[slot] = node
        if node not in self._nodes:
            self._nodes = (*self._nodes, node)

    def find(self) -> Finding:
        trouble: Exception | None = None
        for node in self._in_order(self._nodes):
            try:
                reply = yield self._address.at(node), _SLOTS
            except (OSError, ServerRefused) as error:
                trouble = error
                continue
            word = protocol.word_of(reply)
            if not word:
                self._learn(reply, node)
                return
            if word == "NOPERM":  # Learn the slots from redirects instead.
                self._ranges = []
                return
            trouble = _no_cluster(node) if word == "ERR" else protocol.refusal(reply)
        raise trouble or ConnectionError("there is no node to ask")

    def _learn(self, reply: list[Any], teller: Node) -> None:
        ranges, nodes = [], []
        for first, last, *served_by in reply:
            members = [
                self._reached((host or b"").decode(), port, teller) for host, port, *_ in served_by
            ]
            ranges.append((first, last, members[0]))
            nodes += members
        self._nodes = tuple(dict.fromkeys((*nodes, *self._address.nodes)))
        self._owners = {}
        self._ranges = ranges


def _no_cluster(node: Node) -> ServerRefused:
    return ServerRefused(
        f"{shown(node)} is not a node of a cluster: use redis:// for a server by itself, and "
        "redis+sentinel:// for Sentinels",
        "ERR",
    )


class Sentinels(Topology):
    """The primary, named by a Sentinel recently and confirmed by the server itself."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._primary: Node | None = None
        self._confirm_at = 0.0

    def where(self, slot: int) -> Node | None:  # noqa: ARG002  # One server has all slots.
        return self._primary if time.monotonic() < self._confirm_at else None

    def primaries(self) -> list[Node] | None:
        node = self.where(0)
        return [node] if node else None

    def forget(self, slot: int) -> None:  # noqa: ARG002
        self._primary = None

    def lost(self, node: Node) -> None:
        super().lost(node)
        self._primary = None

    def find(self) -> Finding:
        trouble: Exception | None = None
        known = self._primary
        self._rely()  # Other threads need not ask meanwhile.
        question = protocol.pack(
            b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._address.primary.encode()
        )
        for sentinel in self._in_order(self._address.nodes):
            super().lost(sentinel)  # Until it answers: lost Sentinels are asked last.
            try:
                told = yield self._address.sentinel(sentinel), question
                self.found(sentinel)
                node = self._told(told, sentinel)
                if node == known:
                    return self._rely()
                role = yield self._address.at(node), _ROLE
            except (OSError, ServerRefused) as error:
                if not isinstance(trouble, ServerRefused):  # A refusal says more.
                    trouble = error
                continue
            word = protocol.word_of(role)
            if word == "NOPERM" or (not word and role[0] == b"master"):
                self._primary = node
                return self._rely()
            # It is not primary any more, which the Sentinel does not know yet.
            trouble = (
                protocol.refusal(role) if word else ConnectionError(f"{shown(node)}: not a primary")
            )
        if known is None:
            raise trouble or ConnectionError("there is no Sentinel to ask")
        return self._rely()

    def _rely(self) -> None:
        """Use the known primary for a moment without asking."""
        self._confirm_at = time.monotonic() + CONFIRM_SECONDS

    def _told(self, reply: Any, sentinel: Node) -> Node:
        if isinstance(reply, hiredis.ReplyError):
            if protocol.word_of(reply) == "ERR":
                raise ServerRefused(
                    f"{shown(sentinel)} is not a Sentinel: use redis:// for a server by itself, "
                    "and redis+cluster:// for a cluster",
                    "ERR",
                )
            raise protocol.refusal(reply)
        if reply is None:
            raise ServerRefused(
                f"the Sentinel {shown(sentinel)} knows no primary {self._address.primary!r}", "ERR"
            )
        host, port = reply
        return self._reached(host.decode(), int(port), sentinel)
