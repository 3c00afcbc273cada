"""What Holdfast must reach beside its peers, and whether it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench import record
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
class Ratio:
    """What another bench measures, and keeps as a ratio."""

    row: str
    beside: str
    factor: float
    command: str
    """Which bench that is; empty: none yet."""
    small: bool = True

    @property
    def wanted(self) -> str:
        return _wanted(self.factor, small=self.small)

    def reached(self, ratio: float) -> bool:
        return _reached(ratio, self.factor, small=self.small)


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
    command: str = ""
    """What measures it, if that is another bench."""


def _wanted(factor: float, *, small: bool) -> str:
    return f"{'≤' if small else '≥'} {factor:g} ×"


def _reached(ratio: float, factor: float, *, small: bool) -> bool:
    return ratio <= factor if small else ratio >= factor


def _names(wanted: Callable[[Contender], bool]) -> tuple[str, ...]:
    return tuple(peer.name for peer in PEERS if wanted(peer))


PYTHON = _names(lambda peer: peer.is_python_peer)
ASYNC = _names(lambda peer: peer.asynchronous)
ALL = _names(lambda _peer: True)
NODE = ("BullMQ (Node)",)
NODE_ONE = ("BullMQ (Node), one at a time",)
LEAN = ("floor of the design",)

ONE_AT_A_TIME = (
    "of 167 µs per job, 87 are the round trip, a lean script and the call of the handler, which is "
    "the floor of this design. The script for everything that a queue can do takes 19 more, the "
    "client 12, the control loop 20, and to hand the job to the handler's thread and back takes "
    "29: a handler runs apart from the loop that extends its lease. It is what `concurrency=1, "
    "ahead=0` asks for; by default short jobs are leased ahead, and one call settles several."
)
FIRST_WAKE = (
    "a wake is heard in the time of a blocking pop, and then one more trip leases the job. In one "
    "run: heard 0.41 ms after the add began, 0.17 until the call was out, 0.18 until it was "
    "answered, 0.12 until the handler's thread began. Peers that are as fast pop the job itself, "
    "and the best of them begins it in the thread that popped."
)
WITH_LIMITS = (
    "a part changes its request when it is leased and when it ends, is taken by turns, and names "
    "its request in its facts: 52,000 instructions of the server against 39,000."
)
ADD_FLOOR = (
    "SET and LPUSH cost the server 15,000 instructions, an `add` 246,000: it keeps the order, "
    "remembers its answer for a repeated call, publishes an event and wakes a worker."
)

TARGETS = (
    Target("drain, threads", r.DRAIN, "Holdfast, threads", "best Python peer", PYTHON, 22),
    Target("drain, threads", r.DRAIN, "Holdfast, threads", "BullMQ (Node)", NODE, 9),
    Target(
        "drain, coroutines", r.DRAIN, "Holdfast, coroutines", "best async Python peer", ASYNC, 20
    ),
    Target(
        "strictly one at a time",
        r.DRAIN,
        "Holdfast, single",
        "BullMQ (Node), one at a time",
        NODE_ONE,
        1.8,
        why=ONE_AT_A_TIME,
    ),
    Target(
        "strictly one at a time",
        r.DRAIN,
        "Holdfast, single",
        "floor of the design",
        LEAN,
        0.75,
        why=ONE_AT_A_TIME,
    ),
    Target(
        "add, one by one",
        r.ADD,
        "Holdfast, threads",
        "floor, redis-py",
        ("floor, redis-py",),
        1.1,
        why=ADD_FLOOR,
    ),
    Target(
        "add, one by one",
        r.ADD,
        "Holdfast, threads",
        "floor, own client",
        ("floor, own client",),
        0.8,
        why=ADD_FLOOR,
    ),
    Target(
        "add to handler, p50, concurrency 1",
        r.LATENCY,
        "Holdfast, single",
        "best peer",
        ALL,
        1.0,
        small=True,
        why=FIRST_WAKE,
    ),
    Target(
        "add to handler, p50, 16 threads",
        r.LATENCY,
        "Holdfast, threads",
        "best peer",
        ALL,
        1.1,
        small=True,
        why=FIRST_WAKE,
    ),
    Target(
        "drain, 2 child processes beside 2 processes",
        r.DRAIN,
        "Holdfast, processes",
        "Dramatiq",
        ("Dramatiq",),
        4,
        their_measure=r.TWO,
    ),
    Target("bulk add", r.BULK, "Holdfast, threads", "BullMQ (Node)", NODE, 9),
    Target(
        "with request limits and priorities",
        r.DRAIN,
        "Holdfast, limited",
        "without",
        ("Holdfast, threads",),
        0.9,
        why=WITH_LIMITS,
    ),
    Target(
        "drain, threads, 2 ms away",
        r.DRAIN,
        "Holdfast, threads",
        "best Python peer",
        PYTHON,
        20,
        condition=r.FAR,
    ),
)

BY_TURNS = "10,000 requests by turns, leased by 100"
WHOLE_FILES = Ratio("pipeline, whole files", "one plain Spark job", 1.1, "make bench-pipeline")
DIVIDED_FILES = Ratio("pipeline, divided files", "one plain Spark job", 1.15, "make bench-pipeline")
SPARK_SINK = Ratio("Spark sink", "Parquet files", 0.25, "make bench-spark", small=False)
SPARK_SOURCE = Ratio("Spark source", "Parquet files", 0.6, "make bench-spark", small=False)

RATIOS = (
    Ratio(BY_TURNS, "plain jobs", 2.5, "make bench-requests"),
    WHOLE_FILES,
    DIVIDED_FILES,
    Ratio("pipeline, 5,000 tiny files", "one plain Spark job", 1.5, ""),
    SPARK_SINK,
    SPARK_SOURCE,
    Ratio("metrics, traces, dashboard: jobs of 1 ms", "without", 0.95, "", small=False),
    Ratio("metrics: drain of no-op jobs", "without", 0.9, "", small=False),
)

MOST_BYTES = 260
"""Per waiting job of 100 bytes."""
MOST_INSTRUCTIONS = 55_000
"""Of the client, for an `add`."""


def judge(results: Results, target: Target) -> Verdict:
    """Compare medians. The best of the others is the one that is hardest to beat."""
    ours = results.median(target.condition, target.measure, target.ours)
    measure = target.their_measure or target.measure
    found = {name: results.median(target.condition, measure, name) for name in target.others}
    known = {name: value for name, value in found.items() if value}
    wanted = _wanted(target.factor, small=target.small)
    if ours is None or not known:
        return Verdict(target.row, ours, target.among, None, None, wanted, None, target.measure)
    pick = min if target.small else max
    best = pick(known, key=lambda name: known[name])
    ratio = ours / known[best]
    reached = _reached(ratio, target.factor, small=target.small)
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


def alone(row: str, ours: float | None, most: float, measure: str) -> Verdict:
    """Judge a figure that is beside nothing."""
    reached = None if ours is None else ours <= most
    return Verdict(row, ours, "", None, None, f"≤ {most:,.0f}", reached, measure)


def kept(results: Results, target: Ratio) -> Verdict:
    """Judge a ratio that another bench kept."""
    ratio = results.ratios.get(target.row)
    reached = None if ratio is None else target.reached(ratio)
    row, beside, command = target.row, target.beside, target.command
    return Verdict(row, None, beside, None, ratio, target.wanted, reached, "", "", command)


def judged(results: Results) -> list[Verdict]:
    client = record.load().get("client")
    return [
        *(judge(results, target) for target in TARGETS),
        alone(
            "instructions of the client per `add`",
            client.counts.get(record.ADD) if client else None,
            MOST_INSTRUCTIONS,
            r.INSTRUCTIONS,
        ),
        alone(
            "bytes per waiting job",
            results.median(r.NEAR, r.BYTES, "Holdfast, threads"),
            MOST_BYTES,
            r.BYTES,
        ),
        recovered(results),
        *(kept(results, target) for target in RATIOS),
    ]
