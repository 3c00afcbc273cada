"""Slots move and primaries die while jobs are added and worked off: nothing is lost but the lag.

The short forms run with `make test`, the long ones with `make cluster-faults`.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from cluster.load import ON_WITHIN, Cut, Load, go_through, unexplained
from cluster.nodes import Nodes
from cluster.watched import Watched

LONGER = int(os.environ.get("HOLDFAST_CLUSTER_FAULTS", "5"))
"""How many times as many faults the long forms have."""

MIGRATIONS = 10
FAILOVERS = 5


def names_on_all_nodes(cluster: Nodes, name: str) -> list[str]:
    """Return names of queues, two on each node."""
    found: dict[int, list[str]] = {}
    for number in range(100):
        own = found.setdefault(cluster.primary_of(f"{name}-{number}").port, [])
        if len(own) < 2:
            own.append(f"{name}-{number}")
    names = [one for own in found.values() for one in own]
    assert len(names) == 6
    return names


def report(load: Load, what: str, waits: list[float]) -> None:
    """Say what came of it; shown with -s."""
    print(
        f"\n{what}: {len(waits)}; added {len(load.told.added)}, lost {len(load.missing())}, "
        f"done twice {len(load.doubled())}; went on after {max(waits):.2f} s at most"
    )


def check(load: Load, waits: list[float]) -> None:
    """What holds whatever happened."""
    assert load.told.refused == []
    assert load.failures == 0
    assert load.problems == []
    assert max(waits) < ON_WITHIN


# ---------------------------------------------------------------------------------- slots


def move_slots(cluster: Nodes, name: str, times: int) -> None:
    names = names_on_all_nodes(cluster, name)
    dice = random.Random(name)

    def key_by_key(name: str) -> None:
        cluster.move(name, cluster.elsewhere(name))

    def as_a_whole(name: str) -> None:
        cluster.move_at_once(name, cluster.elsewhere(name))

    with Load(names, cluster.url) as load:
        ways: list[Cut] = [key_by_key, as_a_whole]
        _, waits = go_through(load, [(dice.choice(names), ways[n % 2]) for n in range(times)])
    report(load, "slots moved", waits)
    check(load, waits)
    assert len(load.told.added) > times
    assert load.missing() == {}
    assert load.doubled() == {}


def test_slots_that_move_under_load_lose_nothing(cluster: Nodes, name: str) -> None:
    move_slots(cluster, name, MIGRATIONS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_slots_that_move_again_and_again_lose_nothing(cluster: Nodes, name: str) -> None:
    move_slots(cluster, name, MIGRATIONS * LONGER)


# ------------------------------------------------------------------------------ failovers


def fail_over(cluster: Nodes, name: str, times: int, replicas: int) -> None:
    names = names_on_all_nodes(cluster, name)
    dice = random.Random(name)

    def kill(name: str) -> float:
        primary = cluster.primary_of(name)
        cut = time.monotonic()
        primary.kill()
        cluster.wait_for_another(name, primary)
        cluster.heal()
        return cut

    def freeze(name: str) -> float:
        primary, other = cluster.primary_of(name), cluster.elsewhere(name)
        cut = time.monotonic()
        primary.freeze()
        cluster.wait_for_another(name, primary, asking=other)
        primary.thaw()
        cluster.heal()
        return cut

    def hand_over(name: str) -> None:
        cluster.hand_over(name)
        cluster.heal()

    with Load(names, f"{cluster.url}?replicas={replicas}") as load:
        ways: list[Cut] = [kill, hand_over, freeze]
        faults = [(dice.choice(names), ways[n % 3]) for n in range(times)]
        cuts, waits = go_through(load, faults)
    report(load, f"failovers with replicas={replicas}", waits)
    check(load, waits)
    assert unexplained(load.missing(), cuts) == {}
    assert unexplained(load.doubled(), cuts) == {}
    if replicas:
        assert load.missing() == {}
        assert load.doubled() == {}


def test_failovers_under_load_lose_no_more_than_the_lag(cluster: Nodes, name: str) -> None:
    fail_over(cluster, name, FAILOVERS, replicas=0)


def test_failovers_under_load_lose_nothing_where_a_replica_is_waited_for(
    cluster: Nodes, name: str
) -> None:
    fail_over(cluster, name, 3, replicas=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("replicas", [0, 1])
def test_failovers_again_and_again(cluster: Nodes, name: str, replicas: int) -> None:
    fail_over(cluster, name, FAILOVERS * LONGER, replicas)


# ------------------------------------------------------------------------------- Sentinel


def kill_primaries(watched: Watched, name: str, times: int, replicas: int) -> None:
    def kill(_: str) -> float:
        primary = watched.primary()
        cut = time.monotonic()
        primary.kill()
        watched.wait_for_another(primary)
        watched.heal()
        return cut

    names = [f"{name}-{number}" for number in range(3)]
    with Load(names, f"{watched.url}?replicas={replicas}") as load:
        cuts, waits = go_through(load, [(names[0], kill)] * times)
    report(load, f"failovers by Sentinel with replicas={replicas}", waits)
    check(load, waits)
    assert unexplained(load.missing(), cuts) == {}
    assert unexplained(load.doubled(), cuts) == {}
    if replicas:
        assert load.missing() == {}
        assert load.doubled() == {}


def test_a_primary_that_sentinels_replace_under_load_loses_no_more_than_the_lag(
    watched: Watched, name: str
) -> None:
    kill_primaries(watched, name, 1, replicas=0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("replicas", [0, 1])
def test_primaries_that_sentinels_replace_again_and_again(
    watched: Watched, name: str, replicas: int
) -> None:
    kill_primaries(watched, name, FAILOVERS, replicas)
