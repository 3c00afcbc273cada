"""What can happen to a job, in plain dictionaries: a second opinion, written from the design.

No I/O, no clock of its own, no cleverness. A job is in one place because it has one
`state`; the order of waiting jobs is found by sorting; a successor is the list of updates
that made it, gone through when the lease ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.job import Update
from model.hearing import NOTHING_IS_LEFT
from model.owners import Owners
from model.values import (
    NEVER,
    Change,
    EndedPart,
    Ending,
    Given,
    Job,
    Request,
    Settle,
    after,
    filed_id,
    ms,
    part_of,
    raised_with,
)

LAPSED = "the lease lapsed"

HANDLING = 10_000
"""After a failure handler did not answer: when it may try again, doubled each time."""
MAX_HANDLING = 15_000
MAX_HANDLINGS = 2
"""The last two are smaller than in earnest, so that histories get there (test_model.py)."""
SPENT = 2**52
"""From here on is no time: no failure handler may have the job any more."""


class Jobs(Owners):
    """The jobs of one queue, and what remains of those that have ended."""

    def __init__(self, requeue: str = "rank") -> None:
        self.requeue = requeue
        self.delete(0)

    def delete(self, now: int) -> object:
        """Leave nothing, not even the answer to this question."""
        super().__init__()
        self.endings: dict[str, Ending] = {}
        self.workers: dict[str, int] = {}
        return NOTHING_IS_LEFT

    # ----------------------------------------------------------------------- add

    def _state_of_taken(self, id: str, now: int) -> str | None:
        if id in self.jobs:
            return self.jobs[id].state
        if self._is_part(id):
            return "ended"
        return "ended" if id in self.endings and self.endings[id].taken_until > now else None

    def _is_part(self, id: str) -> bool:
        """Tell whether this is a part, ended or not, that is not forgotten."""
        name, number = part_of(id) or ("", 0)
        request = self.requests.get(name)
        if request is None or number >= request.total:
            return False
        return number not in request.ended or request.ended[number].kept

    def _is_open(self, id: str) -> bool:
        """Tell whether the job with this id is cancelled, and nothing waits to succeed it."""
        job = self.jobs.get(id)
        return bool(job and job.cancelled and not job.successor and not job.request)

    def _add(self, given: Given, now: int) -> str:
        if given.fresh and (given.id in self.jobs or given.id in self.endings):
            # This very call was made so long ago that its caller is forgotten: the same job.
            return "created"
        if self._is_open(given.id):
            self.jobs[given.id].successor = [Change(given, Update(), given.due(now))]
            return "leased, updated"
        if state := self._state_of_taken(given.id, now):
            return state
        change = Change(given, Update(), given.due(now))
        return self._create(given.id, [change], now, given.enters(now))

    def _create(
        self, id: str, changes: Sequence[Change], now: int, enters: int | None = None
    ) -> str:
        """Make a job of the first; the others are applied to it."""
        first, others = changes[0], changes[1:]
        self.endings.pop(id, None)
        given = first.given
        job = self.jobs[id] = Job(id, given.payload, given.priority, given.options)
        due = self._change(others, job, first.due)
        job.place = self._number()
        self.tally["added"] += 1
        self._join(job, now)
        self._put(job, due, now, enters=enters)
        return "created"

    def _update(self, change: Change, now: int) -> str:
        job = self.jobs.get(change.given.id)
        if not job:
            taken = self._state_of_taken(change.given.id, now)
            enters = change.given.enters(now)
            return taken or self._create(change.given.id, [change], now, enters)
        self.tally["updated"] += 1
        if job.state == "leased":
            job.successor.append(change)
            return "leased, updated"
        was, due = job.state, {"delayed": job.when, "failed": change.due}.get(job.state, 0)
        self._meet(job.owner)
        due = self._apply([change], job, due, now)
        job.token = None
        if was == "failed":
            self._forget_failures(job)
        self._put(job, due, now, behind=was in ("delayed", "failed"))
        return "failed, updated" if was == "failed" else f"{job.state}, updated"

    def _apply(self, changes: Sequence[Change], job: Job, due: int, now: int) -> int:
        """Change a job that lives on, maybe to be of another group; return when it may run."""
        due = self._change(changes, job, due)
        if any(change.names_a_group for change in changes):
            self._join(job, now)
        return due

    def _change(self, changes: Sequence[Change], job: Job, due: int) -> int:
        for change in changes:
            if change.how.data:
                job.payload = change.given.payload
            job.priority, job.options = change.said_after(job.priority, job.options)
            if change.begins_anew:
                job.failures, job.lapses, job.error, job.raised = 0, 0, None, None
            due = change.due_after(due)
        if not ms(job.options, "result_for"):
            job.result = None
        return due

    # ------------------------------------------------------------------- waiting

    def _put(
        self, job: Job, due: int, now: int, *, behind: bool = False, enters: int | None = None
    ) -> None:
        """Let a job wait: for its time, at the place that it has or behind its equals.

        One that is added for a time that is past is delayed too: the next lease promotes by time.
        """
        if enters is not None or due > now:
            job.state, job.when = "delayed", due if enters is None else enters
        else:
            job.state = "parked" if job.owner else "ready"
        # A part goes by its number in the request, until it waits for its time or goes behind.
        waits_anew = job.state == "delayed" and job.request and not job.moved
        if not job.place or waits_anew or (behind and job.state != "delayed"):
            job.place, job.moved = self._number(), True
        self._meet(job.owner)
        # Of what is parked it depends on who has a turn.
        self._wake_sleeper(due - now < 1000 and job.state != "parked")

    def _live_on(self, job: Job, due: int, now: int, *, behind: bool = False) -> None:
        """Let a job wait whose lease is over. Who ran what is changed now cannot complete it."""
        if job.successor:
            due = self._apply(job.successor, job, due, now)
            job.successor, job.token = [], None
        self._put(job, due, now, behind=behind)

    def _give_back(self, job: Job, due: int, now: int) -> None:
        self._live_on(job, due, now, behind=self.requeue == "back")

    # -------------------------------------------------------------------- ending

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
        """Any settle or lapse ends it as cancelled if it was while it was leased."""
        if not self.is_cancelled(job):
            return False
        self._end_as_cancelled(job, now)
        return True

    def is_cancelled(self, job: Job) -> bool:
        """Tell whether somebody cancelled it, or its request is to end.

        What has failed before and is with its failure handler is not a run of the request.
        """
        request = self.requests[job.request] if job.request else None
        return job.cancelled or bool(request and request.stopping and job.failed_at is None)

    def _end_as_cancelled(self, job: Job, now: int) -> None:
        self._end(job, "cancelled", None, now)
        self.tally["cancelled"] += 1

    def _end(self, job: Job, outcome: str, result: bytes | None, now: int) -> None:
        """Let a job be gone. Its successor takes the id, or its ending is remembered."""
        self._vacate(job, now)
        self._meet(job.owner)
        del self.jobs[job.id]
        result_for = ms(job.options, "result_for")
        remember_for = ms(job.options, "remember_for") if outcome == "completed" else 0
        if job.request:
            self._end_part(self.requests[job.request], job, outcome, result, now)
        elif job.successor:
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
                raised=job.raised if outcome == "failed" else None,
            )

    def _end_part(
        self, request: Request, job: Job, outcome: str, result: bytes | None, now: int
    ) -> None:
        """Remember how it ended, and its result, for as long as its request is known."""
        part = EndedPart({"completed": "done", "failed": "handled"}.get(outcome, outcome), now)
        if part.outcome == "done":
            part.result = job.result if result is None else result
        if part.outcome == "handled":
            part.error, part.raised = job.error, job.raised
        request.ended[job.number] = part

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

    # ------------------------------------------------------------------- failing

    def _fails_for_good(self, job: Job, error: str) -> bool:
        job.failures += 1
        job.error, job.raised = error or None, raised_with(error)
        limit = job.options.get("max_failures", 10)
        return limit is not None and job.failures > limit

    def _lapse(self, job: Job, error: str, due: int, now: int, most: bytes = b"") -> bool:
        """Count a run that did not answer; tell whether the job waits again."""
        self._vacate(job, now)
        if self._ends_as_cancelled(job, now):
            return False
        if job.failed_at is not None:
            wait = min(HANDLING * 2**job.handlings, MAX_HANDLING)
            self._handled_in_vain(job, due or after(now, wait), most, now)
            return False
        job.lapses += 1
        job.error, job.raised = error, None
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
        request = self.requests[job.request] if job.request else None
        if request and job.failed_at is None:
            self._fail_fast(request, job)
        self._vacate(job, now)
        job.failed_at = now if job.failed_at is None else job.failed_at
        job.state, job.when, job.token = "failed", when, None
        self.tally["failed"] += 1
        if job.successor:
            id, successor = job.id, job.successor
            job.id, job.successor = self._name_to_file_under(id), []
            self.jobs[job.id] = self.jobs.pop(id)
            self._create(id, successor, now)

    def _fail_fast(self, request: Request, job: Job) -> None:
        over = request.stopping or request.outcome
        if request.opening.fail_fast and not over:
            request.stopping, request.sealed = "failed", True
            request.reason = f"{job.id} failed: {job.error or ''}"

    def _name_to_file_under(self, id: str) -> str:
        name = filed_id(id, self._number())
        taken = name in self.jobs or name in self.endings
        return self._name_to_file_under(id) if taken else name

    def _handled_in_vain(self, job: Job, when: int, most: bytes, now: int) -> None:
        job.handlings += 1
        if most:
            job.most_handlings = -1 if most == b"-" else int(most)
        limit = MAX_HANDLINGS if job.most_handlings is None else job.most_handlings
        spent = 0 <= limit < job.handlings
        self._fail(job, SPENT + (job.failed_at or 0) if spent else when, now)

    def _revive(self, job: Job, now: int) -> bool:
        request = self.requests[job.request] if job.request else None
        if request and request.stopping:
            return False
        if request and request.outcome:
            request.outcome, request.reason, request.ended_at = None, None, None
            request.term = NEVER
        self._forget_failures(job)
        self._put(job, 0, now, behind=True)
        self.tally["revived"] += 1
        return True

    def _forget_failures(self, job: Job) -> None:
        job.failures, job.lapses, job.error, job.raised = 0, 0, None, None
        job.failed_at, job.handlings, job.most_handlings, job.place = None, 0, None, 0

    def _failed_before(self, moment: int) -> list[Job]:
        """Return what failed before this moment and does not wait for its failure handler."""
        return [
            job for job in self.in_order("failed")
            if (job.when if job.when < SPENT else job.when - SPENT) < moment
        ]  # fmt: skip

    # --------------------------------------------------------------- maintaining

    def _maintain(self, now: int, force: bool = False) -> tuple[int, int, int]:
        """Promote what is due, take back what lapsed, forget the endings whose time has come."""
        due = sorted(self.due("delayed", now), key=lambda job: (job.when, job.place))
        for job in due:
            self._put(job, 0, now, behind=True)
        lapsed = [
            job for job in self.in_order("leased") if self.may_be_reclaimed(job.when, now, force)
        ]
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
        lapses = (
            lapse if self.may_be_reclaimed(lapse, now) else max(lapse, patient_until)
            for lapse in self.times("leased").values()
        )
        return max(0, min([now + 1000, *due, *lapses]) - now)

    # ---------------------------------------------------------- looking for jobs

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
