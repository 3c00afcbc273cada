"""Parts that say what runs them: calls of handlers, and other jobs with options of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from conftest import Clock
from engine_support import Behind, engine_calls
from holdfast import (
    AsyncQueue,
    AsyncRunningJob,
    InvalidArgument,
    NewJob,
    Queue,
    Request,
    Row,
    RunningJob,
    Server,
    ShardedQueue,
    Worker,
)
from support import DEADLINE, TestServer


def declared(queue: Queue) -> Any:
    @queue.handler(priority=70, max_failures=3)
    def send(to: str, copies: int = 1) -> str:
        return to * copies

    return send


def opened(queue: Queue, id: str = "r") -> Request:
    request = queue.request(id)
    request.open()
    return request


def results(request: Request) -> list[Any]:
    return [part.json() for part in request.results()]


def test_a_call_of_a_handler_is_a_part(queue: Queue) -> None:
    send = declared(queue)
    request = opened(queue)
    assert request.add(send.new("ann", copies=2)).id == "r/0"
    job = queue.show("r/0")
    assert job
    assert (job.facts.handler, job.json()) == ("send", {"to": "ann", "copies": 2})
    assert (job.priority, job.facts.max_failures) == (70, 3)


def test_a_worker_runs_the_calls_and_their_results_are_those_of_the_request(queue: Queue) -> None:
    send = declared(queue)
    with queue.request("r") as request:
        request.add(send.new("ann"))
        assert request.add_many(send.new(to, copies=2) for to in ("bob", "cid")) == 2
    assert Worker(queue).run(until_empty=True)
    assert results(request) == ["ann", "bobbob", "cidcid"]


def test_parts_with_different_options_keep_their_order_and_their_options(queue: Queue) -> None:
    request = opened(queue)
    pieces = [
        b"plain",
        NewJob("a", handler="one"),
        NewJob("b", handler="one", timeout=5),
        NewJob("c", handler="two", priority=90),
        {"d": 1},
        NewJob("e", delay=60),
        NewJob("f", at=1_700_000_060),
        "last",
    ]
    assert request.add_many(pieces, max_failures=7, handler="shared") == len(pieces)
    jobs = [queue.show(f"r/{n}") for n in range(len(pieces))]
    found = [
        (job.data, job.facts.handler, job.priority, job.facts.timeout_ms, job.state)
        for job in jobs
        if job
    ]
    assert found == [
        (b"plain", "shared", 50, None, "parked"),
        (b"a", "one", 50, None, "parked"),
        (b"b", "one", 50, 5000, "parked"),
        (b"c", "two", 90, None, "parked"),
        (b'{"d":1}', "shared", 50, None, "parked"),
        (b"e", "shared", 50, None, "delayed"),
        (b"f", "shared", 50, None, "delayed"),
        (b"last", "shared", 50, None, "parked"),
    ]
    assert {job.facts.max_failures for job in jobs if job} == {7}
    assert {job.at for job in jobs if job and job.state == "delayed"} == {1_700_000_060.0}


def test_calls_that_are_alike_are_sent_together(queue: Queue, behind: Behind) -> None:
    send = declared(queue)
    request = opened(queue)
    before = engine_calls(behind.client)
    assert request.add_many(send.new(str(n)) for n in range(400)) == 400
    assert engine_calls(behind.client) == before + 1


def test_a_producer_that_begins_again_doubles_no_call(queue: Queue) -> None:
    send = declared(queue)
    opened(queue).add_many([send.new("ann"), NewJob("x"), send.new("bob")])
    again = opened(queue)
    assert again.add_many([send.new("ann"), NewJob("x"), send.new("bob"), send.new("cid")]) == 1
    assert again.status().total == 4
    assert not again.add(send.new("bob"), number=2)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"id": "mine"}, "named after its request"),
    ({"group": "g"}, "group"),
    ({"group": "g", "group_limit": 1}, "group"),
    ({"priority": 100}, "priority"),
    ({"delay": 1, "at": 1_700_000_060}, "delay or at, not both"),
]


@pytest.mark.parametrize(("options", "match"), REFUSED)
def test_what_a_part_cannot_have_is_refused_before_anything_is_written(
    queue: Queue, options: dict[str, Any], match: str
) -> None:
    request = opened(queue)
    job = NewJob(b"x", **options)
    with pytest.raises(InvalidArgument, match=match):
        request.add(job)
    with pytest.raises(InvalidArgument, match=match):
        request.add_many([*[b"x"] * 600, job])
    with pytest.raises(InvalidArgument, match=match):
        request.add_many((NewJob(b"y", handler="h"), job))
    assert request.status().total == 0


def test_how_long_a_part_is_kept_is_the_request_s_to_say(queue: Queue) -> None:
    @queue.handler(result_for=60, keep=True, remember_for=60)
    def send(to: str) -> None: ...

    request = opened(queue)
    assert request.add(send.new("ann"))
    assert request.add_many([send.new("bob"), NewJob(b"x", result_for=1)]) == 2
    job = queue.show("r/0")
    assert job
    assert not job.facts.result_for_ms
    assert not job.facts.keep


def test_a_handler_with_a_group_says_how_it_can_be_a_part(queue: Queue) -> None:
    @queue.handler(group="g", group_limit=2)
    def send(to: str) -> None: ...

    request = opened(queue)
    with pytest.raises(InvalidArgument, match=r"send\.options\(group=None\)"):
        request.add(send.new("ann"))
    assert request.add(send.options(group=None).new("ann"))
    assert request.status().total == 1


def test_a_time_is_said_once(queue: Queue) -> None:
    request = opened(queue)
    for options in ({"delay": 5}, {"at": 1_700_000_060}):
        with pytest.raises(InvalidArgument, match="has its own time"):
            request.add(NewJob(b"x", delay=1), **options)  # type: ignore[arg-type]
    assert request.add(NewJob(b"x"), delay=5)
    job = queue.show("r/0")
    assert job
    assert job.state == "delayed"


def test_a_row_of_another_request_is_refused(queue: Queue) -> None:
    request = opened(queue)
    with pytest.raises(InvalidArgument, match="'other'"):
        request.add(Row(b"x", request="other"))
    assert request.add(Row(b"x", request="r"))
    assert request.add(Row(b"y"))


def test_a_sharded_queue_takes_calls_as_parts(server: Server, clock: Clock) -> None:
    queue = ShardedQueue("typed parts", server, shards=3, clock=clock)
    send = declared(queue)
    with queue.request("r") as request:
        assert request.add(send.new("ann")).id == "r/0"
        assert request.add_many([send.new("bob"), NewJob(b'{"to":"cid"}', handler="send")]) == 2
    assert Worker(queue).run(until_empty=True)
    assert results(request) == ["ann", "bob", "cid"]
    assert queue.audit() == []
    queue.delete()


def test_coroutines_add_calls_as_parts(test_server: TestServer, queue: Queue, clock: Clock) -> None:
    async def main() -> None:
        async with AsyncQueue(queue.name, test_server.queue_url, clock=clock) as aqueue:

            @aqueue.handler
            async def send(job: AsyncRunningJob, to: str) -> list[str]:
                return [job.id, to]

            async with aqueue.request("r") as request:
                assert (await request.add(send.new("ann"))).id == "r/0"
                assert await request.add_many(send.new(to) for to in ("bob", "cid")) == 2
                with pytest.raises(InvalidArgument, match="named after its request"):
                    await request.add(NewJob(b"x", id="mine"))
            await asyncio.to_thread(Worker(aqueue).run, until_empty=True)
            found = [part.json() async for part in request.results()]
            assert found == [["r/0", "ann"], ["r/1", "bob"], ["r/2", "cid"]]

    asyncio.run(asyncio.wait_for(main(), DEADLINE))


def test_children_run_calls_that_are_parts(live_queue: Queue) -> None:
    send = declared(live_queue)

    @live_queue.handler
    def seen(job: RunningJob, n: int) -> list[Any]:
        return [job.id, n]

    with live_queue.request("r") as request:
        request.add_many([send.new("ann"), seen.new(7), send.new("bob")])
    assert Worker(live_queue, executor="process", concurrency=1).run(until_empty=True)
    assert results(request) == ["ann", ["r/1", 7], "bob"]


# ------------------------------------------------------------------ a job is no data

JOB = NewJob(b"x", handler="h")


@pytest.mark.parametrize(
    "data", [JOB, [JOB], (b"x".decode(), JOB), {"a": {"b": [JOB]}}, {1: JOB}, [Row(b"x")]]
)
@pytest.mark.parametrize(
    "store",
    [
        lambda queue, data: queue.add(data),
        lambda queue, data: queue.add_many([{"nested": data}]),
        lambda queue, data: queue.add_many([NewJob(data)]),
        lambda queue, data: queue.request("r").add([data]),
        lambda queue, data: queue.request("r").add(NewJob(data)),
        lambda queue, data: queue.request("r").add_many([[data]]),
        lambda queue, data: queue.request("q", follow_up=[data]).open(),
        lambda queue, data: queue.request("q", follow_up=NewJob(data)).open(),
        lambda queue, data: queue.complete("kept", data, force=True),
        lambda queue, data: queue.complete("kept", add=[[data]], force=True),
        lambda queue, data: queue.set_result("kept", data),
        lambda queue, data: queue.cancel_matching(data),
        lambda queue, data: queue.write("w").stage([[data]], partition=0, attempt=0),
        lambda queue, data: queue.write("w").stage([Row(data)], partition=0, attempt=0),
        lambda queue, data: queue.write("w").stage(
            [Row(data, request="r")], partition=0, attempt=0
        ),
        lambda queue, data: queue.every("5m", [data], name="n"),
        lambda queue, data: queue.every("5m", NewJob(data), name="n"),
    ],
)
def test_a_job_is_not_stored_as_data(
    queue: Queue, store: Callable[[Queue, Any], object], data: Any
) -> None:
    queue.add(b"x", id="kept", result_for=60)
    opened(queue)
    with pytest.raises(InvalidArgument, match="a NewJob is a job, not data"):
        store(queue, data)
    job = queue.show("kept")
    assert job
    assert job.state == "ready"
    assert queue.request("r").status().total == 0
    assert queue.counts().waiting == 1
    assert queue.counts().staged == 0


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("result_for", [0, 60])
def test_a_handler_that_returns_a_job_is_told_how_to_add_it(
    live_queue: Queue, executor: Any, result_for: int
) -> None:
    @live_queue.handler(result_for=result_for, max_failures=0)
    def plan() -> NewJob:
        return NewJob(b"x")

    plan.options(id="a").add()
    assert Worker(live_queue, executor=executor).run(until_empty=True)
    job = live_queue.show("a")
    assert job
    assert job.state == "failed"
    assert "job.add" in str(job.error)
