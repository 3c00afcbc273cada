"""A call applies wholly or not at all, also when a key that is not ours is in the way."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest

from conftest import Clock
from engine_support import (
    CHANGES,
    Behind,
    Fill,
    filled,
    function_of,
    populate,
    populate_plainly,
    populate_with_successors,
    refused,
)
from holdfast import Fenced, Queue, WrongState
from holdfast.engine.keys import NAMES
from holdfast.engine.library import FUNCTIONS

# In a populated queue each of these calls writes to all of these keys.
SETS = {"ready", "delayed", "leased", "failed", "ended"}
HASHES = {"holds", "jobs", "facts", "next", "results"}
BOOKS = {"calls", "meta"}
OF_REQUESTS = {"parked", "turns", "requests", "terms"}
OF_WRITES = {"staged", "staging", "ledger"}
OF_CLAIMS = {"claims", "staging", "ledger"}
ALL = {*SETS, *HASHES, *BOOKS, *OF_REQUESTS, "wake"}
TOUCHED = {
    "add": {"ready", "delayed", "ended", "wake", *BOOKS, *HASHES} - {"holds"},
    "add_grouped": ALL - {"leased", "holds", "failed"},
    "update": ALL - {"leased", "holds"},
    "tick": (ALL | {"staging", "ledger"}) - {"leased", "holds", "failed"},
    "lease": ALL | OF_WRITES | OF_CLAIMS,
    "lease_failed": ALL | OF_WRITES | OF_CLAIMS,
    "complete": ALL - {"delayed", "failed"},
    "complete_by_force": ALL - {"next"},
    "complete_and_add": {*SETS, *HASHES, *BOOKS, "wake"} - {"failed"},
    "complete_and_add_grouped": ALL - {"failed"},
    "retry": ALL,
    "fail": ALL,
    "release": ALL - {"delayed"},
    "release_later": ALL,
    "cancel": ALL - {"leased", "holds"},
    "cancel_matching": ALL - {"leased", "holds", "next"},
    "revive": {"failed", "ready", "facts", "wake", *BOOKS, *OF_REQUESTS},
    "set_result": {"results", *BOOKS},
    "set_result_of_a_part": {"results", "requests", *BOOKS},
    "fail_worker": ALL,
    "register": {"workers", *BOOKS},
    "tidy": ALL | OF_WRITES | OF_CLAIMS,
    "extend": {"leased", *BOOKS},
    "open_request": {"requests", "terms", *BOOKS},
    "add_parts": {"parked", "jobs", "facts", "requests", "wake", *BOOKS},
    "add_first_parts": {"parked", "turns", "jobs", "facts", "requests", "wake", *BOOKS},
    "add_parts_later": {"delayed", "jobs", "facts", "requests", "wake", *BOOKS},
    "seal": {"ready", "jobs", "facts", "requests", "terms", "wake", *BOOKS},
    "stop": {"delayed", "parked", "jobs", "facts", "results", "requests", *BOOKS},
    "stop_at_once": {"jobs", "facts", *OF_REQUESTS, *BOOKS},
    "set_limit": {"turns", "requests", "wake", *BOOKS},
    "set_no_limit": {"turns", "requests", "wake", *BOOKS},
    "hold_up": {"turns", "requests", *BOOKS},
    "set_priority": {"turns", "requests", "wake", *BOOKS},
    "stage": {*OF_WRITES, *BOOKS},
    "adopt": {"staging", "ledger", *BOOKS},
    "adopt_instead": {"staging", "ledger", *BOOKS},
    "commit": {"staging", "ledger", "wake", *BOOKS},
    "commit_nothing": {"staging", "ledger", *BOOKS},
    "publish": (ALL | OF_WRITES) - {"holds", "leased"},
    "abort": {*OF_WRITES, *BOOKS},
    "open_reader": {"staging", "ledger", *BOOKS},
    "claim": ALL | OF_WRITES | OF_CLAIMS,
    "claim_again": {"staging", *BOOKS},
    "renew_claims": {"staging", *BOOKS},
    "settle_claims": (ALL | OF_CLAIMS) - {"ready", "parked", "failed", "results"},
    "return_claim": (ALL | OF_CLAIMS) - {"failed", "ended", "results", "terms"},
}


def test_every_script_that_writes_is_tried_here(queue: Queue, clock: Clock, behind: Behind) -> None:
    held = filled(behind, clock)
    tried = {function_of(kind, queue, held) for kind in CHANGES}
    assert tried == {function for function in FUNCTIONS if function.changes}


@pytest.mark.parametrize("kind", TOUCHED)
def test_the_calls_tried_here_write_to_as_many_keys_as_they_can(
    queue: Queue, clock: Clock, spoiled: Behind, kind: str
) -> None:
    held = filled(spoiled, clock)
    spoiled("UNLINK", "wake")
    before = spoiled.everything()
    CHANGES[kind](queue, held)
    after = spoiled.everything()
    assert {name for name in NAMES if before.get(name) != after.get(name)} == TOUCHED[kind]
    assert queue.audit() == []


@pytest.mark.grid
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("fill", [populate, populate_plainly, populate_with_successors])
def test_a_key_of_another_type_in_the_way_stops_a_call_before_it_changes_anything(
    queue: Queue, clock: Clock, spoiled: Behind, kind: str, fill: Fill
) -> None:
    for name in NAMES:
        held = filled(spoiled, clock, fill)
        spoiled("UNLINK", "wake")
        spoiled("UNLINK", name)
        spoiled("SET", name, "foreign")
        before = spoiled.everything()
        error = refused(partial(CHANGES[kind], queue, held))
        if error:
            assert error.word == "WRONGTYPE", name
            assert spoiled.everything() == before, name
        else:
            # Not in the way of this call, or deleted by it.
            assert name not in TOUCHED.get(kind, ()) or fill is not populate
            left = None if kind == "delete" else before[name]
            assert spoiled.everything().get(name) == left, name


META = (
    "layout",
    "seen",
    "grace",
    "paused",
    "largest",
    "sequence",
    "added",
    "before",
    "leased",
    "completed",
    "released",
    "promoted",
    "reclaimed",
    "failed",
    "pruned",
    "requeued",
    "retried",
    "updated",
    "cancelling",
    "cancelled",
    "revived",
    "result",
    "opened",
    "sealed",
    "changed",
    "ended",
    "forgotten",
    "tick hourly",
    "booked",
    "claimed",
    "settled",
    "staging",
    "tend_at",
    "committed",
    "published",
)


@pytest.mark.grid
@pytest.mark.parametrize("kind", CHANGES)
def test_a_number_that_is_none_stops_a_call_before_it_changes_anything(
    queue: Queue, clock: Clock, spoiled: Behind, kind: str
) -> None:
    for field in META:
        held = filled(spoiled, clock)
        spoiled("HSET", "meta", field, "garbage")
        before = spoiled.everything()
        if refused(partial(CHANGES[kind], queue, held)):
            assert spoiled.everything() == before, field


def test_the_numbers_tried_here_are_those_that_a_queue_keeps(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    held = filled(behind, clock)
    CHANGES["release"](queue, held)
    CHANGES["lease"](queue, held)
    for kind, change in CHANGES.items():
        if kind != "delete":
            with suppress(WrongState, Fenced):  # A request is no longer open, a reader is newer.
                change(queue, held)
    clock.advance(60)
    queue.pause()
    assert {field.decode() for field in behind("HKEYS", "meta")} <= set(META)


@pytest.mark.parametrize("fill", [populate, populate_plainly, populate_with_successors])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_queue_is_in_order_after_every_call(
    queue: Queue, clock: Clock, behind: Behind, kind: str, fill: Fill
) -> None:
    CHANGES[kind](queue, filled(behind, clock, fill))
    assert queue.audit() == []
