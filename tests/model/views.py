"""What can be seen of the model, in the shape in which the engine shows it."""

from __future__ import annotations

from typing import Any

from model.model import CALLER_IS_KEPT, SILENCE, Granted, Model, ms

DEFAULTS = {
    "priority": 50, "max_lapses": 3, "result_for_ms": 0, "remember_for_ms": 0, "keep": False,
    "lapses": 0,
}  # fmt: skip


def view(model: Model) -> dict[str, Any]:
    """Return everything that a queue holds."""
    facts = {id: facts_of(model, id) for id in (*model.jobs, *model.endings)}
    payloads = {id: job.payload for id, job in (model.endings | model.jobs).items()}
    seen: dict[str, Any] = {
        "ready": [(job.id, job.priority) for job in model.ready()],
        "delayed": model.times("delayed"),
        "leased": model.times("leased"),
        "failed": model.times("failed"),
        "ended": {id: ending.forget_at for id, ending in model.endings.items()},
        "payloads": {id: data for id, data in payloads.items() if data is not None},
        "tokens": {id: job.token for id, job in model.jobs.items() if job.token is not None},
        "facts": {id: known for id, known in facts.items() if known},
        "results": {id: end.result for id, end in model.endings.items() if end.result is not None},
        "tally": dict(+model.tally),
        "seen": model.seen,
        "patience": model.patience,
        "callers": set(model.answers),
        "wake": model.wake,
        "problems": [],
    }
    states = ("ready", "delayed", "leased", "failed", "ended")
    seen["counts"] = {state: len(seen[state]) for state in states}
    seen["counts"] |= {"parked": 0, "paused": model.paused}
    return seen


def answer(model: Model, remembered: Any) -> Any:
    """Return an answer as it goes out: leases as far as they still are the caller's."""
    if not isinstance(remembered, Granted):
        return remembered
    held = model.held([(id, remembered.token, None) for id in remembered.ids])
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
            "outcome": "completed",
            "ended_at": ending.ended_at,
            "keep": ending.payload is not None,
            "taken_until": ending.taken_until,
        }
        return {name: fact for name, fact in facts.items() if fact}
    job = model.jobs[id]
    limit = job.options.get("max_lapses", 3)
    facts = {
        "priority": job.priority if job.state in ("delayed", "failed") else 50,
        "max_lapses": -1 if limit is None else limit,
        "result_for_ms": ms(job.options, "result_for"),
        "remember_for_ms": ms(job.options, "remember_for"),
        "keep": job.options.get("keep", False),
        "lapses": job.lapses,
        "error": job.error,
        "failed_at": job.when if job.state == "failed" else None,
    }
    return {name: fact for name, fact in facts.items() if fact != DEFAULTS.get(name)}


def moments(model: Model) -> dict[str, set[int]]:
    """Return when something changes by itself."""
    endings = model.endings.values()
    return {
        "due": set(model.times("delayed").values()),
        "lapse": set(model.times("leased").values()),
        "free": {ending.taken_until for ending in endings},
        "forget": {ending.forget_at for ending in endings},
        "second": set() if model.seen is None else {model.seen + 1000},
        "silence": set() if model.seen is None else {model.seen + SILENCE},
        "patience": {model.patience},
        "caller": {asked_at + CALLER_IS_KEPT for _, asked_at, _ in model.answers.values()},
    }
