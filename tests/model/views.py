"""What can be seen of the model, in the shape in which the engine shows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.job import Facts, State
from holdfast.job import Job as ShownJob
from model.hearing import CALLER_IS_KEPT, SILENCE
from model.jobs import SPENT
from model.model import Model
from model.values import NEVER, Change, Ending, Granted, Job, ms, payload_of

STATES: tuple[State, ...] = ("ready", "delayed", "leased", "failed", "ended")
DEFAULTS = {
    "priority": 50, "max_failures": 10, "max_lapses": 3, "result_for_ms": 0,
    "remember_for_ms": 0, "keep": False, "failures": 0, "lapses": 0, "handlings": 0,
    "cancelled": False,
}  # fmt: skip


def view(model: Model, now: int) -> dict[str, Any]:
    """Return everything that a queue holds."""
    known: dict[str, Job | Ending] = {**model.endings, **model.jobs}
    facts = {id: facts_of(model, id) for id in known}
    for id in model.times("delayed"):
        facts[id]["number"] = model.jobs[id].place  # which its score cannot tell
    seen: dict[str, Any] = {
        "ready": [(job.id, job.priority) for job in model.ready()],
        "delayed": model.times("delayed"),
        "leased": model.times("leased"),
        "failed": model.times("failed"),
        "ended": {id: ending.forget_at for id, ending in model.endings.items()},
        "payloads": {id: job.payload for id, job in known.items() if job.payload is not None},
        "tokens": {id: job.token for id, job in model.jobs.items() if job.token is not None},
        "facts": {id: kept for id, kept in facts.items() if kept},
        "results": {id: job.result for id, job in known.items() if job.result is not None},
        "next": {id: _successor(job.successor) for id, job in model.jobs.items() if job.successor},
        "workers": {name: (until / 1000, until > now) for name, until in model.workers.items()},
        "sequence": model.numbers,
        "tally": dict(+model.tally),
        "seen": model.seen,
        "patience": model.patience,
        "callers": set(model.answers),
        "wake": model.wake,
        "problems": [],
    }
    seen["counts"] = {state: len(seen[state]) for state in STATES}
    seen["counts"] |= {"parked": 0, "paused": model.paused}
    return seen


def _successor(changes: Sequence[Change]) -> dict[str, Any]:
    """Return what updates make: of nothing, of a job due long ago, of one that is never due."""
    first, *others = changes
    said = [first, *(change for change in others if change.how.limits)][-1].given
    soonest, latest, due = 0, NEVER, first.due
    for change in changes:
        soonest, latest = change.due_after(soonest), change.due_after(latest)
    for change in others:
        due = change.due_after(due)
    return {
        "payload": payload_of(changes),
        "data": any(change.how.data for change in changes),
        "due": due,
        "soonest": soonest,
        "latest": latest,
        "priority": said.priority,
        "options": _options(said.options),
        "limits": any(change.how.limits for change in changes),
        "counts": any(change.begins_anew for change in changes),
    }


def answer(model: Model, remembered: Any) -> Any:
    """Return an answer as it goes out: leases as far as they still are the caller's."""
    if not isinstance(remembered, Granted):
        return remembered
    held = model.held([(id, remembered.token) for id in remembered.ids])
    leases = [(job.id, job.payload, facts_of(model, job.id)) for job in held if job]
    return leases, remembered.completed, remembered.ask_again


def has_lost_leases(model: Model, caller: str) -> bool:
    """Tell whether the caller's last answer was leases that are not all its own any more."""
    _, _, granted = model.answers.get(caller, (0, 0, None))
    return isinstance(granted, Granted) and len(answer(model, granted)[0]) < len(granted.ids)


def facts_of(model: Model, id: str) -> dict[str, Any]:
    """Return what is kept beside the payload: only what differs from the defaults."""
    if id in model.endings:
        ending = model.endings[id]
        facts = {
            "outcome": ending.outcome,
            "ended_at": ending.ended_at,
            "keep": ending.payload is not None,
            "taken_until": ending.taken_until,
            "error": ending.error,
        }
        return {name: fact for name, fact in facts.items() if fact}
    job = model.jobs[id]
    facts = {
        "priority": job.priority if job.state == "delayed" or job.failed_at is not None else 50,
        "failures": job.failures,
        "lapses": job.lapses,
        "error": job.error,
        "cancelled": job.cancelled,
        "failed_at": job.failed_at,
        "handlings": job.handlings,
    }
    return _options(job.options) | _differing(facts)


def _options(options: Any) -> dict[str, Any]:
    limits = {name: options.get(name, DEFAULTS[name]) for name in ("max_failures", "max_lapses")}
    return _differing(
        {name: -1 if limit is None else limit for name, limit in limits.items()}
        | {f"{name}_ms": ms(options, name) for name in ("result_for", "remember_for")}
        | {"keep": options.get("keep", False)}
    )


def _differing(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if fact != DEFAULTS.get(name)}


def listed(model: Model, state: State) -> list[ShownJob]:
    """Return the jobs of a state, as `peek` lists them."""
    if state == "ready":
        return [_shown(model, job.id) for job in model.ready()]
    if state == "ended":
        endings = sorted((end.forget_at, id.encode()) for id, end in model.endings.items())
        return [_shown(model, id.decode()) for _, id in endings]
    return [_shown(model, job.id) for job in model.in_order(state)]


def shown(model: Model, id: str) -> tuple[ShownJob, bytes | None] | None:
    """Return what `show` tells about an id: the job and its result."""
    if id not in model.jobs and id not in model.endings:
        return None
    job, places = _shown(model, id), [job.id for job in model.ready()]
    if id in model.endings:
        return job, model.endings[id].result
    job = msgspec.structs.replace(
        job,
        behind=places.index(id) if id in places else None,
        successor=bool(model.jobs[id].successor),
    )
    return job, model.jobs[id].result


def _shown(model: Model, id: str) -> ShownJob:
    facts = Facts(**facts_of(model, id))
    if id in model.endings:
        ending = model.endings[id]
        return ShownJob(id, "ended", ending.payload, 50, _seconds(ending.forget_at), facts)
    job = model.jobs[id]
    state = next(state for state in STATES if state == job.state)
    at = None if state == "ready" else _seconds(job.when)
    leased_at = None if job.token is None else job.leased_at / 1000
    return ShownJob(id, state, job.payload, job.priority, at, facts, job.token, leased_at)


def _seconds(ms: int) -> float:
    return ms / 1000 if ms < SPENT else math.inf


def moments(model: Model) -> dict[str, set[int]]:
    """Return when something changes by itself."""
    endings = model.endings.values()
    return {
        "due": set(model.times("delayed").values()),
        "lapse": set(model.times("leased").values()),
        "handling": set(model.times("failed").values()),
        "free": {ending.taken_until for ending in endings},
        "forget": {ending.forget_at for ending in endings},
        "second": set() if model.seen is None else {model.seen + 1000},
        "silence": set() if model.seen is None else {model.seen + SILENCE},
        "patience": {model.patience},
        "caller": {asked_at + CALLER_IS_KEPT for _, asked_at, _ in model.answers.values()},
        "worker": {until + CALLER_IS_KEPT for until in model.workers.values()},
    }
