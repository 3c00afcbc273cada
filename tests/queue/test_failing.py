"""Exceptions as values: what is kept of one, whatever it does, and when it asks for another try."""

from __future__ import annotations

import logging
import math
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from conftest import Clock
from engine_support import Behind, take
from holdfast import Failure, Job, Queue, failures
from holdfast.codec import MAX_ERROR_BYTES
from holdfast.job import read_failure


@dataclass
class Account:
    number: int


class PaymentError(Exception):
    """One that has everything."""

    def __init__(self) -> None:
        super().__init__("declined: ü")
        self.code = 402
        self.reasons = ["no money", None, 1.5, {"nested": True}]
        self.account = Account(7)
        self.id = uuid.UUID(int=5)
        self.when = datetime(2030, 1, 31, tzinfo=UTC)
        self.connection = object()
        self.body = b"bytes"
        self._secret = "not told"


def of(error: object, *without: str) -> Failure | None:
    packed = failures.packed(error, b"why", without)
    assert len(packed) <= MAX_ERROR_BYTES
    return read_failure(packed.decode(), "why")


def test_type_message_and_attributes_are_kept() -> None:
    assert of(PaymentError()) == Failure(
        f"{__name__}.PaymentError",
        "declined: ü",
        {
            "code": 402,
            "reasons": ["no money", None, 1.5, {"nested": True}],
            "account": {"number": 7},
            "id": "00000000-0000-0000-0000-000000000005",
            "when": "2030-01-31T00:00:00Z",
        },
    )
    assert of(ValueError("no")) == Failure("ValueError", "no")
    assert of(PaymentError(), "code", "reasons", "account", "id", "when") == Failure(
        f"{__name__}.PaymentError", "declined: ü"
    )
    missing = of(FileNotFoundError(2, "No such file", "a.txt"))
    assert missing
    assert missing.attributes == {"errno": 2, "strerror": "No such file", "filename": "a.txt"}


@pytest.mark.parametrize("nothing", ["a reason", None, 7])
def test_what_is_no_exception_has_none(nothing: object) -> None:
    assert failures.packed(nothing, b"why") == b""


class MetaError(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise KeyboardInterrupt


class StrangeClassError(Exception, metaclass=MetaError):
    pass


class StrangeTextError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


class StrangeDictError(Exception):
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise KeyboardInterrupt


class StrangeValue:
    def __repr__(self) -> str:
        raise KeyboardInterrupt

    __str__ = __repr__


class NoClassError(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("hostile")


class NoClass:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("hostile")


class StrangeStr(str):
    __slots__ = ()

    def __getitem__(self, _: object) -> str:
        raise RuntimeError("hostile")


class StrangeStrError(Exception):
    def __str__(self) -> str:
        return StrangeStr("x")


def with_attributes(**attributes: Any) -> Exception:
    error = Exception("x")
    vars(error).update(attributes)
    return error


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]

HOSTILE: dict[str, tuple[BaseException, dict[str, Any]]] = {
    "a class without a module": (StrangeClassError("x"), {}),
    "no text": (StrangeTextError("x"), {}),
    "no class": (NoClassError("x"), {}),
    "a strange text": (StrangeStrError("x"), {}),
    "no attributes": (StrangeDictError("x"), {}),
    "no class of a value": (with_attributes(a=NoClass(), b=1), {"b": 1}),
    "no repr": (with_attributes(a=StrangeValue(), b=1), {"b": 1}),
    "a cycle": (with_attributes(a=CYCLE, b=1), {"b": 1}),
    "too deep": (with_attributes(a=DEEP, b=1), {"b": 1}),
    "no utf-8": (with_attributes(a="\ud800", **{"\udfff": 1}), {"a": "\\ud800", "\\udfff": 1}),
    "not in json": (with_attributes(a={"b": "\ud800"}, c=1), {"c": 1}),
    "not a number": (
        with_attributes(a=math.nan, b=math.inf, c=-math.inf, d=[math.nan, 1.5], e=Decimal("NaN")),
        {"a": "nan", "b": "inf", "c": "-inf", "d": [None, 1.5], "e": "NaN"},
    ),
    "control characters": (with_attributes(a="\x1b[2J\n"), {"a": "\x1b[2J\n"}),
    "too long": (with_attributes(a="x" * 10**7, b=["x" * 5000], c=1), {"c": 1}),
    "a long name": (with_attributes(**{"n" * 10_000: 1, "c": 1}), {"c": 1}),
    "a long text": (Exception("\0" * 10**6), {}),
    "nothing but text": (Exception("\ud800" * 10_000), {}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_whatever_an_exception_does_what_is_kept_can_be_read(case: str) -> None:
    error, attributes = HOSTILE[case]
    failure = of(error)
    assert failure
    assert failure.type
    assert failure.attributes == attributes


def test_what_does_not_fit_is_left_out_and_the_rest_is_kept() -> None:
    failure = of(with_attributes(**{f"a{n}": "x" * 500 for n in range(20)}, last=1))
    assert failure
    assert 4 < len(failure.attributes) < 9
    assert failure.attributes["last"] == 1


@pytest.mark.parametrize("garbage", ["", "{", "[]", "{}", '{"type":1}', "[" * 100_000])
def test_what_somebody_else_wrote_is_no_failure(garbage: str) -> None:
    assert read_failure(garbage, "why") is None


# ------------------------------------------------------------------------ in the queue


def shown(queue: Queue) -> Job:
    job = queue.show("a")
    assert job
    return job


def test_the_next_run_learns_what_the_last_one_raised(queue: Queue) -> None:
    queue.add(b"x", id="a")
    lease, error = take(queue), PaymentError()
    assert lease.failure is None
    queue.retry(lease, error=error, after=0)
    lease = take(queue)
    assert lease.failure == shown(queue).failure == of(error)
    assert lease.error == f"{__name__}.PaymentError: declined: ü"
    queue.retry(lease, error="only text", after=0)
    lease = take(queue)
    assert (lease.failure, lease.error) == (None, "only text")
    queue.retry(lease, error=error, after=0)
    queue.release(take(queue), lapsed="crashed")
    assert shown(queue).failure is None


def test_a_failure_handler_learns_what_was_raised(queue: Queue) -> None:
    queue.add(b"x", id="a", result_for=60)
    error = PaymentError()
    queue.fail(take(queue), error=error)
    assert queue.failed()[0].failure == of(error)
    lease = queue.lease(30, failed=True)
    assert lease
    assert lease.failure == of(error)
    queue.retry(lease, error=ValueError("of the handler"), after=0)
    lease = queue.lease(30, failed=True)
    assert lease
    assert lease.failure == of(error)
    queue.complete(lease)
    assert shown(queue).state == "ended"
    assert shown(queue).failure == of(error)


def test_what_begins_anew_was_never_raised(queue: Queue, behind: Behind) -> None:
    for begin_anew in (
        lambda: queue.revive("a"),
        lambda: queue.add(b"", id="a", on_conflict="update"),
    ):
        queue.delete()
        queue.add(b"x", id="a")
        queue.fail(take(queue), error=PaymentError())
        begin_anew()
        assert shown(queue).failure is None
        assert behind("HGET", "facts", "a") is None


def test_a_client_that_does_not_know_it_reads_on(queue: Queue, behind: Behind) -> None:
    class OldFacts(msgspec.Struct):
        failures: int = 0
        error: str | None = None

    queue.add(b"x", id="a")
    queue.fail(take(queue), error=PaymentError())
    facts = msgspec.msgpack.decode(behind("HGET", "facts", "a"), type=OldFacts)
    assert facts.failures == 1
    assert facts.error
    assert facts.error.endswith("declined: ü")


def test_what_is_of_an_earlier_run_is_not_told(queue: Queue, behind: Behind) -> None:
    """A client that does not know it replaces the error alone."""
    queue.add(b"x", id="a")
    queue.fail(take(queue), error=PaymentError())
    facts = msgspec.msgpack.decode(behind("HGET", "facts", "a"))
    for error in ({"error": "of a later run"}, {"error": None}):
        changed = {name: fact for name, fact in (facts | error).items() if fact is not None}
        behind("HSET", "facts", "a", msgspec.msgpack.encode(changed))
        assert shown(queue).failure is None


# ------------------------------------------------------------------------ when to try again

ASKS: dict[str, tuple[dict[str, Any], bytes]] = {
    "nothing": ({}, b""),
    "at none": ({"retry_at": None, "retry_after": None}, b""),
    "at a time": ({"retry_at": datetime(2030, 1, 31, tzinfo=UTC)}, b"1896048000000"),
    "at seconds": ({"retry_at": 1896048000.5}, b"1896048000500"),
    "after seconds": ({"retry_after": 90}, b"+90000"),
    "after a time": ({"retry_after": timedelta(minutes=1)}, b"+60000"),
    "both": ({"retry_at": 5, "retry_after": 7}, b"5000"),
    "at a wrong one, after seconds": ({"retry_at": "soon", "retry_after": 7}, b"+7000"),
}


@pytest.mark.parametrize("case", ASKS)
def test_an_exception_may_ask_when_to_be_tried_again(case: str) -> None:
    attributes, due = ASKS[case]
    assert failures.due(with_attributes(**attributes)) == due


class AskingError(Exception):
    @property
    def retry_at(self) -> float:
        raise KeyboardInterrupt("\x1b[2J")


STRANGE: list[Any] = ["soon", b"", True, -1, math.nan, math.inf, 10**400, [], StrangeValue(), print]
MALFORMED: list[BaseException] = [
    AskingError(),
    *(with_attributes(retry_at=value) for value in STRANGE),
    with_attributes(retry_at=datetime(2030, 1, 31)),  # noqa: DTZ001
    with_attributes(retry_after=-1),
    with_attributes(retry_after="120"),
]


@pytest.mark.parametrize("error", MALFORMED, ids=range(len(MALFORMED)))
def test_what_makes_no_sense_is_ignored_and_told(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert failures.due(error) == b""
    [record] = caplog.records
    assert "is ignored" in record.message
    assert record.message.isprintable()


def test_a_retry_of_a_failed_job_is_exact(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="a")
    queue.fail(take(queue), error="why")
    for after in (3, 86_400, 0.001):
        lease = queue.lease(30, failed=True)
        assert lease
        queue.retry(lease, error="no", after=after)
        assert shown(queue).at == clock.ms / 1000 + after
        clock.advance(after)
    lease = queue.lease(30, failed=True)
    assert lease
    at = clock.ms / 1000 + 1_000_000
    queue.retry(lease, error="no", at=at)
    assert shown(queue).at == at
