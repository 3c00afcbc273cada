"""Flows: operations that take more than one call, such as chunks and walks.

A flow is a generator that yields calls and is sent their answers. It does no I/O, so the sync
client and the async client drive the same flows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import astuple, replace

from holdfast.engine import calls, request_calls, write_calls
from holdfast.engine.call import Call, Entry, Settle
from holdfast.engine.library import MAX_BYTES, MAX_JOBS
from holdfast.engine.replies import Record
from holdfast.errors import HoldfastError, QueueFull
from holdfast.job import Job, Problem, Receipt, State, Tidied, summed

T = TypeVar("T")
A = TypeVar("A", bound=int)
Flow: TypeAlias = Generator[Call[Any], Any, T]

_Counted: TypeAlias = tuple[int, int, int, int, int, int, int]

_SETS = ("leased", "failed", "parked", "delayed")

_RECOUNTS = 5
"""How many times a repair tries to count without a change of the queue in between."""

_HASHES = (
    *("payloads", "holds", "facts", "successors", "results", "records of requests", "turns"),
    *("chunks of rows", "chunks of claims", "records of the ledger"),
)


def chunks(
    items: Iterable[T],
    size: Callable[[T], int],
    most: int = MAX_JOBS,
    most_bytes: int = MAX_BYTES,
) -> Iterator[list[T]]:
    """Cut jobs or settles into chunks that one call may carry."""
    chunk: list[T] = []
    room = most_bytes
    for item in items:
        bytes_ = size(item)
        if chunk and (len(chunk) == most or bytes_ > room):
            yield chunk
            chunk, room = [], most_bytes
        chunk.append(item)
        room -= bytes_
    if chunk:
        yield chunk


def payload_size(entry: Entry) -> int:
    """Return how many of a call's bytes a job takes."""
    return len(entry.payload)


def result_size(settle: Settle) -> int:
    """Return how many of a call's bytes a settle takes."""
    return len(settle[2] or b"")


def add_many(
    entries: Iterable[Entry], ask: Callable[[Sequence[Entry]], Call[list[Receipt]]]
) -> Flow[list[Receipt]]:
    """Add any number of jobs; an error carries the receipts of the jobs added before it."""
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
        for chunk in chunks(settles, result_size):
            answers += yield call(chunk)
    except HoldfastError as error:
        error.answers = answers
        raise
    return answers


def peek(state: State, first: int, count: int) -> Flow[list[Job]]:
    """Look at jobs in pages, as a reply is bounded in bytes; return a job that moves only once."""
    found: dict[str, Job] = {}
    more = True
    while more and len(found) < count:
        page: list[Job]
        page, more = yield calls.peek_page(state, first, count - len(found))
        first += len(page)
        found |= {job.id: job for job in page}
    return list(found.values())


def tidy(call: Callable[[], Call[calls.Step]], take_back: Flow[int] | None = None) -> Flow[Tidied]:
    """Tidy until nothing is left to move; first take back leases that are held for too long."""
    taken = (yield from take_back) if take_back else 0
    total = Tidied(0, taken, 0)
    published = 0
    while True:
        step: calls.Step = yield call()
        total = summed([total, step.moved])
        if MAX_JOBS in astuple(step.moved) or step.staging:
            continue
        if published or not step.unpublished:
            return replace(total, published=published)
        with suppress(QueueFull):  # The server is full: a later tidy publishes the rest.
            published = yield from publish()
        if not published:
            return total
        # Some of these rows may be overdue and wait to be promoted: tidy again.


def publish(write: str = "") -> Flow[int]:
    """Turn all committed rows into jobs, or the rows of one write; return how many rows."""
    rows, more = yield write_calls.publish(write)
    while more:
        some, more = yield write_calls.publish(write)
        rows += some
    return int(rows)


def recall(ask: Callable[[int], Call[tuple[int, int]]]) -> Flow[int]:
    """Take leases back, walking all leases."""
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
    """Walk every id and repair it, then the counters of requests; return what was done."""
    chunk: calls.Repaired = yield calls.repair()
    done = list(chunk.done)
    while chunk.following:
        chunk = yield calls.repair(chunk.following)
        done += chunk.done
    for _ in range(_RECOUNTS):
        looked: _Looked = yield from _look()
        wrong = dict(islice(looked.miscounted(), MAX_JOBS))
        if looked.still and looked.lost_endings():
            wrong = yield from _count_endings(looked)
        if not wrong:
            break
        if looked.still and (yield request_calls.recount(looked.last.stamp, wrong)):
            done += [Problem(owner, "counted anew") for owner in wrong]
    return done


def _count_endings(looked: _Looked) -> Flow[dict[str, _Counted]]:
    """Walk the parts of every request; return the true counts of requests that count wrongly."""
    wrong: dict[str, _Counted] = {}
    for owner, record in looked.records.items():
        handled = cancelled = results = first = 0
        while not record.group and len(wrong) < MAX_JOBS:
            found: request_calls.PartsFound = yield request_calls.parts(owner, first)
            for letter, facts, result in found.parts:
                handled += not letter and facts.outcome == "failed"
                cancelled += not letter and facts.outcome == "cancelled"
                results += result is not None
            first += len(found.parts)
            if not found.parts:
                break
        counted = *looked.there(owner), handled, cancelled, results
        if counted != looked.counted(owner):
            wrong[owner] = counted
    return wrong


def audit() -> Flow[list[Problem]]:
    """Walk every id; if the queue did not change meanwhile, also count entries in no set."""
    looked: _Looked = yield from _look()
    problems = looked.problems
    if looked.still:
        totals = zip(_HASHES, looked.last.totals, looked.tallies, strict=True)
        for name, total, tally in totals:
            if total != tally:
                problems.append(Problem("", f"{total - tally} {name} that belong to no job"))
        for owner, counted in looked.miscounted():
            there = ", ".join(f"{n} {set}" for n, set in zip(counted, _SETS, strict=False))
            problems.append(Problem(owner, f"its counters are wrong: there are {there}"))
        for owner in sorted({owner for owner, _ in looked.fellows} - looked.records.keys()):
            problems.append(Problem(owner, "jobs of a request that is not there"))
    return problems


@dataclass
class _Looked:
    """The findings of an audit."""

    problems: list[Problem]
    tallies: list[int]
    records: dict[str, Record]
    fellows: Counter[tuple[str, str]]
    last: calls.Audited
    still: bool = False
    """Whether the queue did not change during the walk."""

    def miscounted(self) -> Iterator[tuple[str, _Counted]]:
        """Return the requests whose counters differ from the number of jobs that name them."""
        for owner in self.records:
            counted = self.counted(owner)
            there = self.there(owner)
            if there != counted[:4]:
                yield owner, (*there, *counted[4:])

    def counted(self, owner: str) -> _Counted:
        """Return the counters of a request: jobs in each set; handled, cancelled, results."""
        record = self.records[owner]
        delayed = record.total - record.failed - record.running - record.parked
        if record.group:
            return record.running, record.failed, record.parked, delayed, 0, 0, 0
        ended = record.handled, record.cancelled
        delayed -= record.done + sum(ended)
        return record.running, record.failed, record.parked, delayed, *ended, record.results

    def there(self, owner: str) -> tuple[int, int, int, int]:
        """Return how many jobs in each set name a request."""
        leased, failed, parked, delayed = (self.fellows[owner, set] for set in _SETS)
        return leased, failed, parked, delayed

    def lost_endings(self) -> bool:
        """Whether there are more or fewer facts or results than jobs and requests account for."""
        totals = self.last.totals
        return totals[2] != self.tallies[2] or totals[4] != self.tallies[4]


def _look() -> Flow[_Looked]:
    chunk: calls.Audited = yield calls.audit()
    stamp = chunk.stamp
    looked = _Looked([], [0] * len(_HASHES), {}, Counter(), chunk)
    while True:
        looked.problems += chunk.problems
        looked.tallies = [a + b for a, b in zip(looked.tallies, chunk.tallies, strict=True)]
        looked.records |= chunk.records
        looked.fellows.update(chunk.fellows)
        looked.last = chunk
        if not chunk.following:
            looked.still = chunk.stamp == stamp
            return looked
        chunk = yield calls.audit(chunk.following)
