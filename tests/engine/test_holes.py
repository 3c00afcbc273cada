"""What no other test looked at: each of these catches a mutant that no other catches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import redis

from conftest import Clock
from engine_support import Behind, command_calls, ids, pack, take
from holdfast import NewJob, Queue
from holdfast.engine import calls, request_calls
from holdfast.engine.call import Call, Entry
from holdfast.engine.keys import NAMES

MIB = 1024 * 1024
LATEST = 2**53 - 1
RANKS = 2**46


def entry(
    id: str, *, fresh: bool = False, priority: int = 50, due: bytes = b"", options: bytes = b""
) -> Entry:
    return Entry(id, b"x", fresh, priority, due, options)


# ------------------------------------------------------------------------------ bounds

THE_MOST: dict[str, Callable[[], Call[Any]]] = {
    "a lease for ever": lambda: calls.lease("a.1", LATEST, 1),
    "a thousand leases": lambda: calls.lease("a.1", 1, 1000),
    "an extension for ever": lambda: calls.extend([("a", "a.1", None)], LATEST),
    "a release for ever": lambda: calls.release([("a", "a.1", None)], after_ms=LATEST),
    "a thousand tokens": lambda: calls.extend(
        [(str(n), f"nobody.{n}", None) for n in range(1000)], 1
    ),
    "a thousand settles of one token": lambda: calls.extend(
        [(str(n), "nobody.1", None) for n in range(1000)], 1
    ),
    "a thousand results": lambda: calls.complete([(str(n), "nobody.1", b"x") for n in range(1000)]),
    "a result of 8 MiB": lambda: calls.complete([("a", "a.1", b"x" * 8 * MIB)]),
    "a result of 8 MiB for later": lambda: calls.set_result("a", b"x" * 8 * MIB),
    "a worker with much to tell": lambda: calls.register("a", 1, b"x" * 4096),
    "a thousand jobs": lambda: calls.add([entry(str(n), priority=n % 2) for n in range(1000)]),
    "the highest priority": lambda: calls.add([entry("a", priority=99)]),
    "due at the end of time": lambda: calls.add([entry("a", due=b"%d" % LATEST)]),
    "due in as long as there is": lambda: calls.add([entry("a", due=b"+%d" % LATEST)]),
    "an audit of a thousand": lambda: calls.audit(count=1000),
    "an audit from the last place": lambda: calls.audit((7, LATEST)),
    "a request with the longest name": lambda: request_calls.open_request("r" * 480, priority=99),
    "a request with the highest limit": lambda: request_calls.open_request("r", limit=LATEST),
    "a request that is kept for ever": lambda: request_calls.open_request("r", keep_for_ms=LATEST),
    "a request that is open for ever": lambda: request_calls.open_request("r", open_for_ms=LATEST),
    "a thousand parts": lambda: request_calls.add_parts("r", LATEST, [b"x"] * 1000),
    "the highest limit": lambda: request_calls.change_request("r", limit=b"%d" % LATEST),
    "a thousand requests": lambda: request_calls.some_requests(LATEST, 1000),
    "a look at a thousand parts": lambda: request_calls.parts("r", LATEST, 1000),
    "a thousand requests counted": lambda: request_calls.recount(
        b"", {str(n): (LATEST,) * 7 for n in range(1000)}
    ),
}


@pytest.mark.parametrize("what", THE_MOST)
def test_a_script_takes_the_most_that_it_says(queue: Queue, behind: Behind, what: str) -> None:
    behind.ask(THE_MOST[what](), "caller", 1)


def test_the_last_call_of_all_is_answered(queue: Queue, spoiled: Behind) -> None:
    spoiled.ask(calls.pause(), "c" * 512, LATEST, LATEST)
    assert spoiled("HGET", "meta", "seen") == b"%d" % LATEST


TOO_MUCH: dict[str, Callable[[], Call[Any]]] = {
    "settles of a few tokens": lambda: calls.extend(
        [(str(n), f"nobody.{n // 600}", None) for n in range(1001)], 1
    ),
    "results": lambda: calls.complete(
        [("a", "a.1", b"x" * 4 * MIB), ("b", "a.1", b"x" * (4 * MIB + 1))]
    ),
    "an extension by nothing": lambda: calls.extend([("a", "a.1", None)], 0),
    "a holder that nobody can have": lambda: calls.recall(holder="x" * 513),
    "an audit of nothing": lambda: calls.audit(count=0),
    "an audit before the first set": lambda: calls.audit((0, 0)),
    "an audit after the last set": lambda: calls.audit((9, 0)),
    "a repair after the last hash": lambda: calls.repair((19, b"")),
    "a search after the last set": lambda: calls.cancel_matching(b"", place=(7, 0)),
    "a request whose parts have no name": lambda: request_calls.open_request("r" * 481),
    "a request with the name of a follow-up": lambda: request_calls.open_request("r/end"),
    "a request that is open for no time": lambda: request_calls.open_request("r", open_for_ms=0),
    "a follow-up": lambda: request_calls.open_request(
        "r", follow_up=Entry("-", b"x" * (8 * MIB // 1000 + 1), True, 50, b"", b"")
    ),
    "parts": lambda: request_calls.add_parts("r", 0, [b"x"] * 1001),
    "no parts": lambda: request_calls.add_parts("r", 0, []),
    "bytes of parts": lambda: request_calls.add_parts(
        "r", 0, [b"x" * 4 * MIB, b"x" * (4 * MIB + 1)]
    ),
    "requests": lambda: request_calls.some_requests(0, 1001),
    "no requests": lambda: request_calls.some_requests(0, 0),
    "a look at parts": lambda: request_calls.parts("r", 0, 1001),
    "a look at no parts": lambda: request_calls.parts("r", 0, 0),
    "requests counted": lambda: request_calls.recount(b"", {str(n): (1,) * 7 for n in range(1001)}),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_script_takes_no_more_and_no_less_than_it_says(
    queue: Queue, behind: Behind, what: str
) -> None:
    with pytest.raises(redis.ResponseError, match=r"^INVALID "):
        behind.ask(TOO_MUCH[what](), "caller", 1)
    assert behind.everything() == {}


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_ms": 0},
        {"max_failures": -1},
        {"max_lapses": -1},
        {"min_backoff_ms": 0},
        {"max_backoff_ms": 0},
        {"result_for_ms": 0},
        {"remember_for_ms": 0},
        {"max_lapses": LATEST},
        {"handler": "x"},
        {"handler": "x" * 512},
        {"keep": False},
        {"group": "x"},
        {"group": "x" * 512},
    ],
    ids="-".join,
)
def test_a_script_takes_the_least_and_the_most_of_every_option(
    queue: Queue, behind: Behind, options: dict[str, object]
) -> None:
    grouped = "group" in options
    jobs = [msgspec.structs.replace(entry("a", options=pack(**options)), grouped=grouped)]
    [receipt] = behind.ask(calls.add(jobs), "caller", 1)
    assert receipt.created
    assert behind.facts("a") == options | ({"number": 1} if grouped else {})


# ------------------------------------------------------------------- foreign keys in the way

LEASED = [("a", "a.1", b"result")]
CHANGES: dict[str, Callable[[], Call[Any]]] = {
    "add one": lambda: calls.add([entry("b")]),
    "add one of our own": lambda: calls.add([entry("b", fresh=True)]),
    "add one for later": lambda: calls.add([entry("b", due=b"+5000")]),
    "add one of our own for later": lambda: calls.add([entry("b", fresh=True, due=b"+5000")]),
    "add one with facts": lambda: calls.add([entry("b", fresh=True, options=pack(handler="x"))]),
    "add after": lambda: calls.complete(LEASED, add=[entry("b")]),
    "lease": lambda: calls.lease("a.2", 1000, 1),
    "lease and complete": lambda: calls.lease("a.2", 1000, 1, complete=LEASED),
    "complete": lambda: calls.complete(LEASED),
    "complete by force": lambda: calls.complete(LEASED, force=True),
    "release": lambda: calls.release(LEASED),
    "release for later": lambda: calls.release(LEASED, after_ms=5000),
    "release a lapsed one": lambda: calls.release(LEASED, lapsed=b"crashed"),
    "extend": lambda: calls.extend(LEASED, 1000),
    "tidy": lambda: calls.tidy(force=True),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_foreign_key_stops_a_call_that_moves_one_job_before_it_changes_anything(
    queue: Queue, clock: Clock, spoiled: Behind, kind: str
) -> None:
    queue.pause()
    for name in NAMES:
        spoiled.client.unlink(*spoiled.keys.values())
        options = pack(result_for_ms=60_000, max_lapses=0)
        spoiled.ask(calls.add([entry("a", options=options), entry("z")]), "caller", 1, clock.ms)
        spoiled.ask(calls.lease("a.1", 60_000, 1), "caller", 2, clock.ms)
        spoiled("UNLINK", "wake")
        spoiled("UNLINK", name)
        spoiled("SET", name, "foreign")
        before = spoiled.everything()
        try:
            spoiled.ask(CHANGES[kind](), "caller", 3, clock.ms)
        except redis.ResponseError as error:
            assert str(error).startswith("WRONGTYPE"), name  # noqa: PT017
            assert spoiled.everything() == before, name


PLAIN: dict[str, Callable[[], Call[Any]]] = {
    "lease": lambda: calls.lease("a.2", 1000, 1),
    "lease failed": lambda: calls.lease("a.2", 1000, 1, failed=True),
    "lease and complete": lambda: calls.lease("a.2", 1000, 1, complete=[("a", "a.1", None)]),
    "lease and complete in vain": lambda: calls.lease(
        "a.2", 1000, 1, complete=[("a", "b.1", None)]
    ),
    "complete": lambda: calls.complete([("a", "a.1", None)]),
    "complete by force": lambda: calls.complete([("a", "a.1", None)], force=True),
    "release": lambda: calls.release([("a", "a.1", None)]),
    "tidy": lambda: calls.tidy(force=True),
}


@pytest.mark.parametrize("lapsed", [False, True])
@pytest.mark.parametrize("kind", PLAIN)
def test_a_foreign_key_beside_jobs_without_facts_stops_a_call_before_it_changes_anything(
    queue: Queue, clock: Clock, spoiled: Behind, kind: str, lapsed: bool
) -> None:
    for name in NAMES:
        spoiled.client.unlink(*spoiled.keys.values())
        spoiled.ask(calls.add([entry("a"), entry("z")]), "caller", 1, clock.ms)
        spoiled.ask(calls.lease("a.1", 1000, 1), "caller", 2, clock.ms)
        spoiled("UNLINK", "wake")
        spoiled("UNLINK", name)
        spoiled("SET", name, "foreign")
        before = spoiled.everything()
        now = clock.ms + (1000 if lapsed else 1)
        try:
            spoiled.ask(PLAIN[kind](), "caller", 3, now)
        except redis.ResponseError as error:
            assert str(error).startswith("WRONGTYPE"), name  # noqa: PT017
            assert spoiled.everything() == before, name


COMMANDS: dict[str, tuple[int, Callable[[], Call[Any]]]] = {
    "add": (9, lambda: calls.add([entry("new", fresh=True)])),
    "lease": (14, lambda: calls.lease("a.2", 30_000, 1)),
    "complete": (12, lambda: calls.complete([("a", "a.1", None)])),
    "lease and complete": (
        19,
        lambda: calls.lease("a.2", 30_000, 1, complete=[("a", "a.1", None)]),
    ),
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_call_that_moves_one_plain_job_runs_no_more_commands_than_it_needs(
    queue: Queue, clock: Clock, behind: Behind, kind: str
) -> None:
    """While a wake waits, and the sets were looked at in the same second."""
    queue.add_many(NewJob(b"payload", id=id) for id in "abc")
    behind.ask(calls.lease("a.1", 30_000, 1), "caller", 1, clock.ms)
    most, call = COMMANDS[kind]
    before = _commands(behind.client)
    behind.ask(call(), "caller", 2, clock.ms)
    after = _commands(behind.client)
    assert after - before == most + 1  # And the call itself.


def _commands(client: redis.Redis) -> int:
    """Return how many commands the server has run, but for those of connections."""
    stats = client.info("commandstats")
    others = ("cmdstat_info", "cmdstat_ping", "cmdstat_client", "cmdstat_hello", "cmdstat_auth")
    return sum(stat["calls"] for name, stat in stats.items() if not name.startswith(others))


def test_garbage_under_the_name_of_a_caller_does_not_stop_it(queue: Queue, spoiled: Behind) -> None:
    for number in (1, 2):
        spoiled("HSET", "calls", "caller", "garbage")
        spoiled.ask(calls.pause(), "caller", number)
        assert spoiled("HGET", "calls", "caller").startswith(b"%d " % number)


@pytest.mark.parametrize(
    ("rank", "place"), [(100 * RANKS - 1, 100 * RANKS - 1), (100 * RANKS, 49 * RANKS + 2)]
)
def test_a_hold_that_says_a_rank_which_no_priority_has_is_corrected(
    queue: Queue, clock: Clock, spoiled: Behind, rank: int, place: int
) -> None:
    queue.add(b"", id="a")
    take(queue, 1)
    spoiled("HSET", "holds", "a", f"token 1 {rank}")
    clock.advance(1)
    queue.tidy()
    assert spoiled("ZSCORE", "ready", "a") == place
    # A number taken for a job that was here before is not counted as one more job.
    assert (
        int(spoiled("HGET", "meta", "sequence")) - int(spoiled("HGET", "meta", "requeued") or 0)
        == 1
    )


def test_calls_are_counted_from_one(queue: Queue, behind: Behind) -> None:
    with pytest.raises(redis.ResponseError, match=r"^INVALID number"):
        behind.ask(calls.pause(), "caller", 0)
    assert behind.everything() == {}


# ------------------------------------------------------------------------------- lease


@pytest.mark.parametrize("token", ["a-b.1", "%a.1", "a(b.1", "[a.1", "^a$.1", "a+.1"])
def test_a_lease_asked_again_is_known_by_its_token_letter_for_letter(
    queue: Queue, behind: Behind, token: str
) -> None:
    queue.add(b"", id="a")
    call = calls.lease(token, 30_000, 1)
    assert ids(behind.ask(call, "caller", 1).leases) == ["a"]
    assert ids(behind.ask(call, "caller", 1).leases) == ["a"]


@pytest.mark.parametrize(("ghosts", "reached"), [(999, True), (1000, False)])
@pytest.mark.parametrize("count", [1, 1000])
def test_one_call_clears_away_a_thousand_ids_without_a_payload_and_no_more(
    queue: Queue, spoiled: Behind, count: int, ghosts: int, reached: bool
) -> None:
    queue.add_many(NewJob(b"", id=str(n)) for n in range(ghosts))
    queue.add(b"", id="real")
    spoiled("UNLINK", "jobs")
    spoiled("HSET", "jobs", "real", b"")
    first = spoiled.ask(calls.lease("a.1", 30_000, count), "caller", 1)
    assert (ids(first.leases), first.ask_again) == (["real"] if reached else [], 0)
    if not reached:
        second = spoiled.ask(calls.lease("a.2", 30_000, count), "caller", 2)
        assert ids(second.leases) == ["real"]


def test_a_thousand_jobs_that_lapsed_too_often_hide_none_behind_them(
    queue: Queue, clock: Clock
) -> None:
    queue.add_many([b"poison"] * 1000, max_lapses=0)
    queue.lease_many(1000, 1)
    queue.add(b"good")
    clock.advance(0.001)
    take(queue, 1)
    clock.advance(1)
    assert take(queue).data == b"good"
    assert queue.counts().failed == 1000


@pytest.mark.parametrize(
    ("facts", "replied"), [({}, []), ({"handler": "h"}, [pack(handler="h"), b""])]
)
def test_a_lease_brings_facts_only_where_some_job_has_any(
    queue: Queue, behind: Behind, facts: dict[str, str], replied: list[bytes]
) -> None:
    queue.add_many([NewJob(b"x", id="a", **facts), NewJob(b"y", id="b")])  # type: ignore[arg-type]
    call = calls.lease("a.1", 30_000, 2)
    reply = behind.run(call.function, "", "caller", 1, *call.args)
    assert reply[:3] == [[b"a", b"b"], [b"x", b"y"], replied]


# -------------------------------------------------------------------------- add and end


def test_an_id_that_a_known_caller_made_is_not_looked_up(queue: Queue, behind: Behind) -> None:
    behind.ask(calls.add([entry("a", fresh=True)]), "caller", 1)
    looks = command_calls(behind.client, "hexists")
    behind.ask(calls.add([entry("b", fresh=True)]), "caller", 2)
    assert command_calls(behind.client, "hexists") == looks
    behind.ask(calls.add([entry("c", fresh=True)]), "stranger", 1)
    assert command_calls(behind.client, "hexists") == looks + 1


def test_an_id_may_be_remembered_for_a_millisecond(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a", remember_for=0.001)
    assert queue.complete(take(queue))
    assert not queue.add(b"", id="a")
    clock.advance(0.001)
    assert queue.add(b"", id="a")


def test_a_result_may_be_kept_for_a_millisecond(queue: Queue, clock: Clock, behind: Behind) -> None:
    queue.add(b"payload", id="a", result_for=0.001, keep=True)
    assert queue.complete(take(queue), b"result")
    assert behind("HGET", "results", "a") == b"result"
    assert behind("HGET", "jobs", "a") == b"payload"
    clock.advance(0.001)
    assert queue.tidy().pruned == 1


# ------------------------------------------------------------------------------- clock


def test_the_time_is_the_servers_to_the_millisecond(live_queue: Queue, client: redis.Redis) -> None:
    behind = Behind(client, live_queue)
    earliest = client.time()
    live_queue.pause()
    latest = client.time()
    seen = int(behind("HGET", "meta", "seen"))
    first, last = (seconds * 1000 + micros // 1000 for seconds, micros in (earliest, latest))
    assert first <= seen <= last


# ------------------------------------------------------------------------------- audit


def test_nought_is_a_whole_number(queue: Queue, behind: Behind) -> None:
    queue.add(b"", id="a", delay=60)
    behind("ZADD", "delayed", 0, "a")
    assert queue.audit() == []


@pytest.mark.parametrize("rank", [49 * RANKS + 1, 100 * RANKS])
def test_a_rank_that_was_never_given_is_named_where_none_was_given(
    queue: Queue, spoiled: Behind, rank: int
) -> None:
    spoiled("ZADD", "ready", rank, "a")
    spoiled("HSET", "jobs", "a", b"")
    assert [problem.what for problem in queue.audit()] == ["rank that was never given"]


def test_whatever_moves_a_job_changes_the_stamp_of_an_audit(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    def stamp() -> bytes:
        return behind.ask(calls.audit(), "", 0, clock.ms).stamp

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        queue.tidy()

    stamps = [stamp()]
    steps: list[Callable[[], object]] = [
        lambda: queue.add(b"", id="a", delay=1, max_lapses=1, remember_for=1),
        lambda: wait(1),
        lambda: take(queue, 1),
        lambda: wait(1),
        lambda: queue.release(take(queue), after=1),
        lambda: wait(1),
        lambda: queue.complete(take(queue)),
        lambda: wait(1),
    ]
    for step in steps:
        step()
        assert stamp() not in stamps
        stamps.append(stamp())


@pytest.mark.parametrize("length", [511, 512])
def test_no_id_is_mistaken_for_what_makes_a_set_a_table(queue: Queue, length: int) -> None:
    queue.add_many(NewJob(b"", id="-" * n) for n in range(length - 19, length + 1))
    assert len(queue.lease_many(20, 30)) == 20
    assert queue.audit() == []
    assert queue.counts().leased == 20
