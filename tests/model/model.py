"""What the engine should answer: every question one may ask of a queue."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.job import Update
from model.booking import Booking
from model.closing import MOST_PER_CALL
from model.hearing import CALLER_IS_KEPT
from model.jobs import SPENT
from model.values import (
    NEVER,
    Change,
    Failure,
    Given,
    Granted,
    Job,
    Limit,
    Opening,
    Refusal,
    Request,
    Settle,
    after,
    ms,
    payload_of,
)

HELD_TOO_LONG = "held for too long"
WORKER_FAILED = "its worker failed"


class Model(Booking):
    """One queue. A question comes with the time, last."""

    # ----------------------------------------------------------------------- add

    def add(self, jobs: Sequence[Given], on_conflict: str, now: int) -> list[str]:
        self._check_groups(jobs)
        if on_conflict == "raise":
            ids = [job.id for job in jobs]
            for i, job in enumerate(jobs):
                taken = self._state_of_taken(job.id, now) and not self._is_open(job.id)
                if (taken or job.id in ids[:i]) and not job.fresh:
                    raise Refusal(f"EXISTS {i}")
        return [self._add(job, now) for job in jobs]

    def update(self, jobs: Sequence[Given], how: Update, now: int) -> list[str]:
        """Change jobs, or add them. Parts are what was asked for: they are not changed."""
        self._check_groups(jobs)
        for i, job in enumerate(jobs):
            if job.id in self.jobs and self._is_part(job.id):
                raise Refusal(f"PART {i}")
        return [self._update(Change(job, how, job.due(now)), now) for job in jobs]

    def tick(
        self, schedule: str, seen: int | None, tick: int, jobs: Sequence[Given], now: int
    ) -> tuple[int, int | None, list[str] | None]:
        """Make ticks for one who has seen the last."""
        last = self.ticks.get(schedule)
        if last != seen:
            if last is not None:
                self._hear_of(f"tick {schedule}", now, [])
            return now, last, None
        self._check_groups(jobs)
        self.ticks[schedule] = tick
        self._hear_of(f"tick {schedule}", now, [])
        return now, last, [self._add(job, now) for job in jobs]

    def _check_groups(self, jobs: Sequence[Given]) -> None:
        """Refuse jobs of a group whose name is that of a request."""
        for job in jobs:
            group = job.options.get("group")
            self._meet(group)
            if group in self.requests and not self.requests[group].is_group:
                raise Refusal("WRONG")

    # --------------------------------------------------------------------- lease

    def lease(
        self, token: str, ms: int, count: int, failed: bool, done: Sequence[Settle], now: int
    ) -> Granted:
        woken = self.wake
        completed = [self._complete_if_last(settle, now) for settle in done]
        self.wanted = count
        self._maintain(now)
        self._decide(now)
        until = after(now, ms)
        granted: list[Job] = []
        if not self.paused:
            give_out = self._give_out_failed if failed else self._give_out_best
            granted = give_out(count, token, until, now)
        self.tally["leased"] += len(granted)
        self._decide(now)
        if not failed:
            # Whoever asks takes what came up, so that others are woken only by what is left.
            self.wake = woken
            self._wake_sleeper(granted and self.best())
        ask_again = 0 if granted else 1000 if self.paused else self._worth_asking_in(now, failed)
        if not self.paused and (self.room <= 0 or self.unpublished):
            ask_again = 0  # There is more to be cleared away.
        return Granted(token, tuple(job.id for job in granted), completed, ask_again)

    def _give_out_failed(self, count: int, token: str, until: int, now: int) -> list[Job]:
        """A failure handler takes a place too: where none is free it has to wait a second."""
        granted: list[Job] = []
        for job in self.due("failed", now)[:count]:
            self._meet(job.owner)
            if job.owner and not self.has_free_place(self.requests[job.owner]):
                job.when = after(now, 1000)
            else:
                self._give_out(job, token, until, now)
                granted.append(job)
        return granted

    def extend(self, settles: Sequence[Settle], ms: int, now: int) -> list[str]:
        held = self.held(settles)
        for job in filter(None, held):
            job.when = after(now, ms)
        return [
            "lost" if not job else "cancelled" if self.is_cancelled(job) else "held" for job in held
        ]

    # -------------------------------------------------------------------- settle

    def complete(
        self, settles: Sequence[Settle], follow_ups: Sequence[Given], now: int
    ) -> tuple[list[bool], list[str]]:
        self._check_groups(follow_ups)
        completed = [self._complete_if_last(settle, now) for settle in settles]
        return completed, [self._add(job, now) for job in follow_ups if any(completed)]

    def complete_by_force(
        self, settles: Sequence[Settle], follow_ups: Sequence[Given], now: int
    ) -> tuple[list[bool], list[str]]:
        self._check_groups(follow_ups)
        # One that ends makes place for its successor, which is not meant.
        meant = {id: self.jobs[id] for id, _, _ in settles if id in self.jobs}
        for job in meant.values():
            self._meet(None if job.state == "leased" else job.owner)  # They are taken out first.
        completed = [
            id in meant and self._complete(meant.pop(id), result, now) for id, _, result in settles
        ]
        return completed, [self._add(job, now) for job in follow_ups if any(completed)]

    def retry(self, failures: Sequence[Failure], now: int) -> list[bool]:
        held = self.held(failures)
        for job, (_, _, wait, error, most) in zip(held, failures, strict=True):
            if not job or self._ends_as_cancelled(job, now):
                continue
            self._vacate(job, now)
            job.token = None
            if job.failed_at is not None:
                self._handled_in_vain(job, after(now, wait), most, now)
            elif self._fails_for_good(job, error):
                self._fail(job, now, now)
            else:
                self._live_on(job, after(now, wait), now, behind=True)
                self.tally["retried"] += 1
        return [job is not None for job in held]

    def fail(self, failures: Sequence[Failure], now: int) -> list[bool]:
        held = self.held(failures)
        for job, (_, _, _, error, _) in zip(held, failures, strict=True):
            if not job or self._ends_as_cancelled(job, now):
                continue
            if job.failed_at is not None:
                self._fail(job, SPENT + job.failed_at, now)
            else:
                self._fails_for_good(job, error)
                self._fail(job, now, now)
        return [job is not None for job in held]

    def release(
        self, settles: Sequence[Settle], wait: int | None, lapsed: str, most: bytes, now: int
    ) -> list[bool]:
        held = self.held(settles)
        due = after(now, wait) if wait else 0
        for job in filter(None, held):
            if lapsed:
                self.tally["released"] += self._lapse(job, lapsed, due, now, most)
            elif self._ends_as_cancelled(job, now):
                continue
            elif job.failed_at is not None:
                self._fail(job, max(due, now), now)
            else:
                self._vacate(job, now)
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
        states = ("leased", "delayed", "parked", "ready", "failed")
        for job in [job for state in states for job in self.in_order(state)]:
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
        elif not (self.jobs[id].request or ms(self.jobs[id].options, "result_for")):
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
            if not (job.token or "").startswith("claim:")
            and (not holder or (job.token or "").rpartition(".")[0] == holder)
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

    def tidy(self, force: bool, failed_for: int | None, now: int) -> tuple[int, ...]:
        moved = self._maintain(now, force)
        old = [] if failed_for is None else self._failed_before(now - failed_for)
        for job in old:
            self._end_as_cancelled(job, now)
        self._decide(now)
        return (
            *moved,
            len(old),
            MOST_PER_CALL - self.room,
            self.seen_to,
            int(self._oldest() is not None),
        )

    def repair(self, now: int) -> list[str]:
        """Nothing is broken, so nothing is done."""
        return []

    def pause(self, now: int) -> None:
        self.paused = True

    def resume(self, now: int) -> None:
        self.paused = False
        self._wake_sleeper(self.best())

    # ------------------------------------------------------------------ requests

    def open_request(self, name: str, opening: Opening, now: int) -> tuple[str, int]:
        """Open a request, or go on with one that is open."""
        self._check_groups([opening.follow_up] if opening.follow_up else [])
        self._meet(name)
        request = self.requests.get(name)
        expired = request and request.outcome and request.term <= now
        if request and expired and not self.fellows(name, "failed", "leased"):
            self._forget_request(request, now)
            if name in self.requests:
                return "being forgotten", request.total
            request = None
        if request is None:
            request = Request(name, now, opening, opening.priority, opening.limit)
            request.term = NEVER if opening.open_for is None else after(now, opening.open_for)
            self.requests[name] = request
            self.tally["opened"] += 1
            return "opened", 0
        how = _standing(request)
        if how == "open" and opening.open_for is not None:
            request.term = after(now, opening.open_for)
        return how, self.total(request)

    def add_parts(
        self, name: str, first: int | None, parts: Sequence[Given], now: int
    ) -> tuple[str, int, int]:
        """Add parts from a number on, or after the last; what is there already is passed over."""
        self._meet(name)
        request = self.requests.get(name)
        if request is None or _standing(request) != "open":
            total = self.total(request) if request else 0
            return _standing(request) if request else "no such request", total, total
        before = request.total
        first = before if first is None else first
        if first > before:
            raise Refusal(f"GAP {before}")
        new = [(n, part) for n, part in enumerate(parts, first) if n >= before]
        for n, _ in new:
            if f"{name}/{n}" in self.jobs or f"{name}/{n}" in self.endings:
                raise Refusal(f"TAKEN {n}")
        for n, part in new:
            job = Job(f"{name}/{n}", part.payload, part.priority, part.options)
            job.request, job.number, job.place = name, n, self._number()
            job.moved = part.enters(now) is not None
            self.jobs[job.id] = job
            request.total = n + 1
            self._put(job, part.due(now), now, enters=part.enters(now))
        self.tally["added"] += len(new)
        return "added", before, request.total

    def change_request(
        self, name: str, seal: bool, cancel: bool, limit: Limit, priority: int | None, group: bool,
        now: int,
    ) -> tuple[str, int]:  # fmt: skip
        """Seal or stop a request, or change its limit or its priority; or the limit of a group."""
        self._meet(name)
        request = self.requests.get(name)
        if request is None or (group and not request.is_group):
            return "no such request", 0
        if request.is_group and not group:
            return "a group", 0
        if request.outcome:
            return "ended", 0
        stopped_before = cancel and request.stopping
        if seal and not request.sealed:
            request.sealed, request.term = True, NEVER
            self.tally["sealed"] += 1
        if cancel and not request.stopping:
            request.stopping, request.sealed = "cancelled", True
            self.tally["cancelling"] += 1
        if limit != "as it is" or priority is not None:
            request.limit = request.limit if isinstance(limit, str) else limit
            request.priority = request.priority if priority is None else priority
            self.tally["changed"] += 1
        self._decide(now)
        stopping = self.fellows(name, "parked", "delayed") if request.stopping else []
        return "stopped before" if stopped_before else "changed", len(stopping)

    def recount(self, owners: Sequence[str], seen: object, now: int) -> bool:
        """Everything is counted right, so nothing changes; unless something has moved since."""
        if seen != self.stamp():
            return False
        for owner in owners:
            self._meet(owner)
        self.tally["changed"] += len(owners)
        return True

    def stamp(self) -> object:
        """Return what changes with the queue."""
        return self.numbers, dict(+self.tally)

    def total(self, request: Request) -> int:
        jobs = self.fellows(request.name, "parked", "delayed", "leased", "failed")
        return len(jobs) if request.is_group else request.total


def _standing(request: Request) -> str:
    if request.is_group:
        return "a group"
    return "ended" if request.outcome else "sealed" if request.sealed else "open"
