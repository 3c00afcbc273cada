"""The calls of the engine: which script, which arguments, how to read the reply. No I/O.

A `Call` is made here, carried to the server by `server.py` (or `aserver.py`), and read
here again. Each function bears the name of its transition and of its Lua file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.engine.call import (
    Call,
    Entry,
    Failure,
    Place,
    Settle,
    failures_words,
    flag,
    groups_words,
    place_words,
    results_words,
    settles_words,
)
from holdfast.engine.replies import (
    FLAG,
    STATES,
    Record,
    Shown,
    read_facts,
    read_flags,
    read_jobs,
    read_leases,
    read_problem,
    read_receipts,
    read_record,
    read_shown,
    read_worker,
)
from holdfast.engine.script import MAX_JOBS, Script
from holdfast.job import (
    Counts,
    Extended,
    Facts,
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

# Scripts that free or move work run on a full server, so that it can be drained.
# Those that add do not.
ADD: Final = Script("add")
ADD_GROUPED: Final = Script("add_grouped")
UPDATE: Final = Script("update")
TICK: Final = Script("tick")
LEASE: Final = Script("lease", "allow-oom")
COMPLETE: Final = Script("complete", "allow-oom")
COMPLETE_AND_ADD: Final = Script("complete_and_add")
RETRY: Final = Script("retry", "allow-oom")
FAIL: Final = Script("fail", "allow-oom")
RELEASE: Final = Script("release", "allow-oom")
EXTEND: Final = Script("extend", "allow-oom")
CANCEL: Final = Script("cancel", "allow-oom")
CANCEL_MATCHING: Final = Script("cancel_matching", "allow-oom")
REVIVE: Final = Script("revive", "allow-oom")
SET_RESULT: Final = Script("set_result")
RECALL: Final = Script("recall", "allow-oom")
REGISTER: Final = Script("register", "allow-oom")
TIDY: Final = Script("tidy", "allow-oom")
REPAIR: Final = Script("repair", "allow-oom")
RECOUNT: Final = Script("recount", "allow-oom")
OPEN_REQUEST: Final = Script("open_request")
ADD_PARTS: Final = Script("add_parts")
CHANGE_REQUEST: Final = Script("change_request", "allow-oom")
STAGE: Final = Script("stage")
ADOPT: Final = Script("adopt")
COMMIT: Final = Script("commit")
PUBLISH: Final = Script("publish")
ABORT: Final = Script("abort", "allow-oom")
OPEN_READER: Final = Script("open_reader", "allow-oom")
CLAIM: Final = Script("claim", "allow-oom")
RENEW_CLAIMS: Final = Script("renew_claims", "allow-oom")
SETTLE_CLAIMS: Final = Script("settle_claims", "allow-oom")
RETURN_CLAIM: Final = Script("return_claim", "allow-oom")
PAUSE: Final = Script("pause", "allow-oom")
RESUME: Final = Script("resume", "allow-oom")
DELETE: Final = Script("delete", "allow-oom")
COUNTS: Final = Script("counts", "no-writes")
TOTALS: Final = Script("totals", "no-writes")
RIGHTS: Final = Script("rights", "no-writes")
SHOW: Final = Script("show", "no-writes")
PEEK: Final = Script("peek", "no-writes")
WORKERS: Final = Script("workers", "no-writes")
AUDIT: Final = Script("audit", "no-writes")
REQUESTS: Final = Script("requests", "no-writes")
PARTS: Final = Script("parts", "no-writes")
LEDGER: Final = Script("ledger", "no-writes")
READ_CLAIM: Final = Script("read_claim", "no-writes")

SCRIPTS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Script))


_LETTERS: Final = {state: letter.encode() for letter, state in STATES.items()}
_EXTENDED: Final = {
    ord("0"): Extended.LOST,
    ord("1"): Extended.HELD,
    ord("c"): Extended.CANCELLED,
}


# -------------------------------------------------------------------- replies


def _nothing(_reply: object) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Granted:
    """What a lease call brought."""

    leases: Leases
    ask_again: float
    """Seconds until it is worth asking again."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """What is known of a schedule."""

    now: int
    last: int | None
    """The last tick that was made before the call."""
    receipts: list[Receipt] | None = None
    """What became of the jobs; None where somebody else was first."""


# ---------------------------------------------------------------- transitions


def add(entries: Sequence[Entry], *, on_conflict: str = "ignore") -> Call[list[Receipt]]:
    """Add jobs; at most MAX_JOBS and MAX_BYTES."""
    ids = [entry.id for entry in entries] if on_conflict == "raise" else ()
    return Call(
        ADD_GROUPED if any(entry.grouped for entry in entries) else ADD,
        [on_conflict.encode(), *groups_words(entries)],
        lambda reply: read_receipts(entries, reply),
        ids=ids,
    )


def update(entries: Sequence[Entry], how: bytes) -> Call[list[Receipt]]:
    """Add jobs; change those whose id is taken (`how`: see `update_of` in adding.lua)."""
    return Call(
        UPDATE,
        [how, *groups_words(entries)],
        lambda reply: read_receipts(entries, reply),
        ids=[entry.id for entry in entries],
    )


def tick(
    schedule: str, seen: int | None = -1, tick: int = 0, entries: Sequence[Entry] = ()
) -> Call[Ticks]:
    """Make ticks of a schedule if the last one is that which was seen; -1 only looks."""

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
    """Complete what is done and lease the best jobs, up to `count`."""

    def read(reply: list[Any]) -> Granted:
        ids, payloads, facts, completed, wait_ms = reply
        leases = read_leases(token, ids, payloads, facts)
        return Granted(Leases(leases, [FLAG[flag] for flag in completed]), wait_ms / 1000)

    def undo(granted: Granted) -> Call[list[bool]] | None:
        return release(settles_of(granted.leases)) if granted.leases else None

    args = [token.encode(), b"%d" % lease_ms, b"%d" % count, flag(to_the_back), flag(failed)]
    args += [*settles_words(complete), *results_words(complete)]
    # A wake tells of ready jobs: who wants failed ones must not take it from the others.
    return Call(LEASE, args, read, wait=wait, listen=not failed, undo=undo)


def complete(
    settles: Sequence[Settle],
    *,
    force: bool = False,
    add: Sequence[Entry] = (),
) -> Call[list[bool]]:
    """Complete jobs; with `add`, complete one and add its follow-ups."""
    args = [flag(force), *settles_words(settles), *results_words(settles), *groups_words(add)]
    return Call(COMPLETE_AND_ADD if add else COMPLETE, args, read_flags)


def release(
    settles: Sequence[Settle],
    *,
    after_ms: int | None = None,
    to_the_back: bool = False,
    lapsed: bytes = b"",
) -> Call[list[bool]]:
    """Give jobs back, at no cost unless `lapsed` says why a run did not answer."""
    after = b"" if after_ms is None else b"%d" % after_ms
    return Call(RELEASE, [after, flag(to_the_back), lapsed, *settles_words(settles)], read_flags)


def retry(failures: Sequence[Failure]) -> Call[list[bool]]:
    """Count a failure of each and try again later, or fail what has spent its failures."""
    return Call(RETRY, failures_words(failures), read_flags)


def fail(failures: Sequence[Failure]) -> Call[list[bool]]:
    """Fail jobs at once."""
    return Call(FAIL, failures_words(failures), read_flags)


def extend(settles: Sequence[Settle], lease_ms: int) -> Call[list[Extended]]:
    """Let leases lapse later."""
    return Call(
        EXTEND,
        [b"%d" % lease_ms, *settles_words(settles)],
        lambda reply: [_EXTENDED[flag] for flag in reply[0]],
    )


def cancel(ids: Sequence[str], *, running: bool = True) -> Call[list[bool]]:
    """Let jobs not run again; True where this call is the reason."""
    return Call(CANCEL, [flag(running), *(id.encode() for id in ids)], read_flags)


def cancel_matching(
    payload: bytes, *, running: bool = True, place: Place = (1, 0), count: int = MAX_JOBS
) -> Call[tuple[int, Place | None]]:
    """Cancel the jobs with this payload among `count` ids; return how many, and where to go on."""

    def read(reply: list[int]) -> tuple[int, Place | None]:
        cancelled, following, position = reply
        return cancelled, (following, position) if following else None

    args = [flag(running), payload, *place_words(place), b"%d" % count]
    return Call(CANCEL_MATCHING, args, read)


def revive(ids: Sequence[str]) -> Call[list[bool]]:
    """Let failed jobs run again, as if they never had."""
    return Call(REVIVE, [id.encode() for id in ids], read_flags)


def set_result(id: str, result: bytes) -> Call[str]:
    """Store the result of a job: '1', '0' when there is no job, 'n' when it keeps none."""
    return Call(SET_RESULT, [id.encode(), result], lambda reply: str(reply[0].decode()))


def recall(
    *,
    holder: str = "",
    longer_than_ms: int | None = None,
    to_the_back: bool = False,
    position: int = 0,
    count: int = MAX_JOBS,
) -> Call[tuple[int, int]]:
    """Take back the leases of a holder, or those held for longer than this.

    Returns how many, and the position in `leased` at which to go on, 0 at the end.
    """
    longer = b"" if longer_than_ms is None else b"%d" % longer_than_ms
    place = b"%d" % position if position else b""
    args = [holder.encode(), longer, flag(to_the_back), place, b"%d" % count]
    return Call(RECALL, args, lambda reply: (reply[0], reply[1]))


def register(holder: str, alive_ms: int, about: bytes) -> Call[None]:
    """Put a worker into the directory."""
    return Call(REGISTER, [holder.encode(), b"%d" % alive_ms, about], _nothing)


def workers() -> Call[list[WorkerInfo]]:
    """List the workers that are in the directory."""

    def read(reply: list[bytes]) -> list[WorkerInfo]:
        now = int(reply[0])
        pairs = zip(reply[1::2], reply[2::2], strict=True)
        found = (read_worker(holder, entry, now) for holder, entry in pairs)
        return sorted(filter(None, found), key=lambda worker: worker.holder)

    return Call(WORKERS, [], read)


@dataclass(frozen=True, slots=True)
class Step:
    """What one call of tidy moved."""

    moved: Tidied
    staging: int
    """Of what is staged or claimed how much was seen to; it is worth asking until it is 0."""
    unpublished: bool
    """Something is committed, and waits to be published."""


def tidy(
    *, to_the_back: bool = False, force: bool = False, failed_for_ms: int | None = None
) -> Call[Step]:
    """Promote, reclaim, prune, drop what failed long ago: at most MAX_JOBS of each."""
    longer = b"" if failed_for_ms is None else b"%d" % failed_for_ms
    args = [flag(to_the_back), flag(force), longer]
    return Call(TIDY, args, lambda reply: Step(Tidied(*reply[:5]), reply[5], bool(reply[6])))


@dataclass(frozen=True, slots=True)
class Repaired:
    """One chunk of a repair; `following` is where to go on, None at the end."""

    done: list[Problem]
    following: tuple[int, bytes] | None


def repair(place: tuple[int, bytes] = (1, b""), count: int = 250) -> Call[Repaired]:
    """Mend what is broken about up to `count` ids."""

    def read(reply: list[Any]) -> Repaired:
        done, stage, position = reply
        return Repaired(
            [read_problem(id, what) for id, what in zip(done[::2], done[1::2], strict=True)],
            (stage, position) if stage else None,
        )

    stage, position = place
    return Call(REPAIR, [b"%d" % stage, position, b"%d" % count], read)


def recount(stamp: bytes, counted: Mapping[str, tuple[int, ...]]) -> Call[bool]:
    """Correct what each request counts.

    How many of its jobs are leased, failed, parked, delayed; were handled, cancelled; have a
    result. False when the queue has changed since they were counted.
    """
    args = [stamp]
    for owner, numbers in counted.items():
        args += (owner.encode(), *(b"%d" % number for number in numbers))
    return Call(RECOUNT, args, lambda reply: bool(reply[0] == b"1"))


# ------------------------------------------------------------------- requests


def open_request(
    request: str,
    *,
    priority: int = 50,
    limit: int | None = None,
    fail_fast: bool = False,
    keep_for_ms: int = 86_400_000,
    open_for_ms: int | None = None,
    follow_up: Entry | None = None,
) -> Call[tuple[str, int]]:
    """Open a request, or go on with one that is open: a letter, and the parts so far."""
    args = [
        request.encode(),
        b"%d" % priority,
        b"" if limit is None else b"%d" % limit,
        flag(fail_fast),
        b"%d" % keep_for_ms,
        b"" if open_for_ms is None else b"%d" % open_for_ms,
        *(groups_words([follow_up]) if follow_up else [b""]),
    ]
    return Call(OPEN_REQUEST, args, lambda reply: (reply[0].decode(), reply[1]))


@dataclass(frozen=True, slots=True)
class PartsSent:
    """What became of parts that were sent: '1', or why they were not taken."""

    letter: str
    before: int
    """Parts before them,"""
    total: int
    """and with them."""


def add_parts(
    request: str,
    first: int | None,
    payloads: Sequence[bytes],
    *,
    priority: int = 50,
    due: bytes = b"",
    options: bytes = b"",
) -> Call[PartsSent]:
    """Add parts from a number on, or after the last; those below the total are there already."""
    place = b"" if first is None else b"%d" % first
    args = [request.encode(), place, b"%d" % priority, due, options, *payloads]
    ids = (request,)
    return Call(
        ADD_PARTS, args, lambda reply: PartsSent(reply[0].decode(), reply[1], reply[2]), ids=ids
    )


def change_request(
    request: str,
    *,
    seal: bool = False,
    cancel: bool = False,
    limit: bytes = b"",
    priority: int | None = None,
    group: bool = False,
) -> Call[tuple[str, int]]:
    """Seal or stop a request, or change its limit (`-` for none) or priority; or a group's limit.

    Returns a letter, and how many of its parts still wait to be cancelled.
    """
    args = [
        request.encode(),
        b"1" if seal else b"",
        b"1" if cancel else b"",
        limit,
        b"" if priority is None else b"%d" % priority,
        b"1" if group else b"",
    ]
    return Call(CHANGE_REQUEST, args, lambda reply: (reply[0].decode(), reply[1]))


@dataclass(frozen=True, slots=True)
class Found:
    """A request or group as it stands."""

    name: str
    record: Record
    now: int


def requests(request: str) -> Call[list[Found]]:
    """Look at one request or group; empty when there is none."""
    return Call(REQUESTS, [request.encode(), b"", b""], lambda reply: _found(reply)[0])


def some_requests(position: int = 0, count: int = 250) -> Call[tuple[list[Found], int]]:
    """Look at some requests and groups; where to go on, 0 at the end."""
    return Call(REQUESTS, [b"", b"%d" % position if position else b"", b"%d" % count], _found)


def _found(reply: list[Any]) -> tuple[list[Found], int]:
    now, position = int(reply[0]), reply[1]
    return [
        Found(name.decode(errors="backslashreplace"), record, now)
        for name, packed in zip(reply[2::2], reply[3::2], strict=True)
        if (record := read_record(packed))
    ], position


@dataclass(frozen=True, slots=True)
class PartsFound:
    """Some parts of a request: state letter ('' when it has ended), facts, result."""

    total: int
    """Parts so far, -1 when there is no such request."""
    parts: list[tuple[str, Facts, bytes | None]]


def parts(request: str, first: int, count: int = MAX_JOBS) -> Call[PartsFound]:
    """Look at some parts of a request; not more than fit into one reply."""

    def read(reply: list[Any]) -> PartsFound:
        triples = zip(reply[1::3], reply[2::3], reply[3::3], strict=True)
        return PartsFound(
            reply[0],
            [(letter.decode(), read_facts(facts), result) for letter, facts, result in triples],
        )

    return Call(PARTS, [request.encode(), b"%d" % first, b"%d" % count], read)


# --------------------------------------------------------------------- manage


def pause() -> Call[None]:
    """Grant no lease until `resume`."""
    return Call(PAUSE, [], _nothing)


def resume() -> Call[None]:
    """Grant leases again."""
    return Call(RESUME, [], _nothing)


def delete() -> Call[None]:
    """Remove the queue and everything in it."""
    return Call(DELETE, [], _nothing)


def counts() -> Call[Counts]:
    """Count the jobs of each state at one moment."""

    def read(reply: list[int]) -> Counts:
        ready, delayed, leased, parked, failed, ended, paused, staged, claims = reply
        return Counts(ready, delayed, leased, parked, failed, ended, bool(paused), staged, claims)

    return Call(COUNTS, [], read)


def totals() -> Call[Totals]:
    """Tell how often what happened."""
    return Call(TOTALS, [], lambda reply: Totals(*reply))


def rights() -> Call[list[str]]:
    """Name the commands that this user may not run on this queue."""
    return Call(RIGHTS, [], lambda reply: [name.decode() for name in reply])


@dataclass(frozen=True, slots=True)
class Audited:
    """One chunk of an audit; `following` is where to go on, None at the end."""

    problems: list[Problem]
    following: tuple[int, int] | None
    stamp: bytes
    totals: list[int]
    tallies: list[int]
    records: dict[str, Record]
    """What the requests of this chunk say of themselves,"""
    fellows: dict[tuple[str, str], int]
    """and how many jobs of a request are in a set."""


def audit(place: Place = (1, 0), count: int = MAX_JOBS) -> Call[Audited]:
    """Look at up to `count` ids from a place on; a place is a set and a position in it."""

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
    """Tell all that is known about one job."""
    return Call(SHOW, [id.encode()], lambda reply: read_shown(id, reply))


def peek(state: State, first: int, count: int) -> Call[list[Job]]:
    """Return jobs of one state in its order, without taking them."""
    args = [_LETTERS[state], b"%d" % first, b"%d" % count]
    return Call(PEEK, args, lambda reply: read_jobs(state, reply))


def settles_of(leases: Iterable[Lease]) -> list[Settle]:
    """Return what each lease presents when it is settled."""
    return [(lease.id, lease.token, None) for lease in leases]
