"""The proof of the chaos: what the server did, beside what handlers wrote down.

It replays the history of the server, and knows nothing of how engine and worker decide:

- an id is given out when nobody has it. Whose lease is good loses it only when its run is over
- two runs of an id overlap only where the lease of the first had lapsed before the second was given
- a job ends when the last run that was given it has returned, and never runs again
- a run that raised, and one that did not answer, are counted: no job is given out more often than
  its limits allow, and it fails when they are spent
- nothing is given out before its time, nor before something better that waits
- whatever was asked for has ended, well or in the hands of the failure handler, unless it was
  replaced; what follows a job is there if it is done
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from faults.aof import Command, Transaction
from faults.journal import Began, Ended, Left, Line, Order, Over, read_order
from holdfast.engine.keys import NAMES, queue_keys

ENOUGH = 20
"""After so many problems the rest follows from the first."""

ROUNDING_MS = 2
"""The server counts whole milliseconds."""

RANKS = 1 << 46
_REPLAYED = ("ready", "delayed", "leased", "holds", "failed", "jobs", "facts")

Runs: TypeAlias = dict[tuple[str, str], "Ran"]
"""By id and token."""


class Facts(msgspec.Struct, frozen=True):
    """What matters here of what is kept about a job."""

    failures: int = 0
    lapses: int = 0
    handlings: int = 0
    failed_at: int | None = None


_read_facts = msgspec.msgpack.Decoder(Facts).decode


@dataclass
class Sent:
    """What somebody asked for, and when it may begin at the earliest."""

    id: str
    order: Order
    not_before: float = 0
    kept: bool = True
    """Whether it was taken, and not ignored because of another of its id."""


@dataclass
class Ran:
    """What a handler wrote of one run."""

    began: list[Began] = field(default_factory=list)
    over: list[Over] = field(default_factory=list)
    ended_at: float = float("inf")
    """When its process had ended."""
    left_at: float = float("inf")
    """When its worker was told to stop."""


@dataclass
class Grant:
    """A lease, from the call that gave it out to the one that ended it."""

    id: str
    token: str
    order: Order
    facts: Facts
    at: int
    lapses_at: int
    ran: Ran
    taken_at: int | None = None

    @property
    def failed(self) -> bool:
        """Whether it is for the failure handler."""
        return self.facts.failed_at is not None

    @property
    def settled_at(self) -> float:
        """When its run was answered, if that counted."""
        lapsed = self.taken_at is None or self.lapses_at <= self.taken_at
        return float("-inf") if lapsed else self.taken_at or 0

    def ended(self, now: int) -> Over | None:
        """Return how its run ended, if it had until then."""
        for over in self.ran.over:
            if over.at <= now + ROUNDING_MS:
                return over
        if self.ran.ended_at <= now + ROUNDING_MS:
            return Over(self.id, self.token, "stopped", 0, self.ran.ended_at)
        return None


@dataclass
class Changes:
    """What one transaction did."""

    now: int = 0
    granted: list[Grant] = field(default_factory=list)
    taken: list[Grant] = field(default_factory=list)
    """Leases that it ended."""
    gone: dict[str, tuple[Order, Grant | None]] = field(default_factory=dict)
    """Jobs that it ended, by id, and their last leases: it may lease the id anew."""
    replaced: set[str] = field(default_factory=set)
    added: list[str] = field(default_factory=list)
    promoted: dict[str, float] = field(default_factory=dict)
    """What left the delayed ones, and when it was due."""


def runs_of(journals: Iterable[Sequence[Line]]) -> Runs:
    """Put together what workers wrote."""
    runs: defaultdict[tuple[str, str], Ran] = defaultdict(Ran)
    for lines in journals:
        left_at = min((line.at for line in lines if isinstance(line, Left)), default=float("inf"))
        for line in lines:
            if isinstance(line, Left):
                continue
            ran = runs[line.id, line.token]
            ran.left_at = left_at
            if isinstance(line, Began):
                ran.began.append(line)
            elif isinstance(line, Ended):
                ran.ended_at = line.at
            else:
                ran.over.append(line)
    return runs


class Proof:
    """A queue as its history tells it, and in `problems` all that is not as promised."""

    def __init__(self, queue: str, runs: Runs) -> None:
        self._names = dict(zip(queue_keys(queue), NAMES, strict=True))
        self._stored: dict[str, dict[str, bytes]] = {name: {} for name in _REPLAYED}
        self._runs = runs
        self._now = Changes()
        self._last: dict[str, Grant] = {}
        """The last lease of each id."""
        self._newest = -1
        """The highest number in the order of adding."""
        self._deliveries: Counter[str] = Counter()
        self.grants: dict[tuple[str, str], Grant] = {}
        self.done: Counter[str] = Counter()
        """Names of what was completed, and"""
        self.handled: Counter[str] = Counter()
        """of what the failure handler dealt with."""
        self.lapsed = 0
        self.overlaps = 0
        self.problems: list[str] = []

    def __str__(self) -> str:
        return (
            f"{len(self.grants)} leases, {self.lapsed} lapsed, {self.overlaps} overlapping runs; "
            f"{self.done.total()} done, {self.handled.total()} failed and handled"
        )

    def replay(self, transactions: Iterable[Transaction]) -> None:
        """Go through a history, as far as it makes sense."""
        for transaction in transactions:
            if len(self.problems) >= ENOUGH:
                return
            self._now = Changes(now=self._time_of(transaction))
            for command in transaction:
                self._apply(command)
            self._judge()

    def must_be_whole(self, sent: Sequence[Sent]) -> None:
        """Note what is missing or too much when everything is over."""
        for name in ("jobs", "ready", "delayed", "leased", "failed"):
            if self._stored[name]:
                self._note("at rest", f"still in {name}: {sorted(self._stored[name])[:5]}")
        self._judge_runs(sent)
        latest = {one.id: one for one in sent if one.kept}
        asked = {one.order.name for one in sent if one.kept}
        for one in sent:
            name, order = one.order.name, one.order
            ended = self.done[name] + self.handled[name]
            if ended > 1 or (not ended and latest.get(one.id) is one):
                self._note(name, f"it ended {ended} times")
            follows = self.done[f"{name}+"] + self.handled[f"{name}+"]
            if follows != (order.follow_up and self.done[name]):
                self._note(name, f"what follows it ended {follows} times")
        known = asked | {f"{name}+" for name in asked}
        for grant in self.grants.values():
            if grant.order.name not in known:
                self._note(grant.order.name, "it was given out, and nobody asked for it")

    # ---------------------------------------------------------------- replay

    def _time_of(self, transaction: Transaction) -> int:
        """Return when a call was made: it is remembered with its answer."""
        for command in transaction:
            if command[0].upper() == b"HSET" and self._names.get(command[1]) == "calls":
                return int(command[3].split()[1])
        return 0

    def _apply(self, command: Command) -> None:
        word, name = command[0].upper(), self._names.get(command[1], "")
        if name not in self._stored:
            return
        match word:
            case b"ZADD":
                pairs = zip(command[3::2], command[2::2], strict=True)
                for id, score in pairs:
                    self._put(name, id.decode(), score)
            case b"HSET":
                for id, value in zip(command[2::2], command[3::2], strict=True):
                    self._put(name, id.decode(), value)
            case b"ZREM" | b"HDEL":
                for id in command[2:]:
                    self._take(name, id.decode())
            case b"ZPOPMIN":
                by_rank = sorted((self._score(name, one), one) for one in self._stored[name])
                for _, best in by_rank[: int(command[2])]:
                    self._take(name, best)
            case _:
                raise AssertionError(f"cannot replay {command!r}")

    def _put(self, name: str, id: str, value: bytes) -> None:
        if len(id) > 512:
            return  # Only there to make the server keep a table.
        before = self._stored[name].get(id)
        self._stored[name][id] = value
        if name == "jobs":
            (self._now.added.append if before is None else self._now.replaced.add)(id)
        elif name == "holds":
            self._grant(id, value.decode())
        elif name == "leased" and before is not None:
            self._last[id].lapses_at = int(value)

    def _take(self, name: str, id: str) -> None:
        before = self._stored[name].pop(id, None)
        if before is None:
            return
        if name == "jobs":
            self._now.gone[id] = read_order(before), self._last.get(id)
        elif name == "leased":
            self._last[id].taken_at = self._now.now
            self._now.taken.append(self._last[id])
        elif name == "delayed":
            self._now.promoted[id] = float(before)

    def _grant(self, id: str, hold: str) -> None:
        token, at, rank = hold.split()
        order = read_order(self._stored["jobs"][id])
        if int(at) != self._now.now:
            self._note(order.name, f"given out at {at}, and it was {self._now.now}")
        lapses_at = int(self._stored["leased"][id])
        ran = self._runs.get((id, token)) or Ran()
        grant = Grant(id, token, order, self._facts(id), int(at), lapses_at, ran)
        self._judge_place(grant, int(rank))
        self._last[id] = self.grants[id, token] = grant
        self._now.granted.append(grant)

    # ----------------------------------------------------------------- judge

    def _judge(self) -> None:
        now = self._now
        for grant in now.taken:
            self._judge_taken(grant)
        for order, last in now.gone.values():
            self._judge_ending(order, last)
        for id, due in now.promoted.items():
            waits = id in self._stored["delayed"] or id in now.replaced or id in now.gone
            if due > now.now and not waits:
                self._note(id, f"ready {due - now.now:.0f} ms before its time")
        for id in now.added:
            self._judge_number(id)
        if now.granted:
            self._judge_order(now.granted)

    def _judge_taken(self, grant: Grant) -> None:
        """A lease is over: whose doing was it, and was it counted?"""
        now, name = self._now, grant.order.name
        over, lapsed = grant.ended(now.now), grant.lapses_at <= now.now
        self.lapsed += lapsed
        runs = any(began.at <= now.now - ROUNDING_MS for began in grant.ran.began)
        if over is None and runs and not lapsed and grant.ran.left_at > now.now + ROUNDING_MS:
            self._note(name, f"taken from {grant.token}, who ran it and had a good lease")
        if grant.failed:
            return
        before, after = grant.facts, self._facts(grant.id)
        failed = [id for id in self._stored["failed"] if id.partition("~")[0] == grant.id]
        given_back = not lapsed and (over is None or over.how == "stopped")
        counts = (after.failures - before.failures, after.lapses - before.lapses)
        if grant.id in now.gone or grant.id in now.replaced:
            self._deliveries[name] += 1
        elif counts == (0, 0):
            if not given_back:
                self._note(name, f"its run by {grant.token} is not counted: {over}")
        else:
            self._deliveries[name] += 1
            self._judge_counts(grant, over, counts, lapsed=lapsed)
        most = grant.order.max_failures + grant.order.max_lapses + 1
        if self._deliveries[name] > most:
            self._note(name, f"given out {self._deliveries[name]} times, and {most} are allowed")
        spent = after.failures > grant.order.max_failures or after.lapses > grant.order.max_lapses
        if grant.id in failed and not spent and (over is None or over.how != "fail"):
            self._note(name, f"failed, though it may be tried again: {after}")

    def _judge_counts(
        self, grant: Grant, over: Over | None, counts: tuple[int, int], *, lapsed: bool
    ) -> None:
        how = over.how if over else "hang"
        a_failure = how in ("raise", "retry", "fail") and counts == (1, 0)
        # A coroutine that was stopped when its time was up has not answered either.
        a_lapse = (lapsed or how == "stopped") and counts == (0, 1)
        if not (a_failure or a_lapse):
            self._note(grant.order.name, f"{how!r} was counted as {counts}, lapsed: {lapsed}")

    def _judge_ending(self, order: Order, grant: Grant | None) -> None:
        """A job is gone: its last run must have returned."""
        if grant is None or grant.order.name != order.name:
            self._note(order.name, "it ended, and was never given out")
            return
        over = grant.ended(self._now.now)
        if over is None or over.how != "return":
            self._note(order.name, f"it ended, and {grant.token} did not return: {over}")
        (self.handled if grant.failed else self.done)[order.name] += 1

    def _judge_place(self, grant: Grant, rank: int) -> None:
        """It may be given out: nobody has it, it has not ended, and its priority is its own."""
        name, last = grant.order.name, self._last.get(grant.id)
        if last and last.taken_at is None:
            self._note(name, f"given to {grant.token} while {last.token} has it")
        if self.done[name] or self.handled[name]:
            self._note(name, "given out after it had ended")
        if 99 - rank // RANKS != grant.order.priority:
            self._note(name, f"its priority is {grant.order.priority}, and its rank {rank}")

    def _judge_order(self, grants: Sequence[Grant]) -> None:
        """Nothing better may wait when something is given out."""
        worst = max((self._rank(grant) for grant in grants if not grant.failed), default=-1.0)
        for id in self._stored["ready"]:
            if self._score("ready", id) < worst:
                self._note(id, f"it waits, and something behind it was given out: {worst}")
                return

    def _judge_number(self, id: str) -> None:
        """What is added later comes later. (It may be gone again, or filed as failed.)"""
        rank = self._stored["ready"].get(id)
        if rank is None or "~" in id:
            return
        number = int(rank) % RANKS
        if number <= self._newest:
            self._note(id, f"it was added with the number {number}, after {self._newest}")
        self._newest = number

    def _judge_runs(self, sent: Sequence[Sent]) -> None:
        """Compare runs with leases, and with each other."""
        earliest = {one.order.name: one.not_before for one in sent}
        by_id: defaultdict[str, list[Grant]] = defaultdict(list)
        # Not their times: a millisecond is enough for a run, and for the next lease.
        place = {lease: number for number, lease in enumerate(self.grants)}
        for (id, token), ran in self._runs.items():
            grant = self.grants.get((id, token))
            if grant is None or len(ran.began) != 1 or len(ran.over) > 1:
                self._note(
                    id, f"{token} ran it {len(ran.began)} times, leased: {grant is not None}"
                )
                continue
            began = ran.began[0]
            early = max(earliest.get(grant.order.name, 0), grant.at) - began.at
            if early > ROUNDING_MS:
                self._note(began.name, f"it began {early:.0f} ms too early")
            if began.name != grant.order.name or began.failed != grant.failed:
                self._note(began.name, f"something else was leased: {grant}")
            by_id[id].append(grant)
        for grants in by_id.values():
            grants.sort(key=lambda grant: place[grant.id, grant.token])
            for i, second in enumerate(grants):
                for first in grants[:i]:
                    self._judge_pair(first, second)

    def _judge_pair(self, first: Grant, second: Grant) -> None:
        """Two runs of one id, the second given out later."""
        (began,) = second.ran.began
        over = first.ended(int(began.at))
        left = first.ran.left_at <= second.at
        if over is None:
            self.overlaps += bool(first.ran.over)
            if first.lapses_at > second.at and not left:
                self._note(first.id, f"{first.token} and {second.token} run it at a time")
        elif over.how == "retry" and first.order.name == second.order.name:
            # When it was the last try, its failure handler is asked at once.
            counted = over.at <= first.settled_at + ROUNDING_MS and first.failed == second.failed
            if counted and began.at < over.at + over.after * 1000 - ROUNDING_MS:
                self._note(first.id, f"it was tried again before {over.after} s")

    # ------------------------------------------------------------------ read

    def _facts(self, id: str) -> Facts:
        packed = self._stored["facts"].get(id)
        return _read_facts(packed) if packed else Facts()

    def _score(self, name: str, id: str) -> float:
        return float(self._stored[name][id])

    def _rank(self, grant: Grant) -> float:
        return float(self._stored["holds"][grant.id].split()[2])

    def _note(self, whose: str, what: str) -> None:
        self.problems.append(f"{whose}: {what}")
