"""What the engine should do, in plain dictionaries: a second opinion, written from the design.

No I/O, no clock of its own, no cleverness. A job is in one place because it has one
`state`; the order of waiting jobs is found by sorting; a question asked again is looked up
in `answers`. Times are milliseconds, options are as the user gives them: seconds, None for
no limit, math.inf for ever.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

NEVER = 2**53 - 1
SILENCE = 5_000
CALLER_IS_KEPT = 600_000
LAPSED = "the lease lapsed"
NOTHING_IS_LEFT = object()

Settle: TypeAlias = tuple[str, str, bytes | None]
"""An id, the token presented for it, and the result if it has one."""


class Refusal(Exception):
    """The engine says no, and nothing has changed."""


@dataclass(frozen=True)
class Given:
    """A job as somebody gives it to `add`."""

    id: str
    payload: bytes = field(repr=False)
    priority: int = 50
    delay: int | None = None
    at: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    fresh: bool = False
    """The client made the id, so nobody else can have it."""

    def due(self, now: int) -> int:
        return min(now + self.delay, NEVER) if self.delay is not None else self.at or 0


@dataclass
class Job:
    """A job that has not ended."""

    id: str
    payload: bytes
    priority: int
    options: Mapping[str, Any]
    state: str = "ready"
    place: int = 0
    """Where it stands among the ready ones of its priority; a leased job keeps it."""
    when: int = 0
    """Delayed: due. Leased: lapses. Failed: since when."""
    token: str | None = None
    """The last one given out, as long as it counts."""
    lapses: int = 0
    error: str | None = None


@dataclass
class Ending:
    """What remains of a job whose result or id is to be kept."""

    ended_at: int
    forget_at: int
    taken_until: int
    result: bytes | None
    payload: bytes | None


@dataclass(frozen=True)
class Granted:
    """The part of a lease's answer that is remembered: no payloads."""

    token: str
    ids: tuple[str, ...]
    completed: list[bool]
    ask_again: int


class Model:
    """One queue."""

    def __init__(self, requeue: str = "rank") -> None:
        self.requeue = requeue
        self.delete(0)

    def delete(self, now: int) -> object:
        """Leave nothing, not even the answer to this question."""
        self.jobs: dict[str, Job] = {}
        self.endings: dict[str, Ending] = {}
        self.answers: dict[str, tuple[int, int, Any]] = {}
        self.tally: Counter[str] = Counter()
        self.paused = False
        self.places = 0
        self.seen: int | None = None
        self.patience = 0
        """After a silence: the end of the time in which nothing is reclaimed."""
        self.before = 0
        """When the last call before that silence was heard."""
        self.wake = 0
        """Tokens for sleepers: at most one."""
        return NOTHING_IS_LEFT

    # ------------------------------------------------------------ every question

    def ask(self, now: int, caller: str, number: int, question: Callable[[int], Any]) -> Any:
        """Answer a question once; the same one again with the same answer."""
        last, _, answer = self.answers.get(caller, (0, 0, None))
        if number < last:
            raise Refusal("STALE")
        if number > last:
            before = self.seen, self.patience, self.before
            self._hear(now)
            try:
                answer = question(now)
            except Refusal:
                self.seen, self.patience, self.before = before
                raise
            if answer is NOTHING_IS_LEFT:
                return None
            self.answers[caller] = number, now, answer
        return answer

    def _hear(self, now: int) -> None:
        """Silence of everybody is not a lapse: let the living extend first."""
        if self.seen is not None and now - self.seen > SILENCE:
            self.patience, self.before = now + SILENCE, self.seen
        if self.seen is None or not 0 <= now - self.seen < 1000:
            self.seen = now

    def _patient_until(self, now: int) -> int:
        # A patience that ends later than any could is one from before the clock was set back.
        return self.patience if self.patience <= now + SILENCE else 0

    def is_forgotten(self, caller: str, now: int) -> bool:
        """Tell whether the engine need not know a caller any more: it was silent for ten minutes.

        Right after a silence it may be the clock that jumped, and not the caller who was
        silent for so long.
        """
        known_until = self.before if now < self._patient_until(now) else now
        _, asked_at, _ = self.answers.get(caller, (0, 0, None))
        return known_until - asked_at > CALLER_IS_KEPT

    def forget_caller(self, caller: str, now: int) -> None:
        """Follow the engine, which looks at a few callers now and then."""
        assert self.is_forgotten(caller, now), f"{caller} forgotten too soon"
        del self.answers[caller]

    # ----------------------------------------------------------------- questions

    def add(self, jobs: Sequence[Given], on_conflict: str, now: int) -> list[str]:
        if on_conflict == "raise":
            ids = [job.id for job in jobs]
            for i, job in enumerate(jobs):
                taken = job.id in ids[:i] or self._state_of_taken(job.id, now)
                if taken and not job.fresh:
                    raise Refusal(f"EXISTS {i}")
        return [self._add(job, now) for job in jobs]

    def lease(self, token: str, ms: int, count: int, done: Sequence[Settle], now: int) -> Granted:
        completed = [self._complete_if_last(settle, now) for settle in done]
        self._maintain(now)
        granted = [] if self.paused else self.ready()[:count]
        for job in granted:
            job.state, job.when, job.token = "leased", min(now + ms, NEVER), token
        self.tally["leased"] += len(granted)
        self._wake_sleeper(granted and self.ready())
        ask_again = 0 if granted else 1000 if self.paused else self._worth_asking_in(now)
        return Granted(token, tuple(job.id for job in granted), completed, ask_again)

    def extend(self, settles: Sequence[Settle], ms: int, now: int) -> list[bool]:
        held = self.held(settles)
        for job in held:
            if job:
                job.when = min(now + ms, NEVER)
        return [job is not None for job in held]

    def complete(
        self, settles: Sequence[Settle], follow_ups: Sequence[Given], now: int
    ) -> tuple[list[bool], list[str]]:
        completed = [self._complete_if_last(settle, now) for settle in settles]
        return completed, [self._add(job, now) for job in follow_ups if any(completed)]

    def complete_by_force(
        self, settles: Sequence[Settle], follow_ups: Sequence[Given], now: int
    ) -> tuple[list[bool], list[str]]:
        completed = [
            id in self.jobs and self._complete(id, result, now) for id, _, result in settles
        ]
        return completed, [self._add(job, now) for job in follow_ups if any(completed)]

    def release(
        self, settles: Sequence[Settle], after: int | None, lapsed: str, now: int
    ) -> list[bool]:
        held = self.held(settles)
        for job in filter(None, held):
            if lapsed and self._lapse_is_the_last(job, lapsed, now):
                continue
            self.tally["released"] += 1
            job.token = None
            if after:
                job.state, job.when = "delayed", min(now + after, NEVER)
            else:
                self._give_back(job)
            self._wake_sleeper(not after or after < 1000)
        return [job is not None for job in held]

    def tidy(self, force: bool, now: int) -> tuple[int, int, int]:
        before = +self.tally
        moved = self._maintain(now, force)
        self._wake_sleeper((self.tally - before).keys() & {"promoted", "reclaimed"})
        return moved

    def pause(self, now: int) -> None:
        self.paused = True

    def resume(self, now: int) -> None:
        self.paused = False
        self._wake_sleeper(self.ready())

    # ------------------------------------------------------------------- details

    def _state_of_taken(self, id: str, now: int) -> str | None:
        if id in self.jobs:
            return self.jobs[id].state
        return "ended" if id in self.endings and self.endings[id].taken_until > now else None

    def _add(self, given: Given, now: int) -> str:
        if given.fresh and (given.id in self.jobs or given.id in self.endings):
            # This very call was made so long ago that its caller is forgotten: the same job.
            return "created"
        if state := self._state_of_taken(given.id, now):
            return state
        self.endings.pop(given.id, None)
        job = Job(given.id, given.payload, given.priority, given.options)
        due = given.due(now)
        if due > now:
            job.state, job.when = "delayed", due
        else:
            self._to_the_back(job)
        self.jobs[job.id] = job
        self.tally["added"] += 1
        self._wake_sleeper(due - now < 1000)
        return "created"

    def _complete_if_last(self, settle: Settle, now: int) -> bool:
        """Complete for the last token given out, also when the job was taken back since."""
        id, token, result = settle
        last = id in self.jobs and self.jobs[id].token == token
        return last and self._complete(id, result, now)

    def _complete(self, id: str, result: bytes | None, now: int) -> bool:
        job = self.jobs.pop(id)
        self.tally["completed"] += 1
        result_for, remember_for = ms(job.options, "result_for"), ms(job.options, "remember_for")
        if result_for or remember_for:
            self.endings[id] = Ending(
                ended_at=now,
                forget_at=min(now + max(result_for, remember_for), NEVER),
                taken_until=min(now + remember_for, NEVER) if remember_for else 0,
                result=result if result_for else None,
                payload=job.payload if result_for and job.options.get("keep") else None,
            )
        return True

    def _maintain(self, now: int, force: bool = False) -> tuple[int, int, int]:
        """Promote what is due, take back what lapsed, forget the endings whose time has come."""
        due = self._come("delayed", now)
        for job in due:
            job.state = "ready"
            self._to_the_back(job)
        lapsed = self._come("leased", now) if force or now >= self._patient_until(now) else []
        for job in lapsed:
            if not self._lapse_is_the_last(job, LAPSED, now):
                self.tally["reclaimed"] += 1
                self._give_back(job)
        over = [id for id, ending in self.endings.items() if ending.forget_at <= now]
        for id in over:
            del self.endings[id]
        self.tally["promoted"] += len(due)
        self.tally["pruned"] += len(over)
        return len(due), len(lapsed), len(over)

    def _come(self, state: str, now: int) -> list[Job]:
        """Return the jobs of a state whose time has come: in its order, then in that of ids."""
        come = [job for job in self.jobs.values() if job.state == state and job.when <= now]
        return sorted(come, key=lambda job: (job.when, job.id.encode()))

    def _lapse_is_the_last(self, job: Job, error: str, now: int) -> bool:
        job.lapses += 1
        job.error = error
        limit = job.options.get("max_lapses", 3)
        if limit is None or job.lapses <= limit:
            return False
        job.state, job.when, job.token = "failed", now, None
        self.tally["failed"] += 1
        return True

    def _give_back(self, job: Job) -> None:
        job.state = "ready"
        if self.requeue == "back":
            self._to_the_back(job)

    def _to_the_back(self, job: Job) -> None:
        self.places += 1
        job.place = self.places

    def _wake_sleeper(self, came_up: object) -> None:
        if came_up and not self.paused:
            self.wake = 1

    def _worth_asking_in(self, now: int) -> int:
        due = self.times("delayed").values()
        patient_until = self._patient_until(now)
        lapses = (max(lapse, patient_until) for lapse in self.times("leased").values())
        return min([now + 1000, *due, *lapses]) - now

    # ------------------------------------------------------------- looking for jobs

    def ready(self) -> list[Job]:
        """Return the jobs that can be leased, best first."""
        waiting = [job for job in self.jobs.values() if job.state == "ready"]
        return sorted(waiting, key=lambda job: (-job.priority, job.place))

    def held(self, settles: Sequence[Settle]) -> list[Job | None]:
        """Return the job of each settle that presents a current lease, each job once."""
        held: list[Job | None] = []
        for id, token, _ in settles:
            job = self.jobs.get(id)
            current = job and job.state == "leased" and job.token == token and job not in held
            held.append(job if current else None)
        return held

    def times(self, state: str) -> dict[str, int]:
        """Return the time that belongs to each job of a state."""
        return {job.id: job.when for job in self.jobs.values() if job.state == state}


def ms(options: Mapping[str, Any], name: str) -> int:
    seconds = options.get(name, 0)
    return NEVER if seconds == math.inf else round(seconds * 1000)
