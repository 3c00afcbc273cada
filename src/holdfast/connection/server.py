"""Servers for threads: makes calls, and carries out conversations, in the calling thread.

Also the blocking connection on which it does so.
"""

from __future__ import annotations

import inspect
import math
import os
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar, cast

import hiredis

from holdfast.connection import protocol
from holdfast.connection.address import Address, Login, Node, no_credentials, read_password
from holdfast.connection.conversation import (
    PATIENCE_SECONDS,
    Caller,
    Conversations,
    Steps,
    Subscription,
    Tried,
    warn_once,
)
from holdfast.engine.call import Call
from holdfast.escaping import logger

__all__ = ["PATIENCE_SECONDS", "Link", "Sent", "Server"]

T = TypeVar("T")

log = logger(__name__)

CHUNK_BYTES: Final = 65536

KERNEL_TIMEOUTS: Final = sys.platform == "linux" and sys.maxsize > 2**32
"""Whether the kernel keeps the timeouts of sockets. If Python keeps them, each send and receive
begins with a poll. Other platforms have another layout of the option."""

_timeval: Final = struct.Struct("ll").pack


class Link:
    """A connection that sends bytes and reads replies. Its failures are OSErrors."""

    def __init__(
        self,
        address: Address,
        path: str,
        login: Login,
        introduction: protocol.Introduction,
        reply_seconds: float,
        connect_seconds: float,
    ) -> None:
        self.address = address
        self._reply_seconds = reply_seconds
        try:
            self._socket = _open_socket(address, path, connect_seconds)
        except OSError as error:
            raise explained(error, address, connect_seconds) from None
        self._by_kernel = _is_blocking(self._socket)
        self._set_timeout(reply_seconds)
        self._reader = hiredis.Reader()
        self._introduction = introduction
        self._unheard: list[bytes] = []
        """The names that were sent and whose replies have not been read."""
        greeting, must, names = introduction.pack(login, address.db)
        try:
            self.send(greeting)
            for _ in range(must):
                if isinstance(reply := self.read(), hiredis.ReplyError):
                    raise protocol.refusal(reply)
            self._unheard = names
        except OSError as error:
            self.close()
            raise unspoken(error, address) from None
        except BaseException:
            self.close()
            raise

    def ask(self, packed: bytes) -> Any:
        """Send a command and return its reply. An error reply is returned, not raised."""
        self.send(packed)
        return self.read()

    def send(self, packed: bytes) -> None:
        """Send commands without reading their replies. A timeout applies to each chunk."""
        try:
            if len(packed) <= CHUNK_BYTES:
                self._socket.sendall(packed)
                return
            left = memoryview(packed)
            while left:
                left = left[self._socket.send(left) :]
        except BlockingIOError:
            raise TimeoutError("timed out") from None
        except OSError as error:
            raise unspoken(error, self.address) if self._unheard else error from None

    def read(self) -> Any:
        """Return the next reply."""
        if self._unheard and (refused := self.settle()):
            return refused  # No reply follows.
        chunk = b""
        try:
            while (reply := self._reader.gets()) is False:
                chunk = self._socket.recv(CHUNK_BYTES)
                if not chunk:
                    raise ConnectionResetError("the server closed the connection")
                self._reader.feed(chunk)
        except BlockingIOError:
            raise TimeoutError("timed out") from None
        except hiredis.ProtocolError as error:
            return protocol.misread(self.address, chunk, error)
        return reply

    def settle(self) -> hiredis.ReplyError | None:
        """Read the replies to the client names, so that the next reply is that of the call.

        Returns an error reply if the server rejected the connection, else None.
        """
        names, self._unheard = self._unheard, []
        try:
            for name in names:
                if not self._introduction.hear(name, reply := self.read()):
                    refused: hiredis.ReplyError = reply
                    return refused
        except OSError as error:
            raise unspoken(error, self.address) from None
        return None

    def limit(self, seconds: float) -> None:
        """Set the timeout of replies."""
        if seconds != self._reply_seconds:
            self._reply_seconds = seconds
            self._set_timeout(seconds)

    def _set_timeout(self, seconds: float) -> None:
        """Set the timeout of each send and receive.

        If the kernel keeps it, an expired timeout raises BlockingIOError. The timeout starts again
        after a signal whose handler returns.
        """
        if not self._by_kernel:
            self._socket.settimeout(seconds)
            return
        span = _timeval(*divmod(max(math.ceil(seconds * 1_000_000), 1), 1_000_000))  # 0 is none.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)

    def fileno(self) -> int:
        """Return the descriptor to wait for before a read."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close at once. Outstanding replies are lost."""
        self._socket.close()


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
        tried = None
        try:
            if link := self.warm_link(caller, packer.slot, call):
                begun, since = time.time(), time.monotonic()
                try:
                    link.send(packer.pack(call, now, caller.name, caller.number))
                    reply = link.read()
                except OSError as error:
                    reply = error
                except BaseException:
                    caller.drop()
                    raise
                if not isinstance(reply, Exception):
                    return call.read(reply)
                tried = Tried(begun, since, reply)
            return carry_out(self.converse(caller, packer, call, now, tried, wait=call.wait))
        finally:
            self.session.give_caller(caller)

    def send(self, packer: protocol.Packer, call: Call[T], now: bytes = b"") -> Sent[T]:
        """Send a call whose answer is read later, so that the server works meanwhile.

        Retries as `run` does until the call was sent. A call that waits for work is sent behind the
        pop that waits, so that the server carries it out as soon as there is some.
        """
        return Sent(self, packer, call, now)

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
            yield iter(lambda: carry_out(subscription.next()), None)
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
        credentials = self.settings.credentials
        if credentials is None or address.is_sentinel or address.embedded:
            password, file = address.password, address.password_file
            login = address.user, read_password(file) if file else password
        else:
            try:
                said = credentials()
                if inspect.isawaitable(said):
                    said = _wait_for(said)
            except Exception as error:
                raise no_credentials(error) from error
            login = address.login_from(said)
        return Link(address, path, login, self._introduction, reply, connect)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _pause(self, seconds: float) -> None:
        if seconds:
            warn_of_blocking(self.address)
        time.sleep(seconds)


def carry_out(steps: Steps[T]) -> T:
    """Carry out the steps of a conversation until it ends, and return its result.

    If the steps yield a link, as those of a watched call do once, it returns that instead.
    """
    try:
        step = steps.send(None)
        while not isinstance(step, Link):
            try:
                answer = step[0](*step[1:])
            except BaseException as error:  # noqa: BLE001  # The steps handle it.
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        step = done.value
    except BaseException:
        steps.close()
        raise
    found: T = step
    return found


class Sent(Generic[T]):
    """A call that was sent and whose answer has not been read."""

    __slots__ = ("_about", "_begun", "_caller", "_link", "_server", "_steps")

    def __init__(self, server: Server, packer: protocol.Packer, call: Call[T], now: bytes) -> None:
        self._server = server
        self._about = packer, call, now
        self._caller: Caller[Link] | None = server.session.take_caller()
        self._caller.number += 1
        self._steps: Steps[T] | None = None
        """The conversation, which gives the caller back; None while the first try is under way."""
        tried = None
        if link := server.warm_link(self._caller, packer.slot, call):
            self._link, self._begun = link, time.time()
            try:
                link.send(packer.pack(call, now, self._caller.name, self._caller.number))
            except OSError as error:
                tried = Tried(self._begun, None, error)
            except BaseException:
                self.forget()
                raise
            else:
                return
        self._steps = server.converse(
            self._caller, packer, call, now, tried, wait=call.wait, watched=True, give_back=True
        )
        self._link = cast("Link", carry_out(self._steps))  # The steps of a watched call yield it.

    def fileno(self) -> int:
        """Return the descriptor: readable when the answer arrives or the connection is lost."""
        return self._link.fileno()

    def result(self) -> T:
        """Return the answer. If it is lost the call is retried, as by `Server.run`."""
        if self._steps is None:
            assert self._caller
            packer, call, now = self._about
            try:
                reply = self._link.read()
            except OSError as error:
                reply = error
            except BaseException:
                self.forget()
                raise
            caller, self._caller = self._caller, None
            if not isinstance(reply, Exception):
                self._server.session.give_caller(caller)
                return call.read(reply)
            tried = Tried(self._begun, None, reply)
            self._steps = self._server.converse(caller, packer, call, now, tried, give_back=True)
        return carry_out(self._steps)

    def hurry(self) -> None:
        """Do not wait for work any more: `result` asks again, under the same number.

        So it returns what the server has answered meanwhile, or what there is now.
        """
        self._link.close()

    def forget(self) -> None:
        """Ignore the answer."""
        if self._steps is not None:
            self._steps.close()
        elif self._caller is not None:
            self._caller.drop()
            self._server.session.give_caller(self._caller)
            self._caller = None


def _wait_for(said: Awaitable[Any]) -> Any:
    """Run an awaitable in a new event loop, and return its result."""
    import asyncio  # noqa: PLC0415  # Slow to import, and rarely needed.

    async def wait() -> Any:
        return await said

    answer: list[Any] = []
    trouble: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(asyncio.run(wait()))
        except BaseException as error:  # noqa: BLE001  # Raised again below.
            trouble.append(error)

    # In a new thread, since this one may have a running event loop.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]
    return answer[0]


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


# ---------------------------------------------------------------------------- sockets


def explained(error: OSError, address: Address, seconds: float) -> OSError:
    """Return an error that says why a connection failed and what to do."""
    if isinstance(error, socket.gaierror):
        return ConnectionError(
            f"the host name {address.host!r} cannot be resolved ({error.strerror}): correct the "
            "URL, or look at the DNS settings of this machine"
        )
    if not address.tls or isinstance(error, ssl.SSLCertVerificationError):
        return error
    if isinstance(error, TimeoutError):
        return TimeoutError(
            f"no TLS connection within {seconds:.3g} s: is it the right host and port, and does "
            "the port speak TLS? If it does not, begin the URL with redis:// or valkey://"
        )
    if isinstance(error, ssl.SSLError | ConnectionResetError):
        return ConnectionError(
            f"the TLS handshake failed ({error.strerror or error}): does the port speak TLS? If "
            "it does not, begin the URL with redis:// or valkey://"
        )
    return error


def unspoken(error: OSError, address: Address) -> OSError:
    """Return an error for a new connection that was lost before its first reply."""
    if address.tls or not address.host or isinstance(error, TimeoutError):
        return error
    return ConnectionResetError(
        f"{error}. It did not answer at all: does the port speak TLS? Then begin the URL with "
        "rediss:// or valkeys://"
    )


def _is_blocking(opened: socket.socket) -> bool:
    """Make a socket block in the kernel if possible. Return True if it does.

    TLS may need several receives for one reply, and a socket of gevent waits in Python.
    """
    if not KERNEL_TIMEOUTS or isinstance(opened, ssl.SSLSocket):
        return False
    opened.settimeout(None)
    return os.get_blocking(opened.fileno())


def _open_socket(address: Address, path: str, seconds: float) -> socket.socket:
    """Connect to the first address of a host that answers, within `seconds` in total."""
    tls = address.tls_context() if address.tls else None
    until = time.monotonic() + seconds
    trouble: OSError | None = None
    for family, kind, proto, _, place in (
        [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", path)]
        if path
        else _resolve(address.host, address.port, seconds)
    ):
        left = until - time.monotonic()
        if left <= 0:
            break
        opened = socket.socket(family, kind, proto)
        try:
            opened.settimeout(left)
            try:
                opened.connect(place)
                if not path:
                    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            except OSError as error:
                trouble = error
                opened.close()
                continue
            opened.settimeout(max(until - time.monotonic(), 0.001))
            return tls.wrap_socket(opened, server_hostname=address.host) if tls else opened
        except BaseException:
            opened.close()
            raise
    raise trouble or TimeoutError


class _Lookup(threading.Thread):
    """A DNS lookup in a separate thread, since `getaddrinfo` has no timeout."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(daemon=True)
        self._place = host, port
        self.found: list[Any] = []
        self.trouble: OSError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.found = socket.getaddrinfo(*self._place, type=socket.SOCK_STREAM)
        except OSError as error:
            self.trouble = error
        except ValueError as error:  # The name cannot be encoded.
            self.trouble = socket.gaierror(socket.EAI_NONAME, str(error))


_lookups: Final[dict[tuple[str, int], _Lookup]] = {}
"""The last lookup of each name. Equal lookups share one thread, so that threads do not pile up."""


def _resolve(host: str, port: int, seconds: float) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, ValueError):
        pass
    lookup = _lookups.get((host, port))
    if lookup is None or not lookup.is_alive():
        lookup = _lookups[host, port] = _Lookup(host, port)
    lookup.join(seconds)
    if lookup.is_alive():
        raise TimeoutError(f"the host name {host!r} was not resolved within {seconds:.3g} s")
    if lookup.trouble:
        raise socket.gaierror(*lookup.trouble.args)
    return lookup.found
