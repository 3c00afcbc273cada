"""Both sides of a history: what is asked of the engine is asked of the model, and compared."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import hiredis
from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine, invariant

from holdfast import arguments
from holdfast.engine import calls, request_calls
from holdfast.engine.call import Call, Entry
from model import views
from model.choices import CALLERS, HOUR, START, Pick, Time, Wanted
from model.engine import Engine, Wire
from model.model import Model
from model.values import Given, Job, Refusal, Settle


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
        asked = ", ".join(map(short, self.question.args))
        return f"{self.caller} {self.number}: {self.question.func.__name__}({asked})"


@dataclass(frozen=True)
class Look:
    """A question that changes nothing."""

    what: str
    call: Call[Any]
    wanted: Any


_REFUSAL = r"(STALE|WRONG|FENCED|LAPSED|SETTLED|(EXISTS|PART|GAP|TAKEN|GONE|CLOSED) \d+).*"


class Comparing(RuleBasedStateMachine):
    """A queue and its model under one clock."""

    def __init__(self, wire: Wire, requeue: str, steps: list[int]) -> None:
        super().__init__()
        self.engine = Engine(wire)
        self.model = Model(requeue)
        self.to_the_back = requeue == "back"
        self.now = START
        self.steps = steps
        self.age = 0
        self.plain = False
        self.looked_at_requests = False
        self.serial = itertools.count(1)
        self.last_number = {caller: start for caller, (start, _) in CALLERS.items()}
        self.sent: list[Sent] = []
        self.given: list[tuple[str, str]] = []

    def teardown(self) -> None:
        self.engine.close()

    # -------------------------------------------------------------------- comparing

    @invariant()
    def both_agree(self) -> None:
        self.steps[0] += 1
        self.age += 1
        seen = self.engine.view(self.now)
        for caller in self.model.answers.keys() - seen["callers"]:
            self.model.forget_caller(caller, self.now)
        if self.looked_at_requests and seen["wake"]:
            self.model._wake_sleeper(self.model.turns())  # Who has a turn may wake one in vain.
        expected = views.view(self.model, self.now)
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
        self.looked_at_requests = sent.call.function.name in ("repair", "revive")
        looks = self._looks()
        answer, *looked = self.engine.ask(
            self.now, sent.caller, sent.number, sent.call, [look.call for look in looks]
        )
        if isinstance(answer, hiredis.ReplyError):
            answer = re.sub(_REFUSAL, r"\1", str(answer))
        else:
            answer = sent.read(answer)
        note(f"        -> {short(answer)}")
        assert answer == expected, _differ("the answer", answer, expected)
        for look, reply in zip(looks, looked, strict=True):
            found = look.call.read(reply)
            assert found == look.wanted, _differ(look.what, found, look.wanted)

    def _looks(self) -> list[Look]:
        """Look at another job, another state and another request each time."""
        model, age = self.model, self.age
        known = ["nobody", *model.endings, *model.jobs, *views.ended_parts(model)]
        id, state = known[age % len(known)], views.STATES[age % len(views.STATES)]
        name = ["nobody", *model.requests][age % (1 + len(model.requests))]
        return [
            Look(f"what is shown of {id}", calls.show(id), views.shown(model, id, self.now)),
            Look(f"all that is {state}", calls.peek(state, 0, 1000), views.listed(model, state)),
            Look(f"{name}", request_calls.requests(name), views.found(model, name, self.now)),
            Look(f"parts of {name}", request_calls.parts(name, 0), views.parts(model, name)),
        ]

    # --------------------------------------------------------------------- choosing

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
            payload = b"%d\0\r\n\xff" % (0 if job.payload == "same" else serial)
            payload += b"x" * (5_000 if job.payload == "big" else 0)
            delay = int(job.due[1:]) if job.due.startswith("+") else None
            at = self.now + int(job.due[1:]) if job.due.startswith("@") else None
            due = b"" if not job.due else b"%d" % at if at is not None else job.due.encode()
            priority, options = (50, {}) if self.plain else (job.priority, job.options)
            packed = arguments.options(options)[1]
            name = id or f"fresh-{serial}"
            given.append(Given(name, payload, priority, delay, at, options, id is None))
            grouped = "group" in options
            entries.append(Entry(name, payload, id is None, priority, due, packed, grouped))
        return given, entries

    def _names(self, picked: Sequence[Pick]) -> list[str]:
        """Return ids of jobs that stand in some state, as far as there are any."""
        return [self._name(kind, n) for kind, n in picked]

    def _name(self, kind: str, n: int) -> str:
        model = self.model
        any_ = ["nobody", *model.endings, *model.jobs]
        if kind == "cancelled":
            among = [id for id, job in model.jobs.items() if job.cancelled]
        elif kind == "reclaimed":
            among = [id for id, job in model.jobs.items() if is_taken_back(job)]
        elif kind in ("part", "part that failed"):
            among = [id for id, job in model.jobs.items() if job.request]
            among = [id for id in among if kind == "part" or model.jobs[id].state == "failed"]
        elif kind in ("any", "ended"):
            among = list(model.endings) if kind == "ended" else any_
        else:
            among = list(model.times(kind))
        among = among or any_
        return among[-1 - n % len(among)]

    def _settles(self, picked: Sequence[Pick], result: bytes | None = None) -> list[Settle]:
        return with_results([self._settle(kind, n) for kind, n in picked], result)

    def _settle(self, kind: str, n: int) -> tuple[str, str]:
        """Return an id and a token; the last one first, so that a short history stays short."""
        jobs = [job for job in self.model.jobs.values() if job.token is not None]
        held = [(job.id, job.token) for job in jobs if job.token is not None]
        given = self.given or held  # What is claimed is held, and was given to nobody.
        if kind in ("old", "never given") or not held:
            id, token = held[-1] if held else given[-1]
            never = [(id, token[:-1]), (id, token + "0"), (id, "zoe.1"), ("nobody", token)]
            never += [(id, other) for _, other in given[-3:] if other != token]
            among = never if kind == "never given" else given
        else:
            among = [
                settle
                for settle, job in zip(held, jobs, strict=True)
                if kind == "held"
                or (kind == "reclaimed" and is_taken_back(job))
                or (kind == "part" and job.request and job.state == "leased")
                or (kind == "updated" and job.successor)
                or (kind == "cancelled" and job.cancelled)
                or (kind == "handled" and job.failed_at is not None)
                or (kind == "with a result" and job.result is not None)
            ] or (given if kind == "reclaimed" else held)
        return among[-1 - n % len(among)]


def is_taken_back(job: Job) -> bool:
    """Tell whether it waits again, and its last holder may still complete it."""
    return job.state in ("ready", "parked") and job.token is not None


def with_results(settles: list[tuple[str, str]], result: bytes | None) -> list[Settle]:
    """Give each a result of its own; every third has none."""
    return [
        (id, token, None if result is None or i % 3 == 1 else result + b"%d" % i)
        for i, (id, token) in enumerate(settles)
    ]


def _differ(what: str, seen: object, expected: object) -> str:
    if isinstance(seen, dict) and isinstance(expected, dict) and seen != expected:
        keys = [key for key in {**seen, **expected} if seen.get(key) != expected.get(key)]
        return _differ(f"{what} {keys[0]}", seen.get(keys[0]), expected.get(keys[0]))
    return f"{what}: the engine says {short(seen)}, the model {short(expected)}"


def short(value: object) -> str:
    return re.sub("x{9,}ü*x?", "x…x", repr(value))
