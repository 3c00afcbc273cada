"""Whatever is done to workers: one run per id, none after success, none lost, none for ever.

HOLDFAST_CHAOS_MINUTES says how long the long form lasts.
"""

from __future__ import annotations

import os
import random

import pytest

from engine_support import own_server
from faults import journal
from faults.aof import KEPT_AS_COMMANDS, transactions
from faults.chaos import Chaos
from faults.chaos_proof import ENOUGH, Proof, runs_of
from faults.chaos_workers import journals
from faults.massacre import Herd
from holdfast import Queue

MINUTES = float(os.environ.get("HOLDFAST_CHAOS_MINUTES", "1"))


def survives(seconds: float, seed: int) -> Proof:
    """Let chaos last for so long, and return the proof that all was as promised."""
    dice = random.Random(seed)
    with own_server(*KEPT_AS_COMMANDS) as server, Queue("chaos", server.url) as queue:
        journals(server.url).mkdir()
        herd = Herd(server.directory, server.url, queue.name, dice, "faults.chaos_workers")
        chaos = Chaos(queue, herd, dice)
        try:
            with herd:
                chaos.run(seconds)
        finally:  # Whatever went wrong, its reason may be in there.
            proof = Proof(queue.name, runs_of(journal.read(journals(server.url))))
            proof.replay(transactions(server.directory))
            proof.must_be_whole(chaos.sent)
            cruelty = f"{herd.killed} killed, {chaos.frozen} frozen, {chaos.retired} retired"
            print(cruelty, proof, *proof.problems[:ENOUGH], herd.said(), sep="\n")
        assert proof.problems == []
        assert herd.said() == ""
        assert queue.audit() == []
    return proof


def test_chaos_breaks_no_promise() -> None:
    proof = survives(seconds=5, seed=1)
    assert proof.done.total() > 100
    assert proof.handled
    assert proof.lapsed


@pytest.mark.slow
@pytest.mark.timeout(300 + 120 * MINUTES)
def test_chaos_breaks_no_promise_for_long() -> None:
    proof = survives(60 * MINUTES, seed=2)
    assert proof.overlaps
