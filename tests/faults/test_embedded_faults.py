"""Kill -9 of the embedded server: its users start it again, and nothing acknowledged is lost."""

from __future__ import annotations

import fcntl
import os
import random
import resource
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from faults.play import Cast, kill_and_carry_on, must_be_all_there
from faults.shells import Shell, open_queue
from faults.stored import payloads
from faults.theatre import both_shells
from holdfast import NewJob, Queue, ServerUnavailable
from support import DEADLINE, wait_until


@pytest.fixture(scope="module")
def places() -> Iterator[Path]:
    """Where the embedded servers of all tests are; at the end none is there any more."""
    with tempfile.TemporaryDirectory(prefix="hf") as name:
        yield Path(name)
        for holder in ("keeper", "server"):
            for lock in Path(name).glob(f"*/server/{holder}.lock"):
                wait_until(partial(is_free, lock), f"the end of the {holder}")


@pytest.fixture
def directory(places: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=places))


@pytest.fixture
def url(directory: Path) -> str:
    return f"embedded://{directory / 'server'}"


@pytest.fixture
def cast(directory: Path, url: str) -> Iterator[Cast]:
    with Cast(directory / "logs", url, "killed") as cast:
        yield cast


def is_free(lock: Path) -> bool:
    with lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def connect(directory: Path) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(directory / "server" / "server.sock"))


def server_pid(directory: Path) -> int:
    """Ask the server who it is, so that nobody else is killed in its place."""
    found: list[int] = []

    def answers() -> bool:
        try:
            with connect(directory) as client:
                found.append(client.info("server")["process_id"])
        except redis.RedisError:
            return False
        return True

    wait_until(answers, "the embedded server")
    return found[0]


def kill_server(directory: Path) -> None:
    os.kill(server_pid(directory), signal.SIGKILL)


@both_shells
def test_an_embedded_server_killed_between_two_calls_is_there_for_the_next(
    directory: Path, url: str, shell: Shell
) -> None:
    with open_queue(shell, "killed", url) as queue:
        queue.add_many([NewJob("x", id="x"), NewJob("y", id="y", priority=20)])
        kill_server(directory)
        (x,) = queue.lease_many(1, 600)
        kill_server(directory)
        queue.extend(x, 600)
        kill_server(directory)
        assert queue.complete(x, add=[NewJob("z", id="z")])
        kill_server(directory)
        assert queue.complete(x) is False
        (z,) = queue.lease_many(1, 600)
        kill_server(directory)
        queue.release(z)
        assert [lease.id for lease in queue.lease_many(10, 600)] == ["z", "y"]
        assert queue.audit() == []


@both_shells
def test_a_sleeper_wakes_up_on_the_server_that_took_over(
    directory: Path, url: str, shell: Shell, cast: Cast
) -> None:
    with open_queue(shell, "killed", url) as queue:
        assert queue.lease(600) is None
        kill_server(directory)
        cast.start("producer")
        lease = queue.lease(600, wait=2 * DEADLINE)
        cast.stop()
        assert lease is not None
        assert queue.complete(lease)
        with connect(directory) as client:
            told = cast.told()
            told.completed[lease.id] += 1
            told.must_agree_with(payloads(client, queue))


def test_jobs_added_by_several_processes_survive_the_death_of_their_server(
    directory: Path, url: str, cast: Cast
) -> None:
    for _ in range(3):
        cast.start("producer")
    cast.wait_for_all()
    for _ in range(4):
        cast.wait_for_more(60)
        kill_server(directory)
    cast.wait_for_more(60)
    cast.stop()
    told = cast.told()
    with Queue("killed", url) as queue, connect(directory) as client:
        assert queue.audit() == []
        assert payloads(client, queue) == {id: id.encode() for id in told.added}


def test_the_server_outlives_the_process_that_started_it(
    directory: Path, url: str, cast: Cast
) -> None:
    starter = cast.start("producer")
    cast.wait_for_more(10)
    pid = server_pid(directory)
    cast.start("producer")
    cast.wait_for_all()
    cast.kill(starter)
    cast.wait_for_more(50)
    assert server_pid(directory) == pid
    cast.stop()
    told = cast.told()
    with Queue("killed", url) as queue, connect(directory) as client:
        told.must_agree_with(payloads(client, queue))


def kill_anybody(cast: Cast, directory: Path, url: str, kills: Counter[str], seed: int) -> None:
    kill_and_carry_on(cast, kills, random.Random(seed), lambda: kill_server(directory))
    with Queue("killed", url) as queue:
        queue.counts()  # The server may have stopped with its last user, or been killed.
        with connect(directory) as client:
            must_be_all_there(cast.told(), queue, client)


def test_no_job_is_lost_and_none_ends_twice_with_an_embedded_server_that_is_killed(
    cast: Cast, directory: Path, url: str
) -> None:
    kill_anybody(cast, directory, url, Counter(server=3, producer=1, holder=1), seed=1)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(100, 102))
def test_no_job_is_lost_and_none_ends_twice_in_a_long_series_of_embedded_kills(
    cast: Cast, directory: Path, url: str, seed: int
) -> None:
    kill_anybody(cast, directory, url, Counter(server=30, producer=10, holder=15), seed)


@both_shells
def test_a_full_disk_is_named_with_what_the_server_wrote_as_it_exited(
    shell: Shell, url: str, directory: Path
) -> None:
    if not hasattr(resource, "prlimit"):
        pytest.skip("the file size of another process is limited on Linux only")
    with open_queue(shell, "q", url) as queue:
        queue.add(b"x" * 100_000, id="a")  # Its log is shorter, and has room.
        pid = int((directory / "server/server.lock").read_text().split()[0])
        (file,) = (directory / "server/appendonlydir").glob("*.incr.aof")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (file.stat().st_size + 10,) * 2)
        with (
            open_queue(shell, "q", url, patience=0) as impatient,
            pytest.raises(ServerUnavailable) as raised,
        ):
            impatient.add(b"x", id="b")
        said = str(raised.value)
        assert "which may be full: free space there" in said
        assert "Its log says: " in said
        assert "AOF" in said
        assert str(directory / "server") in said
        assert queue.add(b"x", id="b")  # Another one was started, which has room.
        assert queue.counts().ready == 2
