"""What takes more than one call: chunks, waiting, walks.

A flow is a generator that yields calls and is sent their answers. It does no I/O, so
that both shells drive the same one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import astuple

from holdfast.engine import calls
from holdfast.engine.calls import Call, Entry, Granted, Settle
from holdfast.engine.script import MAX_BYTES, MAX_JOBS
from holdfast.errors import HoldfastError
from holdfast.job import Leases, Problem, Receipt, Tidied

T = TypeVar("T")
A = TypeVar("A", bound=int)
Flow: TypeAlias = Generator[Call[Any], Any, T]

_HASHES = ("payloads", "holds", "facts", "successors", "results")


def chunks(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Cut jobs or settles into what one call may carry."""
    chunk: list[T] = []
    room = MAX_BYTES
    for item in items:
        bytes_ = size(item)
        if chunk and (len(chunk) == MAX_JOBS or bytes_ > room):
            yield chunk
            chunk, room = [], MAX_BYTES
        chunk.append(item)
        room -= bytes_
    if chunk:
        yield chunk


def payload_size(entry: Entry) -> int:
    """Return how much of a call's bytes a job takes."""
    return len(entry.payload)


def _result_size(settle: Settle) -> int:
    return len(settle[2] or b"")


def add_many(
    entries: Iterable[Entry], ask: Callable[[Sequence[Entry]], Call[list[Receipt]]]
) -> Flow[list[Receipt]]:
    """Add any number of jobs; an error carries the receipts of what was added before it."""
    receipts: list[Receipt] = []
    try:
        for chunk in chunks(entries, payload_size):
            receipts += yield ask(chunk)
    except HoldfastError as error:
        error.receipts = receipts
        raise
    return receipts


def settle_many(
    settles: Iterable[Settle], call: Callable[[Sequence[Settle]], Call[list[A]]]
) -> Flow[list[A]]:
    """Settle or extend any number of leases, in chunks."""
    answers: list[A] = []
    try:
        for chunk in chunks(settles, _result_size):
            answers += yield call(chunk)
    except HoldfastError as error:
        error.answers = answers
        raise
    return answers


def lease(
    ask: Callable[[Sequence[Settle], float], Call[Granted]], done: Iterable[Settle], wait: float
) -> Flow[Leases]:
    """Complete and lease; when there is nothing, wait for a wake or until it is worth asking."""
    *before, riding = [*chunks(done, _result_size)] or [[]]
    completed: list[bool] = []
    try:
        for chunk in before:
            completed += yield calls.complete(chunk)
        granted: Granted = yield ask(riding, 0)
        completed += granted.leases.completed
        deadline = time.monotonic() + wait
        while not granted.leases:
            left = deadline - time.monotonic()
            if granted.ask_again == 0:
                granted = yield ask((), 0)  # There was too much to clear away in one call.
            elif left > 0:
                granted = yield ask((), max(0.001, min(left, granted.ask_again)))
            else:
                break
    except HoldfastError as error:
        error.answers = completed
        raise
    granted.leases.completed = completed
    return granted.leases


def tidy(call: Callable[[], Call[Tidied]], take_back: Flow[int] | None = None) -> Flow[Tidied]:
    """Tidy until nothing is left to move; first take back what is held for too long."""
    taken = (yield from take_back) if take_back else 0
    total = Tidied(0, taken, 0)
    while True:
        moved: Tidied = yield call()
        total = Tidied(*map(sum, zip(astuple(total), astuple(moved), strict=True)))
        if MAX_JOBS not in astuple(moved):
            return total


def recall(ask: Callable[[int], Call[tuple[int, int]]]) -> Flow[int]:
    """Take leases back, walking all that are held."""
    taken, position = yield ask(0)
    while position:
        more, position = yield ask(position)
        taken += more
    return int(taken)


def cancel_matching(payload: bytes, *, running: bool) -> Flow[int]:
    """Cancel every job with this payload, walking all ids."""
    cancelled, place = yield calls.cancel_matching(payload, running=running)
    while place:
        more, place = yield calls.cancel_matching(payload, running=running, place=place)
        cancelled += more
    return int(cancelled)


def repair() -> Flow[list[Problem]]:
    """Walk every id and mend what is broken; return what was done."""
    chunk: calls.Repaired = yield calls.repair()
    done = list(chunk.done)
    while chunk.following:
        chunk = yield calls.repair(chunk.following)
        done += chunk.done
    return done


def audit() -> Flow[list[Problem]]:
    """Walk every id; when nothing moved meanwhile, also count what no set holds."""
    chunk: calls.Audited = yield calls.audit()
    first, problems, tallies = chunk, list(chunk.problems), list(chunk.tallies)
    while chunk.following:
        chunk = yield calls.audit(chunk.following)
        problems += chunk.problems
        tallies = [a + b for a, b in zip(tallies, chunk.tallies, strict=True)]
    if chunk.stamp == first.stamp:
        for name, total, tally in zip(_HASHES, chunk.totals, tallies, strict=True):
            if total != tally:
                problems.append(Problem("", f"{total - tally} {name} that belong to no job"))
    return problems
