"""The fork server: a process without threads that forks and ends the children of a worker.

A worker has threads, and a process with threads should not fork: a lock that another thread holds
would stay locked in the child for ever. So the worker forks once, before it starts threads, and
that process forks the children. It answers one request after another:

    spawn <slot> -> <pid>, and the sockets that connect to the child; or why there is none
    end <pid>    -> how the child ended, once it and all that it started are gone

When the worker is gone, for whatever reason, the fork server ends all children and exits.

A job can harm the fork server. If a job stops it, the worker continues it. If a job kills it, or it
does not answer for long, the worker ends every process with the mark of its jobs (`trees.py`) and
forks a new fork server. If worker and fork server are both gone, the guard ends every process with
the mark.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from holdfast.escaping import logger
from holdfast.worker.executors import trees
from holdfast.worker.executors.messages import Tickets

log = logger(__name__)

TIDY_SECONDS: Final = 1.0
"""How often it reaps dead children, ends orphans and checks for the worker."""
SILENT_SECONDS: Final = 30.0
"""When it does not answer for this long it is replaced."""
LOOK_SECONDS: Final = 1.0
"""How often the worker checks whether an unresponsive fork server is stopped, and the guard checks
for the worker."""
END_SECONDS: Final = 10.0
"""How long to wait for the end of a killed process."""

_SOCKETS: Final = 3
"""Sockets per child: the connection, and the two ends of the ticket queue."""

Live = Callable[[socket.socket, socket.socket, int], None]
"""The function of a child: its arguments are the connection, the ticket socket and the slot."""


@dataclass(frozen=True)
class Spawned:
    """A new child process."""

    pid: int
    generation: int
    """The generation of the fork server that is its parent."""
    connection: socket.socket
    tickets: Tickets


class ForkServer:
    """The worker's side of the fork server."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._lock = threading.Lock()
        self._mark = trees.new_mark()
        self._link: socket.socket | None = None
        self._generation = 0
        self._spawned: set[int] = set()
        self._closed = False
        self.pid = 0
        self._guard = Guard(self._mark) if sys.platform == "linux" else None
        try:
            self._open()
        except OSError:
            self.close()
            raise

    def _open(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        worker = os.getpid()
        try:
            pid = fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            ours.close()
            _run_fork_server(theirs, self._live, worker, self._mark)
        theirs.close()
        self.pid, self._link = pid, ours
        return ours

    def spawn(self, slot: int) -> Spawned:
        """Fork a child and return it. Raise OSError if that is impossible now."""
        with self._lock:
            if self._closed:
                raise OSError("the worker has stopped")
            try:
                return self._spawn(slot)
            except ConnectionError as error:
                self._replace(error)
                return self._spawn(slot)

    def _spawn(self, slot: int) -> Spawned:
        answer, sockets = self._ask(b"spawn %d" % slot)
        if len(sockets) < _SOCKETS:  # No free descriptors here, or an error message.
            for one in sockets:
                one.close()
            raise OSError("too many open files" if answer.isdigit() else answer)
        connection, put, take = sockets
        self._spawned.add(int(answer))
        return Spawned(int(answer), self._generation, connection, Tickets(put, take))

    def end(self, child: Spawned) -> str:
        """End a child and all its descendants. Return how it ended."""
        with self._lock:
            if child.generation == self._generation and not self._closed:
                try:
                    how, _ = self._ask(b"end %d" % child.pid)
                except OSError as error:
                    self._replace(error)
                else:
                    self._spawned.discard(child.pid)
                    return how
        return "the fork server of the worker was killed"

    def _ask(self, question: bytes) -> tuple[str, list[socket.socket]]:
        """Return the answer; raise ConnectionError if the fork server is dead or unresponsive."""
        link = self._link or self._open()
        link.sendall(question)
        deadline = time.monotonic() + SILENT_SECONDS
        while not readable(link, LOOK_SECONDS):
            if time.monotonic() >= deadline:
                raise ConnectionAbortedError(f"it did not answer for {SILENT_SECONDS:g} s")
            if trees.is_stopped(self.pid):
                log.warning("the fork server %d of the worker was stopped: continued it", self.pid)
                with suppress(OSError):
                    os.kill(self.pid, signal.SIGCONT)
        answer, descriptors, _, _ = socket.recv_fds(link, 256, _SOCKETS)
        if not answer:
            raise ConnectionResetError("it was killed")
        return answer.decode(), [socket.socket(fileno=descriptor) for descriptor in descriptors]

    def _replace(self, why: OSError) -> None:
        """End the fork server and all processes of jobs. The next request starts a new one."""
        log.error("the fork server %d of the worker is replaced: %s", self.pid, why)
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        self._end_all()
        self._generation += 1

    def _end_all(self) -> None:
        if self._link:
            self._link.close()
            self._link = None
            reap(self.pid, END_SECONDS + 2)
        trees.end_marked(self._mark, END_SECONDS)
        if sys.platform != "linux":
            for pid in self._spawned:
                trees.end_group(pid)
        self._spawned.clear()

    def close(self) -> None:
        """End the fork server and all children."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._end_all()
                if self._guard:
                    self._guard.close()


def _run_fork_server(link: socket.socket, live: Live, worker: int, mark: trees.Mark) -> NoReturn:
    try:
        trees.lead_tree()
        trees.wear(mark)
        forget_signals()
        # Not SIG_IGN, which child processes would inherit over exec. The worker gets these signals
        # too, and it alone decides.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda *_: None)
        _Process(link, live, worker).serve()
    finally:
        try:
            trees.end_marked(mark, END_SECONDS, spared=os.getpid())
        finally:
            os._exit(0)


class _Process:
    """The loop of the fork server process."""

    def __init__(self, link: socket.socket, live: Live, worker: int) -> None:
        self._link = link
        self._live = live
        self._worker = worker
        self._children: set[int] = set()
        self._ended: dict[int, int] = {}
        self._tidy_at = 0.0

    def serve(self) -> None:
        try:
            # A copy of the worker's socket may outlive the worker, so also check the parent.
            while os.getppid() == self._worker:
                if readable(self._link, TIDY_SECONDS) and not self._answer():
                    break
                if time.monotonic() >= self._tidy_at:
                    self._reap()
                    self._end_orphans()
                    self._tidy_at = time.monotonic() + TIDY_SECONDS
        finally:
            self._end_all()

    def _answer(self) -> bool:
        """Handle one request. Return False if the worker is gone."""
        try:
            asked = self._link.recv(64)
            if not asked:
                return False
            word, number = asked.split()
            if word == b"spawn":
                self._spawn(int(number))
            else:
                self._end(int(number))
        except ConnectionError:
            return False
        return True

    def _spawn(self, slot: int) -> None:
        try:
            with ExitStack() as opened:
                ours, theirs = map(opened.enter_context, socket.socketpair())
                put, take = map(opened.enter_context, socket.socketpair())
                pid = self._fork(slot, theirs, take, unneeded=(ours, put))
                self._children.add(pid)
                # Close it before the worker gets the answer: a job may stop this process, and an
                # open copy here would hide the death of the child from the worker.
                theirs.close()
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
        fork_server = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            for one in (*unneeded, self._link):
                one.close()
            trees.lead_tree()
            trees.die_with(fork_server)
            self._live(theirs, take, slot)
            code = 0
        finally:
            os._exit(code)

    def _end(self, pid: int) -> None:
        self._reap()
        if pid in self._children:
            trees.end_tree(pid)
        deadline = time.monotonic() + END_SECONDS
        # A killed process lives on until the kernel schedules it.
        while (pid in self._children or self._end_orphans()) and time.monotonic() < deadline:
            time.sleep(0.001)
            self._reap()
        self._link.sendall(_describe(self._ended.pop(pid, 0)).encode())

    def _end_all(self) -> None:
        """End all children, and the orphans that are reparented here meanwhile."""
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            self._children.clear()
            if not self._end_orphans():
                break
            self._reap()
            time.sleep(0.001)

    def _reap(self) -> None:
        """Reap dead children, and record their exit codes."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in self._children:
                    self._children.remove(pid)
                    self._ended[pid] = os.waitstatus_to_exitcode(status)

    def _end_orphans(self) -> int:
        """End orphans: descendants of dead children, now reparented here. Return how many."""
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


# ------------------------------------------------------------------------------------ the guard
# A process that briefly outlives its worker, to end processes that jobs left behind. The fork
# server does the same when its worker dies, but a job may have stopped or killed the fork server.
# The guard only watches the worker. Linux only: elsewhere there is no mark (`trees.py`).


class Guard:
    """The worker's side of the guard."""

    def __init__(self, mark: trees.Mark) -> None:
        self._link, link = socket.socketpair()
        worker = os.getpid()
        self.pid = fork()
        if self.pid == 0:
            _be_guard(link, worker, mark)
        link.close()

    def close(self) -> None:
        """Make the guard end remaining processes and exit."""
        with suppress(OSError):
            self._link.send(b".")
        self._link.close()
        reap(self.pid, END_SECONDS)


def fork() -> int:
    """Fork, even if this process has threads: the new process does not have them."""
    with warnings.catch_warnings():
        # The program may have threads; it is responsible for the locks that they hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def reap(pid: int, seconds: float) -> None:
    """Wait until a child process has ended. Kill it after `seconds`."""
    deadline = time.monotonic() + seconds
    killed = False
    with suppress(ChildProcessError):  # Reaped elsewhere: SIGCHLD is ignored, say.
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() >= deadline:
                if killed:
                    return  # The kernel does not end it.
                os.kill(pid, signal.SIGKILL)
                deadline, killed = time.monotonic() + seconds, True
            elif trees.is_stopped(pid):
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.002)


def readable(link: socket.socket, seconds: float) -> bool:
    """Wait until a socket is readable. Not with select, which is limited to 1024 descriptors."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def forget_signals() -> None:
    """Detach from the worker's signal handling, and get SIGCHLD for own children again."""
    signal.set_wakeup_fd(-1)  # An event loop of the worker may have set one.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _be_guard(link: socket.socket, worker: int, mark: trees.Mark) -> NoReturn:
    try:
        os.setsid()
        forget_signals()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        _close_all_but(link.fileno())
        while os.getppid() == worker and not readable(link, LOOK_SECONDS):
            pass
        trees.end_marked(mark, END_SECONDS)
    finally:
        os._exit(0)


def _close_all_but(kept: int) -> None:
    """Close inherited descriptors: the worker's connections, and pipes for its output."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) != kept:
            with suppress(OSError):
                os.close(int(path.name))
