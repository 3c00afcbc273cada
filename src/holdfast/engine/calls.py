"""The calls of the engine: which script, which arguments, how to read the reply. No I/O.

A `Call` is made here and sent to the server by `holdfast.connection`; its reply is read here.
Each function has the name of its transition and of its Lua file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct

from holdfast.engine.call import (
    Call,
    Entry,
    Failed,
    Place,
    Settle,
    failures_words,
    flag,
    groups_words,
    place_words,
    results_words,
    settles_words,
)
from holdfast.engine.library import (
    ADD,
    ADD_GROUPED,
    AUDIT,
    CANCEL,
    CANCEL_MATCHING,
    COMPLETE,
    COMPLETE_AND_ADD,
    COMPLETE_WITH_RESULTS,
    COUNTS,
    DELETE,
    EXTEND,
    FAIL,
    LEASE,
    LEASE_WITH_RESULTS,
    MAX_JOBS,
    PAUSE,
    PEEK,
    RECALL,
    REGISTER,
    RELEASE,
    REPAIR,
    RESUME,
    RETRY,
    REVIVE,
    RIGHTS,
    SET_RESULT,
    SHOW,
    TICK,
    TIDY,
    TOTALS,
    UPDATE,
    WORKERS,
)
from holdfast.engine.replies import (
    FLAG,
    STATES,
    Record,
    Shown,
    read_flags,
    read_jobs,
    read_leases,
    read_problem,
    read_receipts,
    read_record,
    read_shown,
    read_worker,
)
from holdfast.job import (
    Counts,
    Extended,
    Job,
    Lease,
    Leases,
    Problem,
    Receipt,
    State,
    Tidied,
    Totals,
    WorkerInfo,
)

_LETTERS: Final = {state: letter.encode() for letter, state in STATES.items()}
_EXTENDED: Final = {
    ord("0"): Extended.LOST,
    ord("1"): Extended.HELD,
    ord("c"): Extended.CANCELLED,
}


# -------------------------------------------------------------------- replies


_is_grouped: Final = attrgetter("grouped")
_NONE: Final = [b"0"]
"""No settles, and no results."""


def _nothing(_reply: object) -> None:
    return None


class Granted(Struct, frozen=True):
    """The answer to a lease call."""

    leases: Leases
    ask_again: float
    """Seconds until it is worth asking again."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """The last tick of a schedule, and what a call of `tick` added."""

    now: int
    last: int | None
    """The last tick before the call."""
    receipts: list[Receipt] | None = None
    """The receipts of the jobs; None if another scheduler was first."""


# ---------------------------------------------------------------- transitions


def add(entries: Sequence[Entry], *, on_conflict: str = "ignore") -> Call[list[Receipt]]:
    """Add jobs; at most MAX_JOBS and MAX_BYTES."""
    return Call(
        ADD_GROUPED if any(map(_is_grouped, entries)) else ADD,
        [on_conflict.encode(), *groups_words(entries)],
        partial(read_receipts, entries),
        ids=[entry.id for entry in entries] if on_conflict == "raise" else (),
    )


def add_one(entry: Entry) -> Call[Receipt]:
    """Add one job unless there is a job with its id: as `add`, in fewer steps."""

    def read(reply: list[bytes]) -> Receipt:
        return Receipt(entry.id) if reply[0] == b"1" else read_receipts([entry], reply)[0]

    fresh = b"1" if entry.fresh else b"0"
    args = [b"ignore", fresh, b"%d" % entry.priority, entry.due, entry.options, b"1"]
    args += entry.id.encode(), entry.payload
    return Call(ADD_GROUPED if entry.grouped else ADD, args, read)


def update(entries: Sequence[Entry], how: bytes) -> Call[list[Receipt]]:
    """Add jobs; if an id is taken, change that job (`how`: see `update_of` in adding.lua)."""
    return Call(
        UPDATE,
        [how, *groups_words(entries)],
        partial(read_receipts, entries),
        ids=[entry.id for entry in entries],
    )


def tick(
    schedule: str, seen: int | None = -1, tick: int = 0, entries: Sequence[Entry] = ()
) -> Call[Ticks]:
    """Make ticks of a schedule if its last tick is `seen`; -1 only looks."""

    def read(reply: list[bytes]) -> Ticks:
        now, last, flags = reply
        receipts = read_receipts(entries, [flags[1:]]) if flags else None
        return Ticks(int(now), int(last) if last else None, receipts)

    known = b"" if seen is None else b"?" if seen < 0 else b"%d" % seen
    return Call(TICK, [schedule.encode(), known, b"%d" % tick, *groups_words(entries)], read)


def lease(
    token: str,
    lease_ms: int,
    count: int,
    *,
    to_the_back: bool = False,
    failed: bool = False,
    complete: Sequence[Settle] = (),
    wait: float = 0,
) -> Call[Granted]:
    """Complete finished jobs, then lease the best jobs, up to `count`.

    A full server refuses a call that carries a result. The call then leases nothing either.
    """

    def read(reply: list[Any]) -> Granted:
        ids, payloads, facts, completed, wait_ms = reply
        leases = read_leases(token, ids, payloads, facts) if ids else []
        return Granted(Leases(leases, [FLAG[flag] for flag in completed]), wait_ms / 1000)

    def undo(granted: Granted) -> Call[list[bool]] | None:
        return release(settles_of(granted.leases)) if granted.leases else None

    results = results_words(complete)
    function = LEASE if results == _NONE else LEASE_WITH_RESULTS
    args = [token.encode(), b"%d" % lease_ms, b"%d" % count, flag(to_the_back), flag(failed)]
    args += *settles_words(complete), *results
    # A wake announces ready jobs: a client that wants failed jobs must not take it from others.
    return Call(function, args, read, wait=wait, listen=not failed, undo=undo)


def complete(
    settles: Sequence[Settle],
    *,
    force: bool = False,
    add: Sequence[Entry] = (),
) -> Call[list[bool]]:
    """Complete jobs; with `add`, complete one and add its follow-ups.

    A full server refuses results and follow-ups.
    """
    results = results_words(settles)
    function = COMPLETE if results == _NONE else COMPLETE_WITH_RESULTS
    args = [flag(force), *settles_words(settles), *results]
    if add:
        function = COMPLETE_AND_ADD
        args += groups_words(add)
    return Call(function, args, read_flags)


def release(
    settles: Sequence[Settle],
    *,
    after_ms: int | None = None,
    to_the_back: bool = False,
    lapsed: bytes = b"",
    handlings: bytes = b"",
) -> Call[list[bool]]:
    """Give jobs back, at no cost unless `lapsed` says why a run did not answer."""
    after = b"" if after_ms is None else b"%d" % after_ms
    args = [after, flag(to_the_back), lapsed, handlings, *settles_words(settles)]
    return Call(RELEASE, args, read_flags)


def retry(failures: Sequence[Failed]) -> Call[list[bool]]:
    """Count a failure of each job. Retry it later, or fail it if its failures are spent."""
    return Call(RETRY, failures_words(failures), read_flags)


def fail(failures: Sequence[Failed]) -> Call[list[bool]]:
    """Fail jobs at once."""
    return Call(FAIL, failures_words(failures), read_flags)


def extend(settles: Sequence[Settle], lease_ms: int) -> Call[list[Extended]]:
    """Extend leases."""
    return Call(
        EXTEND,
        [b"%d" % lease_ms, *settles_words(settles)],
        lambda reply: [_EXTENDED[flag] for flag in reply[0]],
    )


def cancel(ids: Sequence[str], *, running: bool = True) -> Call[list[bool]]:
    """Cancel jobs; True for each that this call cancelled."""
    return Call(CANCEL, [flag(running), *(id.encode() for id in ids)], read_flags)


def cancel_matching(
    payload: bytes, *, running: bool = True, place: Place = (1, 0), count: int = MAX_JOBS
) -> Call[tuple[int, Place | None]]:
    """Cancel the jobs with this payload among `count` ids. Return how many, and the next place."""

    def read(reply: list[int]) -> tuple[int, Place | None]:
        cancelled, following, position = reply
        return cancelled, (following, position) if following else None

    args = [flag(running), payload, *place_words(place), b"%d" % count]
    return Call(CANCEL_MATCHING, args, read)


def revive(ids: Sequence[str]) -> Call[list[bool]]:
    """Make failed jobs ready again, with counts of zero."""
    return Call(REVIVE, [id.encode() for id in ids], read_flags)


def set_result(id: str, result: bytes) -> Call[str]:
    """Store the result of a job. Returns '1', '0' for an unknown id, 'n' if the job keeps none."""
    return Call(SET_RESULT, [id.encode(), result], lambda reply: str(reply[0].decode()))


def recall(
    *,
    holder: str = "",
    longer_than_ms: int | None = None,
    to_the_back: bool = False,
    position: int = 0,
    count: int = MAX_JOBS,
) -> Call[tuple[int, int]]:
    """Take back the leases of a holder, or the leases held for longer than this.

    Returns how many, and the position in `leased` at which to continue, 0 at the end.
    """
    longer = b"" if longer_than_ms is None else b"%d" % longer_than_ms
    place = b"%d" % position if position else b""
    args = [holder.encode(), longer, flag(to_the_back), place, b"%d" % count]
    return Call(RECALL, args, lambda reply: (reply[0], reply[1]))


def register(holder: str, alive_ms: int, about: bytes) -> Call[None]:
    """Register a worker in the directory."""
    return Call(REGISTER, [holder.encode(), b"%d" % alive_ms, about], _nothing)


def workers() -> Call[list[WorkerInfo]]:
    """List the workers in the directory."""

    def read(reply: list[bytes]) -> list[WorkerInfo]:
        now = int(reply[0])
        entries = zip(reply[1::3], reply[2::3], reply[3::3], strict=True)
        found = (read_worker(holder, entry, held, now) for holder, entry, held in entries)
        return sorted(filter(None, found), key=lambda worker: worker.holder)

    return Call(WORKERS, [], read)


@dataclass(frozen=True, slots=True)
class Step:
    """How much one call of tidy moved."""

    moved: Tidied
    staging: int
    """How many entries of `staging` were processed; it is worth asking again until it is 0."""
    unpublished: bool
    """Whether committed rows wait to be published."""


def tidy(
    *, to_the_back: bool = False, force: bool = False, failed_for_ms: int | None = None
) -> Call[Step]:
    """Promote, reclaim, prune, and drop jobs that failed long ago: at most MAX_JOBS of each."""
    longer = b"" if failed_for_ms is None else b"%d" % failed_for_ms
    args = [flag(to_the_back), flag(force), longer]
    return Call(TIDY, args, lambda reply: Step(Tidied(*reply[:5]), reply[5], bool(reply[6])))


@dataclass(frozen=True, slots=True)
class Repaired:
    """One chunk of a repair; `following` is where to continue, None at the end."""

    done: list[Problem]
    following: tuple[int, bytes] | None


def repair(place: tuple[int, bytes] = (1, b""), count: int = 250) -> Call[Repaired]:
    """Repair up to `count` ids."""

    def read(reply: list[Any]) -> Repaired:
        done, stage, position = reply
        return Repaired(
            [read_problem(id, what) for id, what in zip(done[::2], done[1::2], strict=True)],
            (stage, position) if stage else None,
        )

    stage, position = place
    return Call(REPAIR, [b"%d" % stage, position, b"%d" % count], read)


# --------------------------------------------------------------------- manage


def pause() -> Call[None]:
    """Grant no lease until `resume`."""
    return Call(PAUSE, [], _nothing)


def resume() -> Call[None]:
    """Grant leases again."""
    return Call(RESUME, [], _nothing)


def delete(idle_ms: int | None = None) -> Call[bool]:
    """Remove the queue and everything in it; with `idle_ms`, only if it is empty and unused."""
    return Call(DELETE, [b"" if idle_ms is None else b"%d" % idle_ms], bool)


def counts() -> Call[Counts]:
    """Count the jobs of each state at one moment."""

    def read(reply: list[int]) -> Counts:
        ready, delayed, leased, parked, failed, ended, paused, staged, claims = reply
        return Counts(ready, delayed, leased, parked, failed, ended, bool(paused), staged, claims)

    return Call(COUNTS, [], read)


def totals() -> Call[Totals]:
    """Return the lifetime counters."""
    return Call(TOTALS, [], lambda reply: Totals(*reply))


def rights() -> Call[list[str]]:
    """Return the commands that this user may not run on this queue."""
    return Call(RIGHTS, [], lambda reply: [name.decode() for name in reply])


@dataclass(frozen=True, slots=True)
class Audited:
    """One chunk of an audit; `following` is where to continue, None at the end."""

    problems: list[Problem]
    following: tuple[int, int] | None
    stamp: bytes
    totals: list[int]
    tallies: list[int]
    records: dict[str, Record]
    """The records of the requests in this chunk."""
    fellows: dict[tuple[str, str], int]
    """How many jobs each request has in each set."""


def audit(place: Place = (1, 0), count: int = MAX_JOBS) -> Call[Audited]:
    """Check up to `count` ids from a place on; a place is a set and a position in it."""

    def read(reply: list[Any]) -> Audited:
        problems, following, position, stamp, totals, tallies, records, fellows = reply
        return Audited(
            [read_problem(id, what) for id, what in problems],
            (following, position) if following else None,
            stamp,
            totals,
            tallies,
            {
                name.decode(errors="backslashreplace"): record
                for name, packed in zip(records[::2], records[1::2], strict=True)
                if (record := read_record(packed))
            },
            {
                (owner.decode(errors="backslashreplace"), name.decode()): count
                for owner, name, count in zip(
                    fellows[::3], fellows[1::3], fellows[2::3], strict=True
                )
            },
        )

    return Call(AUDIT, [*place_words(place), b"%d" % count], read)


def show(id: str) -> Call[Shown | None]:
    """Return everything that is stored about one job."""
    return Call(SHOW, [id.encode()], lambda reply: read_shown(id, reply))


def peek(state: State, first: int, count: int) -> Call[list[Job]]:
    """Return jobs of one state in its order, without leasing them: as many as fit into a reply."""
    args = [_LETTERS[state], b"%d" % first, b"%d" % count]
    return Call(PEEK, args, lambda reply: read_jobs(state, reply))


def peek_page(state: State, first: int, count: int) -> Call[tuple[list[Job], bool]]:
    """Return the same jobs, and whether some did not fit into the reply."""
    page = peek(state, first, count)
    return Call(PEEK, page.args, lambda reply: (page.read(reply), reply[5] == 1))


def settles_of(leases: Iterable[Lease]) -> list[Settle]:
    """Return what each lease presents when it is settled."""
    return [(lease.id, lease.token, None) for lease in leases]
