"""Servers for threads: carries out the steps of conversations in the calling thread."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from holdfast.connection import credentials as logins
from holdfast.connection import protocol
from holdfast.connection.address import Address, Node
from holdfast.connection.conversation import Conversations, Steps, Subscription, warn_once
from holdfast.connection.session import PATIENCE_SECONDS
from holdfast.connection.sockets import Link
from holdfast.engine.call import Call
from holdfast.errors import ServerUnavailable
from holdfast.server.embedded import Embedded

__all__ = ["PATIENCE_SECONDS", "Sent", "Server"]

T = TypeVar("T")

log = logging.getLogger("holdfast")


class Server(Conversations[Link]):
    """A Redis or Valkey server, a cluster, or a primary watched by Sentinels.

    Threads can share it. A forked child gets new connections.

    url           the address of the server; by default HOLDFAST_URL, else the embedded server
    patience      seconds for which a call is retried while the server is away; 15 unless the URL
                  has `?patience=`
    reply_within  seconds after which a connection without a reply counts as lost
    credentials   a function that returns a password, or (user, password), for each new connection
    client_name   the middle of the name in `CLIENT LIST`: `holdfast:<client_name>:<host>:<pid>`;
                                by default the name of the program
    """

    def run(self, packer: protocol.Packer, call: Call[T], now: bytes = b"") -> T:
        """Make a call to the server and return its result.

        Retries for `patience` seconds, then raises `ServerUnavailable`.
        """
        caller = self.session.take_caller()
        caller.number += 1
        try:
            return carry_out(self._converse(caller, packer, call, now, call.wait))
        finally:
            self.session.give_caller(caller)

    def send(self, packer: protocol.Packer, call: Call[T], now: bytes = b"") -> Sent[T]:
        """Send a call whose answer is read later, so that the server works meanwhile.

        Retries as `run` does until the call was sent. Not for calls that wait for work.
        """
        assert not call.wait
        return Sent(self._send(packer, call, now))

    def _send(self, packer: protocol.Packer, call: Call[T], now: bytes) -> Steps[T]:
        caller = self.session.take_caller()
        caller.number += 1
        try:
            return (yield from self._converse(caller, packer, call, now, 0, watched=True))
        finally:
            self.session.give_caller(caller)

    @contextmanager
    def subscribe(
        self, queues: Sequence[protocol.Packer], idle: float
    ) -> Iterator[Iterator[bytes]]:
        """Listen to events of queues until none arrives for `idle` seconds. Reconnects by itself.

        One connection is enough: a cluster forwards published messages to all its nodes.
        """
        subscription = Subscription(self, queues, idle)
        try:
            carry_out(subscription.begin())  # Before the block begins.
            yield _messages(subscription)
        finally:
            subscription.close()

    def queues(self) -> list[str]:
        """Return the names of the queues on this server, or on all primaries of a cluster.

        Scans all keys of the database in small steps, so that other clients are not held up. Queues
        that were never used or were deleted are not listed. A queue whose slot is being migrated
        may be missed.
        """
        return carry_out(self._queues())

    def primaries(self) -> Sequence[Node | None]:
        """Return the servers that hold queues; None stands for a single server."""
        return carry_out(self._primaries())

    def where(self, slot: int) -> Node:
        """Return the node that serves a slot; raise OSError or ServerRefused on failure."""
        return carry_out(self._where(slot))

    def connect(self, slot: int) -> Link:
        """Connect to the server of a slot; raise OSError or ServerRefused on failure."""
        return carry_out(self._connecting(slot))

    def connect_to(self, node: Node | None) -> Link:
        """Connect to a node; None stands for a single server."""
        return carry_out(self._connect_to(node))

    def close(self) -> None:
        """Close idle connections and leave the embedded server. A later call opens new ones."""
        for caller in self.session.take_callers():
            caller.close()
        if self._embedded:
            self._embedded.leave()

    @contextmanager
    def _undone_by(self, undo: Callable[[], object]) -> Iterator[None]:  # noqa: ARG002
        """Run a block. Only `AsyncServer` has to undo it: threads are not cancelled."""
        yield

    # -------------------------------------------------------------------------- steps

    def _open(self, address: Address, path: str, reply: float, connect: float) -> Link:
        login = logins.login(address, self.settings.credentials)
        return Link(address, path, login, self._introduction, reply, connect)

    def _start(self, seconds: float) -> str:
        assert self._embedded
        return embedded_path(self._embedded, seconds)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _pause(self, seconds: float) -> None:
        if seconds:
            warn_of_blocking(self.address)
        time.sleep(seconds)


def carry_out(steps: Steps[T]) -> T:
    """Carry out the steps of a conversation and return its result."""
    try:
        step = steps.send(None)
        while True:
            try:
                answer = step[0](*step[1:])
            except BaseException as error:  # noqa: BLE001  # The steps handle it.
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        found: T = done.value
        return found
    finally:
        steps.close()


class Sent(Generic[T]):
    """A call that was sent and whose answer has not been read."""

    __slots__ = ("_link", "_steps")

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        step = next(steps)
        try:
            while not isinstance(step, Link):
                try:
                    answer = step[0](*step[1:])
                except BaseException as error:  # noqa: BLE001
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except BaseException:
            steps.close()
            raise
        self._link: Link = step

    def fileno(self) -> int:
        """Return the descriptor: readable when the answer arrives or the connection is lost."""
        return self._link.fileno()

    def result(self) -> T:
        """Return the answer. If it is lost the call is retried, as by `Server.run`."""
        return carry_out(self._steps)

    def forget(self) -> None:
        """Ignore the answer."""
        self._steps.close()


def _messages(subscription: Subscription[Link]) -> Iterator[bytes]:
    while (message := carry_out(subscription.next())) is not None:
        yield message


def warn_of_blocking(address: Address) -> None:
    """Warn once if a call blocks an event loop while it waits for the server."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    blocks = "a call of Queue blocks the event loop while the server is away: use AsyncQueue there"
    warn_once(address, [blocks])


def embedded_path(embedded: Embedded, seconds: float) -> str:
    """Start the embedded server unless it is running, and return its socket.

    Raises OSError for a temporary problem, which is retried, else `ServerNotStarted`.
    """
    try:
        return str(embedded.ensure(seconds))
    except ServerUnavailable as error:
        raise ConnectionError(str(error)) from error


@contextmanager
def repeat(seconds: float, act: Callable[[], object], name: str) -> Iterator[None]:
    """Call `act` every `seconds` until the block ends. Exceptions are logged."""
    stop = threading.Event()

    def go_on() -> None:
        while not stop.wait(seconds):
            try:
                act()
            except Exception:
                log.exception("could not %s; trying again", name)

    thread = threading.Thread(target=go_on, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
