"""Keep the embedded server: start it, wait until nobody uses it, stop it.

Run as a program of its own, with the standard library alone: so the server belongs to none
of the processes that use it, and outlives each of them. It starts the server and stays as
its keeper, each only where none is there yet, and returns to its caller at once.

The kernel drops a file lock with its last holder, however that one ends. So four locks in
the directory always say who is there:

    users.lock    every user of the server, shared; or the keeper, alone, while it stops it
    server.lock   the server, which inherits the lock from here; holds its pid
    keeper.lock   the keeper; holds its pid
    start.lock    the one user who may look whether the two are there, and start them
"""

# Without pathlib, which takes longer to import than all the rest.
# ruff: noqa: PTH104, PTH106, PTH108, PTH115, PTH123

import contextlib
import fcntl
import os
import signal
import sys
import time

HOME = 3  # The number under which the directory is open when this program begins.
POLL = 0.25
LINGER = 1.0  # Scripts that follow each other closely find the server still running.

# The first settings are those that Holdfast 0.1 wrote: it is how a directory of 0.1 is recognised.
# New ones are appended in `start`.
#
# The paths are relative, since a server removes its socket by name when it ends: the one of
# a directory that was replaced would remove its successor's.
CONFIG = """\
port 0
unixsocket server.sock
unixsocketperm 700
dir .
daemonize no
databases 1
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
aof-load-truncated yes
save ""
maxmemory-policy noeviction
shutdown-on-sigterm nosave now force
"""


def main(directory: str, binary: str, maxmemory: str) -> None:  # noqa: ARG001  (shown by ps)
    """Keep the server of a directory until no process uses it."""
    os.fchdir(HOME)  # The directory that was checked: its path may lead elsewhere by now.
    os.closerange(3, 1 << 16)  # Whatever the caller left open is not ours to keep so.
    os.setsid()  # Ctrl-C at the caller's terminal is not meant for us.
    os.umask(0o077)
    start(binary, maxmemory)
    keeper, users, server = map(open_lock, ("keeper.lock", "users.lock", "server.lock"))
    if take(keeper):
        short = read_short()  # Before anyone learns of the keeper, and may delete the directory.
        child = os.fork()
        if child == 0:
            keep(users, server, short)
            # Given back first: whoever gets users.lock next must see that it needs a keeper.
            os.close(keeper)
        else:
            sign(keeper, child)


def start(binary: str, maxmemory: str) -> None:
    """Start the server, unless one runs."""
    lock = open_lock("server.lock")
    if take(lock):
        write_config(f"{CONFIG}maxmemory {maxmemory}\n")
        if os.fork() == 0:
            sign(lock, os.getpid())
            os.set_inheritable(lock, True)
            # Redis 7.2 and Valkey 8 refuse to start in a locale that is not installed.
            environment = {**os.environ, "LC_ALL": "C"}
            os.execve(binary, [binary, "server.conf"], environment)  # noqa: S606  (no shell: good)
    os.close(lock)


def write_config(text: str) -> None:
    """Replace server.conf. Nothing is written through a link in its place."""
    fresh = ".server.conf.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.write(file, text.encode("ascii"))
    os.close(file)
    os.rename(fresh, "server.conf")


def keep(users: int, server: int, short: str) -> None:
    """Stop the server when nobody has used it for a while.

    Everything here goes by open files, none by a path: it stays right when the directory
    is deleted, or replaced by another one with a server of its own.
    """
    quiet = 0.0
    while quiet < LINGER:
        fcntl.flock(users, fcntl.LOCK_UN)
        time.sleep(POLL)
        quiet = quiet + POLL if take(users) else 0.0

    # From here on a new user waits for us: it must find the server gone, not going.
    if not take(server):
        stop(server)
    remove_short(read_short() or short)


def read_short() -> str:
    """Return the short name of the directory, or "" where it needs none."""
    try:
        with open("short-path", encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        return ""


def remove_short(short: str) -> None:
    """Remove the short name of the directory; the next user makes another one."""
    if short:
        with contextlib.suppress(OSError):
            os.unlink(f"{short}/d")
            os.rmdir(short)
        with contextlib.suppress(OSError):
            os.unlink("short-path")


def stop(server: int) -> None:
    """End the server that holds this lock, and wait until it is gone."""
    pid, its_place = os.pread(server, 200, 0).decode().split(maxsplit=1)
    if its_place != place():
        # In another container or on another machine; here its number is another process.
        sys.stderr.write(f"keeper: process {pid} of {its_place} is out of reach and stays\n")
        return
    try:
        os.kill(int(pid), signal.SIGTERM)
    except ProcessLookupError:
        # A child that rewrote the file for it has the lock too, until it notices.
        sys.stderr.write(f"keeper: waiting for the last child of process {pid}\n")
    fcntl.flock(server, fcntl.LOCK_EX)


def open_lock(name: str) -> int:
    """Open a lock file of the directory; it is created if it is missing."""
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def take(lock: int) -> bool:
    """Take a lock if no other process has it; return whether it was taken."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sign(lock: int, pid: int) -> None:
    """Write into a lock who holds it."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{pid} {place()}".encode(), 0)


def place() -> str:
    """Name the place where pids mean what they mean here, as far as the system tells it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot_id:
            return f"{os.readlink('/proc/self/ns/pid')} {boot_id.read().strip()}"
    except OSError:
        return "this machine"


if __name__ == "__main__":
    main(*sys.argv[1:])
