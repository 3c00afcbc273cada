"""docs/engine.md says what the code says."""

from __future__ import annotations

import re
from inspect import getsource

import msgspec
import pytest
import redis

from conftest import Clock
from docs.pages import DOCS, ROOT, blocks, code_in, rows, section
from engine_support import Behind, take
from holdfast import Queue, codec
from holdfast.engine import keys, library
from holdfast.engine.library import MAX_BYTES, MAX_JOBS
from holdfast.engine.replies import Record
from holdfast.job import Facts

PAGE = DOCS / "engine.md"
ENGINE = library.LUA
LUA = {
    path.relative_to(ENGINE).with_suffix("").as_posix(): path.read_text()
    for path in ENGINE.rglob("*.lua")
}
TRANSITIONS = sorted({function.runs for function in library.FUNCTIONS})


def table(heading: str) -> list[list[str]]:
    return list(rows(section(PAGE, heading)))


def header(name: str) -> str:
    """Return the comment above a transition."""
    text = "".join(LUA.values())
    comment = re.search(rf"((?:^--.*\n)+)function transition\.{name}\(\)", text, re.MULTILINE)
    assert comment, f"{name} has no header"
    return re.sub(r"^-- ?", "", comment[1], flags=re.MULTILINE)


# ------------------------------------------------------------------------------ keys


def test_the_keys_are_those_of_the_code_in_its_order() -> None:
    shown = [(code_in(key)[0], type) for key, type, _ in table("The keys of a queue")]
    named = re.findall(r'^    "(\w+)",  # (\w+)', getsource(keys), re.MULTILINE)
    types = {"zset", "hash", "list"}
    assert shown == [(name, type if type in types else "channel") for name, type in named]
    assert [name for name, _ in shown] == list(keys.NAMES)


# ----------------------------------------------------------------------- transitions


@pytest.mark.parametrize("name", TRANSITIONS)
def test_every_transition_has_a_section_that_shows_its_header(name: str) -> None:
    text = section(PAGE, name)
    expected = header(name)
    assert expected.splitlines()[0].startswith(f"{name}: ")
    assert f"```text\n{expected}```" in text, f"the section {name} must show:\n\n{expected}"


def test_every_section_is_a_transition() -> None:
    headings = re.findall(r"^### (\w+)$", section(PAGE, "The transitions"), re.MULTILINE)
    assert sorted(headings) == TRANSITIONS


def test_every_function_is_shown_with_its_flags() -> None:
    shown = [
        (code_in(function)[0], " ".join(code_in(flags)))
        for function, flags, _ in table("The library")
    ]
    assert sorted(shown) == sorted(
        (function.name, function.flags) for function in library.FUNCTIONS
    )


# ---------------------------------------------------------------------- what is stored


def test_the_facts_are_those_of_the_code_with_their_defaults() -> None:
    shown = {code_in(fact)[0]: default for fact, default, _ in table("Facts")}
    words = {"None": "none", "False": "false"}
    fields = msgspec.structs.fields(Facts)
    defaults = {field.name: str(field.default) for field in fields}
    # The engine's own, and what is said to the group: users are not told.
    defaults |= {"number": "None", "place": "None", "group_limit": "None"}
    assert shown == {name: words.get(default, default) for name, default in defaults.items()}
    kinds = re.search(r"KIND_OF_FACT = \{(.*?)\}", LUA["prelude"], re.DOTALL)
    assert kinds
    assert set(shown) == set(re.findall(r"(\w+) = '", kinds[1]))


def test_a_successor_has_the_fields_of_the_code() -> None:
    made = re.search(
        r"local function update_of.*?return \{(.*?)\n  \}", LUA["shared/adding"], re.DOTALL
    )
    assert made
    shown = {field for row in table("Successors") for field in code_in(row[0])}
    assert shown == set(re.findall(r"(\w+) = ", made[1]))


def test_the_record_of_a_request_has_the_fields_of_the_code(
    queue: Queue, client: redis.Redis
) -> None:
    shown = {field for row in table("Requests and groups") for field in code_in(row[0])}
    assert shown == {field.name for field in msgspec.structs.fields(Record)}
    with queue.request("r", on_failure="fail_fast", limit=1) as request:
        request.add_many([b"x"] * 2)
    queue.add(b"x", group="g", group_limit=1)
    queue.fail(take(queue), error="why")
    for record in Behind(client, queue).records().values():
        assert record.keys() <= shown


def test_a_parked_job_is_named_as_the_page_says(queue: Queue, client: redis.Redis) -> None:
    request = queue.request("ü", limit=0)
    request.open()
    request.add(b"x", priority=90)
    [member] = Behind(client, queue)("ZRANGE", "parked", 0, -1)
    assert member.decode() == "002ü" + "09" + "0" * 10 + "0" * 14 + "ü/0"


def kinds_told() -> set[str]:
    lua = "".join(LUA.values())
    return {
        *re.findall(r"\btell\('(\w+)'", lua),
        *re.findall(r"\{kind = '(\w+)', ids = \{\}\}", lua),  # paused, resumed
        *re.findall(r"\{'(\w+)', 0, \{\}\}", lua),  # deleted
    }


def test_the_counters_are_the_kinds_of_what_happens_to_jobs() -> None:
    shown = {field for row in table("Meta") for field in code_in(row[0])}
    assert kinds_told() - {"added", "paused", "resumed", "deleted"} <= shown


def test_the_kinds_of_events_are_those_of_the_code() -> None:
    told = kinds_told()
    for page, heading in ((PAGE, "Events"), (DOCS / "operating.md", "Events")):
        kinds = re.search(r"[Kk]inds(?:: | are )([^.]*)\.", section(page, heading))
        assert kinds
        assert set(code_in(kinds[1])) == told


def test_what_a_queue_stores_looks_as_the_page_says(queue: Queue, client: redis.Redis) -> None:
    queue.add(b"", id="one", max_lapses=0)
    for _ in range(2):
        queue.add(b"", priority=60)
    queue.release_many(queue.lease_many(2, 30), lapsed="why")
    queue.pause()
    behind = Behind(client, queue)
    meta = {field.decode() for field in behind("HKEYS", "meta")}
    assert meta <= {field for row in table("Meta") for field in code_in(row[0])}
    queue.resume()
    lease = queue.lease(30)
    assert lease is not None
    hold = behind("HGET", "holds", lease.id)
    assert re.fullmatch(rb"[\w-]{12}\.\d+ \d{13} \d+", hold)
    assert int(hold.split()[2]) // 2**46 == 99 - 60
    for call in behind("HVALS", "calls"):
        assert re.match(rb"\d+ \d{13} ", call)
        assert isinstance(msgspec.msgpack.decode(call.split(b" ", 2)[2]), list)


def test_what_was_ever_added_is_what_is_left_of_the_sequence(
    queue: Queue, clock: Clock, client: redis.Redis
) -> None:
    queue.add_many([b""] * 3, priority=9)
    queue.add(b"", id="later", delay=1)
    leases = queue.lease_many(2, 30)
    queue.add(b"", id=leases[0].id, on_conflict="update")  # which becomes a fifth job
    for lease in leases:
        queue.fail(lease, error="why")
    clock.advance(1)
    queue.retry(take(queue), error="why", after=0)
    queue.revive(leases[1].id)
    behind = Behind(client, queue)
    counted = (int(behind("HGET", "meta", f)) for f in ("sequence", "promoted", "requeued"))
    sequence, promoted, requeued = counted
    assert sequence - promoted - requeued == 5


def test_the_scores_of_failed_jobs_are_as_the_page_says(
    queue: Queue, clock: Clock, client: redis.Redis
) -> None:
    behind = Behind(client, queue)
    queue.add(b"", id="a")
    queue.fail(take(queue), error="why")
    assert behind("ZSCORE", "failed", "a") == clock.ms
    lease = queue.lease(30, failed=True)
    assert lease is not None
    clock.advance(1)
    queue.fail(lease, error="handled badly")
    assert behind("ZSCORE", "failed", "a") == 2**52 + clock.ms - 1000
    assert queue.failed()[0].error == "why"


def test_the_directory_looks_as_the_page_says(
    queue: Queue, clock: Clock, client: redis.Redis
) -> None:
    queue.register(alive_for=60, role="mailer")
    until, about = Behind(client, queue)("HGET", "workers", queue.holder).split(b" ", 1)
    assert int(until) == clock.ms + 60_000
    assert msgspec.msgpack.decode(about)["role"] == "mailer"


def test_the_diagram_names_every_state() -> None:
    diagram = blocks(PAGE, "text")[0].code
    for state in ("ready", "delayed", "leased", "parked", "failed", "ended"):
        assert state in diagram


# -------------------------------------------------------------------------- elsewhere


def test_the_refusals_are_those_of_the_code() -> None:
    text = section(PAGE, "Check, then write")
    words = set(re.findall(r"refuse\('([A-Z]+)'", "".join(LUA.values())))
    assert words <= set(code_in(text))


def test_the_bounds_are_those_of_the_code() -> None:
    bounds = dict(table("Bounds"))
    assert bounds["jobs in one call"] == str(MAX_JOBS)
    assert bounds["payloads, or results, in one call"] == f"{MAX_BYTES >> 20} MiB"
    assert str(codec.MAX_NAME_BYTES) in bounds["a queue name, id, token, caller or handler"]


def test_the_files_that_the_page_names_exist() -> None:
    sources = {path.name for path in (ROOT / "src").rglob("*.*")}
    named = {word for word in code_in(PAGE.read_text()) if word.endswith((".py", ".lua"))}
    assert {word.rpartition("/")[2] for word in named} <= sources
