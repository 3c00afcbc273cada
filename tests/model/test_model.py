"""The engine does what the model says, in random histories.

HOLDFAST_MODEL_STEPS says how many steps are run, HOLDFAST_MODEL_SEED which; each is one call, and
after each everything that can be seen is compared.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import cast

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from holdfast.engine import library
from model.booking import GONE, HEARD, MAX_CHUNKS
from model.engine import Wire
from model.histories import Histories
from model.jobs import MAX_HANDLING, MAX_HANDLINGS
from support import TestServer

STEPS = int(os.environ.get("HOLDFAST_MODEL_STEPS", "16000"))
SEED = os.environ.get("HOLDFAST_MODEL_SEED", "0")
"""The same histories each time; `make model` makes new ones."""
PARTS = 4
"""So that no test is so long that the others end before it does."""

RULES_PER_HISTORY = 45
STEPS_PER_HISTORY = 60
"""More or less: some rules first bring about what they need."""


@pytest.fixture
def _a_failure_handler_soon_gives_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Not after a hundred times, which no history would reach. The library has these numbers."""
    monkeypatch.setitem(library.BOUNDS, "MAX_HANDLINGS", MAX_HANDLINGS)
    monkeypatch.setitem(library.BOUNDS, "MAX_HANDLING_MS", MAX_HANDLING)
    monkeypatch.setitem(library.BOUNDS, "MAX_CHUNKS", MAX_CHUNKS)
    monkeypatch.setitem(library.BOUNDS, "SMALL_CHUNKS", 1)
    monkeypatch.setitem(library.BOUNDS, "GONE_MS", GONE)
    monkeypatch.setitem(library.BOUNDS, "HEARD_MS", HEARD)
    _forget_texts()
    yield
    monkeypatch.undo()
    _forget_texts()


def _forget_texts() -> None:
    for text in (library.code, library.prefix, library.library_name, library.library):
        text.cache_clear()
    library.script.cache_clear()
    library.sha.cache_clear()


@pytest.mark.timeout(120 + STEPS // 50)
@pytest.mark.usefixtures("_a_failure_handler_soon_gives_up")
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("requeue", ["rank", "back"])
def test_the_engine_does_what_the_model_says(
    test_server: TestServer, requeue: str, part: int
) -> None:
    with closing(Wire(test_server.socket)) as wire:
        play(wire, requeue, part, STEPS // 2 // PARTS)


@pytest.mark.timeout(120 + STEPS // 50)
@pytest.mark.usefixtures("_a_failure_handler_soon_gives_up")
@pytest.mark.parametrize("requeue", ["rank", "back"])
def test_the_engine_does_so_as_a_script(test_server: TestServer, requeue: str) -> None:
    with closing(Wire(test_server.socket, as_script=True)) as wire:
        play(wire, requeue, PARTS, STEPS // 40)


def play(wire: Wire, requeue: str, part: int, wanted: int) -> None:
    """Play histories of so many steps in all."""
    steps = [0]
    while steps[0] < wanted:
        # Any factory will do, whatever the signature says.
        histories = cast("type[Histories]", partial(Histories, wire, requeue, steps))
        seeded = seed(f"{SEED} {requeue} {part} {steps[0]}")(histories)
        run_state_machine_as_test(seeded, settings=_enough_for(wanted - steps[0]))


def _enough_for(steps: int) -> settings:
    return settings(
        max_examples=min(math.ceil(steps / STEPS_PER_HISTORY), 500),  # as it remembers them all
        stateful_step_count=RULES_PER_HISTORY,
        phases=[Phase.generate, Phase.shrink],
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


@settings(max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_big_request_is_emptied_and_forgotten_call_by_call(
    test_server: TestServer, data: st.DataObject
) -> None:
    with closing(Wire(test_server.socket)) as wire:
        history = Histories(wire, "rank", [0])
        try:
            history.stop_a_big_request(
                parked=data.draw(st.sampled_from([1_001, 700, 0, 1_000, 999])),
                delayed=data.draw(st.sampled_from([0, 1, 400, 1_001])),
                way=data.draw(st.sampled_from(["cancel", "open for too long", "fail"])),
                lease=data.draw(st.booleans()),
                again=data.draw(st.booleans()),
            )
        finally:
            history.teardown()
