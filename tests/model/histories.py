"""Random histories of one queue: every call of the engine is put to the model as well.

A history is calls of several callers under pinned time: new ones, the same one sent again,
old ones that come late, leases that were lost long ago, a clock that jumps. Hypothesis
shortens a history in which the two disagree, and prints it as a program with what was asked
and answered in each step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from holdfast.engine import calls
from holdfast.job import Update
from model.choices import (
    CALLERS,
    HOUR,
    SELDOM,
    Pick,
    Time,
    Updates,
    Wanted,
    WantedParts,
    WantedRequest,
    ages,
    beside,
    callers,
    conflicts,
    counts,
    few_updates,
    fillings,
    gaps,
    handlings,
    ids,
    jobs,
    kinds,
    lease_times,
    names,
    picks,
    reasons,
    release_times,
    results,
    retry_times,
    several_jobs,
    several_names,
    several_picks,
    times,
    updates,
    ways,
)
from model.comparing import with_results
from model.connecting import Connecting
from model.hearing import SILENCE
from model.resending import Resending
from model.values import filed_id, payload_of


class Histories(Connecting, Resending):
    """Every transition, by several callers, on one queue."""

    # ------------------------------------------------------------------- add

    @initialize(
        wanted=st.lists(jobs, max_size=8), plain=st.sampled_from([False, False, False, True]),
        filled=st.lists(fillings, max_size=3),
    )  # fmt: skip
    def begin(
        self, wanted: list[Wanted], plain: bool,
        filled: list[tuple[WantedRequest, WantedParts, bool]],
    ) -> None:  # fmt: skip
        """Let eve add some jobs, who is not heard again unless she asks the same again.

        In a plain history no job has facts before it lapses, fails or is cancelled.
        """
        self.plain = plain
        if wanted:
            self._add("eve", wanted, "ignore")
        for filling in [] if plain else filled:
            self.both_agree()
            self._fill("ann", *filling)

    @rule(time=times, caller=callers, job=jobs, on_conflict=conflicts)
    def add(self, time: Time, caller: str, job: Wanted, on_conflict: str) -> None:
        self._pass(time)
        self._add(caller, [job], on_conflict)

    @rule(time=times, caller=callers, wanted=several_jobs, on_conflict=conflicts)
    def add_many(self, time: Time, caller: str, wanted: list[Wanted], on_conflict: str) -> None:
        self._pass(time)
        self._add(caller, wanted, on_conflict)

    @rule(
        time=times, caller=callers, wanted=several_jobs, schedule=st.sampled_from(["s", "t t"]),
        known=st.sampled_from([True, True, False]), tick=st.integers(0, 9),
    )  # fmt: skip
    def tick(
        self, time: Time, caller: str, wanted: list[Wanted], schedule: str, known: bool, tick: int
    ) -> None:
        """Make ticks as one who has seen the last, or as one who has not."""
        self._pass(time)
        last = self.model.ticks.get(schedule)
        seen = last if known else None if last is not None else tick
        self._tick(caller, schedule, seen, tick, wanted)

    @precondition(lambda self: self.model.endings)
    @rule(time=beside("free", "forget"), caller=callers, job=jobs, which=st.integers(0, 3))
    def add_an_ended_id(self, time: Time, caller: str, job: Wanted, which: int) -> None:
        """Take the one whose moment has come, if there is one."""
        self._pass(time)
        ended = self.model.endings
        now = [id for id in ended if self.now - time[1] == ended[id].taken_until]
        among = now or sorted(ended)
        self._add(caller, [replace(job, id=among[which % len(among)])], "ignore")

    @rule(caller=callers, wanted=several_jobs, which=st.integers(0, 7), on_conflict=conflicts)
    def add_a_cancelled_id(
        self, caller: str, wanted: list[Wanted], which: int, on_conflict: str
    ) -> None:
        self._need("cancelled", caller)
        self._add(caller, wanted, on_conflict, self._name("cancelled", which))

    @rule(time=times, caller=callers, wanted=several_jobs, how=updates, id=ids)
    def update_many(
        self, time: Time, caller: str, wanted: list[Wanted], how: Update, id: str
    ) -> None:
        self._pass(time)
        self._update(caller, wanted, how, id)

    @rule(time=times, caller=callers, job=jobs, name=names, how=updates)
    def update(self, time: Time, caller: str, job: Wanted, name: Pick, how: Update) -> None:
        self._need(name[0], caller)
        self._pass(time)
        self._update(caller, [job], how, self._name(*name))

    @rule(caller=callers, wanted=several_jobs, which=st.integers(0, 7), how=updates)
    def update_what_is_leased(
        self, caller: str, wanted: list[Wanted], which: int, how: Update
    ) -> None:
        """Update several, beginning with one of them, and going on with all that are leased."""
        self._need("no part leased", caller)
        leased = sorted(id for id in self.model.times("leased") if not self.model.jobs[id].request)
        wanted = [
            replace(job, id=leased[(which + i) % len(leased)]) for i, job in enumerate(wanted)
        ]
        self._update(caller, wanted, how, None)

    # ----------------------------------------------------------------- lease

    @rule(time=times, caller=callers, count=counts, ms=lease_times, failed=st.booleans())
    def lease(self, time: Time, caller: str, count: int, ms: int, failed: bool) -> None:
        self._pass(time)
        self._lease(caller, count, ms, [], failed=failed)

    @precondition(lambda self: not self.model.best() and not self.model.paused)
    @rule(time=beside("lapse", "due", "patience"), caller=callers, count=counts, ms=lease_times)
    def lease_when_nothing_is_ready(self, time: Time, caller: str, count: int, ms: int) -> None:
        self._pass(time)
        self._lease(caller, count, ms, [])

    @rule(time=beside("handling"), caller=callers, count=counts, ms=lease_times)
    def lease_what_has_failed(self, time: Time, caller: str, count: int, ms: int) -> None:
        self._need("failed", caller)
        self._pass(time)
        self._lease(caller, count, ms, [], failed=True)

    @rule(
        time=times, caller=callers, count=counts, ms=lease_times, done=several_picks,
        result=results, failed=st.booleans(),
    )  # fmt: skip
    def complete_and_lease(
        self, time: Time, caller: str, count: int, ms: int, done: list[Pick],
        result: bytes | None, failed: bool,
    ) -> None:  # fmt: skip
        self._need("leased", caller)
        self._pass(time)
        self._lease(caller, count, ms, self._settles(done, result), failed=failed)

    @rule(caller=callers, gaps=gaps, kind=kinds, ms=lease_times, picked=picks)
    def call_seldom(
        self, caller: str, gaps: list[tuple[int, str]], kind: str, ms: int, picked: Pick
    ) -> None:
        """Mostly so far apart that each call ends a silence."""
        self._need(kind, caller)
        for gap, what in gaps:
            self._pass(("now", gap))
            if what == "tidy":
                self._tidy(caller, False, None)
            elif what in ("lease", "failed"):
                self._lease(caller, 1, ms, [], failed=what == "failed")
            elif what == "extend" and self.given:
                self._extend(caller, self._settles([picked]), ms)
            elif what == "resume":
                self._ask(caller, calls.resume(), partial(self.model.resume))
            else:
                self._add(caller, [Wanted(None, "", 50, {}, "own")], "ignore")
            self.both_agree()

    @rule(time=times, caller=callers, picked=several_picks, ms=lease_times)
    def extend(self, time: Time, caller: str, picked: list[Pick], ms: int) -> None:
        self._need("leased", caller)
        self._pass(time)
        self._extend(caller, self._settles(picked), ms)

    # ---------------------------------------------------------------- settle

    @rule(time=times, caller=callers, picked=several_picks, result=results)
    def complete(self, time: Time, caller: str, picked: list[Pick], result: bytes | None) -> None:
        self._need("leased", caller)
        self._pass(time)
        self._complete(caller, self._settles(picked, result), [])

    @rule(
        time=times, caller=callers, picked=picks, result=results, wanted=several_jobs,
        itself=st.booleans(),
    )  # fmt: skip
    def complete_with_follow_ups(
        self, time: Time, caller: str, picked: Pick, result: bytes | None, wanted: list[Wanted],
        itself: bool,
    ) -> None:  # fmt: skip
        self._need("leased", caller)
        self._pass(time)
        settles = self._settles([picked], result)
        self._complete(caller, settles, wanted, first_id=settles[0][0] if itself else None)

    @rule(time=times, caller=callers, result=results, wanted=st.none() | jobs, forced=several_names)
    def complete_by_force(
        self, time: Time, caller: str, result: bytes | None, wanted: Wanted | None,
        forced: list[Pick],
    ) -> None:  # fmt: skip
        self._pass(time)
        settles = with_results([(id, "-") for id in self._names(forced)], result)
        if wanted:
            self._complete(caller, settles[:1], [wanted], force=True)
        else:
            self._complete(caller, settles, [], force=True)

    @rule(time=times, caller=callers, picked=several_picks, wait=retry_times, error=reasons,
          most=handlings)  # fmt: skip
    def retry(
        self, time: Time, caller: str, picked: list[Pick], wait: int, error: str, most: bytes
    ) -> None:
        self._need("leased", caller)
        self._pass(time)
        self._retry_or_fail("retry", caller, self._settles(picked), wait, error, most)

    @rule(time=times, caller=callers, picked=several_picks, error=reasons)
    def fail(self, time: Time, caller: str, picked: list[Pick], error: str) -> None:
        self._need("leased", caller)
        self._pass(time)
        self._retry_or_fail("fail", caller, self._settles(picked), 0, error)

    @rule(time=times, caller=callers, picked=several_picks, after=release_times, lapsed=reasons,
          most=handlings)  # fmt: skip
    def release(
        self, time: Time, caller: str, picked: list[Pick], after: int | None, lapsed: str,
        most: bytes,
    ) -> None:  # fmt: skip
        self._need("leased", caller)
        self._pass(time)
        self._release(caller, self._settles(picked), after, lapsed, most)

    @rule(time=times, caller=callers, way=ways, after=release_times, before=few_updates)
    def settle_what_was_updated(
        self, time: Time, caller: str, way: str, after: int | None, before: Updates
    ) -> None:
        self._settle_what("updated", time, caller, way, after, before)

    @rule(time=times, caller=callers, way=ways, after=release_times, before=few_updates)
    def settle_what_was_cancelled(
        self, time: Time, caller: str, way: str, after: int | None, before: Updates
    ) -> None:
        self._settle_what("cancelled", time, caller, way, after, before)

    @rule(time=times, caller=callers, way=ways, after=release_times, before=few_updates)
    def settle_what_is_handled(
        self, time: Time, caller: str, way: str, after: int | None, before: Updates
    ) -> None:
        self._settle_what("handled", time, caller, way, after, before)

    @rule(time=times, caller=callers, way=ways, after=release_times, before=few_updates)
    def settle_what_was_taken_back(
        self, time: Time, caller: str, way: str, after: int | None, before: Updates
    ) -> None:
        self._settle_what("reclaimed", time, caller, way, after, before)

    @precondition(lambda self: not self.plain)
    @rule(time=times, caller=callers, way=ways, after=release_times, before=few_updates)
    def settle_what_has_a_result(
        self, time: Time, caller: str, way: str, after: int | None, before: Updates
    ) -> None:
        self._settle_what("with a result", time, caller, way, after, before)

    @precondition(lambda self: not self.plain)
    @rule(
        caller=callers, job=jobs, how=st.none() | updates,
        way=st.sampled_from(["retry", "lapse", "reclaim", "recall"]),
    )  # fmt: skip
    def use_up_the_limits(self, caller: str, job: Wanted, how: Update | None, way: str) -> None:
        """Of a job that was updated meanwhile, or not."""
        self._need("at its limits", caller)
        [id, *_] = [id for id in self.model.jobs if self._is_at_its_limits(id)]
        if how:
            self._update(caller, [job], how, id)
            self.both_agree()
        if way == "reclaim":
            self.tidy(("lapse", 0), caller, force=True, failed_for=None)
        elif way == "recall":
            self._recall(caller, "", None)
        else:
            token = self.model.jobs[id].token or ""
            self._settle_as(way, caller, [(id, token, None)], 1_000)

    @rule(caller=callers, job=jobs, way=st.sampled_from(["fail", "retry", "lapse"]))
    def fail_where_the_other_name_is_taken(self, caller: str, job: Wanted, way: str) -> None:
        """The one under which a job is filed that failed and has a successor."""
        self._need("updated", caller)
        settles = self._settles([("updated", 0)])
        taken = filed_id(settles[0][0], self.model.numbers + 2)
        self._add(caller, [job], "ignore", taken)
        self.both_agree()
        self._settle_as(way, caller, settles, 1_000)

    @rule(caller=callers, ways=st.lists(st.sampled_from(["retry", "lapse"]), max_size=4))
    def handle_in_vain(self, caller: str, ways: list[str]) -> None:
        """Until no failure handler may have it any more."""
        for way in ways:
            self._settle_what("handled", ("now", 0), caller, way, 1_000, [])
            self.both_agree()
            self._pass(("handling", 0))

    # ------------------------------------------------------------------ jobs

    @rule(time=times, caller=callers, named=several_names, running=st.booleans())
    def cancel(self, time: Time, caller: str, named: list[Pick], running: bool) -> None:
        self._need(named[0][0], caller)
        self._pass(time)
        self._cancel(caller, self._names(named), running)

    @rule(caller=callers, which=st.lists(st.integers(0, 7), min_size=1, max_size=2))
    def cancel_what_is_leased(self, caller: str, which: list[int]) -> None:
        self._need("leased", caller)
        self._cancel(caller, [self._name("leased", n) for n in which], True)

    @rule(
        time=times, caller=callers, name=names, successor=st.booleans(), running=st.booleans()
    )  # fmt: skip
    def cancel_matching(
        self, time: Time, caller: str, name: Pick, successor: bool, running: bool
    ) -> None:
        """Take the payload of a job, or of a successor."""
        self._need("updated" if successor else name[0], caller)
        self._pass(time)
        job = self.model.jobs.get(self._name(*name))
        payload = job.payload if job else b"nobody's"
        if successor:
            updates = [job.successor for job in self.model.jobs.values() if job.successor]
            payload = payload_of(updates[name[1] % len(updates)])
        self._cancel_matching(caller, payload, running)

    @rule(time=times, caller=callers, named=several_names, which=st.integers(0, 7))
    def revive(self, time: Time, caller: str, named: list[Pick], which: int) -> None:
        self._need("failed", caller)
        self._pass(time)
        ids = [self._name("failed", which), *self._names(named[1:])]
        self._ask(caller, calls.revive(ids), partial(self.model.revive, ids))

    @rule(time=times, caller=callers, name=names, keeping=st.booleans(), result=results)
    def set_result(
        self, time: Time, caller: str, name: Pick, keeping: bool, result: bytes | None
    ) -> None:
        """Take one that keeps results, if there is one."""
        self._pass(time)
        keep = [id for id, job in self.model.jobs.items() if "result_for" in job.options]
        keep += self.model.endings
        id, stored = keep[-1] if keep and keeping else self._name(*name), result or b""
        self._set_result(caller, id, stored)

    # ---------------------------------------------------------------- manage

    @rule(time=times, caller=callers, force=st.booleans(), failed_for=ages)
    def tidy(self, time: Time, caller: str, force: bool, failed_for: int | None) -> None:
        self._pass(time)
        self._tidy(caller, force, failed_for)

    @rule(
        time=st.sampled_from([("lapse", 0), ("lapse", 1), ("lapse", -1)]), caller=callers,
        kind=kinds, lease=st.booleans(),
    )  # fmt: skip
    def reclaim_what_lapses(self, time: Time, caller: str, kind: str, lease: bool) -> None:
        self._need(kind, caller)
        if lease:
            self.lease_when_nothing_is_ready(time, caller, 1, 4_000)
        else:
            self.tidy(time, caller, force=True, failed_for=None)

    @rule(
        time=times, caller=callers, holder=st.sampled_from(["", "ann", "bob", "an"]), longer=ages,
        kind=kinds,
    )  # fmt: skip
    def recall(self, time: Time, caller: str, holder: str, longer: int | None, kind: str) -> None:
        self._need(kind, holder if holder in CALLERS else caller)
        self._pass(time)
        self._recall(caller, holder, longer)

    @rule(
        time=times, caller=callers, ms=lease_times, count=counts,
        what=st.sampled_from(SELDOM),
    )  # fmt: skip
    def manage(self, time: Time, caller: str, ms: int, count: int, what: str) -> None:
        """Each of these seldom, so that histories grow."""
        self._pass(time)
        if what == "resume":
            self._ask(caller, calls.resume(), partial(self.model.resume))
        elif what == "pause":
            self._ask(caller, calls.pause(), partial(self.model.pause))
        elif what == "register":
            call = calls.register(caller, ms, b"\x80")
            self._ask(caller, call, partial(self.model.register, caller, ms))
        elif what == "repair":
            place = (1, b"")
            while place:
                place = self._repair(caller, place, count)
        elif what == "delete":
            self._ask(caller, calls.delete(), partial(self.model.delete))
        else:
            self._hear_only_bob()

    def _hear_only_bob(self) -> None:
        """After a silence it may be the clock that jumped; when it is over all are forgotten."""
        self.tidy(("now", HOUR), "bob", force=False, failed_for=None)
        self.tidy(("now", SILENCE), "bob", force=False, failed_for=None)
        kept = {caller for caller in CALLERS if not self.model.is_forgotten(caller, self.now)}
        assert self.engine.view(self.now)["callers"] == kept
