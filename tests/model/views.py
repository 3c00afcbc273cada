"""What can be seen of the model, in the shape in which the engine shows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.engine.replies import ENDINGS, Record, Shown
from holdfast.engine.request_calls import Found, PartsFound
from holdfast.job import EndedFacts, Facts, State, Update
from holdfast.job import Job as ShownJob
from model.closing import MOST_PER_CALL
from model.engine import RANKS
from model.hearing import CALLER_IS_KEPT, SILENCE
from model.jobs import MAX_HANDLINGS, SPENT
from model.model import Model
from model.values import (
    NEVER,
    Change,
    EndedPart,
    Ending,
    Given,
    Granted,
    Job,
    Request,
    ms,
    part_of,
    payload_of,
)

STATES: tuple[State, ...] = ("ready", "delayed", "leased", "failed", "ended", "parked")
DEFAULTS = {
    "priority": 50, "max_failures": 10, "max_lapses": 3, "result_for_ms": 0,
    "remember_for_ms": 0, "keep": False, "failures": 0, "lapses": 0, "handlings": 0,
    "cancelled": False, "max_handlings": 100,
}  # fmt: skip


def view(model: Model, now: int) -> dict[str, Any]:
    """Return everything that a queue holds."""
    known: dict[str, Job | Ending] = {**model.endings, **model.jobs}
    facts = {id: facts_of(model, id) for id in known}
    for id, job in model.jobs.items():
        if job.state == "delayed" and not job.owner:
            facts[id]["number"] = job.place  # which its score cannot tell
    facts |= {id: _facts_of_ended_part(id, part) for id, part in ended_parts(model).items()}
    seen: dict[str, Any] = {
        "ready": [(job.id, job.priority) for job in model.ready()],
        "delayed": model.times("delayed"),
        "leased": model.times("leased"),
        "failed": model.times("failed"),
        "ended": {id: ending.forget_at for id, ending in model.endings.items()},
        "parked": [(job.owner, job.id, job.priority) for job in model.in_order("parked")],
        "turns": [(owner.name, model.priority_of(owner), owner.turn) for owner in model.turns()],
        "terms": {name: request.term for name, request in model.requests.items()},
        "requests": {name: record(model, request) for name, request in model.requests.items()},
        "follow-ups": {
            name: _follow_up(request.opening.follow_up, request.opened_at)
            for name, request in model.requests.items()
            if request.opening.follow_up
        },
        "payloads": {id: job.payload for id, job in known.items() if job.payload is not None},
        "tokens": {id: job.token for id, job in model.jobs.items() if job.token is not None},
        "facts": {id: kept for id, kept in facts.items() if kept},
        "results": {id: job.result for id, job in known.items() if job.result is not None}
        | {id: part.result for id, part in ended_parts(model).items() if part.result is not None},
        "next": {id: _successor(job.successor) for id, job in model.jobs.items() if job.successor},
        "staging": model.times_of,
        "ledger": model.ledger,
        "staged": {field: chunk.raw for field, chunk in model.staged.items()},
        "claims": model.claims,
        "workers": {name: (until / 1000, until > now) for name, until in model.workers.items()},
        "sequence": model.numbers,
        "tally": dict(+model.tally),
        "ticks": model.ticks,
        "seen": model.seen,
        "patience": model.patience,
        "callers": set(model.answers),
        "found in time": True,
        "wake": model.wake,
        "problems": [],
    }
    seen["counts"] = {state: len(seen[state]) for state in STATES}
    seen["counts"]["paused"] = model.paused
    seen["counts"] |= {"staged": len(model.staged), "claims": len(model.claims)}
    return seen


def _successor(changes: Sequence[Change]) -> dict[str, Any]:
    """Return what updates make: of nothing, of a job due long ago, of one that is never due."""
    first, *others = changes
    priority, options = first.given.priority, first.given.options
    for change in others:
        priority, options = change.said_after(priority, options)
    limits = [change.how.limits for change in changes]
    is_whole = any(one is True for one in limits)
    named = {name for one in limits if not isinstance(one, bool) for name in one}
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
        "priority": priority,
        "options": _options(options) | _group_options(options),
        "limits": is_whole,
        "only": set() if is_whole else {f"{n}_ms" if n.endswith("_for") else n for n in named},
        "counts": any(change.begins_anew for change in changes),
    }


def _follow_up(given: Given, opened_at: int) -> dict[str, Any]:
    return _successor([Change(given, Update(), given.due(opened_at))])


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
            "raised": ending.raised,
        }
        return {name: fact for name, fact in facts.items() if fact}
    job = model.jobs[id]
    facts = {
        "priority": job.priority if _tells_priority(job) else 50,
        "failures": job.failures,
        "lapses": job.lapses,
        "error": job.error,
        "raised": job.raised,
        "cancelled": job.cancelled,
        "failed_at": job.failed_at,
        "handlings": job.handlings,
        "max_handlings": 100 if job.most_handlings in (None, MAX_HANDLINGS) else job.most_handlings,
        "request": job.request,
        "group": job.group,
    }
    return _options(job.options) | _differing(facts)


def _tells_priority(job: Job) -> bool:
    """Tell whether the priority is to be kept beside the job, as no score tells it."""
    return bool(job.state == "delayed" or job.failed_at is not None or job.owner)


def _options(options: Any) -> dict[str, Any]:
    limits = {name: options.get(name, DEFAULTS[name]) for name in ("max_failures", "max_lapses")}
    return _differing(
        {name: -1 if limit is None else limit for name, limit in limits.items()}
        | {f"{name}_ms": ms(options, name) for name in ("result_for", "remember_for")}
        | {"keep": options.get("keep", False)}
    )


def _group_options(options: Any) -> dict[str, Any]:
    said = {name: options[name] for name in ("group", "group_limit") if name in options}
    return {name: -1 if value is None else value for name, value in said.items()}


def _differing(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if fact != DEFAULTS.get(name)}


def listed(model: Model, state: State) -> list[ShownJob]:
    """Return the jobs of a state, as `peek` lists them."""
    if state == "ended":
        endings = sorted((end.forget_at, id.encode()) for id, end in model.endings.items())
        return [_shown(model, id.decode()) for _, id in endings]
    return [_shown(model, job.id) for job in model.in_order(state)[:MOST_PER_CALL]]


def shown(model: Model, id: str, now: int) -> Shown | None:
    """Return what `show` tells about an id: the job, its result, and who is before it."""
    seen = _shown_with_result(model, id)
    if seen is None:
        return None
    job = model.jobs.get(id)
    part = part_of(id)
    owner = job.owner if job else part and id in _known_parts(model) and part[0]
    holders = model.in_order("leased") if job and job.state == "parked" else []
    return Shown(
        *seen,
        model.paused,
        now / 1000,
        _record(model, owner) if owner else None,
        [other.token or "" for other in holders if other.owner == owner][:10],
    )


def _shown_with_result(model: Model, id: str) -> tuple[ShownJob, bytes | None] | None:
    if part := _known_parts(model).get(id):
        facts, term = _facts_of_ended_part(id, part), model.requests[id.rpartition("/")[0]].term
        return ShownJob(id, "ended", None, None, _seconds(term), EndedFacts(**facts)), part.result
    if id not in model.jobs and id not in model.endings:
        return None
    owner = model.jobs[id].owner if id in model.jobs else None
    before = model.waiting(owner) if owner else model.ready()
    job, places = _shown(model, id), [job.id for job in before]
    if id in model.endings:
        return job, model.endings[id].result
    job = msgspec.structs.replace(
        job,
        behind=places.index(id) if id in places else None,
        successor=bool(model.jobs[id].successor),
    )
    return job, model.jobs[id].result


def _shown(model: Model, id: str) -> ShownJob:
    if id in model.endings:
        ending, kept = model.endings[id], EndedFacts(**facts_of(model, id))
        return ShownJob(id, "ended", ending.payload, None, _seconds(ending.forget_at), kept)
    job, facts = model.jobs[id], Facts(**facts_of(model, id))
    state = next(state for state in STATES if state == job.state)
    at = None if state in ("ready", "parked") else _seconds(job.when)
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
        "term": {request.term for request in model.requests.values()},
        "entry": set(model.times_of.values()),
        "caller": {asked_at + CALLER_IS_KEPT for _, asked_at, _ in model.answers.values()},
        "worker": {until + CALLER_IS_KEPT for until in model.workers.values()},
    }


# ------------------------------------------------------------------------- requests


def record(model: Model, request: Request) -> dict[str, Any]:
    """Return what is kept about a request or group."""
    results = [job.result for job in model.jobs.values() if job.request == request.name]
    results += [part.result for part in request.ended.values()]
    opening = request.opening
    return {
        "priority": request.priority,
        "limit": -1 if request.limit is None else request.limit,
        "fail_fast": int(opening.fail_fast),
        "keep_for_ms": opening.keep_for,
        "group": int(request.is_group),
        "total": model.total(request),
        "parked": len(model.waiting(request.name)),
        "running": len(model.fellows(request.name, "leased")),
        "failed": len(model.fellows(request.name, "failed")),
        "done": request.ended_as("done"),
        "handled": request.ended_as("handled"),
        "cancelled": request.ended_as("cancelled"),
        "results": sum(result is not None for result in results),
        "sealed": int(request.sealed),
        "stopping": ENDINGS.index(request.stopping or ""),
        "outcome": ENDINGS.index(request.outcome or ""),
        "turn": _turn(model, request),
        "reason": request.reason or "",
        "endings": request.endings,
        "opened_at": request.opened_at,
        "first_at": request.first_at or 0,
        "last_at": request.last_at or 0,
        "ended_at": request.ended_at or 0,
        "walked": request.walked,
        "forgotten": sum(not part.kept for part in request.ended.values() if part.is_told),
    }


def _turn(model: Model, request: Request) -> int:
    """Return its rank among those who have a turn, 0 where it has none."""
    if request not in model.turns():
        return 0
    return (99 - model.priority_of(request)) * RANKS + (request.turn or 0)


def _record(model: Model, name: str) -> Record:
    return Record(**record(model, model.requests[name]))


def found(model: Model, name: str, now: int) -> list[Found]:
    """Return what is told about a request or group."""
    if name not in model.requests:
        return []
    return [Found(name, _record(model, name), now, model.requests[name].term)]


def parts(model: Model, name: str) -> PartsFound:
    """Return what became of each part of a request."""
    request = model.requests.get(name)
    if request is None or request.is_group:
        return PartsFound(-1, [])
    ended = ended_parts(model)
    found: list[tuple[str, Facts, bytes | None]] = []
    for id in (f"{name}/{number}" for number in range(min(request.total, MOST_PER_CALL))):
        if id in ended:
            found.append(("", Facts(**_facts_of_ended_part(id, ended[id])), ended[id].result))
        else:
            job = model.jobs[id]
            found.append((job.state[0], Facts(**facts_of(model, id)), job.result))
    return PartsFound(request.total, found)


def ended_parts(model: Model) -> dict[str, EndedPart]:
    return {
        f"{name}/{number}": part
        for name, request in model.requests.items()
        for number, part in request.ended.items()
    }


def _known_parts(model: Model) -> dict[str, EndedPart]:
    """Return those of which it is told how they ended."""
    return {id: part for id, part in ended_parts(model).items() if part.kept}


def _facts_of_ended_part(id: str, part: EndedPart) -> dict[str, Any]:
    """Return how it ended, if not well; also what went wrong where it failed."""
    if not part.is_told or not part.kept:
        return {}
    outcome = {"handled": "failed"}.get(part.outcome, part.outcome)
    request = id.rpartition("/")[0]
    facts = {
        "request": request,
        "outcome": outcome,
        "error": part.error,
        "raised": part.raised,
        "ended_at": part.ended_at,
    }
    return {name: fact for name, fact in facts.items() if fact}
