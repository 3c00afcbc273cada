"""What scripts reply, as values. No I/O."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.job import (
    NO_ENDED_FACTS,
    NO_FACTS,
    EndedFacts,
    Facts,
    Job,
    Lease,
    Problem,
    Receipt,
    State,
    WorkerInfo,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.call import Entry

STATES: Final[dict[str, State]] = {
    "r": "ready",
    "l": "leased",
    "d": "delayed",
    "f": "failed",
    "e": "ended",
    "p": "parked",
}
FLAG: Final = {ord("0"): False, ord("1"): True}

_RANKS: Final = 2**46
_NEVER_MS: Final = 2**52
_decode_facts = msgspec.msgpack.Decoder(Facts).decode
_decode_ended_facts = msgspec.msgpack.Decoder(EndedFacts).decode
_decode_about = msgspec.msgpack.Decoder(dict[str, Any]).decode


def read_flags(reply: list[bytes]) -> list[bool]:
    """Return whether each settle, or each id, counted."""
    return [FLAG[flag] for flag in reply[0]]


def read_receipts(entries: Sequence[Entry], reply: list[bytes]) -> list[Receipt]:
    """Return what became of each job that was added."""
    if reply[0].count(b"1") == len(entries):
        return [Receipt(entry.id) for entry in entries]
    return [
        Receipt(entry.id)
        if letter == "1"
        else Receipt(entry.id, False, STATES[letter.lower()], letter.isupper())
        for entry, letter in zip(entries, reply[0].decode(), strict=True)
    ]


def read_facts(packed: bytes) -> Facts:
    """Return what is kept about a job beside its payload."""
    try:
        return _decode_facts(packed) if packed else NO_FACTS
    except msgspec.MsgspecError:
        return NO_FACTS  # Somebody else wrote there: the job is worth more than its facts.


def read_ended_facts(packed: bytes) -> EndedFacts:
    """Return what is kept about a job that has ended."""
    try:
        return _decode_ended_facts(packed) if packed else NO_ENDED_FACTS
    except msgspec.MsgspecError:
        return NO_ENDED_FACTS


def read_leases(
    token: str, ids: list[bytes], payloads: list[bytes], facts: list[bytes]
) -> list[Lease]:
    """Return jobs that were leased under a token. Where no job has facts, `facts` is empty."""
    if not facts:
        return [
            Lease(id.decode(), payload, token) for id, payload in zip(ids, payloads, strict=True)
        ]
    known = {fact: read_facts(fact) for fact in set(facts)}  # Those of most parts are alike.
    return [
        Lease(id.decode(), payload, token, known[fact])
        for id, payload, fact in zip(ids, payloads, facts, strict=True)
    ]


def read_problem(id: bytes, what: bytes) -> Problem:
    """Return what is, or was, wrong with an id."""
    return Problem(id.decode(errors="backslashreplace"), what.decode())


def read_worker(holder: bytes, entry: bytes, held: bytes, now_ms: int) -> WorkerInfo | None:
    """Return an entry of the directory; None where somebody else wrote it.

    `held` tells which of the jobs that it runs it still holds: the others have ended since.
    """
    until, _, about = entry.partition(b" ")
    try:
        alive_until, facts = int(until), _decode_about(about)
    except (ValueError, msgspec.MsgspecError):
        return None
    name = holder.decode(errors="backslashreplace")
    running = facts.get("running")
    if isinstance(running, list) and len(running) == len(held):
        facts["running"] = [job for job, flag in zip(running, held, strict=True) if FLAG[flag]]
    return WorkerInfo(name, alive_until > now_ms, alive_until / 1000, facts)


class Record(msgspec.Struct, frozen=True):
    """What the engine keeps about a request or group: doubles in this order, then the reason.

    Of a time 0 is: not yet.
    """

    group: int = 0
    """1 for a group."""
    priority: int = 50
    limit: int = -1
    """How many may run at a time, -1 for any number."""
    fail_fast: int = 0
    keep_for_ms: int = 0
    total: int = 0
    """Parts so far; the jobs of a group."""
    parked: int = 0
    running: int = 0
    failed: int = 0
    """Those that stand in `failed`."""
    done: int = 0
    handled: int = 0
    """Those that had failed, and somebody dealt with it."""
    cancelled: int = 0
    results: int = 0
    """How many results of parts are kept."""
    sealed: int = 0
    endings: int = 0
    walked: int = 0
    """How far its parts were gone through, to empty or to forget it."""
    forgotten: int = 0
    """Of how many parts it is no longer kept how they ended."""
    opened_at: int = 0
    first_at: int = 0
    last_at: int = 0
    ended_at: int = 0
    stopping: int = 0
    """How it is to end: see ENDINGS."""
    outcome: int = 0
    """How it ended."""
    turn: int = 0
    """Its rank in `turns`, while it is there."""
    reason: str = ""


ENDINGS: Final = ("", "completed", "failed", "cancelled")
"""How a request ends, by number."""

_NUMBERS: Final = Record.__struct_fields__[:-1]
RECORD_FORMAT: Final = "<" + "d" * len(_NUMBERS)
RECORD_BYTES: Final = struct.calcsize(RECORD_FORMAT)


def read_record(packed: bytes) -> Record | None:
    """Return what is kept about a request; None where somebody else wrote there."""
    try:
        numbers = zip(_NUMBERS, struct.unpack_from(RECORD_FORMAT, packed), strict=True)
        reason = packed[RECORD_BYTES:].decode(errors="replace")
        record = Record(**{name: int(value) for name, value in numbers}, reason=reason)
        ENDINGS[record.stopping], ENDINGS[record.outcome]
    except (struct.error, ValueError, OverflowError, IndexError):
        return None
    return record


@dataclass(frozen=True, slots=True)
class Shown:
    """All that is known about one job."""

    job: Job
    result: bytes | None
    paused: bool
    now: float
    record: Record | None = None
    """Of its request or group."""
    holders: Sequence[str] = ()
    """Who holds the places of that, where the job waits for one."""


def read_shown(id: str, reply: list[Any]) -> Shown | None:
    """Return what `show` found; None when no job has the id."""
    now, letter, score, behind, payload, facts, hold, successor, result, paused, *of_request = reply
    packed, holders = of_request
    if not letter:
        return None
    state = STATES[letter.decode()]
    job = _job(id, state, score, payload, facts, hold)
    job = msgspec.structs.replace(
        job, behind=behind if behind >= 0 else None, successor=bool(successor)
    )
    tokens = [token.decode(errors="backslashreplace") for token in holders]
    return Shown(job, result, bool(paused), int(now) / 1000, read_record(packed), tokens)


def read_jobs(state: State, reply: list[Any]) -> list[Job]:
    """Return the jobs that `peek` found."""
    return [
        _job(id.decode(errors="backslashreplace"), state, score, payload, facts, hold)
        for id, score, payload, facts, hold in zip(*reply[:5], strict=True)
    ]


def _job(
    id: str, state: State, score: bytes, payload: bytes | None, packed: bytes, hold: bytes
) -> Job:
    if state == "ended":
        ending = read_ended_facts(packed)
        kept = payload if ending.keep else None
        return Job(id, state, kept, ending.priority, _seconds(float(score)), ending)
    facts = read_facts(packed)
    token, leased_ms, rank = _read_hold(hold)
    at: float | None = None
    if state == "ready":
        priority = 99 - int(float(score)) // _RANKS
    elif state == "parked":
        priority = facts.priority
    else:
        at = _seconds(float(score))
        priority = 99 - rank // _RANKS if state == "leased" and rank >= 0 else facts.priority
    leased_at = leased_ms / 1000 if token else None
    return Job(id, state, payload, priority, at, facts, token, leased_at)


def _read_hold(hold: bytes) -> tuple[str | None, int, int]:
    words = hold.split(b" ")
    try:
        return words[0].decode(), int(words[1]), int(words[2])
    except (IndexError, ValueError):
        return None, 0, -1


def _seconds(ms: float) -> float:
    return ms / 1000 if ms < _NEVER_MS else math.inf
