"""What users are shown: the status of requests, and why a job is not running. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from holdfast.engine.replies import ENDINGS, Shown
from holdfast.engine.request_calls import Found
from holdfast.job import Facts, Job, WorkerInfo, result_json

RequestState: TypeAlias = Literal["open", "sealed", "stopping", "completed", "failed", "cancelled"]
PartState: TypeAlias = Literal["waiting", "running", "done", "failed", "cancelled"]

_STATES: Final[Mapping[str, PartState]] = {
    "l": "running",
    "f": "failed",
    "d": "waiting",
    "p": "waiting",
    "r": "waiting",
}


class RequestStatus(Struct, frozen=True, repr_omit_defaults=True):
    """The progress of a request at one moment. Times are in seconds since the epoch."""

    id: str
    state: RequestState
    """open: parts may be added. sealed: no more parts will be added. stopping: cancelled or failed,
    and waiting for running parts. completed, failed, cancelled: it has ended."""
    total: int = 0
    """Parts added so far."""
    done: int = 0
    failed: int = 0
    """Parts that failed, whether or not a failure handler dealt with them."""
    cancelled: int = 0
    running: int = 0
    parked: int = 0
    """Parts that wait for the request's turn or its limit."""
    delayed: int = 0
    """Parts that wait for their time, after a failure or because they were added with a delay."""
    priority: int = 50
    limit: int | None = None
    """How many parts may run at a time; 0 while it is paused, None for no limit."""
    sealed: bool = False
    reason: str | None = None
    """Why the request failed."""
    endings: int = 0
    """How often it has ended: reviving a part opens it again."""
    opened_at: float = 0
    first_at: float | None = None
    """When the first part was leased."""
    last_at: float | None = None
    """When the last run of a part ended."""
    ended_at: float | None = None
    asked_at: float = 0

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.state in ("completed", "failed", "cancelled")

    @property
    def settled(self) -> int:
        """Parts that will not run again."""
        return self.done + self.failed + self.cancelled

    @property
    def rate(self) -> float | None:
        """Parts done per second since the first was leased; None before one is done."""
        if self.first_at is None or not self.done:
            return None
        until = self.ended_at or self.asked_at
        return self.done / (until - self.first_at) if until > self.first_at else None

    @property
    def ends_at(self) -> float | None:
        """When it ended, or will end at the current rate; None while that is unknown."""
        if self.ended:
            return self.ended_at
        rate = self.rate
        if rate is None or not self.sealed:
            return None
        return self.asked_at + (self.total - self.settled) / rate


class GroupStatus(Struct, frozen=True):
    """A group that has jobs."""

    name: str
    limit: int | None
    jobs: int
    running: int
    parked: int


class Part(Struct, frozen=True, repr_omit_defaults=True):
    """One part of a request, with its state and result."""

    number: int
    id: str
    state: PartState
    result: bytes | None = None
    error: str | None = None
    """Why its last run ended badly."""

    def json(self) -> Any:
        """Decode the result as JSON. Raises `CodecError` if no result is kept: see `Outcome`."""
        return result_json(self.id, self.state, self.result, self.error)


def status_of(found: Found) -> RequestStatus:
    """Return the status of a request."""
    record = found.record
    failed = record.failed + record.handled
    settled = record.done + failed + record.cancelled
    state = ENDINGS[record.outcome] or ("stopping" if record.stopping else "")
    return RequestStatus(
        id=found.name,
        state=cast("RequestState", state or ("sealed" if record.sealed else "open")),
        total=record.total,
        done=record.done,
        failed=failed,
        cancelled=record.cancelled,
        running=record.running,
        parked=record.parked,
        delayed=max(0, record.total - settled - record.running - record.parked),
        priority=record.priority,
        limit=None if record.limit < 0 else record.limit,
        sealed=bool(record.sealed),
        reason=record.reason or None,
        endings=record.endings,
        opened_at=record.opened_at / 1000,
        first_at=_seconds(record.first_at),
        last_at=_seconds(record.last_at),
        ended_at=_seconds(record.ended_at),
        asked_at=found.now / 1000,
    )


def group_of(found: Found) -> GroupStatus:
    """Return the status of a group."""
    record = found.record
    limit = None if record.limit < 0 else record.limit
    return GroupStatus(found.name, limit, record.total, record.running, record.parked)


def part_of(request: str, number: int, letter: str, facts: Facts, result: bytes | None) -> Part:
    """Return the state and result of a part."""
    state: PartState
    if letter:
        state = _STATES[letter]
    elif facts.outcome == "cancelled":
        state = "cancelled"
    else:
        state = "failed" if facts.outcome else "done"
    return Part(number, f"{request}/{number}", state, result, facts.error)


def _seconds(ms: int) -> float | None:
    return ms / 1000 if ms else None


# ------------------------------------------------------------------- one job, in words


_WAITING = ("ready", "delayed", "parked")


def needs_workers(shown: Shown | None) -> bool:
    """Return whether the explanation of a job needs the directory of workers."""
    return shown is not None and shown.job.state in (*_WAITING, "leased")


def _may_be_late(job: Job) -> bool:
    """Return whether a job has a timeout, which a thread would not enforce."""
    runs = job.state == "leased" and job.facts.failed_at is None
    return bool(job.facts.timeout_ms) and (runs or job.state in _WAITING)


def of_a_request(id: str) -> str:
    """Return the explanation of an id that belongs to a request, not to a job."""
    return (
        "no job has this id, but a request has: `holdfast request show` tells how far it is. Its "
        f"parts are the jobs {id}/0, {id}/1 and so on"
    )


def explain(shown: Shown | None, workers: Iterable[WorkerInfo] = ()) -> str:
    """Return why a job is not running, or that it is. `workers` shows who has its handler."""
    if shown is None:
        return "no job has this id: it was never added, or it ended and was not to be remembered"
    job, known = shown.job, list(workers)
    said = [_state(shown, job, known)]
    if shown.paused and job.state in _WAITING:
        said.append("the queue is paused")
    if job.state in _WAITING:
        said += _nobody_takes(job.facts.handler, known)
    if _may_be_late(job):
        said += _only_threads(job, known)
    if job.facts.cancelled or _is_stopped(shown, job):
        said.append("it was cancelled and ends when its holder settles it or the lease lapses")
    if job.successor:
        said.append("an update waits for the lease to end")
    if job.state != "failed" and (job.failures or job.lapses):
        said.append(
            f"{_times(job.failures, 'failure')} and {_times(job.lapses, 'lapse')} so far, "
            f"the last: {job.error}"
        )
    return "; ".join(said)


def _nobody_takes(handler: str | None, workers: list[WorkerInfo]) -> Iterator[str]:
    """Explain if workers are registered but none of them can run the job."""
    alive = [worker for worker in workers if worker.alive]
    if workers and not alive:
        yield "no worker is alive"
    elif alive and all(_takes(worker, handler) is False for worker in alive):
        if handler is None:
            yield "no live worker runs jobs that name no handler"
        else:
            yield f"no live worker has a handler {handler!r}"


def _takes(worker: WorkerInfo, handler: str | None) -> bool | None:
    """Return whether a worker runs jobs with this handler; None if its entry does not say."""
    if handler is None:
        unnamed = worker.about.get("unnamed")
        return unnamed if isinstance(unnamed, bool) else None
    names = worker.about.get("handlers")
    return handler in names if isinstance(names, list) else None


def _only_threads(job: Job, workers: list[WorkerInfo]) -> Iterator[str]:
    """Explain if all workers that run a job with a timeout would run it in a thread."""
    handler = job.facts.handler
    takers = [one for one in workers if one.alive and _takes(one, handler)]
    if takers and all(_in_thread(worker, handler) for worker in takers):
        yield (
            f"its timeout of {(job.facts.timeout_ms or 0) / 1000:g} s ends no run: live workers "
            "only run it in threads, where only job.cancelled shows that the time is up"
        )


def _in_thread(worker: WorkerInfo, handler: str | None) -> bool:
    coroutines = worker.about.get("coroutines", [])
    if worker.about.get("executor") != "thread" or not isinstance(coroutines, list):
        return False
    return handler not in coroutines


def _is_stopped(shown: Shown, job: Job) -> bool:
    """Return whether this is a running part of a request that is being stopped."""
    stopping = shown.record is not None and shown.record.stopping > 0
    return stopping and job.state == "leased" and job.facts.failed_at is None


def _state(shown: Shown, job: Job, workers: list[WorkerInfo]) -> str:
    match job.state:
        case "ready":
            before = f"behind {_times(job.behind or 0, 'job')}" if job.behind else "the next to run"
            return f"ready, {before} (priority {job.priority})"
        case "delayed" if job.at is not None and job.at <= shown.now:
            return f"due since {_clock(job.at)}: the next lease makes it ready"
        case "delayed":
            return f"delayed until {_clock(job.at)}, {_left(job.at, shown.now)} from now"
        case "leased":
            since = f" since {_clock(job.leased_at)}" if job.leased_at else ""
            what = "its failure is handled" if job.facts.failed_at is not None else "leased"
            ends = "never lapses" if job.at == math.inf else f"lapses in {_left(job.at, shown.now)}"
            by = worker_of(job.token, workers)
            of = f"by {by} under {job.token}" if by else f"under {job.token}"
            return f"{what} {of}{since}, the lease {ends}"
        case "failed":
            again = "" if job.at != math.inf else ", and no failure handler gets it again"
            return (
                f"failed after {_times(job.failures, 'failure')} and "
                f"{_times(job.lapses, 'lapse')}{again}: {job.error}. Revive or cancel it"
            )
        case "ended":
            until = "as long as its request" if shown.record else f"until {_clock(job.at)}"
            return f"{job.facts.outcome or 'completed'}, remembered {until}"
        case _:
            return _parked(shown, job, workers)


def _parked(shown: Shown, job: Job, workers: list[WorkerInfo]) -> str:
    """Explain what a part, or a job of a group, waits for."""
    record, facts = shown.record, job.facts
    kind = "request" if facts.request else "group"
    said = [f"waits in {kind} {facts.request or facts.group}"]
    if job.behind:
        said.append(f"behind {_times(job.behind, 'part' if facts.request else 'job')}")
    if record and record.stopping:
        said.append(f"its {kind} is being stopped")
    elif record and record.limit == 0:
        said.append(f"its {kind} is paused: the limit is 0")
    elif record and 0 <= record.limit <= record.running:
        holders = Counter(worker_of(token, workers) or token for token in shown.holders)
        names = [name if n == 1 else f"{name} ({n})" for name, n in holders.items()]
        held = f" held by {', '.join(names)}" if names else ""
        said.append(f"limit full: {record.running} of {record.limit}{held}")
    elif not job.behind:
        said.append(f"the next of its {kind}")
    return ", ".join(said)


def _times(count: int | None, what: str) -> str:
    count = count or 0
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def worker_of(token: str | None, workers: Iterable[WorkerInfo]) -> str | None:
    """Return the `host:pid` of the worker that holds a lease; None if it is not registered."""
    holder = (token or "").rpartition(".")[0]
    return next((worker.name for worker in workers if worker.holder == holder), None)


def in_words(seconds: float) -> str:
    """Return a duration in words: 1 h 30 min."""
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    if seconds == math.inf:
        return "for ever"
    parts, left = [], round(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def _left(at: float | None, now: float) -> str:
    return in_words(max(0.0, (at or 0) - now))


def _clock(at: float | None) -> str:
    if at is None or at == math.inf:
        return "for ever"
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        return "for ever"
