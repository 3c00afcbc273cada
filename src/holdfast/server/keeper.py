"""Keep the embedded server: start it, wait until no process uses it, stop it.

This is a program of its own that needs only the standard library. So the server is not a child of
the processes that use it, and outlives each of them. The program starts the server if none runs,
leaves a keeper behind if there is none, and returns to its caller at once.

The kernel drops a file lock with its last holder, however the holder ends. So four locks in the
directory always show which processes there are:

    users.lock    held by every user of the server, shared; or by the keeper alone, to stop it
    server.lock   held by the server, which inherits it from this program; contains its pid
    keeper.lock   held by the keeper; contains its pid
    start.lock    held by the one user that may check for server and keeper, and start them
"""

# Without pathlib, which takes longer to import than everything else here.
# ruff: noqa: PTH104, PTH106, PTH108, PTH115, PTH123

import contextlib
import os
import signal
import sys
import time

with contextlib.suppress(ModuleNotFoundError):
    import fcntl  # On Windows this program never runs, but it is imported.

HOME = 3  # The number under which the directory is open when this program begins.
POLL = 0.25
LINGER = 1.0  # A program that starts right after another one finds the server still running.

# Exactly the settings that Holdfast 0.1 wrote: they identify a directory of 0.1. New settings are
# appended in `start`.
#
# The paths are relative, because a server removes its socket by name when it ends. If its directory
# was replaced, an absolute path would be that of the new server's socket.
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
    os.closerange(3, 1 << 16)  # Do not keep files open that the caller left open.
    os.setsid()  # Ctrl-C at the caller's terminal is not meant for us.
    os.umask(0o077)
    start(binary, maxmemory)
    keeper, users, server = map(open_lock, ("keeper.lock", "users.lock", "server.lock"))
    if take(keeper):
        short = read_short()  # Before anyone learns of the keeper, and may delete the directory.
        child = os.fork()
        if child == 0:
            keep(users, server, short)
            # Release it before users.lock: the next user must see that it needs a keeper.
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
    """Replace server.conf. A link in its place is replaced, not followed."""
    fresh = ".server.conf.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.write(file, text.encode("ascii"))
    os.close(file)
    os.rename(fresh, "server.conf")


def keep(users: int, server: int, short: str) -> None:
    """Stop the server when no process has used it for a while.

    Locks are used by open files, not by paths. So this stays correct if the directory is deleted,
    or replaced by another one with a server of its own.
    """
    quiet = 0.0
    while quiet < LINGER:
        fcntl.flock(users, fcntl.LOCK_UN)
        time.sleep(POLL)
        quiet = quiet + POLL if take(users) else 0.0

    # From here on a new user waits for us: it must not meet a server that is stopping.
    if not take(server):
        stop(server)
    remove_short(read_short() or short)


def read_short() -> str:
    """Return the short name of the directory, or "" if it has none."""
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
    """End the server that holds this lock, and wait until it has ended."""
    pid, its_place = os.pread(server, 200, 0).decode().split(maxsplit=1)
    if its_place != place():
        # It is in another container or on another machine; here its pid is another process.
        sys.stderr.write(f"keeper: process {pid} of {its_place} is out of reach and stays\n")
        return
    try:
        os.kill(int(pid), signal.SIGTERM)
    except ProcessLookupError:
        # It is dead, but a child of it that rewrites the file has the lock, too, until it notices.
        sys.stderr.write(f"keeper: waiting for the last child of process {pid}\n")
    fcntl.flock(server, fcntl.LOCK_EX)


def open_lock(name: str) -> int:
    """Open a lock file of the directory; create it if it is missing."""
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def take(lock: int) -> bool:
    """Take a lock if no other process has it; return whether it was taken."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sign(lock: int, pid: int) -> None:
    """Write the pid and place of its holder into a lock file."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{pid} {place()}".encode(), 0)


def place() -> str:
    """Return the boot and the pid namespace, in which a pid is unique, if the system shows them."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot_id:
            return f"{os.readlink('/proc/self/ns/pid')} {boot_id.read().strip()}"
    except OSError:
        return "this machine"


if __name__ == "__main__":
    main(*sys.argv[1:])
