"""What reaches a script around the client is refused with a word, and nothing is written."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import redis

from engine_support import Behind, call_of, pack
from holdfast import Lease, NewJob, Queue
from holdfast.codec import MAX_PAYLOAD_BYTES
from holdfast.engine import calls, claim_calls, request_calls, write_calls
from holdfast.engine.call import Call, Entry, Failed
from holdfast.engine.library import FUNCTIONS, Function

pytestmark = pytest.mark.grid  # Scripts are run around the queue, and so around its user.

LEASE = Lease("a", b"", "nobody.1")
LONG = "x" * 513
NOT_DIGITS = ["nan", "inf", "-inf", "0x10", " 7 ", "7 ", "-1", "+7", "1e5", "7.5", "", "seven"]
NOT_DIGITS += ["7\n", "7\0", "٣", "9" * 17, "9" * 400, str(2**53)]
NAMES_TOO = ["", LONG]

RAW: dict[str, Callable[[Queue], object]] = {
    "add": lambda q: q.add_many([NewJob(b"x", id=id, priority=7) for id in "ab"]),
    "add_grouped": lambda q: q.add_many(
        [NewJob(b"x", id=id, priority=7) for id in "ab"], group="g"
    ),
    "update": lambda q: q.add_many(
        [NewJob(b"x", id=id, priority=7) for id in "ab"], on_conflict="update"
    ),
    "tick": lambda q: q._run(
        calls.tick("s", None, 7, [_entry(id, b"x", priority=7) for id in "ab"])
    ),
    "lease": lambda q: q.lease_many(7, 7, complete=_pairs()),
    "complete": lambda q: q.complete_many(_pairs()),
    "complete_and_add": lambda q: q.complete(_pairs()[0][0], b"result", add=[NewJob(b"x", id="c")]),
    "release": lambda q: q.release_many([lease for lease, _ in _pairs()], after=7),
    "extend": lambda q: q.extend_many([lease for lease, _ in _pairs()], 7),
    "retry": lambda q: q._run(calls.retry(_failures())),
    "fail": lambda q: q._run(calls.fail(_failures())),
    "cancel": lambda q: q.cancel("a"),
    "cancel_matching": lambda q: q.cancel_matching(b"some"),
    "revive": lambda q: q.revive("a"),
    "set_result": lambda q: q.set_result("a", b"some"),
    "recall": lambda q: q._run(calls.recall(holder="nobody", longer_than_ms=7000, position=7000)),
    "register": lambda q: q.register(alive_for=7),
    "tidy": lambda q: q._run(calls.tidy(failed_for_ms=7000)),
    "repair": lambda q: q._run(calls.repair((2, b"7000"))),
    "recount": lambda q: q._run(request_calls.recount(b"", {"r": (7,) * 7, "s": (7,) * 7})),
    "open_request": lambda q: q._run(
        request_calls.open_request(
            "r",
            priority=7,
            limit=7000,
            keep_for_ms=7,
            open_for_ms=7000,
            follow_up=_entry("-", priority=7),
        )
    ),
    "add_parts": lambda q: q._run(request_calls.add_parts("r", 7000, [b"x"], priority=7)),
    "change_request": lambda q: q._run(
        request_calls.change_request("r", limit=b"7000", priority=99)
    ),
    "stage": lambda q: q.write("w").stage(
        [NewJob(b"x", id="a", priority=7)], partition=0, attempt=0, keep_for=7
    ),
    "adopt": lambda q: q._run(write_calls.adopt("w", "stream", 7, None, [], keep_for_ms=7)),
    "commit": lambda q: q._run(write_calls.commit("w", "stream", 7, 0, keep_for_ms=7, how=b"1=11")),
    "publish": lambda q: q._run(write_calls.publish("w")),
    "abort": lambda q: q._run(write_calls.abort(["w/0.0", "w/1.0"])),
    "ledger": lambda q: q._run(write_calls.ledger("writer w")),
    "open_reader": lambda q: q.reader("r").open(),
    "claim": lambda q: q._run(claim_calls.claim("r", 7, 7, 7, 7, claim_ms=7)),
    "renew_claims": lambda q: q._run(claim_calls.renew_claims("r", 7, 7)),
    "settle_claims": lambda q: q._run(claim_calls.settle_claims("r", 7, 7)),
    "return_claim": lambda q: q._run(claim_calls.return_claim("r", 7, 7)),
    "read_claim": lambda q: q._run(claim_calls.read_claim("r", 7, 7, 7)),
    "pause": lambda q: q.pause(),
    "show": lambda q: q.show("a"),
    "peek": lambda q: q.peek(7, first=7),
    "audit": lambda q: q.audit(),
    "requests": lambda q: q._run(request_calls.some_requests(7000, 7)),
    "parts": lambda q: q._run(request_calls.parts("r", 7, 7)),
}


OF_A_READER = {"claim", "renew_claims", "settle_claims", "return_claim", "read_claim"}
"""There is no reader: what they are asked is right, and they refuse it."""


def _pairs() -> list[tuple[Lease, bytes]]:
    """Settles of two tokens, two ids each, all with a result: every count is more than one."""
    return [(Lease(f"id-{n}", b"", f"nobody.t{n // 2}"), b"result") for n in range(4)]


def _failures() -> list[Failed]:
    return [Failed(f"id-{n}", f"nobody.t{n // 2}", b"+7000", b"why", b"{}", b"-") for n in range(4)]


def arguments(queue: Queue, kind: str) -> tuple[Function, list[str]]:
    """Return a function and arguments that it takes."""
    call = call_of(RAW[kind], queue)
    head = ["1700000000000", *(["caller", "7"] if call.function.changes else [])]
    return call.function, [*head, *(word.decode(errors="surrogateescape") for word in call.args)]


def must_refuse(
    behind: Behind,
    function: Function,
    args: list[str],
    place: int,
    wrong: str | bytes,
    what: str = "",
) -> None:
    """Put something wrong in one place. (When it is taken, pytest shows what and where.)"""
    with pytest.raises(redis.ResponseError, match=rf"^INVALID {what}"):
        behind.run(function, *args[:place], wrong, *args[place + 1 :])


@pytest.mark.parametrize("kind", RAW)
def test_a_script_takes_no_number_that_is_not_plain_digits(
    queue: Queue, behind: Behind, kind: str
) -> None:
    function, args = arguments(queue, kind)
    for (place, word), garbage in itertools.product(enumerate(args), NOT_DIGITS):
        # 0 and 1 may be flags. Without a time it is the server's; without a delay there is none,
        # and without a priority a request keeps the one it has.
        optional = place == 0 or word in ("7000", "99")
        if not word.isdigit() or word in ("0", "1") or (optional and not garbage):
            continue
        must_refuse(behind, function, args, place, garbage)
    assert behind.everything() == {}
    if kind in OF_A_READER:
        with pytest.raises(redis.ResponseError, match=r"^FENCED "):
            behind.run(function, *args)
    else:
        behind.run(function, *args)


@pytest.mark.parametrize("kind", RAW)
def test_a_script_takes_no_call_that_is_cut_off(queue: Queue, behind: Behind, kind: str) -> None:
    function, args = arguments(queue, kind)
    for length in range(len(args)):
        try:
            behind.run(function, *args[:length])
        except redis.ResponseError as error:
            assert str(error).startswith(("INVALID ", "FENCED "))  # noqa: PT017
            assert behind.everything() == {}
        else:  # What was cut off was optional.
            behind.queue.delete()


@pytest.mark.parametrize("kind", RAW)
def test_no_garbage_anywhere_makes_a_script_fail_in_the_middle(
    queue: Queue, behind: Behind, kind: str
) -> None:
    function, args = arguments(queue, kind)
    for place in range(len(args)):
        for garbage in ["", " ", "a b", "nan", "-1", "\0", "1", "1000", "1001", LONG, "x" * 5000]:
            try:
                behind.run(function, *args[:place], garbage, *args[place + 1 :])
            except redis.ResponseError as error:
                assert str(error).startswith(("INVALID ", "GONE ", "FENCED "))  # noqa: PT017
                assert behind.everything() == {}
            else:
                assert queue.audit() == []
                queue.delete()


@pytest.mark.parametrize("place", [1, 3])
@pytest.mark.parametrize("name", ["", LONG, *(f"a{space}b" for space in " \t\n\r\v\f")])
def test_a_caller_is_a_name_and_a_token_has_no_spaces(
    queue: Queue, behind: Behind, place: int, name: str
) -> None:
    function, args = arguments(queue, "lease")
    if place == 1 and name not in NAMES_TOO:
        behind.run(function, *args[:place], name, *args[place + 1 :])
        return
    must_refuse(behind, function, args, place, name)
    assert behind.everything() == {}


@pytest.mark.parametrize("kind", ["lease", "complete", "release", "extend", "retry", "fail"])
@pytest.mark.parametrize("wrong", ["", "a b", "a\nb", LONG])
def test_a_settle_presents_a_token_without_spaces(
    queue: Queue, behind: Behind, kind: str, wrong: str
) -> None:
    function, args = arguments(queue, kind)
    place = args.index("nobody.t1")
    must_refuse(behind, function, args, place, wrong)
    assert behind.everything() == {}


ID_OF = {"add": "b", "update": "b", "cancel": "a", "revive": "a", "set_result": "a", "show": "a"}
ID_OF |= {"add_grouped": "b", "open_request": "r", "add_parts": "r", "change_request": "r"}
ID_OF |= {"recount": "s", "parts": "r", "tick": "s"}


@pytest.mark.parametrize(
    "kind", [*ID_OF, "lease", "complete", "release", "extend", "retry", "fail"]
)
@pytest.mark.parametrize("wrong", NAMES_TOO)
def test_a_script_takes_no_id_that_is_no_name(
    queue: Queue, behind: Behind, kind: str, wrong: str
) -> None:
    function, args = arguments(queue, kind)
    place = args.index(ID_OF.get(kind, "id-3"))
    must_refuse(behind, function, args, place, wrong)
    assert behind.everything() == {}


OPTIONS_AT = {"add": 7, "add_grouped": 7, "update": 7, "open_request": 12, "add_parts": 7}
OPTIONS_AT |= {"tick": 9}
NOT_OPTIONS = [
    b"\xc1",
    b"\x07",
    b"\x93\x01\x02\x03",
    b"\x81\xa4keep",
    pack(colour="red"),
    pack(priority=5),
    pack(failures=5),
    pack(outcome="completed"),
    pack(max_lapses=-2),
    pack(max_lapses=1.5),
    pack(max_lapses=math.nan),
    pack(max_lapses=math.inf),
    pack(max_lapses=2**53),
    pack(max_lapses="3"),
    pack(handler=5),
    pack(handler=""),
    pack(handler=LONG),
    pack(keep=1),
    pack(timeout_ms=-1),
    pack(result_for_ms=-1),
    pack(remember_for_ms=-1),
    pack(min_backoff_ms=-1),
    pack(max_backoff_ms=-1),
    pack(group=5),
    pack(group=""),
    pack(group=LONG),
    pack(group="g", group_limit=-2),
    pack(group="g", group_limit="1"),
    pack(group_limit=1),
    pack(request="r"),
    pack(number=1),
    pack(group="r/end"),
]


@pytest.mark.parametrize("kind", OPTIONS_AT)
def test_a_script_takes_no_options_that_it_cannot_read(
    queue: Queue, behind: Behind, kind: str
) -> None:
    function, args = arguments(queue, kind)
    place = OPTIONS_AT[kind]
    assert args[place - 2] == "7"  # Before due and options stands the priority.
    for options in NOT_OPTIONS:
        must_refuse(behind, function, args, place, options, "options")
    assert behind.everything() == {}


@pytest.mark.parametrize("due", ["+nan", "-5", "+-5", "++5", "5 ", "+1e3", "+0x10", "+" + "9" * 17])
def test_a_script_takes_no_due_that_is_not_plain_digits(
    queue: Queue, behind: Behind, due: str
) -> None:
    function, args = arguments(queue, "add")
    place = args.index("7", 4) + 1
    must_refuse(behind, function, args, place, due, "due")
    assert behind.everything() == {}


def _entry(id: str, payload: bytes = b"", *, priority: int = 50) -> Entry:
    return Entry(id, payload, False, priority, b"", b"")


TOO_MUCH: dict[str, Callable[[], Call[Any]]] = {
    "jobs": lambda: calls.add([_entry(str(n)) for n in range(1001)]),
    "jobs in groups": lambda: calls.add([_entry(str(n), priority=n % 2) for n in range(1001)]),
    "bytes": lambda: calls.add([_entry(str(n), b"x" * 1_000_000) for n in range(9)]),
    "bytes of one job": lambda: calls.add([_entry("a", b"x" * (MAX_PAYLOAD_BYTES + 1))]),
    "settles": lambda: calls.extend(
        calls.settles_of(Lease(str(n), b"", "nobody.1") for n in range(1001)), 1
    ),
    "settles in groups": lambda: calls.extend(
        calls.settles_of(Lease(str(n), b"", f"nobody.{n % 7}") for n in range(1001)), 1
    ),
    "failures": lambda: calls.retry([Failed(str(n), "nobody.1", b"+1") for n in range(1001)]),
    "ids to cancel": lambda: calls.cancel([str(n) for n in range(1001)]),
    "no ids to cancel": lambda: calls.cancel([]),
    "ids to revive": lambda: calls.revive([str(n) for n in range(1001)]),
    "no ids to revive": lambda: calls.revive([]),
    "an error": lambda: calls.fail([Failed("a", "nobody.1", b"", b"x" * 4097)]),
    "what was raised": lambda: calls.fail([Failed("a", "nobody.1", raised=b"x" * 4097)]),
    "no number of handlings": lambda: calls.retry([Failed("a", "nobody.1", handlings=b"-1")]),
    "a reason": lambda: calls.release(calls.settles_of([LEASE]), lapsed=b"x" * 4097),
    "about a worker": lambda: calls.register("holder", 1, b"x" * 4097),
    "updates": lambda: calls.update([_entry(str(n)) for n in range(1001)], b"1=11"),
    "no known update": lambda: calls.update([_entry("a")], b"1?11"),
    "no known option": lambda: calls.update([_entry("a")], b"1=01 failures"),
    "leases": lambda: calls.lease("nobody.1", 1, 1001),
    "follow-ups of nobody": lambda: calls.complete([], add=[_entry("a")]),
    "follow-ups of two": lambda: calls.complete(
        calls.settles_of([LEASE, Lease("b", b"", "nobody.1")]), add=[_entry("a")]
    ),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_script_takes_no_more_than_one_call_may_carry(
    queue: Queue, behind: Behind, what: str
) -> None:
    call = TOO_MUCH[what]()
    with pytest.raises(redis.ResponseError, match=r"^INVALID "):
        behind.ask(call, "caller", 1)
    assert behind.everything() == {}


def test_the_same_id_completed_twice_by_force_is_completed_once(
    queue: Queue, behind: Behind
) -> None:
    queue.add(b"", id="a")
    settles = calls.settles_of([Lease("a", b"", "-"), Lease("a", b"", "-")])
    assert behind.ask(calls.complete(settles, force=True), "caller", 1) == [True, False]


def test_no_refusal_repeats_what_came_from_outside(queue: Queue, behind: Behind) -> None:
    function, args = arguments(queue, "add")
    for place in range(len(args)):
        for forged in ("FORGED\r\n+OK", "FORGED" * 100):
            try:
                behind.run(function, *args[:place], forged, *args[place + 1 :])
            except redis.ResponseError as error:
                assert "FORGED" not in str(error)  # noqa: PT017


def test_every_script_has_been_given_bad_input(queue: Queue) -> None:
    tried = {call_of(ask, queue).function.runs for ask in RAW.values()}
    untried = {function.runs for function in FUNCTIONS} - tried
    assert untried == {
        "resume",
        "delete",
        "counts",
        "totals",
        "workers",
        "rights",
    }  # They take no arguments of their own.
