"""Limits hold, places are freed once and requests end once, whoever is killed at whatever moment.

HOLDFAST_MASSACRE_MINUTES says how long the long form kills.
"""

from __future__ import annotations

import os
import random

import pytest

from engine_support import own_server
from faults.aof import KEPT_AS_COMMANDS, transactions
from faults.history import History
from faults.massacre import LIMITS, Herd, Massacre, Plan
from holdfast import Queue

MINUTES = float(os.environ.get("HOLDFAST_MASSACRE_MINUTES", "1"))
KILLS_PER_LIMIT = 25


def survives(plan: Plan, seed: int) -> History:
    """Kill as planned, and return what the server says of it; it has to be as promised."""
    dice = random.Random(seed)
    with own_server(*KEPT_AS_COMMANDS) as server, Queue("massacre", server.url) as queue:
        history = History(queue.name)
        herd = Herd(server.directory, server.url, queue.name, dice)
        try:
            with herd:
                Massacre(queue, herd, dice).run(plan)
        finally:  # Whatever went wrong, its reason may be in there.
            history.replay(transactions(server.directory))
            print(summary(history, herd.killed), *history.problems, sep="\n")
        history.must_be_at_rest()
        assert history.problems == []
        assert herd.killed == sum(plan.kills)
        for status in queue.requests():
            assert status.ended
            assert (status.running, status.settled) == (0, status.total)
            assert history.requests[status.id].parts.total() == status.total
        assert queue.audit() == []
        assert queue.repair() == []
    return history


def summary(history: History, kills: int) -> str:
    parts = sum(seen.parts.total() for seen in history.requests.values())
    return (
        f"{kills} kills, {len(history.requests)} requests, {parts} parts, {history.leases} leases, "
        f"{history.transactions} transactions\n{history.requests['main']}"
    )


def test_a_limit_holds_and_everything_ends_once_while_workers_are_killed() -> None:
    history = survives(Plan(kill_every=1.0, kills=(2, 2, 2, 1, 1), parts=300), seed=1)
    main = history.requests["main"]
    assert tuple(main.limits) == LIMITS
    assert main.most_leased == {limit: limit for limit in LIMITS}
    assert main.parts["done"] >= 300


@pytest.mark.slow
@pytest.mark.timeout(600 + 180 * MINUTES)
def test_a_limit_holds_and_everything_ends_once_in_a_long_massacre() -> None:
    limits = max(len(LIMITS), round(MINUTES * 60 / 0.2 / KILLS_PER_LIMIT))
    survives(Plan(kill_every=0.2, kills=(KILLS_PER_LIMIT,) * limits, parts=1000), seed=2)


def test_no_worker_is_left_when_a_massacre_breaks_off() -> None:
    with (
        own_server() as server,
        Herd(server.directory, server.url, "massacre", random.Random(3)) as herd,
    ):
        for _ in range(3):
            herd.fork()
        herd.kill_one()
        assert list(map(is_there, herd.pids)) == [True] * 3
    assert not any(map(is_there, herd.pids))


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
