"""What the engine should answer: every question one may ask of a queue."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.job import Update
from model.hearing import CALLER_IS_KEPT
from model.jobs import SPENT, Jobs
from model.values import Change, Failure, Given, Granted, Refusal, Settle, after, ms, payload_of

HELD_TOO_LONG = "held for too long"
WORKER_FAILED = "its worker failed"


class Model(Jobs):
    """One queue. A question comes with the time, last."""

    # ----------------------------------------------------------------------- add

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

    # --------------------------------------------------------------------- lease

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

    # -------------------------------------------------------------------- settle

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

    # ---------------------------------------------------------------------- jobs

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

    # -------------------------------------------------------------------- manage

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
