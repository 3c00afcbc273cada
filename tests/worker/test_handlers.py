"""Which handler runs a job: by its name, by its queue; and what nobody here can run."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterator

import pytest

from conftest import Clock
from holdfast import InvalidArgument, Queue, RunningJob, Worker
from holdfast.worker.handlers import MOST_NAMES, Unknown, unknown_after
from worker.support import Heard, shown

Called = list[tuple[str, str]]


@pytest.fixture
def other(queue: Queue, clock: Clock) -> Iterator[Queue]:
    other = Queue(queue.name + "2", queue.server, clock=clock)
    yield other
    assert other.audit() == []
    other.delete()


def run(worker: Worker) -> None:
    assert worker.run(until_empty=True)


def test_a_job_is_run_by_the_handler_that_it_names(queue: Queue) -> None:
    called: Called = []
    worker = Worker(queue)

    @worker.handler
    def default(job: RunningJob) -> None:
        called.append(("default", job.id))

    @worker.handler("send")
    def send(job: RunningJob) -> None:
        called.append(("send", job.id))

    @worker.handler("fetch ü")
    async def fetch(job: RunningJob) -> None:
        called.append(("fetch", job.id))

    queue.add(b"", id="1")
    queue.add(b"", id="2", handler="send")
    queue.add(b"", id="3", handler="fetch ü")
    run(worker)
    assert sorted(called) == [("default", "1"), ("fetch", "3"), ("send", "2")]


def test_a_queue_may_have_handlers_of_its_own(queue: Queue, other: Queue) -> None:
    called: Called = []
    worker = Worker([queue, other])
    for name in (None, "send"):
        worker.handler(name)(lambda job, name=name: called.append((f"any {name}", job.id)))
        worker.handler(name, queue=other.name)(
            lambda job, name=name: called.append((f"other {name}", job.id))
        )
    for one, prefix in ((queue, "q"), (other, "o")):
        one.add(b"", id=f"{prefix}1")
        one.add(b"", id=f"{prefix}2", handler="send")
    run(worker)
    assert sorted(called) == [
        ("any None", "q1"),
        ("any send", "q2"),
        ("other None", "o1"),
        ("other send", "o2"),
    ]


def test_a_handler_of_a_queue_runs_nothing_of_another(queue: Queue, other: Queue) -> None:
    called: list[str] = []
    worker = Worker([queue, other])
    worker.handler(lambda job: called.append(job.queue), queue=other.name)
    queue.add(b"")
    other.add(b"")
    run(worker)
    assert called == [other.name]
    assert queue.counts().delayed == 1


def test_the_decorator_gives_the_function_back(queue: Queue) -> None:
    worker = Worker(queue)

    def handle(job: RunningJob) -> None: ...

    assert worker.handler(handle) is handle
    assert worker.handler("a")(handle) is handle
    assert worker.handler("b", batch=5)(handle) is handle
    assert worker.failure_handler(handle) is handle
    assert worker.failure_handler(queue=queue.name)(handle) is handle


class Caller:
    def __init__(self) -> None:
        self.called = 0

    async def __call__(self, job: object) -> None:
        await asyncio.sleep(0)
        self.called += 1

    async def method(self, job: object, more: int = 0) -> None:
        await asyncio.sleep(0)
        self.called += 1


def test_what_is_a_coroutine_function_is_seen_in_many_shapes(queue: Queue) -> None:
    caller = Caller()
    worker = Worker(queue, executor="async")
    worker.handler("object")(caller)
    worker.handler("method")(caller.method)
    worker.handler("partial")(functools.partial(functools.partial(caller.method), more=5))
    for name in ("object", "method", "partial"):
        queue.add(b"", handler=name)
    run(worker)
    assert caller.called == 3


def test_a_function_with_options_is_registered_with_them(queue: Queue) -> None:
    sizes: list[int] = []
    worker = Worker(queue, concurrency=1)
    worker.handler(lambda jobs: sizes.append(len(jobs)), queue=queue.name, batch=4)
    queue.add_many([b""] * 4)
    run(worker)
    assert sizes == [4]


def test_a_handler_may_come_while_the_worker_runs(live_queue: Queue) -> None:
    heard = Heard()
    worker = Worker(live_queue, hooks=[heard])

    @worker.handler
    async def first(job: RunningJob) -> None: ...

    with worker:
        worker.handler("late")(lambda job: None)
        live_queue.add(b"", id="a", handler="late")
        heard.wait_for("done")


# -------------------------------------------------------------------- refused


@pytest.mark.parametrize("name", [None, "send"])
def test_a_name_has_one_handler(queue: Queue, name: str | None) -> None:
    worker = Worker(queue)

    @worker.handler(name)
    def the_first(job: RunningJob) -> None: ...

    with pytest.raises(
        InvalidArgument, match=r"there is a handler for jobs.* already: .*the_first"
    ):
        worker.handler(name)(print)
    worker.handler(name, queue=queue.name)(print)
    with pytest.raises(InvalidArgument, match=" of 'q"):
        worker.handler(name, queue=queue.name)(print)
    worker.handler("another")(print)


def test_failed_jobs_have_one_handler(queue: Queue) -> None:
    worker = Worker(queue)
    worker.failure_handler(print)
    with pytest.raises(InvalidArgument, match="handler for failed jobs already: print"):
        worker.failure_handler(print)
    worker.failure_handler(print, queue=queue.name)
    with pytest.raises(InvalidArgument, match="for failed jobs of 'q"):
        worker.failure_handler(queue=queue.name)(print)


# -------------------------------------------------------------- unknown handler


def test_a_job_for_somebody_else_is_given_back_for_longer_and_longer(
    queue: Queue, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    queue.add(b"x", id="a", handler="elsewhere")
    queue.add(b"x", id="b")
    worker = Worker(queue, hooks=[heard])
    worker.handler(lambda job: None)
    waits: list[float] = []
    worker.start()
    try:
        for times in range(7):
            heard.wait_for("released", times=times + 1)
            job = shown(queue)
            assert (job.state, job.failures, job.lapses, job.error) == ("delayed", 0, 0, None)
            assert job.at is not None
            waits.append(job.at - clock.ms / 1000)
            clock.advance(waits[-1])
            queue.tidy()  # Which wakes the worker.
    finally:
        worker.stop()
    assert waits == [30, 60, 120, 240, 480, 900, 900]
    assert heard.of("a")[:2] == ["unknown", "released"]
    assert "started" not in heard.of("a")
    assert heard.of("b") == ["started", "done"]
    assert "a: no handler for 'elsewhere' here; released for 30 s" in caplog.text
    lease = queue.lease(30)
    assert lease is None or (lease.id, lease.data, lease.failures) == ("a", b"x", 0)


def test_a_job_without_a_name_may_have_no_handler_too(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.add(b"", id="a")
    worker = Worker(queue)
    worker.handler("send")(lambda job: None)
    with caplog.at_level(logging.WARNING):
        run(worker)
    assert "a: no handler for jobs without a name here" in caplog.text
    assert shown(queue).state == "delayed"


def lines_about_handlers(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "no handler for" in line]


def test_a_handler_that_many_jobs_miss_is_logged_once(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """The hooks are told of each."""
    heard = Heard()
    queue.add_many([b""] * 500, handler="elsewhere")
    queue.add_many([b""] * 500, handler="nowhere")
    worker = Worker(queue, hooks=[heard])
    worker.handler(lambda job: None)
    run(worker)
    assert len(heard.ids("unknown")) == 1000
    assert sorted(line.partition(": ")[2] for line in lines_about_handlers(caplog)) == [
        "no handler for 'elsewhere' here; released for 30 s",
        "no handler for 'nowhere' here; released for 30 s",
    ]


def test_a_missing_handler_is_logged_again_with_how_many_jobs_missed_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("holdfast.worker.handlers.time.monotonic", lambda: now)
    unknown = Unknown()
    for n in range(10):
        unknown.tell("q", "send", str(n), 30)
    now += 60
    unknown.tell("q", "send", "later", 60)
    first, second = lines_about_handlers(caplog)
    assert first == "0: no handler for 'send' here; released for 30 s"
    assert second.startswith("later: no handler for 'send' here; released for 60 s, ")
    assert second.endswith("as were 9 more jobs since the last such line")


def test_names_that_somebody_makes_up_fill_neither_the_log_nor_the_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unknown = Unknown()
    for n in range(5000):
        unknown.tell("q", f"{n} " + "x" * 500, "a", 30)
    assert len(lines_about_handlers(caplog)) == MOST_NAMES + 1
    assert len(unknown._seen) == MOST_NAMES + 1
    assert "and many other names" in lines_about_handlers(caplog)[-1]
    assert max(map(len, caplog.messages)) < 300


def test_jobs_for_somebody_else_take_no_places(queue: Queue) -> None:
    called: list[str] = []
    queue.add_many([b""] * 20, handler="elsewhere", priority=90)
    queue.add(b"", id="mine")
    worker = Worker(queue, concurrency=1)
    worker.handler(lambda job: called.append(job.id))
    run(worker)
    assert called == ["mine"]
    assert queue.counts().delayed == 20


@pytest.mark.parametrize(("times", "seconds"), [(0, 30), (1, 60), (4, 480), (5, 900), (9999, 900)])
def test_the_wait_for_an_unknown_handler_grows_to_a_quarter_of_an_hour(
    times: int, seconds: float
) -> None:
    assert unknown_after(times) == seconds
