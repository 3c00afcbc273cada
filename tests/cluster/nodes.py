"""A cluster of the tests' own: real nodes, whose slots move and whose primaries die."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis

from holdfast.engine.keys import NAMES, SLOTS, queue_keys, slot_of
from support import TestServer, command_on, free_port, wait_until

NODE_TIMEOUT_MS = 1500
"""A primary that is silent for so long is replaced: one that is held up for a second is not."""


def _options(*more: str) -> tuple[str, ...]:
    return (
        *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
        *("--cluster-port", str(free_port()), "--cluster-announce-ip", "127.0.0.1"),
        *("--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--cluster-replica-validity-factor", "0"),
        *("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"),
        *("--cluster-allow-replica-migration", "no", "--appendonly", "yes", *more),
    )


class Node(TestServer):
    """One node."""

    __test__ = False

    def __init__(self, directory: Path, *options: str) -> None:
        self.frozen = False
        directory.mkdir()
        super().__init__(directory, *_options(*options), tcp=True)
        with self.client() as client:
            self.id: str = command_on(client, "CLUSTER", "MYID").decode()
        self.bus = int(self._options[self._options.index("--cluster-port") + 1])

    def ask(self, *command: Any) -> Any:
        """Return a reply as it is, not as redis-py reads it."""
        with self.client() as client:
            client.response_callbacks.clear()
            return command_on(client, *command)

    def info(self, section: str) -> dict[str, Any]:
        with self.client() as client:
            return dict(client.info(section))

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.poll() is None and not self.frozen

    def freeze(self) -> None:
        self.frozen = True
        super().freeze()

    def thaw(self) -> None:
        self.frozen = False
        super().thaw()

    def role(self) -> str:
        role: str = self.ask("ROLE")[0].decode()
        return role

    def start(self) -> None:
        """Start, and wait until it answers; it remembers who it is."""
        self.launch()
        wait_until(self._answers, "the node")


def url_of(nodes: Sequence[TestServer]) -> str:
    """Return the URL of a cluster that names these nodes."""
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


class Nodes:
    """Primaries that share all slots, each with so many replicas."""

    def __init__(
        self, directory: Path, *options: str, primaries: int = 3, replicas: int = 1
    ) -> None:
        self.nodes: list[Node] = []
        self._replicas = replicas
        try:
            for number in range(primaries * (1 + replicas)):
                self.nodes.append(Node(directory / str(number), *options))
            self._join(primaries)
        except BaseException:
            self.stop()
            raise

    def _join(self, primaries: int) -> None:
        firsts, others = self.nodes[:primaries], self.nodes[primaries:]
        for number, node in enumerate(firsts):
            first, last = (SLOTS * n // primaries for n in (number, number + 1))
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    node.ask("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus)
        wait_until(lambda: all(self._sees_all(node) for node in self.nodes), "all to meet")
        for number, node in enumerate(others):
            node.ask("CLUSTER", "REPLICATE", firsts[number % primaries].id)
        self.wait_until_whole()

    @property
    def url(self) -> str:
        return url_of(self.nodes)

    def _sees_all(self, node: Node) -> bool:
        known = node.ask("CLUSTER", "NODES")
        return len(known.splitlines()) == len(self.nodes) and b"handshake" not in known

    def heal(self) -> None:
        """Start who was killed, and wait until all is as it was, whoever is primary now."""
        for node in self.nodes:
            node.thaw()
            if not node.alive:
                node.start()
        self.wait_until_whole()

    def elsewhere(self, queue: str) -> Node:
        """Return a primary that does not serve a queue."""
        owner = self.primary_of(queue)
        return next(node for node in self.primaries() if node is not owner)

    def wait_until_whole(self) -> None:
        """Wait until all nodes are there, agree, and every primary has its replica."""
        try:
            wait_until(self._is_whole, "the whole cluster")
        except AssertionError as error:
            views = [node.ask("CLUSTER", "NODES").decode() for node in self.nodes]
            raise AssertionError("\n\n".join([str(error), *views])) from None

    def _is_whole(self) -> bool:
        try:
            views = {str(_owners(node)) for node in self.nodes}
            followed = all(len(owner) >= 3 + self._replicas for owner in _owners(self.nodes[0]))
            return len(views) == 1 and followed and all(map(self._is_well, self.nodes))
        except redis.RedisError:
            return False

    def _is_well(self, node: Node) -> bool:
        if b"cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
            return False
        # One whom it takes for dead may be replaced in a moment, though all are there.
        if any(b"fail" in line.split()[2] for line in node.ask("CLUSTER", "NODES").splitlines()):
            return False
        role, *rest = node.ask("ROLE")
        if role == b"master":
            return len(rest[1]) >= self._replicas
        return bool(rest[2] == b"connected")

    # --------------------------------------------------------------- who serves what

    def primary_of(self, queue: str | int) -> Node:
        """Return who serves a queue, or a slot, as the others see it."""
        slot = queue if isinstance(queue, int) else slot_of(queue)
        for node in self.nodes:
            if node.alive:
                for port, first, last, *_ in _owners(node):
                    if first <= slot <= last:
                        return self.at(port)
        raise AssertionError(f"nobody serves slot {slot}")

    def replica_of(self, queue: str | int) -> Node:
        """Return a replica of who serves a queue."""
        primary, found = self.primary_of(queue), list[Node]()

        def knows_one() -> bool:
            """One that has followed for a moment only is not known to all."""
            for port, _, _, *replicas in _owners(primary):
                if port == primary.port:
                    found.extend(map(self.at, replicas))
            return bool(found)

        wait_until(knows_one, f"a replica of {primary.port}")
        return found[0]

    def slot_beside(self, queue: str) -> int:
        """Return another slot of who serves a queue; those that tests moved may be anywhere."""
        primary = self.primary_of(queue)
        mine = [(first, last) for port, first, last, *_ in _owners(primary) if port == primary.port]
        return next(slot for ends in mine for slot in ends if slot != slot_of(queue))

    def at(self, port: int) -> Node:
        (node,) = (node for node in self.nodes if node.port == port)
        return node

    def primaries(self) -> list[Node]:
        """Return those that serve slots."""
        alive = next(node for node in self.nodes if node.alive)
        return [self.at(port) for port in sorted({port for port, *_ in _owners(alive)})]

    # ------------------------------------------------------------------ changes of hands

    def hand_over(self, queue: str | int) -> None:
        """Let a replica take over in good order."""
        replica = self.replica_of(queue)
        replica.ask("CLUSTER", "FAILOVER")
        wait_until(lambda: self.primary_of(queue) is replica, "the replica to take over")

    def wait_for_another(self, queue: str | int, than: Node) -> Node:
        """Wait until somebody else serves a queue, as one of those who live sees it."""
        wait_until(lambda: self.primary_of(queue) is not than, "a replica to take over")
        return self.primary_of(queue)

    def move(self, queue: str, to: Node, *, between: Any = None) -> None:
        """Move the slot of a queue key by key, as it is done on every version of the servers."""
        slot, source = slot_of(queue), self.primary_of(queue)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
        if between:
            between("begun")
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 3):
            source.ask("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
            if between:
                between("between")
        if between:
            between("all keys are there")
        for node in (to, source, *self.primaries()):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", to.id)
        wait_until(lambda: self.primary_of(queue) is to, "the slot to have moved")

    def move_at_once(self, queue: str, to: Node) -> None:
        """Move the slot of a queue as a whole, as Valkey 9 can."""
        slot, source = slot_of(queue), self.primary_of(queue)
        source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", to.id)
        wait_until(lambda: self.primary_of(queue) is to, "the slot to have moved")

    # -------------------------------------------------------------------------- the end

    def stop(self) -> None:
        for node in self.nodes:
            if node.process.poll() is None:
                node.kill()


def _owners(node: Node) -> list[tuple[int, ...]]:
    """Return who serves what as a node sees it: port, first and last slot, ports of replicas."""
    told = node.ask("CLUSTER", "SLOTS")
    return sorted(
        (served_by[0][1], first, last, *(replica[1] for replica in served_by[1:]))
        for first, last, *served_by in told
    )


def wait_for_replicas(primary: TestServer) -> None:
    """Wait until somebody follows, and all who do have what there is by now."""

    def role() -> Any:
        with primary.client() as client:
            return command_on(client, "ROLE")

    sent = int(role()[1])

    def have_it() -> bool:
        replicas = role()[2]
        return bool(replicas) and all(int(at) >= sent for _, _, at in replicas)

    wait_until(have_it, "the replica")


def existing_keys(node: Node, queue: str) -> list[str]:
    """Return which keys of a queue a node has."""
    there = node.ask("CLUSTER", "GETKEYSINSLOT", slot_of(queue), 100)
    return [name for name, key in zip(NAMES, queue_keys(queue), strict=True) if key in there]


@contextmanager
def closing(*nodes: Any) -> Iterator[None]:
    """Stop all in the end, whatever happens."""
    with ExitStack() as stack:
        for one in nodes:
            stack.callback(one.stop)
        yield


@contextmanager
def as_it_was(node: Node) -> Iterator[str]:
    """What a node that is gone had written down, on a server by itself."""
    with tempfile.TemporaryDirectory(prefix="hf") as directory:
        shutil.copytree(node.directory / "appendonlydir", Path(directory) / "appendonlydir")
        server = TestServer(Path(directory), "--appendonly", "yes")
        with closing(server):
            yield server.url


def refusals(node: Node, word: str) -> int:
    """Return how often a node has answered with this word since its start."""
    stats = node.info("errorstats")
    return int(stats.get(f"errorstat_{word}", {"count": 0})["count"])


def blocked(node: Node) -> int:
    """Return how many listen on a node."""
    return int(node.info("clients")["blocked_clients"])
