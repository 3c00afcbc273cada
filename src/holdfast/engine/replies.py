"""The replies of scripts as values. No I/O."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.job import (
    NO_ENDED_FACTS,
    NO_FACTS,
    EndedFacts,
    Facts,
    Job,
    Lease,
    Outcome,
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
    """Return for each settle, or each id, whether it took effect."""
    return [FLAG[flag] for flag in reply[0]]


def read_receipts(entries: Sequence[Entry], reply: list[bytes]) -> list[Receipt]:
    """Return a receipt for each job that was sent."""
    if reply[0].count(b"1") == len(entries):
        return [Receipt(entry.id) for entry in entries]
    return [
        Receipt(entry.id)
        if letter == "1"
        else Receipt(entry.id, False, STATES[letter.lower()], letter.isupper())
        for entry, letter in zip(entries, reply[0].decode(), strict=True)
    ]


def read_facts(packed: bytes) -> Facts:
    """Return what is stored about a job beside its payload."""
    try:
        return _decode_facts(packed) if packed else NO_FACTS
    except msgspec.MsgspecError:
        return NO_FACTS  # Another program wrote them. The job can run without its facts.


def read_ended_facts(packed: bytes) -> EndedFacts:
    """Return what is stored about a job that has ended."""
    try:
        return _decode_ended_facts(packed) if packed else NO_ENDED_FACTS
    except msgspec.MsgspecError:
        return NO_ENDED_FACTS


def read_leases(
    token: str, ids: list[bytes], payloads: list[bytes], facts: list[bytes]
) -> list[Lease]:
    """Return the jobs that were leased under a token. `facts` is empty if no job has any."""
    if not facts:
        return [*map(Lease, map(bytes.decode, ids), payloads, repeat(token))]
    known = {fact: read_facts(fact) for fact in set(facts)}  # Most parts have equal facts.
    return [
        Lease(id.decode(), payload, token, known[fact])
        for id, payload, fact in zip(ids, payloads, facts, strict=True)
    ]


def read_problem(id: bytes, what: bytes) -> Problem:
    """Return a problem that `audit` or `repair` found."""
    return Problem(id.decode(errors="backslashreplace"), what.decode())


def read_worker(holder: bytes, entry: bytes, held: bytes, now_ms: int) -> WorkerInfo | None:
    """Return an entry of the directory of workers; None if it cannot be read.

    `held` has one flag per running job of the entry: whether the worker still holds it.
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

    A time of 0 means: not yet.
    """

    group: int = 0
    """1 for a group."""
    priority: int = 50
    limit: int = -1
    """How many parts or jobs may run at a time, -1 for any number."""
    fail_fast: int = 0
    keep_for_ms: int = 0
    total: int = 0
    """Parts so far; for a group, its jobs."""
    parked: int = 0
    running: int = 0
    failed: int = 0
    """Parts that are in `failed`."""
    done: int = 0
    handled: int = 0
    """Failed parts that were completed afterwards, as a failure handler does."""
    cancelled: int = 0
    results: int = 0
    """How many results of its parts are stored."""
    sealed: int = 0
    endings: int = 0
    walked: int = 0
    """How many of its parts were walked so far, to empty or to forget it."""
    forgotten: int = 0
    """How many endings of its parts were forgotten."""
    opened_at: int = 0
    first_at: int = 0
    last_at: int = 0
    ended_at: int = 0
    stopping: int = 0
    """How it will end (see ENDINGS), while it is being stopped."""
    outcome: int = 0
    """How it ended (see ENDINGS)."""
    turn: int = 0
    """Its rank in `turns`; 0 while it has no turn."""
    reason: str = ""


ENDINGS: Final = ("", "completed", "failed", "cancelled")
"""How a request ends, by number."""

_NUMBERS: Final = Record.__struct_fields__[:-1]
RECORD_FORMAT: Final = "<" + "d" * len(_NUMBERS)
RECORD_BYTES: Final = struct.calcsize(RECORD_FORMAT)


def read_record(packed: bytes) -> Record | None:
    """Return the record of a request; None if it cannot be read."""
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
    """Everything that is stored about one job."""

    job: Job
    result: bytes | None
    paused: bool
    now: float
    record: Record | None = None
    """The record of its request or group."""
    holders: Sequence[str] = ()
    """For a job that waits for a place in its request or group: tokens that hold a place."""

    def outcome(self) -> Outcome | None:
        """Return how the job ended; None if it has not."""
        id, facts = self.job.id, self.job.facts
        if self.job.state == "ended":
            kind = facts.outcome if facts.outcome in ENDINGS[1:] else "completed"
            return Outcome(id, kind, self.result, facts.error, (facts.ended_at or 0) / 1000)  # type: ignore[arg-type]
        if facts.failed_at is not None:
            return Outcome(id, "failed", self.result, facts.error, facts.failed_at / 1000)
        return None


def read_shown(id: str, reply: list[Any]) -> Shown | None:
    """Return what `show` found; None if no job has the id."""
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
