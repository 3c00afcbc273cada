"""A process without threads that forks the children of a worker, and ends them.

A worker has threads, and a process with threads should not fork: a lock that one of them holds
would be held for ever in the child. So the worker forks once, before it has any of its own, and
asks that process for the rest. It answers one question after the other:

    bear <slot>  -> <pid>, and the sockets that connect to the child; or why there is none
    end <pid>    -> how the child ended, once it and all that it started are gone

When the worker is gone, whatever it died of, it ends all children and itself. When it is killed
itself the children die with it, and the worker has a new one.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from holdfast.worker import tickets, trees
from holdfast.worker.tickets import Tickets

TIDY_SECONDS: Final = 1.0
"""How often it looks for those that nobody misses, and whether the worker is there."""
END_SECONDS: Final = 10.0
"""How long the end of a process is waited for that the kernel does not let go."""

_SOCKETS: Final = 3
"""That connect to a child: the connection, where tickets are put, and where they are taken."""

Live = Callable[[socket.socket, socket.socket, int], None]
"""What a child does, with the connection to the worker, where its tickets are, and its slot."""


@dataclass(frozen=True)
class Born:
    """A child, as the worker is told of it."""

    pid: int
    connection: socket.socket
    tickets: Tickets


class Nursery:
    """The worker's side."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._lock = threading.Lock()
        self._open()

    def _open(self) -> None:
        self._link, link = socket.socketpair()
        worker = os.getpid()
        with warnings.catch_warnings():
            # Other threads than ours may be there: whoever has some knows what they hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._link.close()
            _be_nursery(link, self._live, worker)
        link.close()
        self.pid = pid

    def bear(self, slot: int) -> Born:
        """Return a new child; OSError when there can be none now."""
        with self._lock:
            try:
                return self._bear(slot)
            except ConnectionError:  # The nursery is gone, and with it all children.
                self._reap()
                self._open()
                return self._bear(slot)

    def _bear(self, slot: int) -> Born:
        self._link.sendall(b"bear %d" % slot)
        said, descriptors, _, _ = socket.recv_fds(self._link, 256, _SOCKETS)
        if not said:
            raise ConnectionResetError
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        if len(sockets) < _SOCKETS:  # It was born, but we cannot have them; or it says why not.
            for one in sockets:
                one.close()
            raise OSError("too many open files" if said.isdigit() else said.decode())
        connection, put, take = sockets
        return Born(int(said), connection, Tickets(put, take))

    def end(self, pid: int) -> str:
        """End a child and all that it started; return how it ended."""
        with self._lock:
            try:
                self._link.sendall(b"end %d" % pid)
                if said := self._link.recv(256):
                    return said.decode()
            except OSError:
                pass
        trees.end_group(pid)
        return "the process that watched over it died"

    def close(self) -> None:
        """End all children."""
        with self._lock:
            self._reap()

    def _reap(self) -> None:
        self._link.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _be_nursery(link: socket.socket, live: Live, worker: int) -> NoReturn:
    try:
        trees.lead_tree()
        # Not SIG_IGN, which those that they start would inherit. The worker is told, and it alone
        # decides.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda *_: None)
        _Home(link, live, worker).keep()
    finally:
        os._exit(0)


class _Home:
    """Where children are born and buried."""

    def __init__(self, link: socket.socket, live: Live, worker: int) -> None:
        self._link = link
        self._live = live
        self._worker = worker
        self._children: set[int] = set()
        self._ended: dict[int, int] = {}
        self._tidy_at = 0.0

    def keep(self) -> None:
        try:
            # A copy of the worker's end of the link may outlive it: then it shows here.
            while os.getppid() == self._worker:
                ready, _, _ = select.select([self._link], [], [], TIDY_SECONDS)
                if ready and not self._answer():
                    break
                if time.monotonic() >= self._tidy_at:
                    self._bury()
                    self._end_orphans()
                    self._tidy_at = time.monotonic() + TIDY_SECONDS
        finally:
            self._end_all()

    def _answer(self) -> bool:
        """Do what the worker asks for; return whether it is there."""
        try:
            asked = self._link.recv(64)
            if not asked:
                return False
            word, number = asked.split()
            if word == b"bear":
                self._bear(int(number))
            else:
                self._end(int(number))
        except ConnectionError:
            return False
        return True

    def _bear(self, slot: int) -> None:
        try:
            with ExitStack() as opened:
                ours, theirs = map(opened.enter_context, socket.socketpair())
                put, take = map(opened.enter_context, tickets.pair())
                pid = self._fork(slot, theirs, take, unneeded=(ours, put))
                self._children.add(pid)
                sent = [one.fileno() for one in (ours, put, take)]
                socket.send_fds(self._link, [b"%d" % pid], sent)
        except ConnectionError:
            raise
        except OSError as error:  # No more processes, descriptors or memory.
            self._link.sendall(f"no process could be started: {error}".encode()[:256])

    def _fork(
        self,
        slot: int,
        theirs: socket.socket,
        take: socket.socket,
        unneeded: Iterable[socket.socket],
    ) -> int:
        nursery = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            for one in (*unneeded, self._link):
                one.close()
            trees.lead_tree()
            trees.die_with(nursery)
            self._live(theirs, take, slot)
            code = 0
        finally:
            os._exit(code)

    def _end(self, pid: int) -> None:
        self._bury()
        if pid in self._children:
            trees.end_tree(pid)
        deadline = time.monotonic() + END_SECONDS
        while pid in self._children and time.monotonic() < deadline:
            time.sleep(0.001)
            self._bury()
        self._end_orphans()
        self._link.sendall(_describe(self._ended.pop(pid, 0)).encode())

    def _end_all(self) -> None:
        """End all, also what is given to us when one of them dies meanwhile."""
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            self._children.clear()
            if not self._end_orphans():
                break
            self._bury()
            time.sleep(0.001)

    def _bury(self) -> None:
        """Take note of who has died."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in self._children:
                    self._children.remove(pid)
                    self._ended[pid] = os.waitstatus_to_exitcode(status)

    def _end_orphans(self) -> int:
        """End what was left behind by those who have died, and given to us; return how many."""
        orphans = set(trees.below(os.getpid(), only_children=True)) - self._children
        for orphan in orphans:
            trees.end_tree(orphan)
        return len(orphans)


def _describe(code: int) -> str:
    if code >= 0:
        return f"its process exited with {code}"
    with suppress(ValueError):
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process was killed by signal {-code}"
