"""The proof: a history is replayed, and after every transaction all must be as promised.

It knows nothing of how the engine decides. It replays the keys that tell where a job stands, and
compares the record of each request with what it counts itself:

- every part stands in one place; as many are leased, failed, done, handled and cancelled as the
  record says, and who has ended stays so
- nothing is given out that is leased already, and no part where that leaves more leases than the
  limit in force
- a sealed request ends in the transaction that settles its last part: with an outcome, one
  announcement and one follow-up, and none of these at any other time
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from faults.aof import Command, Transaction
from holdfast.engine.keys import NAMES, queue_keys
from holdfast.engine.replies import ENDINGS, Record, read_record

Place: TypeAlias = Literal[
    "waiting", "leased", "failed", "handling", "done", "handled", "cancelled"
]
"""Of a part. handling: it failed, and a failure handler has leased it."""

ENOUGH = 20
"""After so many problems the rest follows from the first."""

_REPLAYED = ("leased", "holds", "failed", "jobs", "facts", "requests")
_ENDED: tuple[Place, ...] = ("done", "handled", "cancelled")


class Facts(msgspec.Struct, frozen=True):
    """What matters here of what is kept about a job."""

    request: str | None = None
    failed_at: int | None = None
    outcome: str | None = None


_read_facts = msgspec.msgpack.Decoder(Facts).decode


@dataclass
class Changes:
    """What one transaction did."""

    touched: set[bytes] = field(default_factory=set)
    """Ids that came to or went from somewhere."""
    given: Counter[bytes] = field(default_factory=Counter)
    """Ids that were not leased, and then were."""
    held: Counter[bytes] = field(default_factory=Counter)
    """Ids that got a holder."""
    created: list[bytes] = field(default_factory=list)
    """Ids that were no job, and then were."""
    requests: set[str] = field(default_factory=set)
    """Requests of which the record was written, or a part moved."""
    announced: int = 0
    """Endings, as counted in `meta` by who tells of them."""


@dataclass
class Seen:
    """What was seen of one request."""

    record: Record | None = None
    parts: Counter[Place] = field(default_factory=Counter)
    endings: int = 0
    limits: list[int] = field(default_factory=list)
    """The limits it had, in order."""
    most_leased: dict[int, int] = field(default_factory=dict)
    """Limit -> the most leases when a part was given out under it."""

    @property
    def running(self) -> int:
        return self.parts["leased"] + self.parts["handling"]

    @property
    def unsettled(self) -> int:
        return self.parts["waiting"] + self.running


class History:
    """A queue as its history tells it, and in `problems` all that is not as promised."""

    def __init__(self, queue: str) -> None:
        self._names = dict(zip(queue_keys(queue), NAMES, strict=True))
        self._stored: dict[str, dict[bytes, bytes]] = {name: {} for name in _REPLAYED}
        self._parts: dict[bytes, tuple[str, Place]] = {}
        self._now = Changes()
        self.requests: defaultdict[str, Seen] = defaultdict(Seen)
        self.problems: list[str] = []
        self.transactions = 0
        self.leases = 0

    def replay(self, transactions: Iterable[Transaction]) -> None:
        """Go through a history, as far as it makes sense."""
        for transaction in transactions:
            if len(self.problems) >= ENOUGH:
                return
            self._now = Changes()
            self.transactions += 1
            for command in transaction:
                self._apply(command)
            self._judge()

    def must_be_at_rest(self) -> None:
        """Note what should not be there when everything is over."""
        for name, seen in self.requests.items():
            if seen.unsettled:
                self._note(name, f"at rest it has {dict(seen.parts)}")
            if seen.endings != 1:
                self._note(name, f"it ended {seen.endings} times")
            wanted = {f"{name}/{n}".encode() for n in range(seen.parts.total())}
            if any(id not in self._parts for id in wanted):
                self._note(name, "its parts are not numbered from 0 on")
        if leased := sorted(self._stored["leased"]):
            self._note("at rest", f"still leased: {leased}")
        if waiting := sorted(self._stored["jobs"].keys() - self._stored["failed"].keys()):
            self._note("at rest", f"still waiting: {waiting}")

    # ---------------------------------------------------------------- replay

    def _apply(self, command: Command) -> None:
        word, name = command[0].upper(), self._names.get(command[1])
        if name == "meta" and word == b"HINCRBY" and command[2] == b"ended":
            self._now.announced += int(command[3])
        if name not in self._stored:
            return
        match word:
            case b"ZADD":
                self._put(name, zip(command[3::2], command[2::2], strict=True))
            case b"HSET":
                self._put(name, zip(command[2::2], command[3::2], strict=True))
            case b"ZREM" | b"HDEL":
                self._take(name, command[2:])
            case _:
                raise AssertionError(f"cannot replay {command!r}")

    def _put(self, name: str, pairs: Iterator[tuple[bytes, bytes]]) -> None:
        for id, value in pairs:
            is_new = id not in self._stored[name]
            self._stored[name][id] = value
            match name:
                case "requests":
                    self._now.requests.add(id.decode())
                case "leased" if is_new:
                    self._now.given[id] += 1
                case "holds":
                    self._now.held[id] += 1
                case "jobs" if is_new:
                    self._now.created.append(id)
            self._now.touched.add(id)

    def _take(self, name: str, ids: Iterable[bytes]) -> None:
        for id in ids:
            self._stored[name].pop(id, None)
            if name == "requests":
                self._now.requests.add(id.decode())
            self._now.touched.add(id)

    # ----------------------------------------------------------------- judge

    def _judge(self) -> None:
        now = self._now
        ran = {name: seen.running for name, seen in self.requests.items()}
        for id in now.touched:
            self._follow(id)
        if now.given != now.held:
            what = f"{dict(now.given)} were given out, and {dict(now.held)} got a holder"
            self._note("leases", what)
        self.leases += now.given.total()
        given = Counter(self._parts[id][0] for id in now.given if id in self._parts)
        due: list[str] = []
        for name in sorted(now.requests):
            if name.endswith("/end"):
                continue  # The follow-up, beside its request.
            seen = self.requests[name]
            before, seen.record = seen.record, self._record(name)
            if seen.record is None:
                self._note(name, "it has no record")
                continue
            self._judge_numbers(name, seen, seen.record)
            self._judge_limit(name, seen, seen.record, ran.get(name, 0), given[name])
            if self._judge_ending(name, seen, seen.record, before, given[name]):
                due.append(name)
        self._judge_told(due)

    def _follow(self, id: bytes) -> None:
        """Keep up with where a part stands."""
        facts = self._facts(id)
        known = self._parts.get(id)
        request = known[0] if known else facts.request
        if request is None:
            return  # A plain job.
        if id in self._stored["jobs"] and facts.request != request:
            self._note(request, f"{id!r} does not say that it is a part of it")
        place = self._place(request, id, facts)
        if known:
            self.requests[request].parts[known[1]] -= 1
            if known[1] in _ENDED and place != known[1]:
                self._note(request, f"{id!r} was {known[1]}, and is {place}")
        self.requests[request].parts[place] += 1
        self._parts[id] = request, place
        self._now.requests.add(request)

    def _place(self, request: str, id: bytes, facts: Facts) -> Place:
        places: list[Place] = [name for name in _LIVE if id in self._stored[name]]
        if id in self._stored["jobs"]:
            places = places or ["waiting"]
        elif places:
            self._note(request, f"{id!r} has no payload")
        if len(places) > 1:
            self._note(request, f"{id!r} is {' and '.join(places)}")
        if places:
            return "handling" if places == ["leased"] and facts.failed_at else places[0]
        return _OUTCOMES[facts.outcome]

    def _judge_numbers(self, name: str, seen: Seen, record: Record) -> None:
        counted: dict[str, int] = {place: seen.parts[place] for place in ("failed", *_ENDED)}
        counted |= {"total": seen.parts.total(), "running": seen.running}
        for what, number in counted.items():
            said = getattr(record, what)
            if said != number:
                self._note(name, f"{what} is {said} in the record, and really {number}")

    def _judge_limit(self, name: str, seen: Seen, record: Record, before: int, given: int) -> None:
        limit, leased = record.limit, seen.running
        if not seen.limits or seen.limits[-1] != limit:
            seen.limits.append(limit)
        if given:
            seen.most_leased[limit] = max(leased, seen.most_leased.get(limit, 0))
        if 0 <= limit < leased and (given or leased > before):
            self._note(name, f"given out {given}, so {leased} are leased: its limit is {limit}")

    def _judge_ending(
        self, name: str, seen: Seen, record: Record, before: Record | None, given: int
    ) -> bool:
        """Return whether it ends here."""
        outcome, ended_before = ENDINGS[record.outcome], ENDINGS[before.outcome] if before else ""
        ends = bool(outcome) and not ended_before
        seen.endings += ends
        if ended_before and outcome != ended_before:
            self._note(name, f"it was {ended_before}, and is {outcome}")
        if record.endings != seen.endings:
            self._note(name, f"it ended {seen.endings} times, and says {record.endings}")
        # A failed part may be given to its failure handler by the very call that ended the request.
        early = seen.parts["waiting"] + seen.parts["leased"] or seen.parts["handling"] > given
        if ends and (early or not record.sealed):
            self._note(name, f"it ended too early: {dict(seen.parts)}")
        if record.sealed and not outcome and not seen.unsettled:
            self._note(name, "its last part is settled, and it has not ended")
        return ends

    def _judge_told(self, ending: list[str]) -> None:
        if self._now.announced != len(ending):
            self._note("endings", f"{ending} ended, and {self._now.announced} were announced")
        due = sorted(
            f"{name}/end/{self.requests[name].endings}".encode()
            for name in ending
            if f"{name}/end".encode() in self._stored["requests"]
        )
        added = sorted(id for id in self._now.created if b"/end/" in id)
        if added != due:
            self._note("endings", f"the follow-ups of {ending} are {due}, and {added} were added")

    # ------------------------------------------------------------------ read

    def _facts(self, id: bytes) -> Facts:
        packed = self._stored["facts"].get(id)
        return _read_facts(packed) if packed else Facts()

    def _record(self, name: str) -> Record | None:
        return read_record(self._stored["requests"].get(name.encode(), b""))

    def _note(self, whose: str, what: str) -> None:
        self.problems.append(f"transaction {self.transactions}: {whose}: {what}")


_LIVE: tuple[Place, ...] = ("leased", "failed")
_OUTCOMES: dict[str | None, Place] = {None: "done", "failed": "handled", "cancelled": "cancelled"}
