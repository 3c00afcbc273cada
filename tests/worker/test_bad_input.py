"""Whatever is wrong with an argument, it is refused by name, before anything happens."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Auto, Hooks, InvalidArgument, Queue, Release, Retry, RunningJob, Server, Worker
from worker.support import Heard, at_work, shown

NOWHERE = Queue("nowhere", Server("unix:///nowhere/at/all"))
OTHER = Queue("other", NOWHERE.server)

NOT_SECONDS = ["5", b"5", True, [5], math.nan, -math.inf, -1, -1e-9, 2**53, 10**400, 1e308]
NOT_SECONDS += [Decimal(5), 5j, timedelta(-1), timedelta.max]
NOT_WHOLE = ["5", b"5", True, 5.0, math.nan, math.inf, [5], 0, -1, 10**400]
NOT_A_QUEUE: list[Any] = [
    None,
    "nowhere",
    b"nowhere",
    5,
    Server,
    Queue,
    NOWHERE.server,
    [NOWHERE],
    {},
]
NOT_A_NAME = ["", "x" * 513, "\ud800", b"a", 5, ("a",), True]


def worker() -> Worker:
    return Worker(NOWHERE)


def generator(job: RunningJob) -> Iterator[None]:
    yield


async def async_generator(job: RunningJob) -> AsyncIterator[None]:
    yield


async def coroutine(job: RunningJob) -> None: ...


# How to ask with a value, values that are wrong, and what the refusal must name.
CASES: dict[str, tuple[Callable[[Any], object], list[Any], str]] = {
    "Worker(queues)": (
        Worker,
        [None, "nowhere", b"q", 5, NOWHERE.server, [], {}, (), ["nowhere"], [[NOWHERE]]],
        "queues",
    ),
    "Worker(queues twice)": (
        Worker,
        [[NOWHERE, NOWHERE], [NOWHERE, Queue("nowhere", "unix:///elsewhere")]],
        "queues must be different",
    ),
    "Worker(weights)": (lambda v: Worker({NOWHERE: v}), [*NOT_WHOLE, None, 1001], "weight"),
    "Worker(weights of)": (lambda v: Worker({v: 1}), [None, "nowhere", 5], "queues must be Queues"),
    "Worker(strict=)": (lambda v: Worker(NOWHERE, strict=v), [None, 1, 0, "yes"], "strict"),
    "Auto(least=)": (lambda v: Auto(least=v), [*NOT_WHOLE, None, 10_001], "least"),
    "Auto(most=)": (lambda v: Auto(2, v), [*NOT_WHOLE, 1, 10_001], "most"),
    "Worker(recycle_after=)": (
        lambda v: Worker(NOWHERE, executor="process", recycle_after=v),
        NOT_WHOLE,
        "recycle_after",
    ),
    "Worker(max_megabytes=)": (
        lambda v: Worker(NOWHERE, executor="process", max_megabytes=v),
        NOT_WHOLE,
        "max_megabytes",
    ),
    "Worker(concurrency=)": (
        lambda v: Worker(NOWHERE, concurrency=v),
        [*NOT_WHOLE, 10_001, "many"],
        "concurrency",
    ),
    "Worker(executor=)": (
        lambda v: Worker(NOWHERE, executor=v),
        [None, "", "threads", "processes", b"thread", 5, ["thread"], {}],
        "executor",
    ),
    "Worker(lease=)": (
        lambda v: Worker(NOWHERE, lease=v),
        [*NOT_SECONDS, None, 0, 0.5, 0.999, math.inf, timedelta(milliseconds=10)],
        "lease",
    ),
    "Worker(grace=)": (lambda v: Worker(NOWHERE, grace=v), [*NOT_SECONDS, None], "grace"),
    "Worker(ahead=)": (lambda v: Worker(NOWHERE, ahead=v), [*NOT_SECONDS, None, math.inf], "ahead"),
    "Worker(hooks=)": (
        lambda v: Worker(NOWHERE, hooks=v),
        [None, 5, "hooks", Hooks(), Hooks, [Hooks], [None], [print], {"done": print}],
        "hooks",
    ),
    "handler(name)": (lambda v: worker().handler(v)(print), NOT_A_NAME, "name"),
    "handler()(function)": (
        worker().handler("a"),
        [None, "a", 5, {}],
        "a handler must be a function",
    ),
    "handler(generator)": (
        lambda v: worker().handler(v),
        [generator, async_generator],
        "has a `yield`",
    ),
    "handler(queue=)": (
        lambda v: worker().handler("a", queue=v),
        ["", "other", b"nowhere", 5, NOWHERE, ["nowhere"]],
        "queue must be one of this worker's, nowhere",
    ),
    "handler(function, queue=)": (
        lambda v: worker().handler(print, queue=v),
        ["other", 5],
        "queue must be one of this worker's",
    ),
    "handler(batch=)": (
        lambda v: worker().handler("a", batch=v)(print),
        [*NOT_WHOLE, 1001],
        "batch",
    ),
    "handler(function, batch=)": (lambda v: worker().handler(print, batch=v), NOT_WHOLE, "batch"),
    "handler(timeout=)": (
        lambda v: worker().handler("a", timeout=v)(coroutine),
        [*NOT_SECONDS, 0, math.inf],
        "timeout",
    ),
    "handler(timeout= of a plain function)": (
        lambda v: worker().handler("a", timeout=v)(print),
        [5, timedelta(5)],
        "print runs in a thread, which cannot be stopped",
    ),
    "handler(plain function, executor=async)": (
        lambda v: Worker(NOWHERE, executor="async").handler(v),
        [print, lambda job: None],
        "is not a coroutine function",
    ),
    "failure_handler(function)": (
        lambda v: worker().failure_handler(v),
        ["a", 5, {}],
        "a handler must be a function",
    ),
    "failure_handler()(function)": (
        worker().failure_handler(),
        [None, "a", 5],
        "a handler must be a function",
    ),
    "failure_handler(generator)": (worker().failure_handler, [generator], "has a `yield`"),
    "failure_handler(queue=)": (
        lambda v: worker().failure_handler(queue=v),
        ["", "other", 5, ["nowhere"]],
        "queue must be one of this worker's",
    ),
    "failure_handler(function, queue=)": (
        lambda v: worker().failure_handler(print, queue=v),
        ["other"],
        "queue must be one of this worker's",
    ),
    "failure_handler(plain function, executor=async)": (
        lambda v: Worker(NOWHERE, executor="async").failure_handler(v),
        [print],
        "is not a coroutine function",
    ),
    "drop(queue)": (
        lambda v: worker().drop(v),
        [None, "", "other", b"nowhere", 5, NOWHERE, ["nowhere"]],
        "queue must be one of this worker's",
    ),
    "drop(grace=)": (lambda v: worker().drop("nowhere", grace=v), NOT_SECONDS, "grace"),
    "stop(grace)": (lambda v: worker().stop(v), NOT_SECONDS, "grace"),
    "take_up(queue)": (lambda v: worker().take_up(v), NOT_A_QUEUE, "queues must be Queues"),
    "take_up(queue twice)": (
        lambda v: worker().take_up(v),
        [NOWHERE, Queue("nowhere", "unix:///elsewhere")],
        "nowhere: the worker works on this queue already",
    ),
    "take_up(weight=)": (
        lambda v: worker().take_up(OTHER, weight=v),
        [*NOT_WHOLE, None, 1001],
        "weight",
    ),
    "Retry(after=)": (lambda v: Retry(after=v), [*NOT_SECONDS, math.inf], "after"),
    "Retry(at=)": (
        lambda v: Retry(at=v),
        [*NOT_SECONDS, math.inf, datetime(2030, 1, 1), date(2030, 1, 1), timedelta(5)],  # noqa: DTZ001
        "at",
    ),
    "Retry(after=, at=)": (
        lambda v: Retry(after=5, at=v),
        [5, datetime(2030, 1, 1, tzinfo=UTC)],
        "after or at, not both",
    ),
    "Release(after=)": (lambda v: Release(after=v), [*NOT_SECONDS, math.inf], "after"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_refused_by_name(case: str) -> None:
    ask, wrong, name = CASES[case]
    for value in wrong:
        with pytest.raises(InvalidArgument) as raised:
            ask(value)
        assert name in str(raised.value), value
        assert "\n" not in str(raised.value)


FINE: dict[str, Callable[[], object]] = {
    "one queue": lambda: Worker(NOWHERE),
    "several": lambda: Worker([NOWHERE, OTHER]),
    "any iterable": lambda: Worker(iter([NOWHERE, OTHER])),
    "weights": lambda: Worker({NOWHERE: 1, OTHER: 1000}),
    "numbers at their bounds": lambda: Worker(
        NOWHERE, concurrency=10_000, lease=1, grace=0, ahead=0
    ),
    "timedeltas": lambda: Worker(
        NOWHERE, lease=timedelta(1), grace=timedelta(1), ahead=timedelta(0)
    ),
    "grace for ever": lambda: Worker(NOWHERE, grace=math.inf),
    "hooks": lambda: Worker(NOWHERE, hooks=iter([Hooks(), Heard()])),
    "a handler of a name": lambda: worker().handler("ü" * 256, batch=1000)(print),
    "a timeout": lambda: worker().handler(coroutine, timeout=0.001),
    "a queue more": lambda: worker().take_up(OTHER, weight=1000),
    "stop for ever": lambda: worker().stop(math.inf),
}


@pytest.mark.parametrize("case", FINE)
def test_what_is_at_the_edge_is_taken(case: str) -> None:
    FINE[case]()


def test_what_was_refused_has_changed_nothing(live_queue: Queue) -> None:
    other = Queue(live_queue.name + "2", live_queue.server)
    heard = Heard()
    worker = Worker([live_queue, other], hooks=[heard])
    worker.handler(lambda job: None)
    refused: list[Callable[[], object]] = [
        lambda: worker.stop(-1),
        lambda: worker.drop(live_queue.name, grace=-1),
        lambda: worker.take_up(Queue("another", live_queue.server), weight=0),
        lambda: worker.handler("late", batch=0)(print),
        lambda: worker.handler("late")(generator),
    ]
    with at_work(worker):
        for ask in refused:
            with pytest.raises(InvalidArgument):
                ask()
        live_queue.add(b"", id="a")
        heard.wait_for("done")
        live_queue.add(b"", id="b", handler="late")
        heard.wait_for("unknown", "b")
        assert "another" not in repr(worker)
    assert shown(live_queue, "b").state == "delayed"
    other.delete()
