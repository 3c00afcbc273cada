"""The server as a thread sees it: connect by URL, run a call, ask again when a reply is lost.

A call goes out under a caller: a random name and a number that counts up. When the
connection breaks, the same call is sent again under the same number, and the engine
answers it as it did before. So a lost reply neither doubles nor hides anything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import hiredis

from holdfast import arguments, wire
from holdfast.address import Address, Node, parse
from holdfast.caller import Caller
from holdfast.embedded import Embedded
from holdfast.engine.call import Call
from holdfast.errors import ServerRefused, ServerUnavailable
from holdfast.incarnation import Incarnation
from holdfast.job import Duration
from holdfast.link import CONNECT_SECONDS, REPLY_SECONDS, Link
from holdfast.topology import FIND_SECONDS, Finding, RoutedTries, topology_of

T = TypeVar("T")

log = logging.getLogger("holdfast")

OTHERS_SECONDS = 3.0
PATIENCE_SECONDS = 15.0


_warned: set[tuple[str, str]] = set()


def warn_once(address: Address, warnings: list[str]) -> None:
    """Warn about a server, once in the life of this process, however many connect to it."""
    for warning in warnings:
        if (said := (str(address), warning)) not in _warned:
            _warned.add(said)
            log.warning("%s: %s", *said)


def embedded_path(embedded: Embedded) -> str:
    """Start the embedded server where it does not run; trouble is an OSError, to be tried again."""
    try:
        return str(embedded.ensure())
    except ServerUnavailable as error:
        raise ConnectionError(str(error)) from error


class Sent(Generic[T]):
    """A call that was sent, and whose answer was not read."""

    __slots__ = ("_asking", "_link")

    def __init__(self, asking: Generator[Link, None, T], link: Link | None = None) -> None:
        self._asking = asking
        self._link = link

    def fileno(self) -> int:
        """Return what becomes readable when the answer comes, or the connection is lost."""
        assert self._link is not None
        return self._link.fileno()

    def result(self) -> T:
        """Return the answer; where it is lost the call is made again, as by `Server.run`."""
        try:
            while True:
                next(self._asking)
        except StopIteration as done:
            answer: T = done.value
            return answer

    def forget(self) -> None:
        """Do without the answer."""
        self._asking.close()


class Server:
    """A Redis or Valkey server, or several that are one.

    Threads share it; a forked child begins anew.

    url           where it is; without one HOLDFAST_URL, else the embedded server
    patience      seconds for which a call is tried again when the connection is lost
    reply_within  seconds after which a connection that does not answer is taken for lost
    """

    def __init__(
        self,
        url: str | Address | None = None,
        *,
        patience: Duration = PATIENCE_SECONDS,
        reply_within: Duration | None = None,
    ) -> None:
        self.address = url if isinstance(url, Address) else parse(url)
        self.incarnation: Incarnation[Caller[Link]] = Incarnation(Caller)
        self._patience = arguments.duration_ms("patience", patience, forever=True) / 1000
        self._embedded = Embedded(self.address.path or None) if self.address.embedded else None
        self._topology = topology_of(self.address)
        self._reply_seconds = arguments.seconds_or_none("reply_within", reply_within)
        if self._topology is not None and self._reply_seconds is None:
            self._reply_seconds = OTHERS_SECONDS  # Somebody else may answer.
        self._copies = wire.pack_copies(self.address.replicas, self._reply_seconds)
        self._unchecked = True
        self._listens = True  # False where this user may not: then it asks from time to time.

    def __repr__(self) -> str:
        return f"Server({str(self.address)!r})"

    def run(self, packer: wire.Packer, call: Call[T], now: bytes = b"") -> T:
        """Carry a call to the server and bring back what it answers.

        Goes on trying for `patience` seconds, then raises `ServerUnavailable`.
        """
        return Sent(self._ask(packer, call, now)).result()

    def send(self, packer: wire.Packer, call: Call[T], now: bytes = b"") -> Sent[T]:
        """Send a call, and let its answer be read later: the server works meanwhile.

        Goes on trying as `run` does, until it could be sent. Not for a call that waits for work.
        """
        assert not call.wait
        asking = self._ask(packer, call, now)
        return Sent(asking, next(asking))

    def _ask(self, packer: wire.Packer, call: Call[T], now: bytes) -> Generator[Link, None, T]:
        """Make a call. Yields once, when it is on its way: the link by which the answer comes."""
        caller = self.incarnation.take_caller()
        caller.number += 1
        packed = packer.pack(call, now, caller.name, caller.number)
        first, wait = b"", call.wait
        if wait and call.listen and self._listens:
            first = packer.pack_wait(wait)
        elif wait:
            time.sleep(wait)
        begun = time.time()
        tries: wire.Tries | None = None
        clean, ahead, copied, told = False, 1, False, False
        if self._copies and call.script.changes:
            packed, copied = packed + self._copies, True
        try:
            while True:
                clean = sent = False
                try:
                    if self._topology is None:
                        link = caller.link or self._open_link(caller)
                    else:
                        link = self._turn(caller, packer.slot, tries)
                    sent = True
                    if first:
                        before, reply = link.ask_both(first, packed, wait, ahead)
                    else:
                        link.send(packed)
                        if not told:
                            told = True
                            yield link
                        before, reply = None, link.read()
                    replicas = link.read() if copied else 0
                    clean = True
                except OSError as error:
                    caller.drop()
                    tries = tries or self._tries(packer.slot, call, begun)
                    pause = tries.after_loss(error, sent=sent, node=caller.node)
                except ServerRefused as error:
                    tries = tries or self._tries(packer.slot, call, begun)
                    pause = tries.after_no_entry(error, caller.node)
                else:
                    if isinstance(reply, hiredis.ReplyError):
                        if wire.word_of(reply) in wire.ELSEWHERE:
                            caller.drop()
                        tries = tries or self._tries(packer.slot, call, begun)
                        pause = tries.after_refusal(before, reply, caller.node)
                    elif copied and not wire.are_enough(replicas, self.address.replicas):
                        tries = tries or self._tries(packer.slot, call, begun)
                        pause = tries.after_few_copies(replicas, self.address.replicas, caller.node)
                    else:
                        if wait and wire.word_of(before) == "NOPERM":
                            self._listens = False
                        return call.read(reply)
                # A wake may have been heard already: ask at once.
                first, ahead, wait = tries.first, tries.ahead, 0
                time.sleep(pause)
        finally:
            if not clean:
                caller.drop()
            self.incarnation.give_caller(caller)

    def _tries(self, slot: int, *about: Any) -> wire.Tries:
        if self._topology is None:
            return wire.Tries(self.address, self._patience, *about)
        return RoutedTries(self._topology, slot, self.address, self._patience, *about)

    @contextmanager
    def subscribe(self, queues: Sequence[wire.Packer], idle: float) -> Iterator[Iterator[bytes]]:
        """Listen to the events of queues until none came for `idle` seconds; reconnects by itself.

        One connection is enough: a cluster carries what is published on one node to all.
        """
        messages = self._messages(queues, idle)
        next(messages)  # Subscribed before the caller goes on.
        try:
            yield messages
        finally:
            messages.close()

    def _messages(self, queues: Sequence[wire.Packer], idle: float) -> Generator[bytes, None, None]:
        slot = queues[0].slot
        listen = wire.pack(b"SUBSCRIBE", *(packer.events for packer in queues))
        quiet_at = time.monotonic() + idle
        tries: wire.Tries | None = None
        begun = False
        while True:
            link = None
            try:
                link = self.connect(slot)
                link.send(listen)
                for _ in queues:
                    if isinstance(reply := link.read(), hiredis.ReplyError):
                        raise wire.refusal(reply)
                tries = None
                if not begun:
                    begun = True
                    yield b""
                    quiet_at = time.monotonic() + idle
                asked = False
                while (left := quiet_at - time.monotonic()) > 0:
                    message = link.read_within(min(left, REPLY_SECONDS))
                    if message is None and asked:
                        raise TimeoutError
                    asked = message is None
                    if asked:
                        link.send(wire.pack(b"PING"))
                    elif isinstance(message, list) and message[0] == b"message":
                        yield message[2]
                        quiet_at = time.monotonic() + idle
                return
            except OSError as error:
                self.forget(slot)
                tries = tries or self._tries(slot)
                time.sleep(tries.after_loss(error, sent=False))
            except ServerRefused as error:
                self.forget(slot)
                tries = tries or self._tries(slot)
                time.sleep(tries.after_no_entry(error))
            finally:
                if link is not None:
                    link.close()

    def queues(self) -> list[str]:
        """Return the names of the queues on this server, or on all primaries of a cluster.

        Walks all keys of the database, some at a time, so that nobody else waits. A queue that
        was never used, or was deleted, has none; one whose slot moves meanwhile may be missed.
        """
        tries: wire.Tries | None = None
        while True:
            try:
                found: set[str] = set()
                for node in self.primaries():
                    found |= self._queues_at(node)
                return sorted(found)
            except OSError as error:
                self.forget(0)
                tries = tries or self._tries(0)
                time.sleep(tries.after_loss(error, sent=False))
            except ServerRefused as error:
                self.forget(0)
                tries = tries or self._tries(0)
                time.sleep(tries.after_no_entry(error))

    def _queues_at(self, node: Node | None) -> set[str]:
        link = self.connect_to(node)
        try:
            position, found = wire.read_scan(link.ask(wire.pack_scan(b"0")))
            while position != b"0":
                position, some = wire.read_scan(link.ask(wire.pack_scan(position)))
                found |= some
            return found
        finally:
            link.close()

    def primaries(self) -> Sequence[Node | None]:
        """Return who has queues; None is the one server that there is."""
        if self._topology is None:
            return [None]
        found = self._topology.primaries()
        if found is None:
            self._find(self._topology.find())
            found = self._topology.primaries()
        if found is None:
            raise ConnectionError("the servers are changing places")
        if not found:
            raise ServerRefused(
                "the cluster does not tell its nodes: this user needs +cluster|slots", "NOPERM"
            )
        return found

    def close(self) -> None:
        """Close idle connections and leave the embedded server. A later call opens new ones."""
        for caller in self.incarnation.take_callers():
            caller.close()
        if self._embedded:
            self._embedded.leave()

    def forget(self, slot: int) -> None:
        """Ask who serves a slot before the next call, as a connection there was of no use."""
        if self._topology is not None:
            self._topology.forget(slot)

    def _turn(self, caller: Caller[Link], slot: int, tries: wire.Tries | None) -> Link:
        """Return a caller's link to the one who serves a slot, or whom it shall ask this time."""
        caller.turn_to((tries and tries.ask_at) or self.where(slot))
        return caller.link or self._open_link(caller)

    def where(self, slot: int) -> Node:
        """Return which of several servers has a slot; trouble is an OSError or a refusal."""
        assert self._topology is not None
        node = self._topology.where(slot)
        if node is None:
            self._find(self._topology.find())
            node = self._topology.where(slot)
        if node is None:
            raise ConnectionError("the servers are changing places")
        return node

    def _find(self, finding: Finding) -> None:
        """Ask whom a topology wants asked."""
        try:
            address, question = next(finding)
            while True:
                try:
                    reply = self._ask_once(address, question)
                except (OSError, ServerRefused) as error:
                    address, question = finding.throw(error)
                else:
                    address, question = finding.send(reply)
        except StopIteration:
            pass

    def _ask_once(self, address: Address, question: bytes) -> Any:
        link = Link(address, "", FIND_SECONDS, FIND_SECONDS)
        try:
            return link.ask(question)
        finally:
            link.close()

    def _open_link(self, caller: Caller[Link]) -> Link:
        caller.link = self.connect_to(caller.node)
        return caller.link

    def connect(self, slot: int) -> Link:
        """Open a connection to who serves a slot; trouble is an OSError or a refusal."""
        return self.connect_to(self.where(slot) if self._topology else None)

    def connect_to(self, node: Node | None) -> Link:
        """Open a connection to one of several servers, or to the one that there is."""
        address = self.address.at(node) if node else self.address
        path = embedded_path(self._embedded) if self._embedded else address.path
        link = Link(address, path, self._reply_seconds, FIND_SECONDS if node else CONNECT_SECONDS)
        try:
            if self._unchecked:
                warnings = wire.check_health(address, link.ask(wire.INFO))
                if self._copies:
                    wire.check_copies(link.ask(wire.NO_COPIES))
                self._unchecked = False
                warn_once(address, warnings)
            if node and self._topology and self._topology.doubts(node):
                link.show_life()
                self._topology.found(node)
        except BaseException:
            link.close()
            raise
        return link
