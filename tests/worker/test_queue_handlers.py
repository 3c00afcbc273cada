"""Workers know the handlers of their queues, and call them with what jobs carry."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import holdfast
from conftest import Clock
from holdfast import AsyncQueue, Fail, InvalidArgument, Queue, RunningJob, Worker, WrongState
from holdfast.testing import run_until_empty
from support import TestServer
from worker.support import at_work, shown

if TYPE_CHECKING:
    from holdfast import AsyncRunningJob
    from holdfast.worker.handlers import ExecutorKind


def work_off(queue: Queue | AsyncQueue) -> None:
    assert Worker(queue).run(until_empty=True)


def test_a_worker_calls_the_handlers_of_its_queue(queue: Queue) -> None:
    @queue.handler(result_for=60)
    def send(to: str, subject: str = "hello") -> str:
        return f"{to}: {subject}"

    @queue.handler(result_for=60)
    async def fetch(url: str, *, depth: int) -> list[str]:
        return [url] * depth

    send.options(id="a").add("ann")
    send.options(id="b").add(to="bob", subject="12")
    fetch.options(id="c").add("here", depth=2)
    queue.add({"to": "from elsewhere"}, id="d", handler="send", result_for=60)
    work_off(queue)
    assert [send.result(id) for id in "abd"] == ["ann: hello", "bob: 12", "from elsewhere: hello"]
    assert fetch.result("c") == ["here", "here"]
    assert [outcome.json() for id in "ab" if (outcome := queue.result(id))] == [
        "ann: hello",
        "bob: 12",
    ]


def test_a_function_is_given_the_job_where_it_asks_for_it(queue: Queue) -> None:
    @queue.handler(result_for=60)
    def send(job: RunningJob, to: str) -> list[str]:
        return [job.id, to]

    @queue.handler(result_for=60)
    async def fetch(a_job: AsyncRunningJob, to: str) -> list[str]:
        return [a_job.id, to]

    @queue.handler(result_for=60)
    def named(job: holdfast.RunningJob) -> list[str]:
        return [job.id]

    send.options(id="a").add("ann")
    fetch.options(id="b").add("bob")
    named.options(id="c").add()
    work_off(queue)
    assert (send.result("a"), fetch.result("b"), named.result("c")) == (
        ["a", "ann"],
        ["b", "bob"],
        ["c"],
    )


def test_bytes_and_text_come_back_as_they_were(queue: Queue) -> None:
    @queue.handler(result_for=60)
    def raw() -> bytes:
        return b"\0\xff"

    @queue.handler(result_for=60)
    def text() -> str:
        return "7"

    raw.options(id="a").add()
    text.options(id="b").add()
    work_off(queue)
    assert (raw.result("a"), text.result("b")) == (b"\0\xff", "7")


def test_what_a_handler_raises_means_what_it_always_does(queue: Queue) -> None:
    @queue.handler
    def send(to: str) -> None:
        raise Fail("nobody") if to == "nobody" else ValueError("busy")

    send.options(id="a").add("nobody")
    send.options(id="b").add("ann")
    work_off(queue)
    assert (shown(queue, "a").state, shown(queue, "a").error) == ("failed", "nobody")
    assert (shown(queue, "b").state, shown(queue, "b").error) == ("delayed", "ValueError: busy")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"no JSON", "CodecError"),
        (b"[1]", "takes a JSON object, its arguments by name, not [1]"),
        (b"{}", "missing 1 required positional argument: 'to'"),
        (b'{"to": 1, "cc": 2}', "unexpected keyword argument 'cc'"),
    ],
)
def test_a_payload_that_is_no_call_is_a_failure(queue: Queue, data: bytes, error: str) -> None:
    @queue.handler
    def send(to: str) -> None: ...

    queue.add(data, id="a", handler="send")
    work_off(queue)
    assert shown(queue).state == "delayed"
    assert error in (shown(queue).error or "")


def test_a_worker_has_handlers_of_its_own_beside_those_of_its_queue(queue: Queue) -> None:
    called: list[str] = []

    @queue.handler
    def send() -> None:
        called.append("send")

    worker = Worker(queue)
    worker.handler(lambda job: called.append("any"))
    worker.handler("send")(lambda job: called.append("send of all queues"))
    queue.add(b"")
    send.add()
    for _ in range(2):
        assert worker.run(until_empty=True)
        send.add()
    assert sorted(called) == ["any", "send", "send"]

    with pytest.raises(InvalidArgument, match="send is a handler of its queue"):
        worker.handler(send)
    worker.handler("send", queue=queue.name)
    twice = Worker(queue)
    twice.handler("send", queue=queue.name)(lambda job: None)
    with pytest.raises(InvalidArgument, match="a handler for jobs named 'send'"):
        twice.start()
    with pytest.raises(InvalidArgument, match="is not a coroutine function"):
        Worker(queue, executor="async").start()


def test_a_queue_that_is_taken_up_brings_its_handlers(
    queue: Queue, test_server: TestServer, clock: Clock
) -> None:
    late = Queue(queue.name + "2", test_server.queue_url, clock=clock)

    @late.handler(result_for=60)
    def send(to: str) -> str:
        return to

    worker = Worker(queue)
    worker.handler(lambda job: None)
    with at_work(worker), late:
        worker.take_up(late)
        send.options(id="a").add("ann")
        assert send.result("a", wait=30) == "ann"
        late.delete()


def test_a_worker_knows_the_handlers_of_an_async_queue(
    queue: Queue, test_server: TestServer, clock: Clock
) -> None:
    aqueue = AsyncQueue(queue.name, test_server.queue_url, clock=clock)
    called: list[str] = []

    @aqueue.handler
    async def send(to: str) -> None:
        called.append(to)

    queue.add(send.new("ann").data, handler="send")
    work_off(aqueue)
    assert called == ["ann"]


def test_processes_that_run_cannot_learn_of_more_handlers(
    queue: Queue, test_server: TestServer, clock: Clock
) -> None:
    late = Queue(queue.name + "2", test_server.queue_url, clock=clock)
    late.handler("send")(lambda: None)
    worker = Worker(queue, executor="process", concurrency=1)
    worker.handler(lambda job: None)
    with at_work(worker):
        with pytest.raises(WrongState, match="before the worker starts"):
            worker.take_up(late)
        late.handlers.clear()
        worker.take_up(late)
    late.close()


def test_the_handlers_of_a_queue_run_in_processes_too(queue: Queue) -> None:
    @queue.handler(result_for=60)
    def where(job: RunningJob, given: str) -> list[object]:
        return [job.id, given, os.getpid()]

    where.options(id="a").add("ü")
    assert Worker(queue, executor="process", concurrency=1).run(until_empty=True)
    id, given, pid = where.result("a")
    assert (id, given) == ("a", "ü")
    assert pid != os.getpid()


# ----------------------------------------------------------------------- timeouts


def test_a_timeout_that_a_thread_would_not_heed_is_refused_at_the_start(queue: Queue) -> None:
    @queue.handler(timeout=5)
    def send(to: str) -> None: ...

    worker = Worker(queue)
    for start in (worker.start, worker.run):
        with pytest.raises(InvalidArgument) as refused:
            start()
        for word in ("'send'", queue.name, 'executor="process"', "async def", "job.cancelled"):
            assert word in str(refused.value) or repr(word)[1:-1] in str(refused.value)
    worker = Worker([Queue(f"{queue.name}2", queue.server)])
    worker.handler(print)
    with at_work(worker), pytest.raises(InvalidArgument, match="'send'"):
        worker.take_up(queue)


@pytest.mark.parametrize("executor", ["thread", "process", "async"])
def test_a_timeout_is_taken_where_a_run_can_be_ended(queue: Queue, executor: ExecutorKind) -> None:
    if executor == "process":

        @queue.handler(timeout=60)
        def send(to: str) -> None: ...
    else:

        @queue.handler(timeout=60)
        async def send(to: str) -> None: ...

    queue.add({"to": "ann"}, handler="send", timeout=60)
    assert Worker(queue, executor=executor).run(until_empty=True)
    assert len(queue) == 0


def test_a_handler_with_a_timeout_can_be_tested(queue: Queue) -> None:
    """Where nothing but the test runs, nobody waits for it."""

    @queue.handler(timeout=5)
    def send(to: str) -> None: ...

    send.add("ann")
    assert len(run_until_empty(queue)) == 1
