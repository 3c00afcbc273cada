"""Exceptions and results that are hard to write down are ordinary failures, in every executor."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from holdfast import Fail, Queue, Release, Retry, RunningJob, Worker
from worker.support import Heard, is_done, shown

Executor = str
every_executor = pytest.mark.parametrize("executor", ["thread", "process", "async"])

SURROGATE = "file \udc80.txt"
ESCAPED = r"file \udc80.txt"


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")

    __repr__ = __str__


class TextThatExits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class NoTruth(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


class NotAnException(BaseException):
    pass


class OddName(Exception):
    pass


OddName.__qualname__ = SURROGATE


class NoName(type):
    """The class of classes that tell no name."""

    raises: type[BaseException] = RuntimeError

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__"):
            raise cls.raises("no name")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=NoName):
    pass


class NameThatInterrupts(Exception, metaclass=NoName):
    raises = KeyboardInterrupt


class NameThatRaisesItself(Exception, metaclass=NoName):
    pass


NameThatRaisesItself.raises = NameThatRaisesItself


class NoClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class ClassThatInterrupts(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise KeyboardInterrupt


class ClaimsToBe(Exception):
    """Its `__class__` is not its class."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.args[1]


def run(queue: Queue, executor: Executor, handle: Callable[[RunningJob], object]) -> Heard:
    """Run job `a`, which keeps its result, once; return what the worker told of it."""
    heard = Heard()
    worker = Worker(queue, executor=executor, concurrency=1, hooks=[heard])  # type: ignore[arg-type]
    if executor == "async":

        async def handle_on_loop(job: RunningJob) -> object:
            return handle(job)

        worker.handler(handle_on_loop)
    else:
        worker.handler(handle)
    queue.add(b"", id="a", result_for=60, max_lapses=0, min_backoff=600, max_backoff=600)
    worker.run(until_empty=True)
    assert is_done(queue) or queue.counts().delayed == 1
    return heard


def raising(error: BaseException) -> Callable[[RunningJob], NoReturn]:
    def handle(job: RunningJob) -> NoReturn:
        raise error

    return handle


def raising_from(error: BaseException, cause: BaseException) -> Callable[[RunningJob], NoReturn]:
    def handle(job: RunningJob) -> NoReturn:
        raise error from cause

    return handle


@every_executor
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(ValueError(SURROGATE), f"ValueError: {ESCAPED}", id="surrogate"),
        pytest.param(OddName("x"), f"{ESCAPED}: x", id="surrogate in its name"),
        pytest.param(NoText(), "NoText: <exception str() failed>", id="no text"),
        pytest.param(TextThatExits(), "TextThatExits: <exception str() failed>", id="text exits"),
        pytest.param(ValueError("x" * 20_000_000), "ValueError: xxxx", id="enormous"),
        pytest.param(SystemExit(1), "SystemExit: 1", id="SystemExit"),
        pytest.param(KeyboardInterrupt(), "KeyboardInterrupt", id="KeyboardInterrupt"),
        pytest.param(GeneratorExit(), "GeneratorExit", id="GeneratorExit"),
        pytest.param(NotAnException("no"), "NotAnException: no", id="BaseException"),
        pytest.param(Retry(SURROGATE, after=600), ESCAPED, id="Retry"),
        pytest.param(ExceptionGroup(SURROGATE, [NoText()]), ESCAPED, id="group"),
    ],
)
def test_whatever_a_handler_raises_is_a_failure_that_can_be_read(
    live_queue: Queue, executor: Executor, error: BaseException, reason: str
) -> None:
    heard = run(live_queue, executor, raising(error))
    assert heard.of() == ["started", "retried"]
    job = shown(live_queue)
    assert (job.failures, job.lapses) == (1, 0)
    assert reason in (job.error or "")
    assert len((job.error or "").encode()) <= 4096


def retrying_after(cause: BaseException) -> Retry:
    error = Retry(after=600)
    error.__cause__ = cause
    return error


HOSTILE: dict[str, tuple[Callable[[], BaseException], str]] = {
    "no name": (lambda: Nameless("x"), "Nameless"),
    "a name that interrupts": (lambda: NameThatInterrupts("x"), "NameThatInterrupts"),
    "a name that raises itself": (lambda: NameThatRaisesItself("x"), "NameThatRaisesItself"),
    "a nameless one in a group": (lambda: ExceptionGroup("g", [Nameless("x")]), "ExceptionGroup"),
    "a nameless cause": (lambda: retrying_after(Nameless("x")), "Nameless"),
    "no class": (lambda: NoClass("x"), "NoClass"),
    "a class that interrupts": (lambda: ClassThatInterrupts("x"), "ClassThatInterrupts"),
    "claims to be a Release": (lambda: ClaimsToBe("x", Release), "ClaimsToBe"),
    "claims to be a Retry": (lambda: ClaimsToBe("x", Retry), "ClaimsToBe"),
    "claims to be a Fail": (lambda: ClaimsToBe("x", Fail), "ClaimsToBe"),
    "claims to be an OSError": (lambda: ClaimsToBe("x", OSError), "ClaimsToBe"),
    "claims to be no exception": (lambda: ClaimsToBe("x", int), "ClaimsToBe"),
}
"""Made by the handler: pytest cannot show them."""


@every_executor
@pytest.mark.parametrize("case", HOSTILE)
def test_an_exception_that_hides_what_it_is_is_a_failure_that_names_its_class(
    live_queue: Queue, executor: Executor, case: str
) -> None:
    make, name = HOSTILE[case]

    def handle(job: RunningJob) -> NoReturn:
        raise make()

    heard = run(live_queue, executor, handle)
    assert heard.of() == ["started", "retried"]
    job = shown(live_queue)
    assert (job.failures, job.lapses) == (1, 0)
    assert f"{name}: " in (job.error or "")
    assert job.failure
    assert job.failure.type.endswith(name)


@every_executor
@pytest.mark.parametrize(
    ("error", "cause", "reason"),
    [
        (Fail(), NoText(), "NoText: <exception str() failed>"),
        (Fail(), NoTruth("x"), "NoTruth: x"),
        (Fail(), ValueError(SURROGATE), f"ValueError: {ESCAPED}"),
        (Fail(SURROGATE), NoText(), ESCAPED),
    ],
)
def test_a_fail_with_an_odd_reason_is_a_failure_with_that_reason(
    live_queue: Queue, executor: Executor, error: BaseException, cause: BaseException, reason: str
) -> None:
    heard = run(live_queue, executor, raising_from(error, cause))
    assert heard.of() == ["started", "failed"]
    assert reason in (shown(live_queue).error or "")
    assert shown(live_queue).lapses == 0


@every_executor
@pytest.mark.parametrize(
    ("result", "reason"),
    [
        pytest.param(SURROGATE, "cannot be written as UTF-8", id="surrogate"),
        pytest.param({"name": SURROGATE}, "cannot be written as JSON", id="surrogate in JSON"),
        pytest.param(object(), "cannot be written as JSON", id="object"),
        pytest.param("x" * 2_000_000, "store it elsewhere", id="too long"),
    ],
)
def test_a_result_that_cannot_be_kept_is_a_failure_that_says_why(
    live_queue: Queue, executor: Executor, result: object, reason: str
) -> None:
    heard = run(live_queue, executor, lambda job: result)
    assert heard.of() == ["started", "retried"]
    assert (shown(live_queue).failures, shown(live_queue).lapses) == (1, 0)
    assert reason in (shown(live_queue).error or "")


def test_a_process_goes_on_after_an_odd_exception(live_queue: Queue) -> None:
    """The process that ran it is kept: only a process that died is replaced."""

    def handle(job: RunningJob) -> int:
        if job.id == "a":
            raise ValueError(SURROGATE, os.getpid())
        return os.getpid()

    live_queue.add(b"", id="a", max_failures=0)
    live_queue.add(b"", id="b", result_for=60)
    worker = Worker(live_queue, executor="process", concurrency=1)
    worker.handler(handle)
    worker.run(until_empty=True)
    outcome = live_queue.result("b")
    assert outcome
    assert str(outcome.json()) in (shown(live_queue).error or "")
