"""What the engine should do, in plain dictionaries: a second opinion, written from the design.

No I/O, no clock of its own, no cleverness. A job is in one place because it has one
`state`; the order of waiting jobs is found by sorting; a successor is the list of updates
that made it, gone through when the lease ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.job import Update
from model.hearing import CALLER_IS_KEPT, NOTHING_IS_LEFT, Hearing
from model.values import (
    Change,
    Ending,
    Failure,
    Given,
    Granted,
    Job,
    Refusal,
    Settle,
    after,
    filed_id,
    ms,
    payload_of,
)

LAPSED = "the lease lapsed"
HELD_TOO_LONG = "held for too long"
WORKER_FAILED = "its worker failed"

HANDLING = 10_000
"""After a failure handler did not answer: when it may try again, doubled each time."""
MAX_HANDLING = 15_000
MAX_HANDLINGS = 2
"""The last two are smaller than in earnest, so that histories get there (test_model.py)."""
SPENT = 2**52
"""From here on is no time: no failure handler may have the job any more."""


class Model(Hearing):
    """One queue."""

    def __init__(self, requeue: str = "rank") -> None:
        self.requeue = requeue
        self.delete(0)

    def delete(self, now: int) -> object:
        """Leave nothing, not even the answer to this question."""
        super().__init__()
        self.jobs: dict[str, Job] = {}
        self.endings: dict[str, Ending] = {}
        self.workers: dict[str, int] = {}
        self.tally: Counter[str] = Counter()
        self.paused = False
        self.numbers = 0
        """Given to what is added, promoted or put behind its equals."""
        self.wake = 0
        """Tokens for sleepers: at most one."""
        return NOTHING_IS_LEFT

    # ----------------------------------------------------------------- questions: add

    def add(self, jobs: Sequence[Given], on_conflict: str, now: int) -> list[str]:
        if on_conflict == "raise":
            ids = [job.id for job in jobs]
            for i, job in enumerate(jobs):
                taken = self._state_of_taken(job.id, now) and not self._is_open(job.id)
                if (taken or job.id in ids[:i]) and not job.fresh:
                    raise Refusal(f"EXISTS {i}")
        return [self._add(job, now) for job in jobs]

    def update(self, jobs: Sequence[Given], how: Update, now: int) -> list[str]:
        return [self._update(Change(job, how, job.due(now)), now) for job in jobs]

    # --------------------------------------------------------------- questions: lease

    def lease(
        self, token: str, ms: int, count: int, failed: bool, done: Sequence[Settle], now: int
    ) -> Granted:
        woken = self.wake
        completed = [self._complete_if_last(settle, now) for settle in done]
        self._maintain(now)
        best = self.due("failed", now) if failed else self.ready()
        granted = [] if self.paused else best[:count]
        for job in granted:
            job.state, job.when = "leased", after(now, ms)
            job.token, job.leased_at = token, now
        self.tally["leased"] += len(granted)
        if not failed:
            # Whoever asks takes what came up, so that others are woken only by what is left.
            self.wake = woken
            self._wake_sleeper(granted and self.ready())
        ask_again = 0 if granted else 1000 if self.paused else self._worth_asking_in(now, failed)
        return Granted(token, tuple(job.id for job in granted), completed, ask_again)

    def extend(self, settles: Sequence[Settle], ms: int, now: int) -> list[str]:
        held = self.held(settles)
        for job in filter(None, held):
            job.when = after(now, ms)
        return ["lost" if not job else "cancelled" if job.cancelled else "held" for job in held]

    # -------------------------------------------------------------- questions: settle

    def complete(
        self, settles: Sequence[Settle], follow_ups: Sequence[Given], now: int
    ) -> tuple[list[bool], list[str]]:
        completed = [self._complete_if_last(settle, now) for settle in settles]
        return completed, [self._add(job, now) for job in follow_ups if any(completed)]

    def complete_by_force(
        self, settles: Sequence[Settle], follow_ups: Sequence[Given], now: int
    ) -> tuple[list[bool], list[str]]:
        # One that ends makes place for its successor, which is not meant.
        meant = {id: self.jobs[id] for id, _, _ in settles if id in self.jobs}
        completed = [
            id in meant and self._complete(meant.pop(id), result, now) for id, _, result in settles
        ]
        return completed, [self._add(job, now) for job in follow_ups if any(completed)]

    def retry(self, failures: Sequence[Failure], now: int) -> list[bool]:
        held = self.held(failures)
        for job, (_, _, wait, error) in zip(held, failures, strict=True):
            if not job or self._ends_as_cancelled(job, now):
                continue
            job.token = None
            if job.failed_at is not None:
                self._handled_in_vain(job, after(now, wait), now)
            elif self._fails_for_good(job, error):
                self._fail(job, now, now)
            else:
                self._live_on(job, after(now, wait), now, behind=True)
                self.tally["retried"] += 1
        return [job is not None for job in held]

    def fail(self, failures: Sequence[Failure], now: int) -> list[bool]:
        held = self.held(failures)
        for job, (_, _, _, error) in zip(held, failures, strict=True):
            if not job or self._ends_as_cancelled(job, now):
                continue
            if job.failed_at is not None:
                self._fail(job, SPENT + job.failed_at, now)
            else:
                self._fails_for_good(job, error)
                self._fail(job, now, now)
        return [job is not None for job in held]

    def release(
        self, settles: Sequence[Settle], wait: int | None, lapsed: str, now: int
    ) -> list[bool]:
        held = self.held(settles)
        due = after(now, wait) if wait else 0
        for job in filter(None, held):
            if lapsed:
                self.tally["released"] += self._lapse(job, lapsed, due, now)
            elif self._ends_as_cancelled(job, now):
                continue
            elif job.failed_at is not None:
                self._fail(job, max(due, now), now)
            else:
                self._give_back(job, due, now)
                self.tally["released"] += 1
            job.token = None
        return [job is not None for job in held]

    # ---------------------------------------------------------------- questions: jobs

    def cancel(self, ids: Sequence[str], running: bool, now: int) -> list[bool]:
        """Tell for each whether a run is prevented: of the job, or of its successor."""
        waiting = [self._drop_successor(id) for id in ids]
        return [
            (id in self.jobs and self._cancel(self.jobs[id], running, now)) or waited
            for id, waited in zip(ids, waiting, strict=True)
        ]

    def cancel_matching(self, payload: bytes, running: bool, now: int) -> int:
        """A job and its successor are judged each by its own payload."""
        count = 0
        for job in list(self.jobs.values()):
            if job.payload == payload:
                count += self._cancel(job, running, now)
            if job.successor and payload_of(job.successor) == payload:
                job.successor = []
                count += 1
        return count

    def revive(self, ids: Sequence[str], now: int) -> list[bool]:
        return [id in self.times("failed") and self._revive(self.jobs[id], now) for id in ids]

    def set_result(self, id: str, result: bytes, now: int) -> str:
        """A job that is not to keep a result gets none; an ending takes any."""
        if id in self.endings:
            self.endings[id].result = result
        elif id not in self.jobs:
            return "no such job"
        elif not ms(self.jobs[id].options, "result_for"):
            return "keeps none"
        else:
            self.jobs[id].result = result
        self.tally["result"] += 1
        return "stored"

    # -------------------------------------------------------------- questions: manage

    def recall(self, holder: str, longer: int | None, now: int) -> int:
        """Take leases back before they lapse: of one holder, or held for longer than this."""
        found = [
            job for job in self.in_order("leased")
            if (not holder or (job.token or "").rpartition(".")[0] == holder)
            and (longer is None or now - job.leased_at > longer)
        ]  # fmt: skip
        for job in found:
            reason = WORKER_FAILED if holder else HELD_TOO_LONG
            self.tally["reclaimed"] += self._lapse(job, reason, 0, now)
        self.workers.pop(holder, None)
        return len(found)

    def register(self, holder: str, ms: int, now: int) -> None:
        """Forget those who are gone for as long as one forgets callers."""
        self.workers[holder] = after(now, ms)
        for other, until in list(self.workers.items()):
            if now - until > CALLER_IS_KEPT:
                del self.workers[other]

    def tidy(self, force: bool, failed_for: int | None, now: int) -> tuple[int, int, int, int]:
        moved = self._maintain(now, force)
        old = [] if failed_for is None else self._failed_before(now - failed_for)
        for job in old:
            self._end_as_cancelled(job, now)
        return (*moved, len(old))

    def repair(self, now: int) -> list[str]:
        """Nothing is broken, so nothing is done."""
        return []

    def pause(self, now: int) -> None:
        self.paused = True

    def resume(self, now: int) -> None:
        self.paused = False
        self._wake_sleeper(self.ready())

    # ----------------------------------------------------------------- details: add

    def _state_of_taken(self, id: str, now: int) -> str | None:
        if id in self.jobs:
            return self.jobs[id].state
        return "ended" if id in self.endings and self.endings[id].taken_until > now else None

    def _is_open(self, id: str) -> bool:
        """Tell whether the job with this id is cancelled, and nothing waits to succeed it."""
        return id in self.jobs and self.jobs[id].cancelled and not self.jobs[id].successor

    def _add(self, given: Given, now: int) -> str:
        if given.fresh and (given.id in self.jobs or given.id in self.endings):
            # This very call was made so long ago that its caller is forgotten: the same job.
            return "created"
        if self._is_open(given.id):
            self.jobs[given.id].successor = [Change(given, Update(), given.due(now))]
            return "leased, updated"
        if state := self._state_of_taken(given.id, now):
            return state
        return self._create(given.id, [Change(given, Update(), given.due(now))], now)

    def _create(self, id: str, changes: Sequence[Change], now: int) -> str:
        """Make a job of the first; the others are applied to it."""
        first, others = changes[0], changes[1:]
        self.endings.pop(id, None)
        given = first.given
        job = self.jobs[id] = Job(id, given.payload, given.priority, given.options)
        due = self._apply(others, job, first.due)
        job.place = self._number()
        self.tally["added"] += 1
        self._put(job, due, now)
        return "created"

    def _update(self, change: Change, now: int) -> str:
        job = self.jobs.get(change.given.id)
        if not job:
            taken = self._state_of_taken(change.given.id, now)
            return taken or self._create(change.given.id, [change], now)
        self.tally["updated"] += 1
        if job.state == "leased":
            job.successor.append(change)
            return "leased, updated"
        was, due = job.state, {"ready": 0, "delayed": job.when, "failed": change.due}[job.state]
        due = self._apply([change], job, due)
        job.token = None
        if was == "failed":
            self._forget_failures(job)
        self._put(job, due, now, behind=was != "ready")
        return "failed, updated" if was == "failed" else f"{job.state}, updated"

    def _apply(self, changes: Sequence[Change], job: Job, due: int) -> int:
        """Change a job that lives on; return when it may run."""
        for change in changes:
            if change.how.data:
                job.payload = change.given.payload
            if change.how.limits:
                job.priority, job.options = change.given.priority, change.given.options
            if change.begins_anew:
                job.failures, job.lapses, job.error = 0, 0, None
            due = change.due_after(due)
        if not ms(job.options, "result_for"):
            job.result = None
        return due

    # -------------------------------------------------------------- details: waiting

    def _put(self, job: Job, due: int, now: int, *, behind: bool = False) -> None:
        """Let a job wait: for its time, at the place that it has or behind its equals."""
        if due > now:
            job.state, job.when = "delayed", due
        else:
            job.state = "ready"
        if not job.place or (behind and job.state == "ready"):
            job.place = self._number()
        self._wake_sleeper(due - now < 1000)

    def _live_on(self, job: Job, due: int, now: int, *, behind: bool = False) -> None:
        """Let a job wait whose lease is over. Who ran what is changed now cannot complete it."""
        if job.successor:
            due = self._apply(job.successor, job, due)
            job.successor, job.token = [], None
        self._put(job, due, now, behind=behind)

    def _give_back(self, job: Job, due: int, now: int) -> None:
        self._live_on(job, due, now, behind=self.requeue == "back")

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _wake_sleeper(self, came_up: object) -> None:
        if came_up and not self.paused:
            self.wake = 1

    # --------------------------------------------------------------- details: ending

    def _complete_if_last(self, settle: Settle, now: int) -> bool:
        """Complete for the last token given out, also when the job was taken back since."""
        id, token, result = settle
        last = id in self.jobs and self.jobs[id].token == token
        return last and self._complete(self.jobs[id], result, now)

    def _complete(self, job: Job, result: bytes | None, now: int) -> bool:
        if self._ends_as_cancelled(job, now):
            return False
        # A failure that is dealt with is a failure to who waits for the result.
        self._end(job, "completed" if job.failed_at is None else "failed", result, now)
        self.tally["completed"] += 1
        return True

    def _ends_as_cancelled(self, job: Job, now: int) -> bool:
        """Somebody cancelled it while it was leased: any settle or lapse ends it as that."""
        if job.cancelled:
            self._end_as_cancelled(job, now)
        return job.cancelled

    def _end_as_cancelled(self, job: Job, now: int) -> None:
        self._end(job, "cancelled", None, now)
        self.tally["cancelled"] += 1

    def _end(self, job: Job, outcome: str, result: bytes | None, now: int) -> None:
        """Let a job be gone. Its successor takes the id, or its ending is remembered."""
        del self.jobs[job.id]
        result_for = ms(job.options, "result_for")
        remember_for = ms(job.options, "remember_for") if outcome == "completed" else 0
        if job.successor:
            self._create(job.id, job.successor, now)
        elif result_for or remember_for:
            self.endings[job.id] = Ending(
                outcome=outcome,
                ended_at=now,
                forget_at=after(now, max(result_for, remember_for)),
                taken_until=after(now, remember_for) if remember_for else 0,
                result=(job.result if result is None else result) if result_for else None,
                payload=job.payload if result_for and job.options.get("keep") else None,
                error=job.error if outcome == "failed" else None,
            )

    def _cancel(self, job: Job, running: bool, now: int) -> bool:
        """Tell whether the job ends now, or when its lease does, because of this."""
        if job.state != "leased":
            self._end_as_cancelled(job, now)
            return True
        if not running or job.cancelled:
            return False
        job.cancelled = True
        self.tally["cancelling"] += 1
        return True

    def _drop_successor(self, id: str) -> bool:
        if id not in self.jobs or not self.jobs[id].successor:
            return False
        self.jobs[id].successor = []
        return True

    # -------------------------------------------------------------- details: failing

    def _fails_for_good(self, job: Job, error: str) -> bool:
        job.failures += 1
        job.error = error or None
        limit = job.options.get("max_failures", 10)
        return limit is not None and job.failures > limit

    def _lapse(self, job: Job, error: str, due: int, now: int) -> bool:
        """Count a run that did not answer; tell whether the job waits again."""
        if self._ends_as_cancelled(job, now):
            return False
        if job.failed_at is not None:
            wait = min(HANDLING * 2**job.handlings, MAX_HANDLING)
            self._handled_in_vain(job, after(now, wait), now)
            return False
        job.lapses += 1
        job.error = error
        limit = job.options.get("max_lapses", 3)
        if limit is not None and job.lapses > limit:
            self._fail(job, now, now)
            return False
        self._give_back(job, due, now)
        return True

    def _fail(self, job: Job, when: int, now: int) -> None:
        """Keep a failed job for its failure handler, or for somebody to decide.

        Where a successor takes its id it is filed under another, made of that and a number.
        """
        job.failed_at = now if job.failed_at is None else job.failed_at
        job.state, job.when, job.place, job.token = "failed", when, 0, None
        self.tally["failed"] += 1
        if job.successor:
            id, successor = job.id, job.successor
            job.id, job.successor = self._name_to_file_under(id), []
            self.jobs[job.id] = self.jobs.pop(id)
            self._create(id, successor, now)

    def _name_to_file_under(self, id: str) -> str:
        name = filed_id(id, self._number())
        taken = name in self.jobs or name in self.endings
        return self._name_to_file_under(id) if taken else name

    def _handled_in_vain(self, job: Job, when: int, now: int) -> None:
        job.handlings += 1
        spent = job.handlings > MAX_HANDLINGS
        self._fail(job, SPENT + (job.failed_at or 0) if spent else when, now)

    def _revive(self, job: Job, now: int) -> bool:
        self._forget_failures(job)
        self._put(job, 0, now, behind=True)
        self.tally["revived"] += 1
        return True

    def _forget_failures(self, job: Job) -> None:
        job.failures, job.lapses, job.error = 0, 0, None
        job.failed_at, job.handlings = None, 0

    def _failed_before(self, moment: int) -> list[Job]:
        """Return what failed before this moment and does not wait for its failure handler."""
        return [
            job for job in self.in_order("failed")
            if (job.when if job.when < SPENT else job.when - SPENT) < moment
        ]  # fmt: skip

    # ---------------------------------------------------------- details: maintaining

    def _maintain(self, now: int, force: bool = False) -> tuple[int, int, int]:
        """Promote what is due, take back what lapsed, forget the endings whose time has come."""
        due = sorted(self.due("delayed", now), key=lambda job: (job.when, job.place))
        for job in due:
            self._put(job, 0, now, behind=True)
        lapsed = self.due("leased", now) if force or now >= self.patient_until(now) else []
        for job in lapsed:
            self.tally["reclaimed"] += self._lapse(job, LAPSED, 0, now)
        over = [id for id, ending in self.endings.items() if ending.forget_at <= now]
        for id in over:
            del self.endings[id]
        self.tally["promoted"] += len(due)
        self.tally["pruned"] += len(over)
        return len(due), len(lapsed), len(over)

    def _worth_asking_in(self, now: int, failed: bool) -> int:
        due = self.times("failed" if failed else "delayed").values()
        patient_until = self.patient_until(now)
        lapses = (max(lapse, patient_until) for lapse in self.times("leased").values())
        return min([now + 1000, *due, *lapses]) - now

    # ------------------------------------------------------------- looking for jobs

    def ready(self) -> list[Job]:
        """Return the jobs that can be leased, best first."""
        waiting = [job for job in self.jobs.values() if job.state == "ready"]
        return sorted(waiting, key=lambda job: (-job.priority, job.place))

    def in_order(self, state: str) -> list[Job]:
        """Return the jobs of a state: in the order of its times, then in that of ids."""
        jobs = [job for job in self.jobs.values() if job.state == state]
        return sorted(jobs, key=lambda job: (job.when, job.id.encode()))

    def due(self, state: str, now: int) -> list[Job]:
        """Return the jobs of a state whose time has come."""
        return [job for job in self.in_order(state) if job.when <= now]

    def held(self, settles: Sequence[tuple[Any, ...]]) -> list[Job | None]:
        """Return the job of each settle that presents a current lease, each job once."""
        held: list[Job | None] = []
        for id, token, *_ in settles:
            job = self.jobs.get(id)
            current = job and job.state == "leased" and job.token == token and job not in held
            held.append(job if current else None)
        return held

    def times(self, state: str) -> dict[str, int]:
        """Return the time that belongs to each job of a state."""
        return {job.id: job.when for job in self.jobs.values() if job.state == state}
