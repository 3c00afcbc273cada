"""Kill -9 and frozen processes: nothing that was acknowledged is lost, and nothing ends twice."""

from __future__ import annotations

import random
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from faults.play import Cast, kill_and_carry_on, must_be_all_there
from faults.scenarios import Scenario
from faults.shells import Shell, open_queue
from faults.theatre import Played, Theatre, both_shells, every_call_by_turns, open_theatre
from holdfast import Lease, NewJob, Queue
from proxy import Proxy, cut_reply
from support import TestServer

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hf") as directory:
        yield Path(directory)


@pytest.fixture
def own_server(directory: Path) -> Iterator[TestServer]:
    """A server that writes everything to its disk before it answers."""
    (directory / "server").mkdir()
    server = TestServer(directory / "server", *DURABLE)
    yield server
    server.stop()


@pytest.fixture
def cast(directory: Path, own_server: TestServer) -> Iterator[Cast]:
    with Cast(directory / "logs", own_server.url, "killed") as cast:
        yield cast


# ------------------------------------------------------------------------- everybody


def restart(server: TestServer) -> None:
    server.kill()
    server.start()


def nothing_is_lost(cast: Cast, server: TestServer) -> None:
    with Queue("killed", server.url) as queue, server.client() as client:
        must_be_all_there(cast.told(), queue, client)


def test_no_job_is_lost_and_none_ends_twice_when_anybody_is_killed_at_any_moment(
    cast: Cast, own_server: TestServer
) -> None:
    kills = Counter(server=6, producer=2, holder=2)
    kill_and_carry_on(cast, kills, random.Random(1), lambda: restart(own_server))
    nothing_is_lost(cast, own_server)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(100, 103))
def test_no_job_is_lost_and_none_ends_twice_in_a_long_series_of_kills(
    cast: Cast, own_server: TestServer, seed: int
) -> None:
    kills = Counter(server=40, producer=15, holder=25)
    kill_and_carry_on(cast, kills, random.Random(seed), lambda: restart(own_server))
    nothing_is_lost(cast, own_server)


# ------------------------------------------------------------------------- the server


@pytest.fixture(scope="module")
def killed_server() -> Iterator[TestServer]:
    with tempfile.TemporaryDirectory(prefix="hf") as directory:
        server = TestServer(Path(directory), *DURABLE)
        yield server
        server.stop()


@pytest.fixture(scope="module")
def deadly_proxy(killed_server: TestServer) -> Iterator[Proxy]:
    with Proxy(killed_server.socket) as proxy:
        yield proxy


@pytest.fixture
def deadly_theatre(
    killed_server: TestServer, deadly_proxy: Proxy, shell: Shell, queue_name: str, played: Played
) -> Iterator[Theatre]:
    with open_theatre(killed_server, deadly_proxy, shell, queue_name, played) as theatre:
        yield theatre
        deadly_proxy.plan()
        deadly_proxy.cut_all()


@every_call_by_turns
def test_a_server_killed_right_after_a_call_gives_the_same_answer_when_it_is_back(
    deadly_theatre: Theatre, killed_server: TestServer, scenario: Scenario
) -> None:
    killed = replace(cut_reply(), after=lambda: restart(killed_server))
    deadly_theatre.must_be_the_same(scenario, [killed])


@both_shells
def test_a_server_that_is_gone_for_a_while_is_waited_for(
    own_server: TestServer, shell: Shell
) -> None:
    """The same leases count after the server's death as before, and what is added is added."""
    with open_queue(shell, "killed", own_server.url) as queue:
        queue.add_many([NewJob("x", id="x"), NewJob("y", id="y")])
        held = queue.lease_many(1, 600)
        for n in range(3):
            restart(own_server)
            assert queue.add(n, id=f"job {n}")
        queue.extend(held[0], 600)
        assert queue.complete(held[0])
        rest = queue.lease_many(10, 600)
        assert [lease.id for lease in rest] == ["y", "job 0", "job 1", "job 2"]
        assert {lease.lapses for lease in rest} == {0}
        assert queue.complete_many(rest) == [True] * 4
        assert queue.audit() == []


# ------------------------------------------------------------------------- the holder


def sit(cast: Cast, shell: Shell) -> str:
    """Start a holder that leases three jobs and then does nothing any more."""
    name = cast.start("sitter", shell)
    cast.wait_for_lines(3)
    assert cast.told().leased == ["job 0", "job 1", "job 2"]
    return name


def take_over(queue: Queue) -> list[Lease]:
    """Lease the three jobs when their leases have lapsed."""
    leases: list[Lease] = []
    while len(leases) < 3:
        leases += queue.lease_many(3, 600, wait=20)
    return leases


@pytest.fixture
def queue(own_server: TestServer) -> Iterator[Queue]:
    with Queue("killed", own_server.url) as queue:
        queue.add_many([NewJob(f"job {n}", id=f"job {n}") for n in range(3)])
        yield queue
        assert queue.audit() == []


@both_shells
def test_the_jobs_of_a_holder_that_was_killed_come_back_with_one_lapse(
    cast: Cast, queue: Queue, shell: Shell
) -> None:
    cast.kill(sit(cast, shell))
    leases = take_over(queue)
    assert [lease.id for lease in leases] == ["job 0", "job 1", "job 2"]
    assert [lease.lapses for lease in leases] == [1, 1, 1]
    assert queue.complete_many(leases) == [True] * 3
    assert queue.counts().leased == 0


@pytest.mark.parametrize(("shell", "completed"), [("Queue", True), ("AsyncQueue", False)])
def test_a_holder_that_was_frozen_past_its_lease_has_lost_to_the_next(
    cast: Cast, queue: Queue, shell: Shell, completed: bool
) -> None:
    name = sit(cast, shell)
    cast.process(name).send_signal(signal.SIGSTOP)
    leases = take_over(queue)
    assert [lease.lapses for lease in leases] == [1, 1, 1]
    if completed:
        assert queue.complete_many(leases) == [True] * 3
    thaw(cast, name)
    told = cast.told()
    assert told.lost == ["job 0", "job 0", "job 1", "job 1", "job 2", "job 2"]
    assert told.refused == ["job 0", "job 1", "job 2"]
    assert not told.held
    assert not told.completed
    if not completed:
        assert all(queue.extend_many(leases, 600))
        assert queue.complete_many(leases) == [True] * 3


def test_a_holder_that_was_frozen_may_still_complete_what_nobody_else_was_given(
    cast: Cast, queue: Queue
) -> None:
    name = sit(cast, "Queue")
    cast.process(name).send_signal(signal.SIGSTOP)
    while queue.counts().leased:
        queue.tidy()
    thaw(cast, name)
    told = cast.told()
    assert told.lost == ["job 0", "job 0", "job 1", "job 1", "job 2", "job 2"]
    assert sorted(told.completed) == ["job 0", "job 1", "job 2"]
    assert queue.counts().waiting == 0


def thaw(cast: Cast, name: str) -> None:
    process = cast.process(name)
    process.send_signal(signal.SIGCONT)
    assert process.stdin is not None
    process.stdin.write(b"go on\n")
    process.stdin.flush()
    cast.join(name)
