"""Histories of writes and readers: what many stage and one commits, and what one claims."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from holdfast import arguments
from holdfast.engine import claim_calls, write_calls
from holdfast.engine.call import Entry, frame
from model.booking import Chunk
from model.choices import (
    HOUR,
    Time,
    Wanted,
    beside,
    callers,
    requests,
    several_jobs,
    times,
    updates,
)
from model.requesting import Requesting
from model.values import Given

ATTEMPTS = ["w/0.0", "w/1.0", "w/1.1", "ü /0.0"]
attempts = st.sampled_from(ATTEMPTS)
writes = st.sampled_from(["w", "w", "ü "])
writers = st.sampled_from([("", 0), ("", 0), ("s", 0), ("s", 1), ("s", 2), ("t", 1)])
keep_times = st.sampled_from([4_000, 4_000, 1, 1_000, HOUR])
hows = st.one_of(st.just(b""), st.just(b""), updates.map(arguments.how))
numbers = st.integers(0, 2)

READERS = ["r", "r", "q.0/ü"]
readers = st.sampled_from(READERS)
few = st.sampled_from([1, 2, 2, 3, 1000, 0])

Rows = tuple[list[Wanted], list[str]]
rows: st.SearchStrategy[Rows] = st.tuples(
    several_jobs, st.lists(st.just("") | st.just("") | requests, min_size=6, max_size=6)
)


class Connecting(Requesting):
    """One who knows writes and readers too."""

    # ------------------------------------------------------------------ every call

    def _chunk(self, wanted: Rows) -> Chunk:
        """Return rows as they are staged; those of a request say nothing that parts may not."""
        given: list[Given] = []
        entries: list[Entry] = []
        for job, request in zip(*wanted, strict=False):
            if request:
                options = {k: v for k, v in job.options.items() if k.startswith("max_")}
                job = replace(job, id=None, options=options)  # noqa: PLW2901
            [row], [entry] = self._jobs([job])
            given.append(row)
            entries.append(msgspec.structs.replace(entry, grouped=False, request=request))
        groups: dict[Any, list[Given]] = {}
        for row, entry in zip(given, entries, strict=True):
            shared = entry.request, entry.fresh, entry.priority, entry.due, entry.options
            groups.setdefault(shared, []).append(row)
        alike = tuple((shared[0], tuple(rows)) for shared, rows in groups.items())
        return Chunk(alike, frame(entries))

    def _stage(self, caller: str, attempt: str, number: int, keep: int, wanted: Rows) -> None:
        chunk = self._chunk(wanted)
        call = write_calls.stage(attempt, number, keep, chunk.raw)
        self._ask(caller, call, partial(self.model.stage, attempt, number, keep, chunk))

    def _adopt(
        self, caller: str, write: str, who: tuple[str, int], number: int | None,
        winners: list[tuple[str, int]], keep: int, named: list[str],
    ) -> None:  # fmt: skip
        call = write_calls.adopt(write, *who, number, winners, keep_for_ms=keep, requests=named)
        question = partial(self.model.adopt, write, *who, number, winners, keep, named)
        self._ask(caller, call, question)

    def _commit(
        self, caller: str, write: str, who: tuple[str, int], lists: int, keep: int, how: bytes
    ) -> None:
        call = write_calls.commit(write, *who, lists, keep_for_ms=keep, how=how)
        self._ask(caller, call, partial(self.model.commit, write, *who, lists, keep, how))

    def _publish(self, caller: str, write: str) -> None:
        self._ask(caller, write_calls.publish(write), partial(self.model.publish, write))

    def _claim(
        self, caller: str, reader: str, n: int, number: int, keep: int, count: int, seal: bool
    ) -> None:
        epoch = self._epoch(reader)
        call = claim_calls.claim(
            reader, epoch, n, number, count, claim_ms=keep, to_the_back=self.to_the_back, seal=seal
        )
        question = partial(self.model.claim, reader, epoch, n, number, keep, count, seal)
        self._ask(caller, call, question)

    def _epoch(self, reader: str) -> int:
        return int(self.model.ledger.get(f"reader {reader}", {"epoch": 1})["epoch"])

    # ---------------------------------------------------------------------- writes

    @rule(time=times, caller=callers, attempt=attempts, off=st.sampled_from([0, 0, 0, 0, -1, 1]),
          keep=keep_times, wanted=rows)  # fmt: skip
    def stage(
        self, time: Time, caller: str, attempt: str, off: int, keep: int, wanted: Rows
    ) -> None:
        self._pass(time)
        chunks = self.model.ledger.get(f"attempt {attempt}", {"chunks": 0})["chunks"]
        self._stage(caller, attempt, max(0, chunks + off), keep, wanted)

    @precondition(lambda self: self._staged())
    @rule(time=times, caller=callers, write=writes, who=writers, number=st.none() | numbers,
          keep=keep_times, n=st.integers(0, 3), named=st.lists(requests, max_size=2),
          off=st.sampled_from([0, 0, 0, 1]))  # fmt: skip
    def adopt(
        self, time: Time, caller: str, write: str, who: tuple[str, int], number: int | None,
        keep: int, n: int, named: list[str], off: int,
    ) -> None:  # fmt: skip
        self._pass(time)
        winners = [(attempt, chunks + off) for attempt, chunks in self._staged()[:n]]
        self._adopt(caller, write, who, number, winners if number is not None else [], keep, named)

    @rule(time=times, caller=callers, write=writes, who=writers, lists=numbers, keep=keep_times,
          how=hows)  # fmt: skip
    def commit(
        self, time: Time, caller: str, write: str, who: tuple[str, int], lists: int, keep: int,
        how: bytes,
    ) -> None:  # fmt: skip
        self._pass(time)
        self._commit(caller, write, who, lists, keep, how)

    @rule(caller=callers, write=writes, who=writers, keep=keep_times, how=hows,
          chunks=st.lists(rows, min_size=1, max_size=3), lists=st.sampled_from([1, 1, 2]),
          in_vain=st.booleans())  # fmt: skip
    def write(
        self, caller: str, write: str, who: tuple[str, int], keep: int, how: bytes,
        chunks: list[Rows], lists: int, in_vain: bool,
    ) -> None:  # fmt: skip
        """All of it, so that something is committed."""
        name = f"{write}{next(self.serial)}"
        for number in range(lists):
            for i, wanted in enumerate(chunks):
                self._stage(caller, f"{name}/{number}.0", i, HOUR, wanted)
                self.both_agree()
            winners = [(f"{name}/{number}.0", len(chunks))]
            self._adopt(caller, name, who, number, winners, keep, [])
            self.both_agree()
        if not in_vain:
            self._commit(caller, name, who, lists, keep, how)

    @rule(time=times, caller=callers, write=st.just("") | st.just("") | writes)
    def publish(self, time: Time, caller: str, write: str) -> None:
        self._pass(time)
        self._publish(caller, write)

    @precondition(lambda self: self.model._oldest())
    @rule(time=times, caller=callers, count=st.sampled_from([1, 1, 3, 1000]), failed=st.booleans())
    def lease_and_publish(self, time: Time, caller: str, count: int, failed: bool) -> None:
        self._pass(time)
        for _ in range(2):
            self._lease(caller, count, 4_000, [], failed=failed)
            self.both_agree()

    @rule(time=times, caller=callers, names=st.lists(attempts, min_size=1, max_size=3, unique=True),
          n=st.integers(0, 3))  # fmt: skip
    def abort(self, time: Time, caller: str, names: list[str], n: int) -> None:
        self._pass(time)
        names = [attempt for attempt, _ in self._staged()[-n:]] or names
        self._ask(caller, write_calls.abort(names), partial(self.model.abort, names))

    @precondition(lambda self: any(0 < at < 2**52 for at in self.model.times_of.values()))
    @rule(time=beside("entry"), caller=callers, lease=st.booleans(), force=st.booleans())
    def see_to_the_ledger(self, time: Time, caller: str, lease: bool, force: bool) -> None:
        self._pass(time)
        for _ in range(3):
            if lease:
                self._lease(caller, 1, 4_000, [])
            else:
                self._tidy(caller, force, None)
            self.both_agree()

    def _staged(self) -> list[tuple[str, int]]:
        return [
            (name.removeprefix("attempt "), record["chunks"])
            for name, record in self.model.ledger.items()
            if name.startswith("attempt ")
        ]

    # ---------------------------------------------------------------------- claims

    @rule(time=times, caller=callers, reader=readers)
    def open_reader(self, time: Time, caller: str, reader: str) -> None:
        self._pass(time)
        self._open_reader(caller, reader)

    def _open_reader(self, caller: str, reader: str) -> None:
        call = claim_calls.open_reader(reader)
        self._ask(caller, call, partial(self.model.open_reader, reader))

    @rule(
        time=times, caller=callers, reader=readers, off=st.sampled_from([0, 0, 0, -1, 1]),
        number=st.sampled_from([0, 0, 0, -1, 1]), keep=keep_times, count=few, seal=st.booleans(),
    )  # fmt: skip
    def claim(
        self, time: Time, caller: str, reader: str, off: int, number: int, keep: int, count: int,
        seal: bool,
    ) -> None:  # fmt: skip
        self._pass(time)
        n = max(0, self.model.ledger.get(f"reader {reader}", {"next": 0})["next"] + off)
        sizes = self.model.ledger.get(f"claim {n} {reader}", {"sizes": []})["sizes"]
        self._claim(caller, reader, n, max(0, len(sizes) + number), keep, count, seal)

    @rule(caller=callers, reader=readers, keep=keep_times, chunks=st.lists(few, max_size=3))
    def claim_whole(self, caller: str, reader: str, keep: int, chunks: list[int]) -> None:
        """Jobs that are there, in several chunks."""
        if f"reader {reader}" not in self.model.ledger:
            self._open_reader(caller, reader)
            self.both_agree()
        self._need("ready", caller)
        n = self.model.ledger[f"reader {reader}"]["next"]
        for count in chunks:
            record = self.model.ledger.get(f"claim {n} {reader}", {"sizes": []})
            if "sealed" in record or "over" in record:
                break
            self._claim(caller, reader, n, len(record["sizes"]), keep, count, seal=False)
            self.both_agree()

    @rule(
        time=times, caller=callers, reader=readers, keep=keep_times, off=st.sampled_from([0, 0, 1])
    )
    def renew(self, time: Time, caller: str, reader: str, keep: int, off: int) -> None:
        self._pass(time)
        epoch = self._epoch(reader) + off
        question = partial(self.model.renew_claims, reader, epoch, keep)
        self._ask(caller, claim_calls.renew_claims(reader, epoch, keep), question)

    @rule(time=times, caller=callers, reader=readers, off=st.sampled_from([0, 0, 0, -1, 1]),
          count=st.sampled_from([3, 1]))  # fmt: skip
    def settle_claims(self, time: Time, caller: str, reader: str, off: int, count: int) -> None:
        self._pass(time)
        below = max(0, self.model.ledger.get(f"reader {reader}", {"next": 0})["next"] + off)
        epoch = self._epoch(reader)
        for _ in range(count):
            question = partial(self.model.settle_claims, reader, epoch, below)
            self._ask(caller, claim_calls.settle_claims(reader, epoch, below), question)
            self.both_agree()

    @rule(time=times, caller=callers, reader=readers, off=st.sampled_from([-1, -1, 0, -2]))
    def return_claim(self, time: Time, caller: str, reader: str, off: int) -> None:
        self._pass(time)
        n = max(0, self.model.ledger.get(f"reader {reader}", {"next": 0})["next"] + off)
        epoch = self._epoch(reader)
        call = claim_calls.return_claim(reader, epoch, n, to_the_back=self.to_the_back)
        self._ask(caller, call, partial(self.model.return_claim, reader, epoch, n))

    # ------------------------------------------------------------------ what a rule needs

    def _bring_about(self, kind: str, caller: str) -> None:
        """A claim is no lease that can be recalled: take a job of a worker's for that."""
        if kind == "leased by a worker" and not self.model.paused:
            self._add(caller, [Wanted(None, "", 99, {}, "own")], "ignore")
            self.both_agree()
            self._lease(caller, 1000, 4_000, [])
        else:
            super()._bring_about(kind, caller)

    def _is_there(self, kind: str) -> bool:
        if kind == "leased by a worker":
            leased = [job for job in self.model.jobs.values() if job.state == "leased"]
            return any(not (job.token or "").startswith("claim:") for job in leased)
        return super()._is_there(kind)
