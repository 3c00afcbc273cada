"""Writes that are staged first, and readers who claim: the ledger, and what it makes of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.engine.claim_calls import Claiming
from holdfast.job import Opened, Update
from model.closing import Closing
from model.values import NEVER, Change, Given, Job, Refusal, Request, after

MAX_CHUNKS = 2
"""Chunks that are forgotten in one call: fewer than in earnest, so that histories get there.
For the same reason one call publishes one chunk (test_model.py)."""

GONE = 36_000_000
HEARD = 3_600_000
"""When a reader, a writer or a schedule is forgotten, and how often it is noted that one is there:
sooner than in earnest (test_model.py)."""

Record: TypeAlias = Any
"""What the ledger keeps under a name."""


@dataclass(frozen=True)
class Chunk:
    """Rows that were staged together; those that are alike stand together."""

    groups: tuple[tuple[str, tuple[Given, ...]], ...]
    """The request whose parts they shall be, "" for none, and the rows."""
    raw: bytes

    def __repr__(self) -> str:
        return f"Chunk({', '.join(f'{request}{len(rows)}' for request, rows in self.groups)})"


class Booking(Closing):
    """The jobs of a queue, and those who wrote or read them."""

    wanted: int | None = None
    unpublished = False
    seen_to = 0

    def delete(self, now: int) -> object:
        """Leave nothing."""
        self.times_of: dict[str, int] = {}
        """When each record is to be seen to."""
        self.ledger: dict[str, Record] = {}
        self.staged: dict[str, Chunk] = {}
        self.claims: dict[str, list[str]] = {}
        return super().delete(now)

    def _enter(self, name: str, record: Record, at: int) -> None:
        self.ledger[name], self.times_of[name] = record, at

    def _hear_of(self, name: str, now: int, record: Record = None) -> None:
        """Forget it later: that is noted once in a while."""
        if not 0 <= after(now, GONE) - self.times_of.get(name, 0) < HEARD:
            self.ledger.setdefault(name, record)
            self.times_of[name] = after(now, GONE)

    def _strike(self, name: str) -> None:
        self.ledger.pop(name, None)
        self.times_of.pop(name, None)

    # ------------------------------------------------------------------------ writes

    def stage(self, attempt: str, number: int, keep: int, chunk: Chunk, now: int) -> int:
        name = f"attempt {attempt}"
        record = self.ledger.get(name, {"chunks": 0})
        if "of" in record:
            raise Refusal("WRONG")
        if number > record["chunks"]:
            raise Refusal("GONE 0")
        if number == record["chunks"]:
            self.staged[f"{attempt}/{number}"] = chunk
            record = {"chunks": number + 1}
        self._enter(name, record, after(now, keep))
        return int(record["chunks"])

    def adopt(
        self, write: str, writer: str, batch: int, number: int | None,
        winners: Sequence[tuple[str, int]], keep: int, requests: Sequence[str], now: int,
    ) -> bool:  # fmt: skip
        if self._is_committed(write, writer, batch):
            return False
        for i, name in enumerate(requests):
            request = self.requests.get(name)
            if request is None or request.is_group or request.sealed:
                raise Refusal(f"CLOSED {i}")
        entry = f"winners {number} {write}"
        for i, (attempt, chunks) in enumerate(winners):
            record = self.ledger.get(f"attempt {attempt}", {"chunks": None})
            if record["chunks"] != chunks or record.get("of", entry) != entry:
                raise Refusal(f"GONE {len(requests) + i}")
        listed = [word for winner in winners for word in winner]
        if listed:
            if self.ledger.get(entry, listed) != listed:
                self._disown(entry, now)
            for attempt, chunks in winners:
                self._enter(f"attempt {attempt}", {"chunks": chunks, "of": entry}, NEVER)
            self._enter(entry, listed, after(now, keep))
        return True

    def _is_committed(self, write: str, writer: str, batch: int) -> bool:
        last = self.ledger.get(f"writer {writer}", {"batch": -1})["batch"]
        return f"commit {write}" in self.ledger or last >= batch

    def _disown(self, entry: str, now: int) -> None:
        for attempt in self.ledger[entry][::2]:
            record = self.ledger.get(f"attempt {attempt}", {})
            if record.get("of") == entry:
                self._enter(f"attempt {attempt}", {"chunks": record["chunks"]}, now)
        self._strike(entry)

    def commit(
        self, write: str, writer: str, batch: int, lists: int, keep: int, how: bytes, now: int
    ) -> bool:
        if self._is_committed(write, writer, batch):
            return False
        entries = [f"winners {number} {write}" for number in range(lists)]
        if not all(entry in self.ledger for entry in entries):
            raise Refusal("GONE 0")
        self.times_of |= dict.fromkeys(entries, NEVER)
        record = {"how": how[:4].decode(), "keep_ms": keep, "lists": lists, "list": 0, "place": 0}
        if len(how) > 4:
            record["only"] = how[4:].decode()
        if lists:
            self._enter(f"commit {write}", record, now - NEVER)
            self._wake_sleeper(True)
        else:
            self._enter(f"commit {write}", {"published_at": now}, after(now, keep))
        if writer:
            self._enter(f"writer {writer}", {"batch": batch}, after(now, GONE))
        self.tally["committed"] += 1
        return True

    def publish(self, write: str, now: int) -> tuple[int, bool]:
        rows, more = self._publish_a_chunk(f"commit {write}" if write else self._oldest(), now)
        return rows, more if write else self._oldest() is not None

    def _oldest(self) -> str | None:
        waiting = [(at, name.encode()) for name, at in self.times_of.items() if at < 0]
        return min(waiting)[1].decode() if waiting else None

    def _publish_a_chunk(self, name: str | None, now: int) -> tuple[int, bool]:
        record = dict(self.ledger.get(name or "", {"published_at": 0}))
        if name is None or "published_at" in record:
            return 0, False
        write, rows = name.removeprefix("commit "), 0
        while record["list"] < record["lists"]:
            entry = f"winners {record['list']} {write}"
            attempt = self.ledger[entry][2 * record["place"]]
            staged = self.ledger[f"attempt {attempt}"]
            first = staged.get("first", 0)
            if rows:
                break
            rows = self._add_rows(
                self.staged.pop(f"{attempt}/{first}"), record["how"] + record.get("only", ""), now
            )
            if first + 1 < staged["chunks"]:
                self._enter(f"attempt {attempt}", staged | {"first": first + 1}, NEVER)
                continue
            self._strike(f"attempt {attempt}")
            record["place"] += 1
            if 2 * record["place"] >= len(self.ledger[entry]):
                self._strike(entry)
                record |= {"list": record["list"] + 1, "place": 0}
        if record["list"] < record["lists"]:
            self.ledger[name] = record
            return rows, True
        self._enter(name, {"published_at": now}, after(now, record["keep_ms"]))
        self.tally["published"] += 1
        return rows, False

    def _add_rows(self, chunk: Chunk, how: str, now: int) -> int:
        """First parts, then jobs that are new, then those that may change others."""
        plain: list[Given] = []
        named: list[Given] = []
        for name, rows in chunk.groups:
            self._meet(name or None)
            request = self.requests.get(name)
            if request and self._takes(request, len(rows)):
                self._append(request, rows, now)
            elif how and not rows[0].fresh:
                named += rows
            else:
                plain += rows
        for given in plain:
            self._add(given, now)
        for given in named:
            if not (given.id in self.jobs and self._is_part(given.id)):
                self._update(Change(given, _update(how), given.due(now)), now)
        return sum(len(rows) for _, rows in chunk.groups)

    def _takes(self, request: Request, count: int) -> bool:
        if request.is_group or (request.outcome and request.walked):
            return False
        ids = [f"{request.name}/{request.total + i}" for i in range(count)]
        return not any(id in self.jobs or id in self.endings for id in ids)

    def _append(self, request: Request, rows: Sequence[Given], now: int) -> None:
        if request.outcome:
            request.outcome, request.reason, request.ended_at = None, None, None
            request.term = NEVER
        for given in rows:
            job = Job(
                f"{request.name}/{request.total}", given.payload, given.priority, given.options
            )
            job.request, job.number, job.place = request.name, request.total, self._number()
            job.moved = given.enters(now) is not None
            self.jobs[job.id] = job
            request.total += 1
            self._put(job, given.due(now), now, enters=given.enters(now))
        self.tally["added"] += len(rows)

    def abort(self, attempts: Sequence[str], now: int) -> list[bool]:
        budget, done = MAX_CHUNKS, []
        for name in (f"attempt {attempt}" for attempt in attempts):
            listed = self.ledger.get(name, {}).get("of")
            committed = listed and f"commit {listed.split(' ', 2)[2]}" in self.ledger
            if name in self.ledger and not committed:
                if listed:
                    self._disown(listed, now)
                if budget > 0:
                    budget = self._drop_attempt(name, budget, now)
            done.append(bool(committed) or name not in self.ledger)
        return done

    def _drop_attempt(self, name: str, budget: int, now: int) -> int:
        chunks: int = self.ledger[name]["chunks"]
        first = max(0, chunks - budget)
        for number in range(first, chunks):
            del self.staged[f"{name.removeprefix('attempt ')}/{number}"]
        self._enter(name, {"chunks": first}, now)
        if first == 0:
            self._strike(name)
        return budget - max(1, chunks - first)

    # ------------------------------------------------------------------------ claims

    def open_reader(self, reader: str, now: int) -> Opened:
        record = self.ledger.get(f"reader {reader}", {"epoch": 0, "settled": 0, "next": 0})
        ours = record | {"epoch": record["epoch"] + 1}
        self._enter(f"reader {reader}", ours, after(now, GONE))
        return Opened(record["epoch"] + 1, record["settled"], record["next"])

    def _reader(self, reader: str, epoch: int) -> Record:
        record = self.ledger.get(f"reader {reader}", {"epoch": None})
        if record["epoch"] != epoch:
            raise Refusal("FENCED")
        return record

    def claim(
        self, reader: str, epoch: int, n: int, number: int, keep: int, count: int, seal: bool,
        now: int,
    ) -> Claiming:  # fmt: skip
        ours, name = self._reader(reader, epoch), f"claim {n} {reader}"
        record = dict(self.ledger.get(name, {"first": 0, "sizes": []}))
        sizes = list(record["sizes"])
        if n < ours["settled"]:
            raise Refusal("SETTLED")
        if "over" in record:
            raise Refusal("LAPSED")
        wrong = n > ours["next"] or (n < ours["next"] and not sizes)
        if wrong or (number > len(sizes) and "sealed" not in record):
            raise Refusal("WRONG")
        self._hear_of(f"reader {reader}", now)
        if sizes:
            self._enter(name, record, after(now, keep))
        if number == len(sizes) and "sealed" not in record:
            ids = self._take(f"claim:{reader}.{n}", count, now)
            if ids:
                self.claims[f"{n}/{number} {reader}"] = ids
                sizes.append(len(ids))
            nothing_left = not ids or not self.best()
            drained = len(ids) < count and not self.unpublished and nothing_left
            if sizes and (drained or (seal and len(ids) == count)):
                record["sealed"] = True
                self._enter(f"reader {reader}", ours | {"next": n + 1}, after(now, GONE))
                self.tally["claimed"] += 1
        if sizes:
            self._enter(name, record | {"sizes": sizes}, after(now, keep))
        return Claiming("sealed" in record, sizes)

    def _take(self, token: str, count: int, now: int) -> list[str]:
        """Lease the best, as `lease` does, but for ever."""
        woken, self.wanted = self.wake, count
        self._maintain(now)
        self._decide(now)
        jobs = [] if self.paused else self._give_out_best(count, token, NEVER, now)
        self.tally["leased"] += len(jobs)
        self._decide(now)
        self.wake = woken
        self._wake_sleeper(jobs and self.best())
        return [job.id for job in jobs]

    def renew_claims(self, reader: str, epoch: int, keep: int, now: int) -> int:
        ours = self._reader(reader, epoch)
        names = [f"claim {n} {reader}" for n in range(ours["settled"], ours["next"] + 1)]
        held = [name for name in names if "over" not in self.ledger.get(name, {"over": ""})]
        self.times_of |= dict.fromkeys(held, after(now, keep))
        self._hear_of(f"reader {reader}", now)
        return len(held)

    def settle_claims(self, reader: str, epoch: int, below: int, now: int) -> tuple[int, bool]:
        ours, completed = self._reader(reader, epoch), 0
        if below > ours["next"]:
            raise Refusal("WRONG")
        n = ours["settled"]
        if n < below:
            name = f"claim {n} {reader}"
            is_open = self._is_open_claim(name)
            if is_open:
                jobs = self._claimed(name)
                completed = sum(self._complete(job, None, now) for job in jobs)
                is_open = not self._close_chunk(name, self.times_of[name], now)
            if not is_open:
                self._strike(name)
                n += 1
                self._enter(f"reader {reader}", ours | {"settled": n}, after(now, GONE))
                self.tally["settled"] += 1
        return completed, n < below

    def return_claim(self, reader: str, epoch: int, n: int, now: int) -> tuple[int, bool]:
        if n < self._reader(reader, epoch)["settled"]:
            raise Refusal("SETTLED")
        name = f"claim {n} {reader}"
        if not self._is_open_claim(name):
            return 0, False
        count, done = self._return_chunk(name, "it was given back", now)
        return count, not done

    def _is_open_claim(self, name: str) -> bool:
        record = self.ledger.get(name, {"first": 0, "sizes": []})
        return bool(record["first"] < len(record["sizes"]))

    def _field(self, name: str) -> str:
        _, n, reader = name.split(" ", 2)
        return f"{n}/{self.ledger[name]['first']} {reader}"

    def _claimed(self, name: str) -> list[Job]:
        """Return the jobs of the next chunk of a claim, as far as they still are its own."""
        _, n, reader = name.split(" ", 2)
        token = f"claim:{reader}.{n}"
        return [
            job for job in self.held([(id, token) for id in self.claims[self._field(name)]]) if job
        ]

    def _return_chunk(self, name: str, why: str, now: int) -> tuple[int, bool]:
        jobs = self._claimed(name)
        self.ledger[name] = {"over": why} | self.ledger[name]
        for job in jobs:
            if self._ends_as_cancelled(job, now):
                continue
            self._vacate(job, now)
            self._give_back(job, 0, now)
            job.token = None
            self.tally["released"] += 1
        return len(jobs), self._close_chunk(name, now, now)

    def _close_chunk(self, name: str, at: int, now: int) -> bool:
        del self.claims[self._field(name)]
        record = self.ledger[name] | {"first": self.ledger[name]["first"] + 1}
        if record["first"] < len(record["sizes"]):
            self._enter(name, record, at)
            return False
        self._enter(name, record, after(now, GONE))
        if not ("over" in record and "sealed" in record):
            self._strike(name)
        return True

    # -------------------------------------------------------------------- maintaining

    def _maintain(self, now: int, force: bool = False) -> tuple[int, int, int]:
        moved = super()._maintain(now, force)
        self._tend_staging(now, force)
        self.wanted = None
        return moved

    def _forget_reader(self, name: str, now: int) -> None:
        """Unless a claim of it is open."""
        ours, reader = self.ledger[name], name.removeprefix("reader ")
        claims = [f"claim {n} {reader}" for n in range(ours["settled"], ours["next"] + 1)]
        if any(map(self._is_open_claim, claims)):
            self.times_of[name] = after(now, GONE)
            return
        for one in (name, *claims):
            self._strike(one)

    def _tend_staging(self, now: int, force: bool) -> None:
        publishing = self.wanted is not None and len(self.ready()) < self.wanted
        if publishing:
            self._publish_a_chunk(self._oldest(), now)
        due = sorted((at, name.encode()) for name, at in self.times_of.items() if 0 <= at <= now)
        names = [name.decode() for _, name in due[:MAX_CHUNKS]]
        self.seen_to, budget = len(names), MAX_CHUNKS
        for name in names:
            kind = name.split(" ")[0]
            if budget <= 0:
                break
            if kind in ("commit", "writer"):
                self._strike(name)
            elif kind == "tick":
                del self.ticks[name.removeprefix("tick ")]
                self._strike(name)
            elif kind == "reader":
                budget = 0
                self._forget_reader(name, now)
            elif kind == "attempt":
                budget = self._drop_attempt(name, budget, now)
            elif kind == "winners":
                self._disown(name, now)
            elif not self._is_open_claim(name):
                self._strike(name)
            elif "over" in self.ledger[name] or self.may_be_reclaimed(
                self.times_of[name], now, force
            ):
                budget = 0
                self._return_chunk(name, "it lapsed", now)
            else:
                self.seen_to -= 1
        self.unpublished = publishing and self._oldest() is not None


def _update(how: str) -> Update:
    """Read the four letters in which an update is told."""
    due: Any = {"=": True, "-": False, ">": "later", "<": "earlier"}[how[1]]
    only = [name.removesuffix("_ms") for name in how[4:].split()]
    return Update(how[0] == "1", due, only or how[2] == "1", how[3] == "1")
