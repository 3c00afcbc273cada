"""Random histories of one queue: every call of the engine is put to the model as well.

A history is calls of several callers under pinned time: new ones, the same one sent again,
old ones that come late, leases that were lost long ago, a clock that jumps. Hypothesis
shortens a history in which the two disagree, and prints it as a program with what was asked
and answered in each step.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import hiredis
import msgspec
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast import arguments
from holdfast.engine import calls
from holdfast.engine.calls import Call, Entry
from holdfast.job import NO_FACTS, Facts
from model import views
from model.choices import (
    CALLERS,
    HOUR,
    NONSENSE,
    START,
    Pick,
    Time,
    Wanted,
    beside,
    callers,
    conflicts,
    counts,
    jobs,
    lease_times,
    picks,
    reasons,
    release_times,
    results,
    several_jobs,
    several_picks,
    times,
)
from model.engine import Engine, Wire
from model.model import CALLER_IS_KEPT, SILENCE, Given, Model, Refusal, Settle


@dataclass(frozen=True)
class Sent:
    """A call on its way, kept so that it can be sent again."""

    caller: str
    number: int
    call: Call[Any]
    question: partial[Any]
    read: Callable[[Any], Any]
    """The reply, in the model's words."""

    def __str__(self) -> str:
        asked = ", ".join(map(_short, self.question.args))
        return f"{self.caller} {self.number}: {self.question.func.__name__}({asked})"


class Histories(RuleBasedStateMachine):
    """Every transition, by several callers, on one queue."""

    def __init__(self, wire: Wire, requeue: str, steps: list[int]) -> None:
        super().__init__()
        self.engine = Engine(wire)
        self.model = Model(requeue)
        self.to_the_back = requeue == "back"
        self.now = START
        self.steps = steps
        self.age = 0
        self.plain = False
        self.serial = itertools.count(1)
        self.last_number = {caller: start for caller, (start, _) in CALLERS.items()}
        self.sent: list[Sent] = []
        self.given: list[tuple[str, str]] = []

    def teardown(self) -> None:
        self.engine.close()

    # ------------------------------------------------------------------- add

    @initialize(wanted=st.lists(jobs, max_size=8), plain=st.sampled_from([False, False, True]))
    def begin(self, wanted: list[Wanted], plain: bool) -> None:
        """Let eve add some jobs, who is not heard again unless she asks the same again.

        In a plain history no job has facts before it lapses.
        """
        self.plain = plain
        if wanted:
            self._add("eve", wanted, "ignore")

    @rule(time=times, caller=callers, job=jobs, on_conflict=conflicts)
    def add(self, time: Time, caller: str, job: Wanted, on_conflict: str) -> None:
        self._pass(time)
        self._add(caller, [job], on_conflict)

    @rule(time=times, caller=callers, wanted=several_jobs, on_conflict=conflicts)
    def add_many(self, time: Time, caller: str, wanted: list[Wanted], on_conflict: str) -> None:
        self._pass(time)
        self._add(caller, wanted, on_conflict)

    @precondition(lambda self: self.model.endings)
    @rule(time=beside("free", "forget"), caller=callers, job=jobs, which=st.integers(0, 3))
    def add_an_ended_id(self, time: Time, caller: str, job: Wanted, which: int) -> None:
        """Take the one whose moment has come, if there is one."""
        self._pass(time)
        ended = self.model.endings
        now = [id for id in ended if self.now - time[1] == ended[id].taken_until]
        among = now or sorted(ended)
        self._add(caller, [replace(job, id=among[which % len(among)])], "ignore")

    def _add(self, caller: str, wanted: list[Wanted], on_conflict: str) -> None:
        given, entries = self._jobs(wanted)
        call = calls.add(entries, on_conflict=on_conflict)
        self._ask(
            caller,
            call,
            partial(self.model.add, given, on_conflict),
            lambda reply: [receipt.state or "created" for receipt in call.read(reply)],
        )

    # ----------------------------------------------------------------- lease

    @rule(time=times, caller=callers, count=counts, ms=lease_times)
    def lease(self, time: Time, caller: str, count: int, ms: int) -> None:
        self._pass(time)
        self._lease(caller, count, ms, [])

    @precondition(lambda self: self.model.ready() and not self.model.paused)
    @rule(time=times, caller=callers, count=counts, ms=lease_times)
    def lease_what_is_ready(self, time: Time, caller: str, count: int, ms: int) -> None:
        self._pass(time)
        self._lease(caller, count, ms, [])

    @precondition(lambda self: not self.model.ready() and not self.model.paused)
    @rule(time=beside("lapse", "due", "patience"), caller=callers, count=counts, ms=lease_times)
    def lease_when_nothing_is_ready(self, time: Time, caller: str, count: int, ms: int) -> None:
        self._pass(time)
        self._lease(caller, count, ms, [])

    @precondition(lambda self: self.given)
    @rule(
        time=times, caller=callers, count=counts, ms=lease_times, done=several_picks,
        result=results,
    )  # fmt: skip
    def complete_and_lease(
        self, time: Time, caller: str, count: int, ms: int, done: list[Pick], result: bytes | None
    ) -> None:
        self._pass(time)
        self._lease(caller, count, ms, self._settles(done, result))

    def _lease(self, caller: str, count: int, ms: int, done: list[Settle]) -> None:
        token = f"{caller}.{next(self.serial)}"
        call = calls.lease(token, ms, count, to_the_back=self.to_the_back, complete=done)

        def read(reply: Any) -> tuple[list[Any], list[bool], int]:
            granted = call.read(reply)
            leases = granted.leases
            assert {lease.token for lease in leases} <= {token}
            given = [(lease.id, token) for lease in leases]
            self.given += [lease for lease in given if lease not in self.given]
            shown = [(lease.id, lease.data, _differing(lease.facts)) for lease in leases]
            return shown, leases.completed, round(granted.ask_again * 1000)

        self._ask(caller, call, partial(self.model.lease, token, ms, count, done), read)

    @precondition(lambda self: self.given)
    @rule(time=times, caller=callers, picked=several_picks, ms=lease_times)
    def extend(self, time: Time, caller: str, picked: list[Pick], ms: int) -> None:
        self._pass(time)
        settles = self._settles(picked)
        self._ask(caller, calls.extend(settles, ms), partial(self.model.extend, settles, ms))

    # ---------------------------------------------------------------- settle

    @precondition(lambda self: self.given)
    @rule(time=times, caller=callers, picked=several_picks, result=results)
    def complete(self, time: Time, caller: str, picked: list[Pick], result: bytes | None) -> None:
        self._pass(time)
        settles = self._settles(picked, result)
        question = partial(self.model.complete, settles, [])
        self._ask(caller, calls.complete(settles), question, _read_completed)

    @precondition(lambda self: self.given)
    @rule(
        time=times, caller=callers, picked=picks, result=results, wanted=several_jobs,
        itself=st.booleans(),
    )  # fmt: skip
    def complete_with_follow_ups(
        self, time: Time, caller: str, picked: Pick, result: bytes | None, wanted: list[Wanted],
        itself: bool,
    ) -> None:  # fmt: skip
        self._pass(time)
        settles = self._settles([picked], result)
        follow_ups, entries = self._jobs(wanted, settles[0][0] if itself else None)
        question = partial(self.model.complete, settles, follow_ups)
        self._ask(caller, calls.complete(settles, add=entries), question, _read_completed)

    @rule(
        time=times, caller=callers, result=results, wanted=st.none() | jobs,
        forced=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    )  # fmt: skip
    def complete_by_force(
        self, time: Time, caller: str, result: bytes | None, wanted: Wanted | None,
        forced: list[int],
    ) -> None:  # fmt: skip
        self._pass(time)
        known = ["nobody", *self.model.endings, *self.model.jobs]
        picked = [(known[-1 - n % len(known)], "-") for n in forced]
        settles = _with_results(picked[:1] if wanted else picked, result)
        follow_ups, entries = self._jobs([wanted] if wanted else [])
        question = partial(self.model.complete_by_force, settles, follow_ups)
        call = calls.complete(settles, force=True, add=entries)
        self._ask(caller, call, question, _read_completed)

    @precondition(lambda self: self.given)
    @rule(time=times, caller=callers, picked=several_picks, after=release_times, lapsed=reasons)
    def release(
        self, time: Time, caller: str, picked: list[Pick], after: int | None, lapsed: str
    ) -> None:
        self._pass(time)
        settles = self._settles(picked)
        call = calls.release(
            settles, after_ms=after, to_the_back=self.to_the_back, lapsed=lapsed.encode()
        )
        self._ask(caller, call, partial(self.model.release, settles, after, lapsed))

    # ---------------------------------------------------------------- manage

    @rule(time=times, caller=callers, force=st.booleans())
    def tidy(self, time: Time, caller: str, force: bool) -> None:
        self._pass(time)
        call = calls.tidy(to_the_back=self.to_the_back, force=force)
        self._ask(caller, call, partial(self.model.tidy, force), tuple)

    @precondition(lambda self: self.model.times("leased"))
    @rule(time=beside("lapse"), caller=callers)
    def reclaim_what_lapses(self, time: Time, caller: str) -> None:
        self.tidy(time, caller, force=True)

    @rule(time=times, caller=callers, resume=st.sampled_from([True, True, False]))
    def pause_or_resume(self, time: Time, caller: str, resume: bool) -> None:
        self._pass(time)
        if resume:
            self._ask(caller, calls.resume(), partial(self.model.resume))
        else:
            self._ask(caller, calls.pause(), partial(self.model.pause))

    @precondition(lambda self: self.age % 5 == 4)  # Seldom, so that histories grow.
    @rule(time=times, caller=callers)
    def delete(self, time: Time, caller: str) -> None:
        self._pass(time)
        self._ask(caller, calls.delete(), partial(self.model.delete))

    # -------------------------------------------------------------- nonsense

    @rule(time=times, caller=callers, nonsense=st.sampled_from(sorted(NONSENSE)))
    def ask_nonsense(self, time: Time, caller: str, nonsense: str) -> None:
        """A refused call changes nothing, also where all but its last argument is good."""
        self._pass(time)
        held = [(job.id, job.token or "-", b"") for job in self.model.jobs.values()]
        call = NONSENSE[nonsense]([*held, ("a", "-", b"")])
        reply = self.engine.ask(self.now, caller, self.last_number[caller] + 1, call)
        assert str(reply).startswith("INVALID"), reply

    # ----------------------------------------------------- replies that were lost

    @precondition(lambda self: self.sent)
    @rule(time=times)
    def send_the_last_call_again(self, time: Time) -> None:
        self._pass(time)
        self._send(self.sent[-1])

    @precondition(lambda self: self.sent)
    @rule(time=times, caller=callers, back=st.sampled_from([0, 0, 0, 1, 2]))
    def send_an_earlier_call_again(self, time: Time, caller: str, back: int) -> None:
        """The last of a caller is answered as before, and the ones before it are refused.

        Nobody sends one of those again after ten minutes, when the caller may be forgotten.
        """
        self._pass(time)
        sent = [sent for sent in self.sent if sent.caller == caller]
        if caller not in self.model.answers:
            back = 0
        if sent:
            self._send(sent[-1 - back % len(sent)])

    @precondition(lambda self: self._lost())
    @rule(time=times, which=st.integers(0, 3))
    def send_a_lease_again_that_was_lost(self, time: Time, which: int) -> None:
        self._send_the_last_of(self._lost(), time, which)

    @precondition(lambda self: self.age % 3 == 2)
    @rule(ms=st.sampled_from([CALLER_IS_KEPT + 1, HOUR]))
    def only_bob_is_heard(self, ms: int) -> None:
        """After a silence it may be the clock that jumped; when it is over they are forgotten."""
        self.tidy(("now", ms), "bob", force=False)
        self.tidy(("now", SILENCE), "bob", force=False)
        kept = {caller for caller in CALLERS if not self.model.is_forgotten(caller, self.now)}
        assert self.engine.view(self.now)["callers"] == kept

    @precondition(lambda self: self._forgotten())
    @rule(time=times, which=st.integers(0, 3))
    def send_a_call_again_that_was_forgotten(self, time: Time, which: int) -> None:
        self._send_the_last_of(self._forgotten(), time, which)

    def _send_the_last_of(self, callers: list[str], time: Time, which: int) -> None:
        caller = callers[which % len(callers)]
        self._pass(time)
        self._send([sent for sent in self.sent if sent.caller == caller][-1])

    def _lost(self) -> list[str]:
        return [caller for caller in CALLERS if views.has_lost_leases(self.model, caller)]

    def _forgotten(self) -> list[str]:
        return sorted({sent.caller for sent in self.sent} - self.model.answers.keys())

    # -------------------------------------------------------- both sides, compared

    @invariant()
    def both_agree(self) -> None:
        self.steps[0] += 1
        self.age += 1
        seen = self.engine.view(self.now)
        for caller in self.model.answers.keys() - seen["callers"]:
            self.model.forget_caller(caller, self.now)
        expected = views.view(self.model)
        for what in expected:
            assert seen[what] == expected[what], _differ(what, seen[what], expected[what])
        if self.model.wake and self.age % 2:
            self.engine.take_wake()
            self.model.wake = 0

    def _ask(
        self, caller: str, call: Call[Any], question: partial[Any],
        read: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        self.last_number[caller] += CALLERS[caller][1]
        number = self.last_number[caller]
        self.sent.append(Sent(caller, number, call, question, read or call.read))
        self._send(self.sent[-1])

    def _send(self, sent: Sent) -> None:
        note(f"    at {self.now - START:+,d} ms, {sent}")
        expected: Any
        try:
            expected = self.model.ask(self.now, sent.caller, sent.number, sent.question)
            expected = views.answer(self.model, expected)
        except Refusal as refusal:
            expected = str(refusal)
        answer = self.engine.ask(self.now, sent.caller, sent.number, sent.call)
        if isinstance(answer, hiredis.ReplyError):
            answer = re.sub(r"(STALE|EXISTS \d+).*", r"\1", str(answer))
        else:
            answer = sent.read(answer)
        note(f"        -> {_short(answer)}")
        assert answer == expected, _differ("the answer", answer, expected)

    # ---------------------------------------------------------------- choosing

    def _pass(self, time: Time) -> None:
        kind, ms = time
        if kind == "now":
            self.now = max(self.now + ms, START // 2)
        else:
            soon = range(self.now + 1, self.now + 300 * HOUR)
            moments = [moment + ms for moment in views.moments(self.model)[kind]]
            self.now = min((moment for moment in moments if moment in soon), default=self.now)

    def _jobs(
        self, wanted: Sequence[Wanted], first_id: str | None = None
    ) -> tuple[list[Given], list[Entry]]:
        """Return jobs as the model and as the engine take them."""
        given, entries = [], []
        for i, job in enumerate(wanted):
            serial = next(self.serial)
            id = first_id if first_id and i == 0 else job.id
            payload = b"%d\0\r\n\xff" % serial + b"x" * job.size
            delay = int(job.due[1:]) if job.due.startswith("+") else None
            at = self.now + int(job.due[1:]) if job.due.startswith("@") else None
            due = b"" if not job.due else b"%d" % at if at is not None else job.due.encode()
            priority, options = (50, {}) if self.plain else (job.priority, job.options)
            packed = arguments.options(options)[1]
            name = id or f"fresh-{serial}"
            given.append(Given(name, payload, priority, delay, at, options, id is None))
            entries.append(Entry(name, payload, id is None, priority, due, packed))
        return given, entries

    def _settles(self, picked: list[Pick], result: bytes | None = None) -> list[Settle]:
        return _with_results([self._settle(kind, n) for kind, n in picked], result)

    def _settle(self, kind: str, n: int) -> tuple[str, str]:
        """Return an id and a token; the last one first, so that a short history stays short."""
        jobs = [job for job in self.model.jobs.values() if job.token is not None]
        held = [(job.id, job.token) for job in jobs if job.token is not None]
        reclaimed = [settle for settle, job in zip(held, jobs, strict=True) if job.state == "ready"]
        id, token = held[-1] if held else self.given[-1]
        never = [(id, token[:-1]), (id, token + "0"), (id, "zoe.1"), ("nobody", token)]
        never += [(id, other) for _, other in self.given[-3:] if other != token]
        choice = {"held": held, "reclaimed": reclaimed, "old": self.given, "never given": never}
        among = choice[kind] or self.given
        return among[-1 - n % len(among)]


def _with_results(settles: list[tuple[str, str]], result: bytes | None) -> list[Settle]:
    """Give each a result of its own; every third has none."""
    return [
        (id, token, None if result is None or i % 3 == 1 else result + b"%d" % i)
        for i, (id, token) in enumerate(settles)
    ]


def _read_completed(reply: list[bytes]) -> tuple[list[bool], list[str]]:
    states = {"1": "created", **calls._STATES}
    return [flag == ord("1") for flag in reply[0]], [states[flag] for flag in reply[1].decode()]


def _differing(facts: Facts) -> dict[str, Any]:
    known = msgspec.structs.asdict(facts)
    return {name: fact for name, fact in known.items() if fact != getattr(NO_FACTS, name)}


def _differ(what: str, seen: object, expected: object) -> str:
    return f"{what}: the engine says {_short(seen)}, the model {_short(expected)}"


def _short(value: object) -> str:
    return re.sub("x{9,}", "x…x", repr(value))
