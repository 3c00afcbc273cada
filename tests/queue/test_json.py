"""Values that come back as they were given, and what `json()` says where nothing is kept."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Clock
from engine_support import Behind
from holdfast import (
    AsyncQueue,
    CodecError,
    InvalidArgument,
    Json,
    NewJob,
    Outcome,
    Queue,
    Row,
    RunningJob,
    Server,
    ShardedQueue,
    Worker,
)
from holdfast.codec import MAX_PAYLOAD_BYTES, decode_json, encode, encode_result
from support import DEADLINE, TestServer

VALUES: list[Any] = ["1", "null", "", 'a "b" ü', None, 7, True, [], {"a": ["1", None]}]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=10,
    )
)
def test_whatever_has_a_json_form_comes_back_as_it_was(value: Any) -> None:
    assert decode_json(encode(Json(value))) == value
    assert decode_json(encode_result(Json(value))) == value


def test_a_str_is_still_its_bytes(queue: Queue) -> None:
    queue.add("1", id="raw")
    queue.add(Json("1"), id="text")
    assert (queue.data("raw"), queue.data("text")) == (b"1", b'"1"')


ADDING: dict[str, Callable[[Queue, Any], object]] = {
    "add": lambda queue, value: queue.add(Json(value), id="a"),
    "add(json=)": lambda queue, value: queue.add(json=value, id="a"),
    "NewJob": lambda queue, value: queue.add_many([NewJob(Json(value), id="a")]),
    "an update": lambda queue, value: (
        queue.add(b"other", id="a"),
        queue.add(json=value, id="a", on_conflict="update"),
    ),
}


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("way", ADDING)
def test_a_payload_comes_back_as_it_was(queue: Queue, way: str, value: Any) -> None:
    ADDING[way](queue, value)
    lease = queue.lease(30)
    assert lease
    assert lease.json() == value
    assert type(lease.json()) is type(value)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_many_payloads_parts_and_rows_come_back_as_they_were(queue: Queue, value: Any) -> None:
    queue.add_many([Json(value)])
    with queue.request("r", follow_up=Json(value)) as request:
        request.add(Json(value))
        request.add_many([Json(value), NewJob(Json(value))])
    write = queue.write("w")
    rows: list[Any] = [Json(value), Row(Json(value))]
    write.commit([write.stage(rows, partition=0, attempt=0)])
    seen = []
    while lease := queue.lease(30):
        seen.append(lease.json())
        queue.complete(lease)
    assert seen == [value] * 7


def test_a_follow_up_and_a_tick_can_be_json(queue: Queue, clock: Clock) -> None:
    queue.every(5, Json("1"), name="s")
    queue.tick()
    clock.advance(5)
    assert len(queue.tick()) > 0
    clock.advance(5)
    tick = queue.lease(30)
    assert tick
    assert tick.json() == "1"
    queue.complete(tick, add=[Json("2")])
    assert any(job.json() == "2" for job in queue.peek(9))


RESULTS: dict[str, Callable[[Queue, Any], object]] = {
    "complete": lambda queue, result: queue.complete("a", result, force=True),
    "complete_many": lambda queue, result: queue.complete_many([(held(queue), result)]),
    "lease_many": lambda queue, result: queue.lease_many(1, 1, complete=[(held(queue), result)]),
    "set_result": lambda queue, result: queue.set_result("a", result),
}


def held(queue: Queue) -> Any:
    lease = queue.lease(30)
    assert lease
    return lease


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("way", RESULTS)
def test_a_result_comes_back_as_it_was(queue: Queue, way: str, value: Any) -> None:
    queue.add(b"", id="a", result_for=60)
    RESULTS[way](queue, Json(value))
    if way == "set_result":
        queue.complete("a", force=True)
    outcome = queue.result("a")
    assert outcome
    assert outcome.json() == value


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_handler_can_return_json(live_queue: Queue, executor: Any) -> None:
    def first(job: RunningJob) -> Json:
        job.add(json=job.json(), id=f"{job.id}+", handler="second", result_for=60)
        return Json(job.json())

    def second(job: RunningJob) -> Json:
        return Json([job.json()])

    @live_queue.handler(result_for=60)
    def typed() -> Json:
        return Json("1")

    worker = Worker(live_queue, executor=executor, concurrency=1)
    worker.handler("first")(first)
    worker.handler("second")(second)
    live_queue.add(json="1", id="a", handler="first", result_for=60)
    live_queue.add(json=None, id="b", handler="first", result_for=60)
    typed.options(id="c").add()
    assert worker.run(until_empty=True)
    found = [live_queue.result(id) for id in ("a", "b", "c", "a+", "b+")]
    assert [outcome.json() for outcome in found if outcome] == ["1", None, "1", ["1"], [None]]


def test_jobs_that_match_are_cancelled(queue: Queue) -> None:
    queue.add(json="1", id="text")
    queue.add("1", id="raw")
    assert queue.cancel_matching(Json("1")) == 1
    assert queue.show("text") is None
    assert queue.cancel_matching("1") == 1


@pytest.mark.parametrize(
    ("add", "match"),
    [
        (lambda queue: queue.add(), "give the payload: data, or json="),
        (lambda queue: queue.add(b"x", json=1), "give data or json=, not both"),
        (lambda queue: queue.add(Json(1), json=None), "give data or json=, not both"),
        (lambda queue: queue.add(json=object()), "payload cannot be written as JSON"),
        (lambda queue: queue.add(json=math.nan), "NaN and infinity have no JSON form"),
        (lambda queue: queue.add(json="x" * MAX_PAYLOAD_BYTES), "payload has"),
        (lambda queue: queue.add(json=NewJob(b"x")), "a NewJob is a job"),
        (lambda queue: queue.add({"a": Json("1")}), "payload cannot be written as JSON.*Json"),
    ],
)
def test_what_is_no_payload_is_refused(
    queue: Queue, behind: Behind, add: Callable[[Queue], object], match: str
) -> None:
    with pytest.raises((InvalidArgument, CodecError), match=match):
        add(queue)
    assert behind.everything() == {}


@dataclass
class Letter:
    body: object


CHANGED: dict[str, tuple[Any, str]] = {
    "bytes": (b"x", "payload is bytes, which JSON does not have"),
    "bytes within": ({"a": [1, bytearray(b"x")]}, r"payload\['a'\]\[1\] is bytes"),
    "bytes in a field": (Letter({"a": b"x"}), r"payload\['body'\]\['a'\] is bytes"),
    "a key": ({1: "a"}, r"payload has the key 1, which would come back as text.*make all keys str"),
    "a key within": ([{"a": {1.5: 1}}], r"payload\[0\]\['a'\] has the key 1\.5"),
    "a set": ({"a": {1, 2}}, r"payload\['a'\] is a set.*as a list: give a list"),
    "a frozenset": (frozenset("a"), "payload is a set"),
    "NaN": ([math.nan], "NaN and infinity have no JSON form"),
    "infinity": ({"a": (-math.inf, None)}, "NaN and infinity have no JSON form"),
}


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("way", ["add", "add(json=)", "NewJob"])
def test_a_value_that_json_would_change_is_refused(
    queue: Queue, behind: Behind, way: str, name: str
) -> None:
    value, match = CHANGED[name]
    with pytest.raises((InvalidArgument, CodecError), match=match) as refused:
        ADDING[way](queue, value)
    if "NaN" not in match:
        assert type(refused.value) is InvalidArgument
    assert behind.everything() == {}


@pytest.mark.parametrize("name", CHANGED)
def test_a_result_that_json_would_change_is_refused(queue: Queue, name: str) -> None:
    value, match = CHANGED[name]
    queue.add(b"", id="a", result_for=60)
    with pytest.raises((InvalidArgument, CodecError), match=match.replace("payload", "result")):
        queue.complete("a", Json(value), force=True)
    assert queue.result("a") is None


@pytest.mark.parametrize(
    ("value", "comes_back"),
    [
        ((1, ("a",)), [1, ["a"]]),
        ({"at": datetime(2030, 1, 31, tzinfo=UTC)}, {"at": "2030-01-31T00:00:00Z"}),
        (Letter("hello"), {"body": "hello"}),
        (msgspec.Raw(b"[1]"), [1]),
        ({"null": None, "n": 1.5}, {"null": None, "n": 1.5}),
    ],
)
def test_what_json_writes_in_its_own_way_is_taken(
    queue: Queue, value: Any, comes_back: Any
) -> None:
    queue.add(json=value)
    lease = queue.lease(30)
    assert lease
    assert lease.json() == comes_back


def test_a_part_can_be_given_as_json(test_server: TestServer, queue: Queue, clock: Clock) -> None:
    with queue.request("r") as request:
        assert request.add(json="1", priority=90).id == "r/0"
        with pytest.raises(InvalidArgument, match="give data or json=, not both"):
            request.add(b"x", json=1)
        with pytest.raises(InvalidArgument, match="give the payload: data, or json="):
            request.add()
        with pytest.raises(InvalidArgument, match="payload is bytes"):
            request.add(json=b"x")

    async def main() -> None:
        aqueue = AsyncQueue(queue.name, test_server.queue_url, clock=clock)
        async with aqueue, aqueue.request("a") as request:
            await request.add(json="1")
            with pytest.raises(InvalidArgument, match="give data or json=, not both"):
                await request.add(b"x", json=1)

    asyncio.run(asyncio.wait_for(main(), DEADLINE))
    assert [lease.json() for lease in queue.lease_many(9, 30)] == ["1", "1"]


def test_a_sharded_queue_takes_json(server: Server, clock: Clock) -> None:
    queue = ShardedQueue("json", server, shards=3, clock=clock)
    queue.add(json="1", id="a", result_for=60)
    lease = queue.lease(30)
    assert lease
    assert lease.json() == "1"
    assert queue.complete(lease, Json("2"))
    outcome = queue.result("a")
    assert outcome
    assert outcome.json() == "2"
    with pytest.raises(InvalidArgument, match="give data or json=, not both"):
        queue.add(b"x", json=1)
    queue.delete()


def test_coroutines_take_json(test_server: TestServer, queue: Queue, clock: Clock) -> None:
    async def main() -> None:
        async with AsyncQueue(queue.name, test_server.queue_url, clock=clock) as aqueue:
            await aqueue.add(json="1", id="a", result_for=60)
            lease = await aqueue.lease(30)
            assert lease
            assert lease.json() == "1"
            assert await aqueue.complete(lease, Json("2"))
            outcome = await aqueue.result("a")
            assert outcome
            assert outcome.json() == "2"
            with pytest.raises(InvalidArgument, match="give data or json=, not both"):
                await aqueue.add(b"x", json=1)

    asyncio.run(asyncio.wait_for(main(), DEADLINE))


def test_json_is_compared_and_shown_by_its_value() -> None:
    assert Json("1") == Json("1")
    assert Json("1") != Json(1)
    assert Json("1") != "1"
    assert len({Json("1"), Json("1"), Json("2")}) == 2
    assert repr(Json("1")) == "Json('1')"


# --------------------------------------------------------------- where nothing is kept


def test_an_ending_without_a_result_has_no_json(queue: Queue) -> None:
    queue.add(b"x", id="a", result_for=60)
    queue.complete("a", force=True)
    outcome = queue.result("a")
    assert outcome
    assert outcome.result is None
    with pytest.raises(CodecError, match=r"a: no result is kept.*returned None.*result_for"):
        outcome.json()


def test_a_result_of_none_that_was_stored_is_none(queue: Queue) -> None:
    queue.add(b"x", id="a", result_for=60)
    queue.complete("a", Json(None), force=True)
    outcome = queue.result("a")
    assert outcome
    assert outcome.json() is None


@pytest.mark.parametrize("error", [None, "boom"])
def test_a_job_that_did_not_complete_says_so_when_its_json_is_asked_for(error: str | None) -> None:
    outcome = Outcome("a", "failed" if error else "cancelled", error=error)
    match = "a: no result is kept: the job has failed: boom" if error else "the job was cancelled"
    with pytest.raises(CodecError, match=match):
        outcome.json()


def test_an_empty_result_is_not_json(queue: Queue) -> None:
    queue.add(b"x", id="a", result_for=60)
    queue.complete("a", b"", force=True)
    outcome = queue.result("a")
    assert outcome
    assert outcome.result == b""
    with pytest.raises(CodecError, match="a: the result is empty, which is not JSON"):
        outcome.json()


def test_a_job_whose_payload_is_gone_has_no_json(queue: Queue) -> None:
    queue.add(b"[1]", id="a", result_for=60)
    queue.add(b"[1]", id="b", result_for=60, keep=True)
    queue.add(b"", id="c")
    for id in "ab":
        queue.complete(id, force=True)
    gone, kept, empty = (queue.show(id) for id in "abc")
    assert gone
    assert kept
    assert empty
    with pytest.raises(CodecError, match=r"a: the payload is not kept.*keep=True"):
        gone.json()
    assert kept.json() == [1]
    with pytest.raises(CodecError, match="c: the payload is empty, which is not JSON"):
        empty.json()


def test_a_part_without_a_result_has_no_json(queue: Queue) -> None:
    with queue.request("r") as request:
        request.add_many([b"x", b"y"])
    for lease, result in zip(queue.lease_many(2, 30), (None, Json(None)), strict=True):
        queue.complete(lease, result)
    nothing, none = request.results()
    with pytest.raises(CodecError, match="r/0: no result is kept"):
        nothing.json()
    assert none.json() is None


def test_a_part_that_has_not_ended_says_so_when_its_json_is_asked_for(queue: Queue) -> None:
    with queue.request("r") as request:
        request.add_many([b"x", b"y", b"z"])
    running, done = queue.lease_many(2, 30)
    queue.complete(done)
    parts = {part.id: part for part in request.results()}
    with pytest.raises(CodecError, match=r"is running and has no result yet.*request\.wait\(\)"):
        parts[running.id].json()
    with pytest.raises(CodecError, match=r"r/2: the part is waiting and has no result yet"):
        parts["r/2"].json()
    with pytest.raises(CodecError, match=r"no result is kept: its handler returned None$"):
        parts[done.id].json()


def test_an_empty_payload_says_so(queue: Queue) -> None:
    queue.add(b"", id="a")
    lease = queue.lease(30)
    assert lease
    with pytest.raises(CodecError, match="a: the payload is empty, which is not JSON"):
        lease.json()
