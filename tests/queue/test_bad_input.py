"""Whatever is wrong with an argument, it is refused by name, and nothing is written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_support import Behind
from holdfast import CodecError, Committed, InvalidArgument, Lease, NewJob, Queue, Server
from holdfast.codec import MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES

LEASE = Lease("a", b"", "nobody.1")
LONG = "x" * 513
NOT_SECONDS = ["5", b"5", True, None, [5], math.nan, -math.inf, -1, -1e-9, 2**53, 10**400, 10**5000]
NOT_SECONDS += [1e308, Decimal(5), 5j, timedelta(-1), timedelta.max]
NOT_WHOLE = ["5", b"5", True, 5.0, math.nan, math.inf, [5], -1, 10**400, 10**5000]
NOT_A_NAME = ["", LONG, "ü" * 257, "\ud800", b"a", 5, ("a",), True]
NOT_A_LEASE: list[object] = [None, "a", b"a", 5, ("a", "nobody.1"), {"id": "a"}, [LEASE], object]
CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)

# How to ask with a value, values that are wrong, and what the refusal must name.
Case = tuple[Callable[[Any, Any], object], list[Any], str]


def with_defaults(queue: Queue, defaults: Any) -> Queue:
    return Queue(queue.name, queue.server, defaults=defaults)


def options(name: str, wrong: list[Any]) -> Iterator[tuple[str, Case]]:
    """Everywhere a job can be given an option."""
    yield f"add({name}=)", (lambda q, v: q.add(b"", **{name: v}), wrong, name)
    yield (
        f"add_many({name}=)",
        (lambda q, v: q.add_many([b""], **{name: v}), wrong, name),
    )
    yield (
        f"NewJob({name}=)",
        (lambda q, v: q.add_many([b"", NewJob(b"", **{name: v})]), wrong, name),
    )
    yield (
        f"complete(add=NewJob({name}=))",
        (lambda q, v: q.complete(LEASE, add=[NewJob(b"", **{name: v})]), wrong, name),
    )
    yield (
        f"defaults={name}",
        (lambda q, v: with_defaults(q, {name: v}), wrong, name),
    )


def without(wrong: list[Any], *fine: object) -> list[Any]:
    return [value for value in wrong if not any(value is ok for ok in fine)]


NOT_JOBS: list[Any] = [5, None, "text", b"bytes", bytearray(b"bytes"), {"a": 1}, NewJob(b"")]
NOT_DONE = [[lease] for lease in NOT_A_LEASE] + [5, None, LEASE, [(LEASE,)], [(LEASE, 1, 2)], [()]]

NOT_A_REQUEST = [*NOT_A_NAME, "x" * 481, "ü" * 241, "/end", "r/end", "a/end/end"]


def requests(name: str, wrong: list[Any]) -> tuple[str, Case]:
    """What a request is asked for, before anything is sent."""
    return f"request({name}=)", (lambda q, v: q.request("r", **{name: v}).open(), wrong, name)


def parts(name: str, wrong: list[Any]) -> Iterator[tuple[str, Case]]:
    """Wherever parts are given an option."""
    yield f"request.add({name}=)", (lambda q, v: q.request("r").add(b"", **{name: v}), wrong, name)
    yield (
        f"request.add_many({name}=)",
        (lambda q, v: q.request("r").add_many([b""], **{name: v}), wrong, name),
    )


CASES: dict[str, Case] = {
    # Times.
    **dict(options("timeout", [*without(NOT_SECONDS, None), 0, math.inf])),
    **dict(options("min_backoff", [*NOT_SECONDS, math.inf])),
    **dict(options("max_backoff", [*NOT_SECONDS, math.inf])),
    **dict(options("result_for", NOT_SECONDS)),
    **dict(options("remember_for", NOT_SECONDS)),
    "add(delay=)": (
        lambda q, v: q.add(b"", delay=v),
        [*without(NOT_SECONDS, None), math.inf],
        "delay",
    ),
    "NewJob(delay=)": (
        lambda q, v: q.add_many([NewJob(b"", delay=v)]),
        [*without(NOT_SECONDS, None), math.inf],
        "delay",
    ),
    "add(at=)": (
        lambda q, v: q.add(b"", at=v),
        [
            *without(NOT_SECONDS, None),
            math.inf,
            datetime(2030, 1, 1),  # noqa: DTZ001
            datetime.max.replace(tzinfo=UTC) - timedelta(days=3_000_000),
            date(2030, 1, 1),
            "tomorrow",
            timedelta(seconds=5),
        ],
        "at",
    ),
    "add(delay=, at=)": (lambda q, v: q.add(b"", delay=v, at=v), [5, 0], "delay or at"),
    "lease(seconds)": (lambda q, v: q.lease(v), [*NOT_SECONDS, 0, math.inf], "seconds"),
    "lease_many(seconds)": (
        lambda q, v: q.lease_many(1, v),
        [*NOT_SECONDS, 0, math.inf],
        "seconds",
    ),
    "lease(wait=)": (lambda q, v: q.lease(1, wait=v), without(NOT_SECONDS, None), "wait"),
    "lease_many(wait=)": (
        lambda q, v: q.lease_many(1, 1, wait=v),
        without(NOT_SECONDS, None),
        "wait",
    ),
    "extend(seconds)": (lambda q, v: q.extend(LEASE, v), [*NOT_SECONDS, 0, math.inf], "seconds"),
    "extend_many(seconds)": (
        lambda q, v: q.extend_many([LEASE], v),
        [*NOT_SECONDS, 0, math.inf],
        "seconds",
    ),
    "release(after=)": (
        lambda q, v: q.release(LEASE, after=v),
        [*without(NOT_SECONDS, None), math.inf],
        "after",
    ),
    "release_many(after=)": (
        lambda q, v: q.release_many([LEASE], after=v),
        [*without(NOT_SECONDS, None), math.inf],
        "after",
    ),
    "events(idle=)": (
        lambda q, v: q.events(idle=v).__enter__(),
        without(NOT_SECONDS, None),
        "idle",
    ),
    "Server(patience=)": (
        lambda q, v: Server(str(q.server.address), patience=v),
        without(NOT_SECONDS, 10**5000, None),
        "patience",
    ),
    "Server(credentials=)": (
        lambda q, v: Server(str(q.server.address), credentials=v),
        ["secret", ("user", "secret"), 5, True, b"secret"],
        "credentials",
    ),
    "Server(client_name=)": (
        lambda q, v: Server(str(q.server.address), client_name=v),
        [5, b"web", ["web"]],
        "client_name",
    ),
    "retry(after=)": (
        lambda q, v: q.retry(LEASE, error="why", after=v),
        [*without(NOT_SECONDS, None), math.inf],
        "after",
    ),
    "result(wait=)": (lambda q, v: q.result("a", wait=v), without(NOT_SECONDS, None), "wait"),
    "tidy(held_longer_than=)": (
        lambda q, v: q.tidy(held_longer_than=v),
        [*without(NOT_SECONDS, None), math.inf],
        "held_longer_than",
    ),
    "tidy(failed_longer_than=)": (
        lambda q, v: q.tidy(failed_longer_than=v),
        [*without(NOT_SECONDS, None), math.inf],
        "failed_longer_than",
    ),
    "keep_tidy(every=)": (
        lambda q, v: q.keep_tidy(every=v).__enter__(),
        [*NOT_SECONDS, 0, math.inf],
        "every",
    ),
    "register(alive_for=)": (
        lambda q, v: q.register(alive_for=v),
        [*NOT_SECONDS, 0, math.inf],
        "alive_for",
    ),
    # Whole numbers.
    "peek(count)": (lambda q, v: q.peek(v), [*NOT_WHOLE, None, 0, 1001], "count"),
    "peek(first=)": (lambda q, v: q.peek(first=v), [*NOT_WHOLE, None], "first"),
    "failed(count)": (lambda q, v: q.failed(v), [*NOT_WHOLE, None, 0, 1001], "count"),
    **dict(options("priority", [*NOT_WHOLE, None, 100])),
    **dict(options("max_failures", [*NOT_WHOLE, 2**31 + 1])),
    **dict(options("max_lapses", [*NOT_WHOLE, 2**31 + 1])),
    "lease_many(count)": (
        lambda q, v: q.lease_many(v, 1),
        [*NOT_WHOLE, None, 0, 1001],
        "count",
    ),
    # Names.
    **dict(options("handler", NOT_A_NAME)),
    "Queue(name)": (lambda q, v: Queue(v, q.server), [*NOT_A_NAME, "}", "}a", None], "queue name"),
    "add(id=)": (lambda q, v: q.add(b"", id=v), NOT_A_NAME, "id"),
    "NewJob(id=)": (lambda q, v: q.add_many([NewJob(b"", id=v)]), NOT_A_NAME, "id"),
    "complete(id, force=True)": (
        lambda q, v: q.complete(v, force=True),
        [*NOT_A_NAME, None],
        "id",
    ),
    "cancel(id)": (lambda q, v: q.cancel(v), [*NOT_A_NAME, None], "id"),
    "revive(id)": (lambda q, v: q.revive(v), [*NOT_A_NAME, None], "id"),
    "show(id)": (lambda q, v: q.show(v), [*NOT_A_NAME, None], "id"),
    "explain(id)": (lambda q, v: q.explain(v), [*NOT_A_NAME, None], "id"),
    "data(id)": (lambda q, v: q.data(v), [*NOT_A_NAME, None], "id"),
    "result(id)": (lambda q, v: q.result(v), [*NOT_A_NAME, None], "id"),
    "set_result(id)": (lambda q, v: q.set_result(v, b""), [*NOT_A_NAME, None], "id"),
    "fail_worker(worker)": (lambda q, v: q.fail_worker(v), [*NOT_A_NAME, None], "holder"),
    # One of a few.
    "lease(failed=)": (lambda q, v: q.lease(1, failed=v), ["no", 1, None], "failed"),
    "cancel(running=)": (lambda q, v: q.cancel("a", running=v), ["no", 1, None], "running"),
    "cancel_matching(running=)": (
        lambda q, v: q.cancel_matching(b"", running=v),
        ["no", 1, None],
        "running",
    ),
    "peek(state=)": (lambda q, v: q.peek(state=v), ["", "gone", None, 5], "state"),
    "retry(error=)": (lambda q, v: q.retry(LEASE, error=v), ["", 5, None, b"why"], "error"),
    "fail(error=)": (lambda q, v: q.fail(LEASE, error=v), ["", 5, None, b"why"], "error"),
    **dict(options("keep", [1, 0, "yes", None, "False"])),
    "add(colour=)": (lambda q, v: q.add(b"", colour=v), ["red"], "colour"),
    "add_many(colour=)": (lambda q, v: q.add_many([b""], colour=v), ["red"], "colour"),
    "defaults=colour": (
        lambda q, v: with_defaults(q, {"colour": v}),
        ["red"],
        "colour",
    ),
    "add(on_conflict=)": (
        lambda q, v: q.add(b"", id="a", on_conflict=v),
        ["nonsense", "", None, True, ["raise"], b"raise"],
        "on_conflict",
    ),
    "add_many(on_conflict=)": (
        lambda q, v: q.add_many([b""], on_conflict=v),
        ["nonsense", None],
        "on_conflict",
    ),
    "add_many(delay=)": (lambda q, v: q.add_many([b""], delay=v), [5], "delay"),
    "Queue(requeue=)": (
        lambda q, v: Queue(q.name, q.server, requeue=v),
        ["front", None, True, ["rank"]],
        "requeue",
    ),
    "Queue(defaults=)": (
        with_defaults,
        [5, "priority", {5: 5}, {"priority": 100}],
        "defaults|option|priority",
    ),
    "Queue(server)": (lambda q, v: Queue(q.name, v), [5, b"redis://", True], "url|server"),
    "complete(force=)": (lambda q, v: q.complete("a", force=v), ["no", 1, "False"], "force"),
    "tidy(force=)": (lambda q, v: q.tidy(force=v), ["no", 1], "force"),
    "release(lapsed=)": (
        lambda q, v: q.release(LEASE, lapsed=v),
        ["", 5, True, b"crashed"],
        "lapsed",
    ),
    "release_many(lapsed=)": (
        lambda q, v: q.release_many([LEASE], lapsed=v),
        ["", 5],
        "lapsed",
    ),
    # Requests.
    "request(id)": (lambda q, v: q.request(v), NOT_A_REQUEST, "request"),
    **dict(
        [
            requests("priority", [*NOT_WHOLE, None, 100]),
            requests("limit", [*NOT_WHOLE, 2**31 + 1]),
            requests("on_failure", ["", "stop", None, True, b"continue", ["fail_fast"]]),
            requests("keep_for", NOT_SECONDS),
            requests("open_for", [*without(NOT_SECONDS, None), 0, math.inf]),
            requests("append", ["no", 1, 0, None]),
        ]
    ),
    "request(follow_up=NewJob(id=))": (
        lambda q, v: q.request("r", follow_up=NewJob(b"", id=v)),
        ["a", "r/end/1"],
        "follow-up.*id",
    ),
    "request(follow_up=NewJob(priority=))": (
        lambda q, v: q.request("r", follow_up=NewJob(b"", priority=v)),
        [*NOT_WHOLE, 100],
        "priority",
    ),
    "request(follow_up=NewJob(delay=))": (
        lambda q, v: q.request("r", follow_up=NewJob(b"", delay=v)),
        [*without(NOT_SECONDS, None), math.inf],
        "delay",
    ),
    "request(follow_up=too much)": (
        lambda q, v: q.request("r", follow_up=v),
        [b"x" * 8389, "ü" * 4195, NewJob(b"x" * 8389)],
        "follow-up",
    ),
    "request.add(number=)": (
        lambda q, v: q.request("r").add(b"", number=v),
        [*NOT_WHOLE, 2**40 + 1],
        "number",
    ),
    "request.add(delay=)": (
        lambda q, v: q.request("r").add(b"", delay=v),
        [*without(NOT_SECONDS, None), math.inf],
        "delay",
    ),
    "request.add(at=)": (
        lambda q, v: q.request("r").add(b"", at=v),
        [*without(NOT_SECONDS, None), math.inf, datetime(2030, 1, 1)],  # noqa: DTZ001
        "at",
    ),
    "request.add(delay=, at=)": (
        lambda q, v: q.request("r").add(b"", delay=v, at=v),
        [5, 0],
        "delay or at",
    ),
    **dict(parts("priority", [*NOT_WHOLE, None, 100])),
    **dict(parts("handler", NOT_A_NAME)),
    **dict(parts("timeout", [*without(NOT_SECONDS, None), 0, math.inf])),
    **dict(parts("max_failures", [*NOT_WHOLE, 2**31 + 1])),
    **dict(parts("max_lapses", [*NOT_WHOLE, 2**31 + 1])),
    **dict(parts("min_backoff", [*NOT_SECONDS, math.inf])),
    **dict(parts("max_backoff", [*NOT_SECONDS, math.inf])),
    # What a request says for all of its parts, or what makes no sense for one of them.
    **dict(parts("result_for", [0, 5, None])),
    **dict(parts("remember_for", [0, 5])),
    **dict(parts("keep", [True, False])),
    **dict(parts("group", ["g", None])),
    **dict(parts("group_limit", [1, None])),
    **dict(parts("id", ["a", None])),
    **dict(parts("colour", ["red"])),
    "request.add_many(delay=)": (
        lambda q, v: q.request("r").add_many([b""], delay=v),
        [5],
        "delay",
    ),
    "request.add_many(pieces)": (
        lambda q, v: q.request("r").add_many(v),
        [5, None, "text", b"bytes", bytearray(b"bytes"), {"a": 1}],
        "parts",
    ),
    "request.wait(timeout)": (
        lambda q, v: q.request("r").wait(v),
        without(NOT_SECONDS, None),
        "timeout",
    ),
    "request.results(first=)": (
        lambda q, v: list(q.request("r").results(first=v)),
        [*NOT_WHOLE, None],
        "first",
    ),
    "request.set_limit(limit)": (
        lambda q, v: q.request("r").set_limit(v),
        [*NOT_WHOLE, 2**31 + 1],
        "limit",
    ),
    "request.set_priority(priority)": (
        lambda q, v: q.request("r").set_priority(v),
        [*NOT_WHOLE, None, 100],
        "priority",
    ),
    # Groups.
    **dict(options("group", [*NOT_A_NAME, "/end", "g/end"])),
    "add(group_limit=)": (
        lambda q, v: q.add(b"", group="g", group_limit=v),
        [*NOT_WHOLE, 2**31 + 1],
        "group_limit",
    ),
    "add_many(group_limit=)": (
        lambda q, v: q.add_many([b""], group="g", group_limit=v),
        [*NOT_WHOLE, 2**31 + 1],
        "group_limit",
    ),
    "NewJob(group_limit=)": (
        lambda q, v: q.add_many([NewJob(b"", group="g", group_limit=v)]),
        [*NOT_WHOLE, 2**31 + 1],
        "group_limit",
    ),
    "group_limit= without a group": (
        lambda q, v: q.add(b"", group_limit=v),
        [1, 0, None],
        "group_limit needs a group",
    ),
    "set_group_limit(group)": (
        lambda q, v: q.set_group_limit(v, 1),
        [*NOT_A_NAME, None, "g/end"],
        "group",
    ),
    "set_group_limit(limit)": (
        lambda q, v: q.set_group_limit("g", v),
        [*NOT_WHOLE, 2**31 + 1],
        "limit",
    ),
    # Leases.
    "complete(lease)": (lambda q, v: q.complete(v), NOT_A_LEASE, "Lease"),
    "extend(lease)": (lambda q, v: q.extend(v, 1), NOT_A_LEASE, "Lease"),
    "release(lease)": (lambda q, v: q.release(v), NOT_A_LEASE, "Lease"),
    "retry(lease)": (lambda q, v: q.retry(v, error="why"), NOT_A_LEASE, "Lease"),
    "fail(lease)": (lambda q, v: q.fail(v, error="why"), NOT_A_LEASE, "Lease"),
    "complete_many(done)": (lambda q, v: q.complete_many(v), NOT_DONE, "Lease|iterable"),
    "lease_many(complete=)": (
        lambda q, v: q.lease_many(1, 1, complete=v),
        NOT_DONE,
        "Lease|iterable",
    ),
    "extend_many(leases)": (lambda q, v: q.extend_many(v, 1), NOT_DONE, "Lease|iterable"),
    "release_many(leases)": (lambda q, v: q.release_many(v), NOT_DONE, "Lease|iterable"),
    # Jobs.
    "add_many(jobs)": (lambda q, v: q.add_many(v), NOT_JOBS, "add_many|jobs"),
    "complete(add=)": (lambda q, v: q.complete(LEASE, add=v), NOT_JOBS, r"\badd"),
    "complete(add=too much)": (
        lambda q, v: q.complete(LEASE, add=v),
        [[b""] * 1001, [b"x" * 5_000_000] * 2],
        "follow-ups",
    ),
}


def text_of(value: object) -> str:
    try:
        return repr(value)[:100]
    except ValueError:  # A number with too many digits.
        return "a huge number"


@pytest.mark.parametrize("where", CASES)
def test_a_wrong_argument_is_refused_by_name_and_nothing_is_written(
    queue: Queue, behind: Behind, where: str
) -> None:
    ask, wrong, word = CASES[where]
    not_refused = {}
    for value in wrong:
        try:
            ask(queue, value)
            not_refused[text_of(value)] = "was taken"
        except InvalidArgument as refused:
            message = str(refused)
            if not re.search(word, message) or len(message) > 1000:
                not_refused[text_of(value)] = message
        except Exception as error:
            not_refused[text_of(value)] = repr(error)
    assert not_refused == {}
    assert behind.everything() == {}


def test_what_was_right_before_does_not_make_its_like_right(queue: Queue) -> None:
    queue.add(b"", priority=1, max_lapses=3, keep=True, max_failures=0)
    alike: Any = [{"priority": True}, {"max_lapses": 3.0}, {"keep": 1}, {"max_failures": False}]
    for option in alike:
        with pytest.raises(InvalidArgument):
            queue.add(b"", **option)


# --------------------------------------------------------------------- payloads

NOT_A_PAYLOAD = {
    "an object": object(),
    "a function": test_what_was_right_before_does_not_make_its_like_right,
    "NaN": math.nan,
    "infinity": math.inf,
    "NaN inside": {"a": [1, {"b": math.nan}]},
    "infinity in a tuple": (1, -math.inf),
    "NaN in a struct": Committed(new=True, rows=math.nan),  # type: ignore[arg-type]
    "a lone surrogate": "\ud800",
    "a lone surrogate inside": {"a": "\ud800"},
    "a circle": CIRCLE,
    "a complex number": 5j,
    "more than 8 MiB": b"x" * (MAX_PAYLOAD_BYTES + 1),
    "more than 8 MiB of text": "ü" * (MAX_PAYLOAD_BYTES // 2 + 1),
    "more than 8 MiB of JSON": ["x" * MAX_PAYLOAD_BYTES],
}


ADDING: dict[str, Callable[[Queue, object], object]] = {
    "add": lambda queue, data: queue.add(data),
    "add_many": lambda queue, data: queue.add_many([b"", data]),
    "NewJob": lambda queue, data: queue.add_many([NewJob(data)]),
    "follow-up": lambda queue, data: queue.complete(LEASE, add=[data]),
    "follow-up of a request": lambda queue, data: queue.request("r", follow_up=data),
    "part": lambda queue, data: queue.request("r").add(data),
    "parts": lambda queue, data: queue.request("r").add_many([data]),
}
COMPLETING: dict[str, Callable[[Queue, object], object]] = {
    "complete": lambda queue, result: queue.complete(LEASE, result),
    "complete_many": lambda queue, result: queue.complete_many([(LEASE, result)]),
    "lease_many": lambda queue, result: queue.lease_many(1, 1, complete=[(LEASE, result)]),
}


@pytest.mark.parametrize("data", NOT_A_PAYLOAD.values(), ids=NOT_A_PAYLOAD.keys())
@pytest.mark.parametrize("way", ADDING)
def test_what_cannot_be_a_payload_is_refused(
    queue: Queue, behind: Behind, data: object, way: str
) -> None:
    with pytest.raises((InvalidArgument, CodecError), match="payload"):
        ADDING[way](queue, data)
    assert behind.everything() == {}


def test_exactly_8_mib_is_a_payload_and_comes_back_exactly(queue: Queue) -> None:
    payload = bytes(range(256)) * (MAX_PAYLOAD_BYTES // 256)
    queue.add(payload)
    lease = queue.lease(30)
    assert lease is not None
    assert lease.data == payload


@pytest.mark.parametrize(
    "result",
    [b"x" * (MAX_RESULT_BYTES + 1), "x" * (MAX_RESULT_BYTES + 1), math.nan, object(), "\ud800"],
    ids=["too long", "too long a text", "NaN", "object", "surrogate"],
)
@pytest.mark.parametrize("way", COMPLETING)
def test_what_cannot_be_a_result_is_refused(
    queue: Queue, behind: Behind, result: object, way: str
) -> None:
    with pytest.raises((InvalidArgument, CodecError), match="result"):
        COMPLETING[way](queue, result)
    assert behind.everything() == {}


def test_the_longest_result_is_kept_exactly(queue: Queue, behind: Behind) -> None:
    queue.add(b"", id="a", result_for=60)
    result = bytes(range(256)) * (MAX_RESULT_BYTES // 256)
    lease = queue.lease(30)
    assert lease is not None
    assert queue.complete(lease, result)
    assert behind("HGET", "results", "a") == result


# -------------------------------------------------------------- what is allowed

NAMES = (
    st.one_of(
        st.text(min_size=1, max_size=100),
        st.text(alphabet="{}:*?[]\\\0\n\r ü", min_size=1, max_size=10),
        st.sampled_from(["a", "a}:ready", "{a}", "hf:{a}:ready", "x" * 512, "ü" * 256]),
    )
    .filter(lambda name: name.isascii() or name.encode(errors="ignore") == _utf8(name))
    .filter(lambda name: len(name.encode()) <= 512)
)


def _utf8(text: str) -> bytes | None:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


@settings(max_examples=100)
@given(
    name=NAMES.filter(lambda name: not name.startswith("}")),
    jobs=st.dictionaries(NAMES, st.binary(max_size=200), min_size=1, max_size=5),
)
def test_any_name_id_and_payload_round_trips_and_touches_no_other_queue(
    server: Server, client: redis.Redis, name: str, jobs: dict[str, bytes]
) -> None:
    other = Queue("a}:ready} another", server)
    other.add(b"untouched", id="a")
    sentinel = Behind(client, other)
    before = sentinel.everything()
    queue = Queue(name, server)
    try:
        receipts = queue.add_many(NewJob(data, id=id) for id, data in jobs.items())
        assert [receipt.id for receipt in receipts] == list(jobs)
        leases = queue.lease_many(10, 30)
        assert {lease.id: lease.data for lease in leases} == jobs
        assert queue.complete_many(leases) == [True] * len(jobs)
        assert sentinel.everything() == before
    finally:
        queue.delete()
        assert Behind(client, queue).everything() == {}
    assert sentinel.everything() == before
    other.delete()
