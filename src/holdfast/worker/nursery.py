"""A process without threads that forks the children of a worker, and ends them.

A worker has threads, and a process with threads must not fork: a lock that one of them holds
would be held for ever in the child. So the worker forks once, before it has any, and asks that
process for the rest. It answers line by line:

    bear <slot>  -> <pid>, and the connection to the child
    end <pid>    -> how the child ended, once it and all that it started are gone

When the worker is gone, it ends all children, and itself. When it is killed, so are they.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from holdfast.worker import trees

_TIDY_SECONDS: Final = 1.0
_END_SECONDS: Final = 10.0


class Nursery:
    """The worker's side. `live(connection, slot)` is what a child does."""

    def __init__(self, live: Callable[[socket.socket, int], None]) -> None:
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
            _serve(link, self._live, worker, unneeded=self._link)
        link.close()
        self.pid = pid

    def bear(self, slot: int) -> tuple[int, socket.socket]:
        """Return a new child, and the connection to it."""
        with self._lock:
            try:
                return self._bear(slot)
            except OSError:  # It is gone, and with it all children.
                self._reap()
                self._open()
                return self._bear(slot)

    def _bear(self, slot: int) -> tuple[int, socket.socket]:
        self._link.sendall(b"bear %d\n" % slot)
        said, descriptors, _, _ = socket.recv_fds(self._link, 64, 1)
        if not descriptors:
            raise ConnectionResetError
        return int(said), socket.socket(fileno=descriptors[0])

    def end(self, pid: int) -> str:
        """End a child and all that it started; return how it ended."""
        with self._lock:
            try:
                self._link.sendall(b"end %d\n" % pid)
                if said := self._link.recv(256):
                    return said.decode().strip()
            except OSError:
                pass
            return "the process that watched over it died"

    def close(self) -> None:
        """End all children."""
        with self._lock:
            self._link.close()
            self._reap()

    def _reap(self) -> None:
        self._link.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _serve(
    link: socket.socket,
    live: Callable[[socket.socket, int], None],
    worker: int,
    unneeded: socket.socket,
) -> NoReturn:
    """Be the nursery."""
    code = 1
    try:
        unneeded.close()
        trees.lead_tree()
        trees.die_with(worker)
        # Not SIG_IGN, which those that they start would inherit.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, _pass)
        _Home(link, live).keep()
        code = 0
    finally:
        os._exit(code)


def _pass(*_: object) -> None:
    """The worker is told, and it alone decides."""  # noqa: D401


class _Home:
    """Where children are born and buried."""

    def __init__(self, link: socket.socket, live: Callable[[socket.socket, int], None]) -> None:
        self._link = link
        self._live = live
        self._ended: dict[int, int] = {}
        self._children: set[int] = set()

    def keep(self) -> None:
        try:
            while True:
                ready, _, _ = select.select([self._link], [], [], _TIDY_SECONDS)
                if not ready:
                    self._bury()
                elif not (said := self._link.recv(64)):
                    return
                else:
                    word, number = said.split()
                    self._bear(int(number)) if word == b"bear" else self._end(int(number))
        finally:
            for pid in self._children:
                trees.end_tree(pid)

    def _bear(self, slot: int) -> None:
        ours, theirs = socket.socketpair()
        nursery = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ours.close()
                self._link.close()
                trees.lead_tree()
                trees.die_with(nursery)
                self._live(theirs, slot)
                code = 0
            finally:
                os._exit(code)
        self._children.add(pid)
        theirs.close()
        socket.send_fds(self._link, [b"%d" % pid], [ours.fileno()])
        ours.close()

    def _end(self, pid: int) -> None:
        self._bury()
        if pid in self._children:
            trees.end_tree(pid)
        deadline = time.monotonic() + _END_SECONDS
        while pid in self._children and time.monotonic() < deadline:
            self._bury()
            time.sleep(0.001)
        status = self._ended.pop(pid, 0)
        self._link.sendall(_describe(status).encode() + b"\n")

    def _bury(self) -> None:
        """Bury who has died, and end what they left behind: it was given to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._children:
                self._children.remove(pid)
                self._ended[pid] = os.waitstatus_to_exitcode(status)
        for orphan in set(trees.children(os.getpid())) - self._children:
            trees.end_tree(orphan)


def _describe(code: int) -> str:
    if code >= 0:
        return f"its process exited with {code}"
    with suppress(ValueError):
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process was killed by signal {-code}"
