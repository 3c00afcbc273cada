"""Why a job is not running, in words. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from holdfast.job import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.engine.replies import Shown
    from holdfast.job import Job, WorkerInfo

_KINDS = ("completed", "cancelled", "failed")
_WAITING = ("ready", "delayed", "parked")


def outcome_of(shown: Shown) -> Outcome | None:
    """Return how a job ended; None while it has not."""
    job, facts = shown.job, shown.job.facts
    if job.state == "ended":
        kind = facts.outcome if facts.outcome in _KINDS else "completed"
        return Outcome(job.id, kind, shown.result, facts.error, (facts.ended_at or 0) / 1000)  # type: ignore[arg-type]
    if facts.failed_at is not None:
        return Outcome(job.id, "failed", shown.result, facts.error, facts.failed_at / 1000)
    return None


def needs_handler(shown: Shown | None) -> bool:
    """Tell whether a job waits for a worker that has the handler which it names."""
    return shown is not None and shown.job.state in _WAITING and shown.job.facts.handler is not None


def explain(shown: Shown | None, workers: Iterable[WorkerInfo] = ()) -> str:
    """Return why a job is not running, or that it is; `workers` are asked for its handler."""
    if shown is None:
        return "no job has this id: it was never added, or it ended and nothing was to be kept"
    job = shown.job
    said = [_state(shown, job)]
    if shown.paused and job.state in _WAITING:
        said.append("the queue is paused")
    if needs_handler(shown):
        said += _nobody_has(job.facts.handler, workers)
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


def _nobody_has(handler: str | None, workers: Iterable[WorkerInfo]) -> Iterator[str]:
    """Say so where workers are registered, and none of them can run it."""
    known = list(workers)
    told = [worker.about.get("handlers") for worker in known if worker.alive]
    if known and not told:
        yield "no worker is alive"
    elif told and all(isinstance(names, list) and handler not in names for names in told):
        yield f"no worker that is alive has a handler {handler!r}"


def _is_stopped(shown: Shown, job: Job) -> bool:
    """Return whether a part runs whose request is to end."""
    stopping = shown.record is not None and shown.record.stopping > 0
    return stopping and job.state == "leased" and job.facts.failed_at is None


def _state(shown: Shown, job: Job) -> str:
    match job.state:
        case "ready":
            before = f"behind {_times(job.behind or 0, 'job')}" if job.behind else "the next to run"
            return f"ready, {before} (priority {job.priority})"
        case "delayed":
            return f"delayed until {_clock(job.at)}, {_seconds(job.at, shown.now)} from now"
        case "leased":
            since = f" since {_clock(job.leased_at)}" if job.leased_at else ""
            what = "its failure is handled" if job.facts.failed_at is not None else "leased"
            lapses = _seconds(job.at, shown.now)
            return f"{what} under {job.token}{since}, the lease lapses in {lapses}"
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
            return _parked(shown, job)


def _parked(shown: Shown, job: Job) -> str:
    """Say what a part, or a job of a group, waits for."""
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
        held = f" held by {', '.join(shown.holders)}" if shown.holders else ""
        said.append(f"limit full: {record.running} of {record.limit}{held}")
    elif not job.behind:
        said.append(f"the next of its {kind}")
    return ", ".join(said)


def _times(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _seconds(at: float | None, now: float) -> str:
    return f"{max(0.0, (at or 0) - now):.1f} s"


def _clock(at: float | None) -> str:
    if at is None or at == math.inf:
        return "for ever"
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        return "for ever"
