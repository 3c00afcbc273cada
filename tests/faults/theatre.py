"""Plays a call on a good and on a bad connection, and compares what came of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pytest
import redis

from conftest import Clock
from engine_support import load_library
from faults.scenarios import SCENARIOS, Scenario, Stage
from faults.shells import SHELLS, Shell, open_queue
from faults.stored import Stored, claimed, stored
from holdfast import HoldfastError, Lease, Leases, Queue, Receipt
from proxy import DRIP, PASS, Proxy, Step
from support import TestServer

both_shells = pytest.mark.parametrize("shell", SHELLS)
every_call = pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
every_call_by_turns = pytest.mark.parametrize(
    ("scenario", "shell"), list(zip(SCENARIOS, itertools.cycle(SHELLS), strict=False)), ids=str
)
"""Every call on one shell, and half of them on each: for what does not depend on the call."""

FEW = {
    "add",
    "add with a taken id that raises",
    "add_many in two calls",
    "lease",
    "lease that waits for a job",
    "lease that waits for nothing",
    "complete",
    "a whole request",
    "delete",
}
few_calls = pytest.mark.parametrize(
    "scenario", [scenario for scenario in SCENARIOS if scenario.name in FEW], ids=str
)
"""One of every way in which a client asks: one call or several, waiting or not, refused."""

QUICKLY = 0.15
"""Seconds after which an impatient client takes a reply for lost."""

Played: TypeAlias = dict[tuple[Shell, str], tuple[Any, Stored]]
"""Shell and scenario -> what came of it on a good connection."""


@contextmanager
def open_theatre(
    server: TestServer, proxy: Proxy, shell: Shell, name: str, played: Played
) -> Iterator[Theatre]:
    """A theatre on a server that has the library."""
    with server.client() as client:
        load_library(client)
        yield Theatre(server.url, proxy, client, shell, name, played)


@dataclass(frozen=True)
class Theatre:
    """Plays scenarios, each on a fresh queue and on either kind of connection."""

    url: str
    proxy: Proxy
    client: redis.Redis
    shell: Shell
    name: str
    played: Played

    def on_a_good_connection(self, scenario: Scenario) -> tuple[Any, Stored]:
        """Return the answer and what is stored when nothing goes wrong; played once per run."""
        key = self.shell, scenario.name
        if key not in self.played:
            with self.stage(scenario, "good") as stage:
                self.played[key] = self.play(scenario, stage), self.stored(scenario, stage)
        return self.played[key]

    @contextmanager
    def stage(self, scenario: Scenario, which: str, patience: float = 15.0) -> Iterator[Stage]:
        """A queue on which everything is prepared for the call; audited at the end."""
        name, clock, requeue = f"{self.name} {which}", Clock(), scenario.requeue
        with (
            open_queue(
                self.shell, name, self.proxy.url, patience=patience, requeue=requeue, clock=clock
            ) as queue,
            Queue(name, self.url, requeue=requeue, clock=clock) as other,
        ):
            stage = Stage(queue, other, clock)
            scenario.prepare(stage)
            queue.counts()  # Connected: what comes next is the call.
            yield stage
            self.proxy.plan()
            assert queue.audit() == []

    def must_be_the_same(self, scenario: Scenario, steps: list[Step]) -> None:
        """Check that a bad connection changes nothing but the time that a call takes."""
        answer, left = self.on_a_good_connection(scenario)
        with self.stage(scenario, "bad") as stage:
            assert self.play(scenario, stage, *steps) == answer
            assert (
                self.proxy.made == [step.kind for step in steps if step != PASS] * scenario.requests
            )
            assert self.stored(scenario, stage) == left
            assert self.hidden(stage) == 0

    def play(self, scenario: Scenario, stage: Stage, *steps: Step) -> Any:
        """Make the call, doing this to each of its requests, and return what came of it."""
        again = [] if steps == (DRIP,) else [PASS]
        requests = [[*steps, *again] for _ in range(scenario.requests)]
        if scenario.meanwhile:
            play = scenario.meanwhile
            requests[-1][0] = replace(requests[-1][0], during=lambda: play(stage))
        self.proxy.plan(itertools.chain(*requests))
        return self.outcome(scenario, stage)

    def outcome(self, scenario: Scenario, stage: Stage) -> Any:
        """Make the call, and return its answer or its error."""
        try:
            answer = scenario.call(stage)
        except HoldfastError as error:
            return type(error), str(error)
        if isinstance(answer, Lease):
            stage.held.append(answer)
        if isinstance(answer, Leases):
            stage.held.extend(answer)
        return comparable(answer)

    def stored(self, scenario: Scenario, stage: Stage) -> Stored:
        """Return what is stored and has to be the same."""
        found = stored(self.client, stage.queue, stage.other)
        return {name: value for name, value in found.items() if name not in scenario.loose}

    def hidden(self, stage: Stage) -> int:
        """Return how many jobs are leased though nobody on the stage knows of it."""
        known = stage.queue.extend_many([*stage.held, *stage.held_by_other], 30)
        held = sum(map(bool, known)) + claimed(self.client, stage.queue)
        return stage.queue.counts().leased - held


def comparable(answer: Any) -> Any:
    """Return an answer without what is random in it: tokens, and the ids that the client made."""
    match answer:
        case Leases():
            return [comparable(lease) for lease in answer], answer.completed
        case Lease():
            return comparable(answer.id), answer.data, answer.facts
        case Receipt():
            return comparable(answer.id), answer.created, answer.state
        case list():
            return [comparable(item) for item in answer]
        case str():
            return "made" if len(answer) == 20 else answer
    return answer
