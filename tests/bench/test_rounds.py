"""Rounds on a real server, with those who need no environment of their own."""

import logging
import time
from collections.abc import Iterator

import pytest
import redis

from bench.crew import Trouble, crew, run
from bench.distance import distance
from bench.floor import LEAN_KEYS, LeanFloor
from bench.measure import BenchServer, bench_server
from bench.peers.contenders import FLOORS, OURS, Contender
from bench.rounds import LEASE, Rounds

FEW = 0.005


@pytest.fixture(scope="module")
def server() -> Iterator[BenchServer]:
    logging.disable(logging.WARNING)
    with bench_server() as server:
        yield server
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("one", [OURS[0], FLOORS[1], FLOORS[2]], ids=lambda one: one.name)
def test_a_life_is_measured_from_its_adding_to_its_end(server: BenchServer, one: Contender) -> None:
    life = Rounds(server, server.url, FEW).life(one, one.sweep[0])
    assert min(life.added_per_second, life.drained_per_second, life.server_us_per_job) > 0
    assert 100 < life.bytes_per_job < 2000
    assert 1 <= life.trips_per_job < 3


def test_two_processes_work_off_one_queue(server: BenchServer) -> None:
    assert Rounds(server, server.url, FEW).drain(OURS[0], OURS[0].sweep[0], 2) > 0


def test_the_job_of_a_killed_worker_begins_anew_in_another(server: BenchServer) -> None:
    took = Rounds(server, server.url, FEW).recovery(OURS[0], OURS[0].sweep[0], 30)
    assert took > LEASE / 2


def test_who_cannot_do_it_says_why(server: BenchServer) -> None:
    with pytest.raises(Trouble, match="add: KeyError: 'kind'"):
        run(OURS[0], "add", server.url, 10, {})
    with crew(OURS[0], server.url, {"kind": "nosuch", "concurrency": 1}, 1) as hands:
        hands[0].go()
        with pytest.raises(Trouble, match="its worker ended: UnboundLocalError"):
            hands[0].listen(30)


def test_a_server_behind_the_proxy_is_the_same_and_further_away(server: BenchServer) -> None:
    with distance(server.url, 0.02) as url, redis.Redis.from_url(url) as far:
        far.set("near", b"x" * 1_000_000)
        assert server.client.get("near") == far.get("near")
        begun = time.monotonic()
        far.ping()
        assert time.monotonic() - begun >= 0.02


# ------------------------------------------------------------------------ the floor of the design


@pytest.fixture
def lean(server: BenchServer) -> Iterator[LeanFloor]:
    server.clear()
    floor = LeanFloor(server.url)
    yield floor
    floor.close()


def test_the_floor_of_the_design_hands_out_jobs_in_their_order_and_completes_each(
    server: BenchServer, lean: LeanFloor
) -> None:
    lean.add_many([b"one", b"two"])
    lean.add(b"three")
    assert [lean.take(1, 0) for _ in range(4)] == [[b"one"], [b"two"], [b"three"], []]
    left = set(server.client.keys())
    assert left == {b"{floor}:calls", b"{floor}:meta", b"{floor}:wake"}


def test_the_floor_of_the_design_has_leases_that_lapse_and_fences_who_comes_late(
    server: BenchServer, lean: LeanFloor
) -> None:
    lean.add(b"job")
    assert lean.take(1, 0) == [b"job"]
    [id] = server.client.zrange("{floor}:leased", 0, -1)
    assert isinstance(id, bytes)
    server.client.zadd("{floor}:leased", {id: 1})
    other = LeanFloor(server.url)
    assert other.take(1, 0) == [b"job"]
    assert lean.take(1, 0) == []
    assert server.client.hlen("{floor}:jobs") == 1
    assert other.take(1, 0) == []
    assert server.client.hlen("{floor}:jobs") == 0
    other.close()


def test_the_floor_of_the_design_answers_a_repeated_call_the_same(
    server: BenchServer, lean: LeanFloor
) -> None:
    lean.add_many([b"one", b"two"])
    words = (*LEAN_KEYS, b"me", b"1", b"30000", b"", b"")
    first = server.client.fcall("floor_turn", len(LEAN_KEYS), *words)
    assert server.client.fcall("floor_turn", len(LEAN_KEYS), *words) == first
    assert first[1] == b"one"
    assert server.client.zcard("{floor}:leased") == 1
