"""Handlers of a queue: what a call becomes, and what is refused before anything is stored."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import enum
import functools
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from conftest import Clock
from holdfast import (
    AsyncQueue,
    CodecError,
    InvalidArgument,
    JobExists,
    JobNotFound,
    NewJob,
    Queue,
    QueueHandler,
    RunningJob,
    WrongState,
)
from support import TestServer


def data_of(queue: Queue, id: str = "a") -> Any:
    job = queue.show(id)
    assert job
    return job.json()


# ------------------------------------------------------------------------- what is stored


def test_a_call_is_a_job_that_names_the_function_and_carries_its_arguments(queue: Queue) -> None:
    @queue.handler
    def send(to: str, subject: str = "none", *, copies: int = 1) -> None: ...

    receipt = send.add("ann", copies=2)
    job = queue.show(receipt.id)
    assert receipt
    assert job
    assert (job.facts.handler, job.json()) == ("send", {"to": "ann", "copies": 2})


def test_a_handler_is_still_a_function(queue: Queue) -> None:
    @queue.handler
    def double(n: int) -> int:
        """Return twice as much."""
        return 2 * n

    assert double(21) == 42
    assert (double.name, double.__doc__) == ("double", "Return twice as much.")
    assert repr(double) == "<QueueHandler 'double'>"
    assert queue.handlers == {"double": double}
    assert isinstance(double, QueueHandler)


def test_a_name_and_options_can_be_said_in_parentheses(queue: Queue) -> None:
    @queue.handler(name="send ü", priority=90, max_failures=3)
    def send() -> None: ...

    send.options(id="a").add()
    send.options(id="b", priority=10, delay=30).add()
    a, b = queue.show("a"), queue.show("b")
    assert a
    assert b
    assert (a.facts.handler, a.priority, a.facts.max_failures) == ("send ü", 90, 3)
    assert (b.state, b.priority, b.facts.max_failures) == ("delayed", 10, 3)


def test_options_of_one_call_are_not_those_of_the_next(queue: Queue) -> None:
    @queue.handler
    def send(to: str) -> None: ...

    urgent = send.options(priority=99)
    urgent.options(id="a").add("ann")
    send.options(id="b").add("bob")
    send.options(id="a", on_conflict="update").add("cid")
    with pytest.raises(JobExists):
        send.options(id="b", on_conflict="raise").add("dan")
    found = [queue.show("a"), queue.show("b")]
    assert [(job.priority, job.json()["to"]) for job in found if job] == [(50, "cid"), (50, "bob")]


def test_many_calls_are_added_at_once_and_all_are_checked_before(queue: Queue) -> None:
    @queue.handler
    def send(to: str, n: int = 0) -> None: ...

    assert all(send.add_many({"to": f"{n}", "n": n} for n in range(5)))
    assert len(queue) == 5
    with pytest.raises(InvalidArgument, match="missing a required argument: 'to'"):
        send.add_many([*({"to": "x"} for _ in range(1500)), {"n": 2}])
    with pytest.raises(InvalidArgument, match="must be a dict of arguments, not 'ann'"):
        send.add_many(["ann"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="one id cannot be used for many jobs"):
        send.options(id="a").add_many([{"to": "x"}])
    assert len(queue) == 5


def test_a_call_can_be_a_follow_up(queue: Queue) -> None:
    @queue.handler(priority=80)
    def send(to: str) -> None: ...

    job = send.options(id="f", on_conflict="raise").new("ann")
    assert job == NewJob(b'{"to":"ann"}', id="f", handler="send", priority=80)
    queue.add(b"", id="a")
    lease = queue.lease(30)
    assert lease
    queue.complete(lease, add=[job])
    assert data_of(queue, "f") == {"to": "ann"}
    with pytest.raises(InvalidArgument, match="give it to add_many"):
        queue.add(job)


def test_more_names_can_be_taken(queue: Queue) -> None:
    @queue.handler
    def send(to: str, **more: int) -> None: ...

    send.options(id="a").add("ann", copies=2, pages=3)
    assert data_of(queue) == {"to": "ann", "copies": 2, "pages": 3}
    send.options(id="b").add("ann")
    assert data_of(queue, "b") == {"to": "ann"}


def test_both_shells_store_the_same(test_server: TestServer, queue: Queue, clock: Clock) -> None:
    aqueue = AsyncQueue(queue.name, test_server.queue_url, clock=clock)

    def send(to: str, subject: str = "") -> str:
        return to + subject

    mine, its = queue.handler(send), aqueue.handler(send)

    async def use() -> list[object]:
        async with aqueue:
            first = await its.options(id="x").add("ann")
            many = await its.add_many([{"to": "bob"}] * 3)
            with contextlib.suppress(InvalidArgument):
                await its.add()  # type: ignore[call-arg]
            with pytest.raises(WrongState, match="has not ended"):
                await its.result("x")
            return [first, [bool(one) for one in many]]

    told = [
        mine.options(id="x").add("ann"),
        [bool(one) for one in mine.add_many([{"to": "b"}] * 3)],
    ]
    stored = queue.data("x")
    queue.delete()
    assert asyncio.run(use()) == told
    assert queue.data("x") == stored
    assert repr(its) == "<AsyncQueueHandler 'send'>"


# ------------------------------------------------------------------------- what is refused

Call = Callable[[Any], object]
BAD_CALLS: dict[str, tuple[Call, str]] = {
    "one too few": (lambda send: send.add(), "missing a required argument: 'to'"),
    "one too many": (lambda send: send.add("a", 1, 2), "too many positional arguments"),
    "an unknown one": (lambda send: send.add("a", cc="b"), "unexpected keyword argument 'cc'"),
    "one twice": (lambda send: send.add("a", to="b"), "multiple values for argument 'to'"),
    "an unknown option": (lambda send: send.options(colour=1), "unknown option 'colour'"),
    "a bad option": (lambda send: send.options(priority=100), "priority must be 0 to 99"),
    "a handler": (lambda send: send.options(handler="x"), "give no handler"),
}


@pytest.mark.parametrize("what", BAD_CALLS)
def test_a_call_that_the_function_would_not_take_is_refused(queue: Queue, what: str) -> None:
    @queue.handler
    def send(to: str, n: int = 0) -> None: ...

    call, message = BAD_CALLS[what]
    with pytest.raises(InvalidArgument, match=message):
        call(send)
    assert len(queue) == 0


class Colour(enum.Enum):
    RED = "red"


NOT_JSON: dict[str, tuple[object, str]] = {
    "a tuple": ((1, 2), "what is a tuple"),
    "a tuple in a list": ([[1], [(2,)]], r"what\[1\]\[0\] is a tuple"),
    "a time": ({"at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}, r"what\['at'\] is a datetime"),
    "a date": (dt.date(2024, 1, 1), "what is a date"),
    "bytes": (b"raw", "what is a bytes"),
    "a set": ({1}, "what is a set"),
    "a decimal": (Decimal("1.5"), "what is a Decimal"),
    "a uuid": (UUID(int=1), "what is an? UUID"),
    "an enum": (Colour.RED, "what is a Colour"),
    "a key that is no text": ({"in": {1: "a"}}, r"a key of what\['in'\] is an int"),
    "not a number": (math.nan, "NaN and infinity have no JSON form"),
    "what has no form at all": (object(), "cannot be written as JSON"),
}


@pytest.mark.parametrize("what", NOT_JSON)
def test_what_json_does_not_have_is_refused(queue: Queue, what: str) -> None:
    @queue.handler
    def take(what: object, more: int = 0) -> None: ...

    value, message = NOT_JSON[what]
    with pytest.raises(CodecError, match=message):
        take.add(what=value)  # type: ignore[call-arg]
    assert len(queue) == 0


@pytest.mark.parametrize(
    "value", [None, True, 0, -1, 2**63, 1.5, -0.0, "ü\n\0", [], {}, [1, [2, {"a": None}]], {"": 1}]
)
def test_what_json_has_is_stored_as_it_is(queue: Queue, value: object) -> None:
    @queue.handler
    def take(what: Any) -> None: ...

    take.options(id="a").add(what=value)
    assert data_of(queue) == {"what": value}


def test_a_function_that_cannot_be_called_by_name_is_refused(queue: Queue) -> None:
    def two(a: int, /, b: int) -> None: ...
    def any_number(*numbers: int) -> None: ...
    def job_last(to: str, job: RunningJob) -> None: ...
    def gives() -> Any:
        yield 1

    refused: dict[Any, str] = {
        two: "a: int has no name",
        any_number: r"\*numbers: int has no name",
        job_last: "the job must be the first parameter",
        gives: "has a `yield`",
        (lambda: None): "use name=",
        functools.partial(two, 1): "use name=",
        7: "must be a function",
    }
    for function, message in refused.items():
        with pytest.raises(InvalidArgument, match=message):
            queue.handler(function)
    assert queue.handlers == {}
    assert queue.handler(name="x")(lambda: None).name == "x"
    assert queue.handler("y")(lambda: None).name == "y"


def test_bad_options_and_names_are_refused_when_they_are_said(queue: Queue) -> None:
    def send() -> None: ...

    for options, message in (
        ({"name": "x" * 513}, "name must have 1 to 512 bytes"),
        ({"name": 7}, "name must be a str"),
        ({"handler": "x"}, "give no handler"),
        ({"priority": "high"}, "priority must be an int"),
        ({"colour": 1}, "unknown option"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            queue.handler(**options)(send)
    queue.handler(send)
    with pytest.raises(InvalidArgument, match="a handler named 'send' already"):
        queue.handler(send)
    assert list(queue.handlers) == ["send"]


# ------------------------------------------------------------------------------ the result


def finish(queue: Queue, result: object) -> None:
    lease = queue.lease(30)
    assert lease
    queue.complete(lease, result)


def test_a_result_is_of_the_type_that_the_function_says(queue: Queue) -> None:
    @queue.handler(result_for=60)
    def when() -> tuple[dt.date, int]:
        return dt.date(2024, 1, 1), 1

    when.options(id="a").add()
    with pytest.raises(WrongState, match="a: the job has not ended"):
        when.result("a", wait=0.01)
    finish(queue, when())
    assert when.result("a") == (dt.date(2024, 1, 1), 1)
    queue.set_result("a", "no date")
    with pytest.raises(CodecError, match="a: the result is not what when returns"):
        when.result("a")


def test_a_job_that_did_not_end_well_has_no_result(queue: Queue) -> None:
    @queue.handler(result_for=60)
    def send() -> None: ...

    for id in ("failed", "cancelled", "nothing"):
        send.options(id=id).add()
    lease = queue.lease(30)
    assert lease
    queue.fail(lease, error="why")
    queue.cancel("cancelled")
    finish(queue, None)
    with pytest.raises(WrongState, match="failed: the job has failed: why"):
        send.result("failed")
    with pytest.raises((WrongState, JobNotFound)):
        send.result("cancelled")
    send.result("nothing")
    with pytest.raises(JobNotFound):
        send.result("nobody")
