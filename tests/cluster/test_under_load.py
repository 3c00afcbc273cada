"""Slots move and primaries die while jobs are added and worked off: nothing is lost but the lag.

The short forms run with `make test`, the long ones with `make cluster-faults`.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from cluster.load import ON_WITHIN, Cut, Gone, Load, go_through, unexplained
from cluster.nodes import Nodes, as_it_was
from cluster.watched import Watched
from holdfast import Problem, Queue

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


def check(load: Load, gone: Gone, what: str, *, nothing_is_lost: bool) -> None:
    """Say what came of it, shown with -s, and check what holds whatever happened."""
    missing, doubled = load.missing(), load.doubled()
    print(
        f"\n{what}: {len(gone.waits)}; added {len(load.told.added)}, lost {len(missing)}, "
        f"done twice {len(doubled)}; went on after {max(gone.waits):.2f} s at most"
    )
    assert load.told.refused == []
    assert load.failures == 0
    assert load.problems == []
    assert max(gone.waits) < ON_WITHIN
    # Replication is asynchronous: what is lost was acknowledged right before a primary died.
    assert unexplained(missing, gone.cuts) == {}
    assert unexplained(doubled, gone.cuts) == {}
    if nothing_is_lost:
        assert missing == {}
        assert doubled == {}


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
        gone = go_through(load, [(dice.choice(names), ways[n % 2]) for n in range(times)])
    check(load, gone, "slots moved", nothing_is_lost=True)
    assert len(load.told.added) > times


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
    left_behind: list[Problem] = []

    def kill(name: str) -> float:
        primary = cluster.primary_of(name)
        own = [one for one in names if cluster.primary_of(one) is primary]
        primary.kill()
        cut = time.monotonic()
        with as_it_was(primary) as url:  # The other side of the cut.
            for one in own:
                with Queue(one, url) as queue:
                    left_behind.extend(queue.audit())
        cluster.wait_for_another(name, primary)
        return cut

    def freeze(name: str) -> float:
        primary = cluster.primary_of(name)
        primary.freeze()
        cut = time.monotonic()
        cluster.wait_for_another(name, primary)
        return cut

    with Load(names, f"{cluster.url}?replicas={replicas}") as load:
        ways: list[Cut] = [kill, cluster.hand_over, freeze]
        faults = [(dice.choice(names), ways[n % 3]) for n in range(times)]
        gone = go_through(load, faults, cluster.heal, healed=bool(replicas))
    what = f"failovers with replicas={replicas}"
    check(load, gone, what, nothing_is_lost=bool(replicas))
    assert left_behind == []


def test_failovers_under_load_lose_no_more_than_the_lag(cluster: Nodes, name: str) -> None:
    fail_over(cluster, name, FAILOVERS, replicas=0)


def test_failovers_under_load_lose_nothing_where_a_replica_is_waited_for(
    cluster: Nodes, name: str
) -> None:
    fail_over(cluster, name, 2, replicas=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("replicas", [0, 1])
def test_failovers_again_and_again(cluster: Nodes, name: str, replicas: int) -> None:
    fail_over(cluster, name, FAILOVERS * LONGER, replicas)


# ------------------------------------------------------------------------------- Sentinel


def kill_primaries(watched: Watched, name: str, times: int, replicas: int) -> None:
    def kill(_: str) -> float:
        primary = watched.primary()
        primary.kill()
        cut = time.monotonic()
        watched.wait_for_another(primary)
        return cut

    names = [f"{name}-{number}" for number in range(3)]
    with Load(names, f"{watched.url}?replicas={replicas}") as load:
        faults: list[tuple[str, Cut]] = [(names[0], kill)] * times
        gone = go_through(load, faults, watched.heal, healed=bool(replicas))
    what = f"failovers by Sentinel with replicas={replicas}"
    check(load, gone, what, nothing_is_lost=bool(replicas))


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
