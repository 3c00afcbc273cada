"""What Holdfast must reach beside its peers, and whether it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench import results as r
from bench.peers.contenders import PEERS, Contender
from bench.results import Results
from bench.rounds import LEASE


@dataclass(frozen=True)
class Target:
    """One of ours beside the best of some others, in one condition."""

    row: str
    measure: str
    ours: str
    among: str
    """Who the others are, in words."""
    others: tuple[str, ...]
    factor: float
    condition: str = r.NEAR
    their_measure: str = ""
    """Where it is another than ours."""
    small: bool = False
    """Less is better."""
    why: str = ""
    """Where it may be missed: the measured reason, and what was tried."""


@dataclass(frozen=True)
class Verdict:
    row: str
    ours: float | None
    beside: str
    theirs: float | None
    ratio: float | None
    target: str
    reached: bool | None
    """None: was not measured."""
    measure: str
    why: str = ""


def _names(wanted: Callable[[Contender], bool]) -> tuple[str, ...]:
    return tuple(peer.name for peer in PEERS if wanted(peer))


PYTHON = _names(lambda peer: peer.is_python_peer)
ASYNC = _names(lambda peer: peer.asynchronous)
ALL = _names(lambda _peer: True)
NODE = ("BullMQ (Node)",)

BESIDE_THE_FLOOR = (
    "the floor moves a job with three commands and keeps nothing but its payload. A life here "
    "keeps nine structures in step (payload, facts, rank, lease, holder, counters, a remembered "
    "id, an event, a wake). To complete a job and lease the next costs the server 36,000 "
    "instructions in calls of 250, 4.4 µs where nothing else runs, and the server is the limit: it "
    "is at the next call while the worker reads the last. Tried: scripts that carry only what they "
    "reach, one call for completing and leasing, two calls under way, fewer reads and fewer tables "
    "per call, jemalloc (a tenth to a fifth less)."
)
ONE_AT_A_TIME = (
    "one call completes the last job and leases the next: 445,000 instructions of the server, of "
    "which 50,000 take a call with the keys of a queue apart, 35,000 make the functions of the "
    "script, and 27 commands take 5,000 to 17,000 each. A script with those commands and nothing "
    "around them takes half the time, so no polish would reach the row: the commands keep the "
    "promises. A worker adds two switches between threads, since a handler runs apart from the "
    "loop that keeps its lease. It is what `concurrency=1, ahead=0` asks for; BullMQ, tuned, has a "
    "hundred such calls under way at a time. By default short jobs are leased ahead, and several "
    "are settled in one call."
)
FIRST_WAKE = (
    "a wake is heard in the time of a blocking pop, and then one more trip leases the job. In one "
    "run: heard 0.41 ms after the add began, 0.17 until the call was out, 0.18 until it was "
    "answered, 0.12 until the handler's thread began. Peers that are as fast pop the job itself, "
    "and the best of them begins it in the thread that popped. A pop and a lease in one write, as "
    "`queue.lease(wait=…)` does, would save a trip, but would hold a place for a job that may "
    "never come."
)
WITH_LIMITS = (
    "a part changes its request when it is leased and when it ends, is taken by turns, and names "
    "its request in its facts: 49,000 instructions of the server against 36,000."
)

TARGETS = (
    Target("drain, threads", r.DRAIN, "Holdfast, threads", "best Python peer", PYTHON, 8),
    Target("drain, threads", r.DRAIN, "Holdfast, threads", "BullMQ (Node)", NODE, 3),
    Target(
        "drain, coroutines", r.DRAIN, "Holdfast, coroutines", "best async Python peer", ASYNC, 8
    ),
    Target(
        "drain, batch handler",
        r.DRAIN,
        "Holdfast, batch",
        "floor",
        ("floor, redis-py",),
        0.45,
        why=BESIDE_THE_FLOOR,
    ),
    Target(
        "drain, batch handler",
        r.DRAIN,
        "Holdfast, batch",
        "floor",
        ("floor, own client",),
        0.45,
        why=BESIDE_THE_FLOOR,
    ),
    Target(
        "drain, batch handler",
        r.DRAIN,
        "Holdfast, batch",
        "BullMQ (Node)",
        NODE,
        8,
        why=BESIDE_THE_FLOOR,
    ),
    Target(
        "drain, 2 child processes beside 2 processes",
        r.DRAIN,
        "Holdfast, processes",
        "Dramatiq",
        ("Dramatiq",),
        2,
        their_measure=r.TWO,
    ),
    Target(
        "drain, 2 child processes beside 2 processes",
        r.DRAIN,
        "Holdfast, processes",
        "RQ, fork",
        ("RQ, fork",),
        50,
        their_measure=r.TWO,
    ),
    Target(
        "strictly one at a time",
        r.DRAIN,
        "Holdfast, single",
        "BullMQ (Node)",
        NODE,
        1,
        why=ONE_AT_A_TIME,
    ),
    Target("bulk add", r.BULK, "Holdfast, threads", "BullMQ (Node)", NODE, 6),
    Target(
        "add to handler, p50",
        r.LATENCY,
        "Holdfast, threads",
        "best peer",
        ALL,
        1.2,
        small=True,
        why=FIRST_WAKE,
    ),
    Target(
        "with request limits and priorities",
        r.DRAIN,
        "Holdfast, limited",
        "without",
        ("Holdfast, threads",),
        0.75,
        why=WITH_LIMITS,
    ),
    Target(
        "drain, threads, 2 ms away",
        r.DRAIN,
        "Holdfast, threads",
        "best Python peer",
        PYTHON,
        10,
        condition=r.FAR,
    ),
)


def judge(results: Results, target: Target) -> Verdict:
    """Compare medians. The best of the others is the one that is hardest to beat."""
    ours = results.median(target.condition, target.measure, target.ours)
    measure = target.their_measure or target.measure
    found = {name: results.median(target.condition, measure, name) for name in target.others}
    known = {name: value for name, value in found.items() if value}
    sign = "≤" if target.small else "≥"
    wanted = f"{sign} {target.factor:g} ×"
    if ours is None or not known:
        return Verdict(target.row, ours, target.among, None, None, wanted, None, target.measure)
    pick = min if target.small else max
    best = pick(known, key=lambda name: known[name])
    ratio = ours / known[best]
    reached = ratio <= target.factor if target.small else ratio >= target.factor
    beside = best if best == target.among or len(target.others) == 1 else f"{target.among}: {best}"
    return Verdict(
        target.row,
        ours,
        beside,
        known[best],
        ratio,
        wanted,
        reached,
        target.measure,
        "" if reached else target.why,
    )


def recovered(results: Results) -> Verdict:
    """Judge the time until the jobs of a killed worker begin anew: no peer is needed for that."""
    ours = results.median(r.NEAR, r.RECOVERY, "Holdfast, threads")
    reached = None if ours is None else ours <= LEASE + 1
    wanted = f"≤ {LEASE} s + 1 s"
    return Verdict(
        "recovery after kill -9", ours, "its lease", LEASE, None, wanted, reached, r.RECOVERY
    )


def judged(results: Results) -> list[Verdict]:
    return [*(judge(results, target) for target in TARGETS), recovered(results)]
