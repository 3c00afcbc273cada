"""A call applies wholly or not at all, also when a key that is not ours is in the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conftest import Clock
from engine_support import (
    CHANGES,
    Behind,
    Held,
    populate,
    populate_plainly,
    refused,
    script_of,
)
from holdfast import Queue
from holdfast.engine.calls import SCRIPTS
from holdfast.keys import NAMES

# In a populated queue each of these calls writes to all of these keys.
SETS = {"ready", "delayed", "leased", "failed", "ended"}
HASHES = {"holds", "jobs", "facts", "next", "results"}
BOOKS = {"calls", "meta"}
TOUCHED = {
    "add": {"ready", "delayed", "ended", "wake", *BOOKS, *HASHES} - {"holds"},
    "update": {*SETS, *HASHES, *BOOKS, "wake"} - {"leased", "holds"},
    "lease": {*SETS, *HASHES, *BOOKS, "wake"},
    "lease_failed": {*SETS, *HASHES, *BOOKS, "wake"} - {"next"},
    "complete": {"leased", "ended", "ready", "wake", *HASHES, *BOOKS},
    "retry": {*SETS, *HASHES, *BOOKS, "wake"},
    "fail": {*SETS, *HASHES, *BOOKS, "wake"} - {"delayed"},
    "release": {*SETS, *HASHES, *BOOKS, "wake"} - {"delayed"},
    "release_later": {*SETS, *HASHES, *BOOKS, "wake"},
    "cancel": {*SETS, *HASHES, *BOOKS} - {"leased", "holds", "results"},
    "cancel_matching": {*SETS, *HASHES, *BOOKS} - {"leased", "holds", "results", "next"},
    "revive": {"failed", "ready", "facts", "wake", *BOOKS},
    "set_result": {"results", *BOOKS},
    "fail_worker": {*SETS, *HASHES, *BOOKS, "wake"} - {"delayed"},
    "register": {"workers", *BOOKS},
    "tidy": {*SETS, *HASHES, *BOOKS, "wake"} - {"next"},
    "extend": {"leased", *BOOKS},
}


def test_every_script_that_writes_is_tried_here(queue: Queue, clock: Clock) -> None:
    held = populate(queue, clock)
    tried = {script_of(kind, queue, held) for kind in CHANGES}
    assert tried == {script for script in SCRIPTS if "no-writes" not in script.flags}


@pytest.mark.parametrize("kind", TOUCHED)
def test_the_calls_tried_here_write_to_as_many_keys_as_they_can(
    queue: Queue, clock: Clock, spoiled: Behind, kind: str
) -> None:
    held = populate(queue, clock)
    spoiled("UNLINK", "wake")
    before = spoiled.everything()
    CHANGES[kind](queue, held)
    after = spoiled.everything()
    assert {name for name in NAMES if before.get(name) != after.get(name)} == TOUCHED[kind]
    assert queue.audit() == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("fill", [populate, populate_plainly])
def test_a_key_of_another_type_in_the_way_stops_a_call_before_it_changes_anything(
    queue: Queue,
    clock: Clock,
    spoiled: Behind,
    kind: str,
    name: str,
    fill: Callable[[Queue, Clock], Held],
) -> None:
    held = fill(queue, clock)
    spoiled("UNLINK", "wake")
    spoiled("UNLINK", name)
    spoiled("SET", name, "foreign")
    before = spoiled.everything()
    error = refused(lambda: CHANGES[kind](queue, held))
    if error:
        assert error.word == "WRONGTYPE"
        assert spoiled.everything() == before
    else:
        # Not in the way of this call, or deleted by it.
        assert name not in TOUCHED.get(kind, ()) or fill is populate_plainly
        assert spoiled.everything().get(name) == (None if kind == "delete" else before[name])


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
)


@pytest.mark.grid
@pytest.mark.parametrize("field", META)
@pytest.mark.parametrize("kind", CHANGES)
def test_a_number_that_is_none_stops_a_call_before_it_changes_anything(
    queue: Queue, clock: Clock, spoiled: Behind, kind: str, field: str
) -> None:
    held = populate(queue, clock)
    spoiled("HSET", "meta", field, "garbage")
    before = spoiled.everything()
    if refused(lambda: CHANGES[kind](queue, held)):
        assert spoiled.everything() == before


def test_the_numbers_tried_here_are_those_that_a_queue_keeps(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    held = populate(queue, clock)
    CHANGES["release"](queue, held)
    CHANGES["lease"](queue, held)
    for kind in ("update", "cancel", "revive", "retry", "repair"):
        CHANGES[kind](queue, held)
    clock.advance(60)
    queue.pause()
    assert {field.decode() for field in behind("HKEYS", "meta")} <= set(META)


@pytest.mark.parametrize("kind", CHANGES)
def test_a_populated_queue_is_in_order_after_every_call(
    queue: Queue, clock: Clock, behind: Behind, kind: str
) -> None:
    CHANGES[kind](queue, populate(queue, clock))
    assert queue.audit() == []


@pytest.mark.parametrize("kind", CHANGES)
def test_a_queue_of_plain_jobs_is_in_order_after_every_call(
    queue: Queue, clock: Clock, behind: Behind, kind: str
) -> None:
    CHANGES[kind](queue, populate_plainly(queue, clock))
    assert queue.audit() == []
