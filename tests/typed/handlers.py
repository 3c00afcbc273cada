"""What a type checker knows of handlers of a queue. Checked by mypy, never run.

An ignore that hides nothing is an error: each of them shows that a mistake is found.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

from holdfast import (
    AsyncQueue,
    AsyncRunningJob,
    AsyncTypedReceipt,
    Json,
    NewJob,
    Queue,
    Receipt,
    RunningJob,
    Schedule,
    TypedReceipt,
)

queue, aqueue = Queue("some"), AsyncQueue("some")


@queue.handler
def send(to: str, subject: str = "") -> int:
    return len(to) + len(subject)


@queue.handler(name="fetch", priority=90, result_for=60)
async def fetch(url: str, *, depth: int) -> list[str]:
    return [url] * depth


@queue.handler
def watched(job: RunningJob, to: str) -> None:
    job.progress(0.5, to)


@queue.handler
async def watched_too(job: AsyncRunningJob, to: str) -> None:
    await job.extend()


@aqueue.handler
async def later(n: int) -> float:
    return n / 2


def arguments_are_those_of_the_function() -> None:
    receipt: Receipt = send.add("a@b.c", subject="hello")
    assert_type(send.add("a@b.c", subject="hello"), TypedReceipt[int])
    assert_type(send.add_many([{"to": "a@b.c"}]), list[TypedReceipt[int]])
    assert receipt
    assert_type(send.new(to="a@b.c"), NewJob)
    send.options(delay=30, id="x").add(to="a@b.c")
    send.add(to=7)  # type: ignore[arg-type]
    send.add()  # type: ignore[call-arg]
    send.add(to="a@b.c", cc="d@e.f")  # type: ignore[call-arg]
    send.new("a@b.c", 7)  # type: ignore[arg-type]
    fetch.add("here", 2)  # type: ignore[call-arg]
    fetch.add("here", depth=2)


def a_schedule_has_the_arguments_too() -> None:
    assert_type(send.every("5m", "a@b.c", subject="hello"), Schedule)
    later.cron("0 3 * * *", n=3)
    send.every("5m")  # type: ignore[call-overload]
    send.cron("0 3 * * *", to=7)  # type: ignore[call-overload]
    assert_type(send.every("5m", "a@b.c", name="often", missed="all"), Schedule)
    assert_type(send.cron("@daily", "a@b.c", tz="Europe/Berlin"), Schedule)
    later.cron("0 3 * * *", n=3, missed="all")
    later.every("5m", n=3, missed="some")  # type: ignore[call-overload]


def options_are_those_of_a_job() -> None:
    send.options(priority=90, group="ann", group_limit=1).add("a@b.c")
    send.options(priorty=90)  # type: ignore[call-arg]
    queue.handler(nmae="x")  # type: ignore[call-overload]


def a_call_is_one_of_the_function() -> None:
    assert_type(send("a@b.c"), int)
    called: Coroutine[Any, Any, list[str]] = fetch("here", depth=1)
    called.close()
    send(7)  # type: ignore[arg-type]


def a_result_is_what_the_function_returns() -> None:
    assert_type(send.result("x"), int)
    assert_type(fetch.result("x", wait=5), list[str])
    assert_type(fetch.result(queue.add(b"{}"), wait=5), list[str])
    assert_type(fetch.add("here", depth=1).result(wait=5), list[str])
    fetch.add("here", depth=1).result(5)  # type: ignore[call-arg]


def a_part_can_be_a_call() -> None:
    with queue.request("r") as request:
        assert_type(request.add(send.new("a@b.c")), Receipt)
        assert_type(request.add_many(send.new(to) for to in "ab"), int)


def a_payload_is_given_once_in_one_of_two_ways() -> None:
    queue.add("1", priority=90)
    queue.add(json="1", priority=90)
    queue.add(Json("1"))


def the_job_is_given_by_the_worker(job: RunningJob) -> None:
    watched.add("a@b.c")
    watched_too.add(to="a@b.c")
    watched.add(job, "a@b.c")  # type: ignore[arg-type, call-arg]
    watched(job, "a@b.c")
    watched("a@b.c")  # type: ignore[arg-type, call-arg]


async def all_of_it_can_be_awaited() -> None:
    assert_type(await later.add(3), AsyncTypedReceipt[float])
    assert_type(await later.add_many([{"n": 3}]), list[AsyncTypedReceipt[float]])
    assert_type(await (await later.add(3)).result(wait=5), float)
    assert_type(await later.result("x"), float)
    await later.add("3")  # type: ignore[arg-type]
