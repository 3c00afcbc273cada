"""Rounds on a real server, with those who need no environment of their own."""

import logging
import time
from collections.abc import Iterator

import pytest
import redis

from bench.crew import Trouble, crew, run
from bench.distance import distance
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


@pytest.mark.parametrize("one", [OURS[0], FLOORS[1]], ids=lambda one: one.name)
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
