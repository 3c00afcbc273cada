"""The calls of the engine: which script, which arguments, how to read the reply. No I/O.

A `Call` is made here, carried to the server by `server.py` (or `aserver.py`), and read
here again. Each function bears the name of its transition and of its Lua file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from holdfast.engine.script import MAX_JOBS, Script
from holdfast.job import NO_FACTS, Counts, Facts, Lease, Leases, Problem, Receipt, State, Tidied

T = TypeVar("T")

# Scripts that free or move work run on a full server, so that it can be drained.
# Those that add do not.
ADD: Final = Script("add")
LEASE: Final = Script("lease", "allow-oom")
COMPLETE: Final = Script("complete", "allow-oom")
COMPLETE_AND_ADD: Final = Script("complete")
RELEASE: Final = Script("release", "allow-oom")
EXTEND: Final = Script("extend", "allow-oom")
TIDY: Final = Script("tidy", "allow-oom")
PAUSE: Final = Script("pause", "allow-oom")
RESUME: Final = Script("resume", "allow-oom")
DELETE: Final = Script("delete", "allow-oom")
COUNTS: Final = Script("counts", "no-writes")
AUDIT: Final = Script("audit", "no-writes")

SCRIPTS: Final = (
    ADD,
    LEASE,
    COMPLETE,
    COMPLETE_AND_ADD,
    RELEASE,
    EXTEND,
    TIDY,
    PAUSE,
    RESUME,
    DELETE,
    COUNTS,
    AUDIT,
)


class Call(Generic[T]):
    """One call of one script."""

    __slots__ = ("args", "ids", "read", "script", "undo", "wait")

    def __init__(
        self,
        script: Script,
        args: list[bytes],
        read: Callable[[Any], T],
        *,
        wait: float = 0,
        undo: Callable[[T], Call[Any] | None] | None = None,
        ids: Sequence[str] = (),
    ) -> None:
        self.script = script
        self.args = args
        self.read = read
        self.wait = wait
        """Seconds to listen for a wake before the script runs."""
        self.undo = undo
        """What to call when the answer came but nobody is there any more to take it."""
        self.ids = ids
        """The ids that a refusal may point at."""


class Entry(msgspec.Struct, frozen=True):
    """A job on its way into the queue, checked and encoded."""

    id: str
    payload: bytes
    fresh: bool
    """The id was made here, so nobody else can have it."""
    priority: int
    due: bytes
    options: bytes


Settle: TypeAlias = tuple[str, str, bytes | None]
"""An id, the token of its lease, and the result if it has one."""

_FLAG: Final = {ord("0"): False, ord("1"): True}
_STATES: Final[dict[str, State]] = {
    "r": "ready",
    "l": "leased",
    "d": "delayed",
    "f": "failed",
    "e": "ended",
    "p": "parked",
}
_decode_facts = msgspec.msgpack.Decoder(Facts).decode


# ------------------------------------------------------------------ arguments


def _groups(entries: Sequence[Entry]) -> list[bytes]:
    """Write jobs as runs that share everything but id and payload."""
    args: list[bytes] = []
    size_at = run = 0
    last = None
    for entry in entries:
        shared = (entry.fresh, entry.priority, entry.due, entry.options)
        if shared != last:
            if last:
                args[size_at] = b"%d" % run
            last, run, size_at = shared, 0, len(args) + 4
            args += (_flag(entry.fresh), b"%d" % entry.priority, entry.due, entry.options, b"")
        args += (entry.id.encode(), entry.payload)
        run += 1
    if last:
        args[size_at] = b"%d" % run
    return args


def _settles(settles: Sequence[Settle]) -> list[bytes]:
    """Write settles as runs that present the same token."""
    groups: list[tuple[str, list[bytes]]] = []
    last = None
    for id, token, _ in settles:
        if token != last:
            groups.append((token, []))
            last = token
        groups[-1][1].append(id.encode())
    args = [b"%d" % len(groups)]
    for token, ids in groups:
        args += (token.encode(), b"%d" % len(ids), *ids)
    return args


def _results(settles: Sequence[Settle]) -> list[bytes]:
    """Write results, each with the number of its settle."""
    args = [b""]
    for number, (_, _, result) in enumerate(settles, 1):
        if result is not None:
            args += (b"%d" % number, result)
    args[0] = b"%d" % (len(args) // 2)
    return args


def _flag(value: bool) -> bytes:
    return b"1" if value else b"0"


# -------------------------------------------------------------------- replies


def _read_flags(reply: list[bytes]) -> list[bool]:
    return [_FLAG[flag] for flag in reply[0]]


def _read_facts(packed: bytes) -> Facts:
    try:
        return _decode_facts(packed) if packed else NO_FACTS
    except msgspec.MsgspecError:
        return NO_FACTS  # Somebody else wrote there: the job is worth more than its facts.


def _nothing(_reply: object) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Granted:
    """What a lease call brought."""

    leases: Leases
    ask_again: float
    """Seconds until it is worth asking again."""


# ---------------------------------------------------------------- transitions


def add(entries: Sequence[Entry], *, on_conflict: str = "ignore") -> Call[list[Receipt]]:
    """Add jobs; at most MAX_JOBS and MAX_BYTES."""

    def read(reply: list[bytes]) -> list[Receipt]:
        if reply[0].count(b"1") == len(entries):
            return [Receipt(entry.id) for entry in entries]
        return [
            Receipt(entry.id) if flag == "1" else Receipt(entry.id, False, _STATES[flag])
            for entry, flag in zip(entries, reply[0].decode(), strict=True)
        ]

    ids = [entry.id for entry in entries] if on_conflict == "raise" else ()
    return Call(ADD, [on_conflict.encode(), *_groups(entries)], read, ids=ids)


def lease(
    token: str,
    lease_ms: int,
    count: int,
    *,
    to_the_back: bool = False,
    complete: Sequence[Settle] = (),
    wait: float = 0,
) -> Call[Granted]:
    """Complete what is done and lease the best jobs, up to `count`."""

    def read(reply: list[Any]) -> Granted:
        ids, payloads, facts, completed, wait_ms = reply
        if facts:
            leases = [
                Lease(id.decode(), payload, token, _read_facts(fact))
                for id, payload, fact in zip(ids, payloads, facts, strict=True)
            ]
        else:
            leases = [
                Lease(id.decode(), payload, token)
                for id, payload in zip(ids, payloads, strict=True)
            ]
        return Granted(Leases(leases, [_FLAG[flag] for flag in completed]), wait_ms / 1000)

    def undo(granted: Granted) -> Call[list[bool]] | None:
        return release(settles_of(granted.leases)) if granted.leases else None

    args = [token.encode(), b"%d" % lease_ms, b"%d" % count, _flag(to_the_back)]
    args += [*_settles(complete), *_results(complete)]
    return Call(LEASE, args, read, wait=wait, undo=undo)


def complete(
    settles: Sequence[Settle],
    *,
    force: bool = False,
    add: Sequence[Entry] = (),
) -> Call[list[bool]]:
    """Complete jobs; with `add`, complete one and add its follow-ups."""
    args = [_flag(force), *_settles(settles), *_results(settles), *_groups(add)]
    return Call(COMPLETE_AND_ADD if add else COMPLETE, args, _read_flags)


def release(
    settles: Sequence[Settle],
    *,
    after_ms: int | None = None,
    to_the_back: bool = False,
    lapsed: bytes = b"",
) -> Call[list[bool]]:
    """Give jobs back, at no cost unless `lapsed` says why a run did not answer."""
    after = b"" if after_ms is None else b"%d" % after_ms
    return Call(RELEASE, [after, _flag(to_the_back), lapsed, *_settles(settles)], _read_flags)


def extend(settles: Sequence[Settle], lease_ms: int) -> Call[list[bool]]:
    """Let leases lapse later; False where one is lost."""
    return Call(EXTEND, [b"%d" % lease_ms, *_settles(settles)], _read_flags)


def tidy(*, to_the_back: bool = False, force: bool = False) -> Call[Tidied]:
    """Promote, reclaim and prune, at most MAX_JOBS of each."""
    return Call(TIDY, [_flag(to_the_back), _flag(force)], lambda reply: Tidied(*reply))


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
        ready, delayed, leased, parked, failed, ended, paused = reply
        return Counts(ready, delayed, leased, parked, failed, ended, bool(paused))

    return Call(COUNTS, [], read)


@dataclass(frozen=True, slots=True)
class Audited:
    """One chunk of an audit; `following` is where to go on, None at the end."""

    problems: list[Problem]
    following: tuple[int, int] | None
    stamp: bytes
    totals: list[int]
    tallies: list[int]


def audit(place: tuple[int, int] = (1, 0), count: int = MAX_JOBS) -> Call[Audited]:
    """Look at up to `count` ids from a place on; a place is a set and a position in it."""

    def read(reply: list[Any]) -> Audited:
        problems, following, position, stamp, totals, tallies = reply
        return Audited(
            [Problem(id.decode(errors="backslashreplace"), what.decode()) for id, what in problems],
            (following, position) if following else None,
            stamp,
            totals,
            tallies,
        )

    set_number, position = place
    args = [b"%d" % set_number, b"%d" % position if position else b"", b"%d" % count]
    return Call(AUDIT, args, read)


def settles_of(leases: Iterable[Lease]) -> list[Settle]:
    """Return what each lease presents when it is settled."""
    return [(lease.id, lease.token, None) for lease in leases]
