"""The page of what was measured, as Markdown; its tables are readable as they are, too."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench import record
from bench import results as r
from bench.peers.contenders import EVERYBODY, FLOORS, Contender
from bench.results import Growth, Results, spread
from bench.rounds import LEASE
from bench.targets import Verdict, judged

MISSING = "–"

COLUMNS = (
    (r.ADD, "add one by one /s", "count"),
    (r.BULK, "bulk add /s", "count"),
    (r.DRAIN, "drain, 1 process /s", "count"),
    (r.TWO, "2 processes /s", "count"),
    (r.LATENCY, "p50 ms idle", "time"),
    (r.BYTES, "bytes per waiting job", "count"),
    (r.TRIPS, "round trips per job's life", "time"),
    (r.SERVER, "server µs per job's life", "count"),
)

UNITS = {
    r.ADD: "/s",
    r.DRAIN: "/s",
    r.BULK: "/s",
    r.LATENCY: "ms",
    r.RECOVERY: "s",
    r.BYTES: "bytes",
}
WHOLE = {r.ADD, r.DRAIN, r.BULK, r.BYTES, r.INSTRUCTIONS}
"""Measures that are shown without decimals."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Draw a Markdown table whose columns stand under each other."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([line(head), rule, *map(line, rows)])


def number(value: float | None, kind: str = "count") -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f}" if kind == "count" else f"{value:,.2f}"


def with_spread(rounds: list[float], kind: str = "count") -> str:
    """Show the median, and half the range of the rounds where there are several."""
    if not rounds:
        return MISSING
    shown = number(statistics.median(rounds), kind)
    return f"{shown} ±{100 * spread(rounds):.0f} %" if len(rounds) > 1 else shown


def _present(results: Results) -> list[Contender]:
    return [
        one
        for one in EVERYBODY
        if results.troubles.get(one.name) or results.rounds(r.NEAR, r.DRAIN, one.name)
    ]


def setting(chosen: dict[str, object]) -> str:
    """Name what a sweep chose, without what is not swept."""
    left_out = ("kind", "client", "forks")
    return ", ".join(
        f"{name} {value}"
        for name, value in chosen.items()
        if name not in left_out and value not in (None, 0)
    )


def main_table(results: Results) -> str:
    head = ["", "version", "delivery", *(title for _, title, _ in COLUMNS)]
    rows = []
    for one in _present(results):
        version = "" if one in FLOORS else one.version()
        cells = [
            with_spread(results.rounds(r.NEAR, measure, one.name), kind)
            for measure, _, kind in COLUMNS
        ]
        rows.append([one.name, version, one.delivery, *cells])
    return table(head, rows)


def targets_table(verdicts: Sequence[Verdict]) -> str:
    rows = []
    for one in verdicts:
        unit, kind = UNITS.get(one.measure, ""), "count" if one.measure in WHOLE else "time"
        ours = f"{number(one.ours, kind)} {unit}".strip()
        theirs = f"{number(one.theirs, kind)} {unit}".strip()
        ratio = f"{one.ratio:.2f} ×" if one.ratio is not None else MISSING
        mark = {True: "reached", False: "missed", None: "not measured"}[one.reached]
        if one.reached is None and one.command:
            mark += f": `{one.command}`"
        sides = [
            MISSING if value is None else text
            for value, text in ((one.ours, ours), (one.theirs, theirs))
        ]
        rows.append([one.row, sides[0], one.beside or MISSING, sides[1], ratio, one.target, mark])
    rows_of: dict[str, dict[str, None]] = {}
    for one in verdicts:
        if one.why:
            rows_of.setdefault(one.why, {})[one.row] = None
    reasons = [f"- {'; '.join(named)}: {why}" for why, named in rows_of.items()]
    shown = table(["", "Holdfast", "beside", "", "ratio", "target", ""], rows)
    return "\n".join([shown, *([""] if reasons else []), *reasons])


def conditions_table(results: Results) -> str:
    """Jobs added and drained per second, in each condition that was measured."""
    measured = [one for one in r.CONDITIONS if one in results.values]
    head = [""] + [f"{word}, {one}" for one in measured for word in ("add /s", "drain /s")]
    rows = [
        [one.name]
        + [
            with_spread(results.rounds(condition, measure, one.name))
            for condition in measured
            for measure in (r.ADD, r.DRAIN)
        ]
        for one in _present(results)
    ]
    return table(head, rows)


def settings_table(results: Results) -> str:
    measured = [one for one in (r.NEAR, r.FAR) if one in results.settings]
    rows = [
        [
            one.name,
            *(setting(results.settings[where].get(one.name, {})) or MISSING for where in measured),
        ]
        for one in _present(results)
        if one.is_peer
    ]
    return table(["", *measured], rows)


def recovery_table(results: Results) -> str:
    rows = []
    for one in _present(results):
        rounds = results.rounds(r.NEAR, r.RECOVERY, one.name)
        if rounds:
            rows.append([one.name, f"{statistics.median(rounds):.1f} s"])
        elif one.is_peer and not one.recovers:
            rows.append([one.name, "never: the job is lost"])
        elif said := results.troubles.get(one.name, {}).get(r.RECOVERY):
            rows.append([one.name, said])
    return table(["", "until the job begins anew"], rows)


def growth_table(growth: Sequence[Growth]) -> str:
    rows = []
    for one in growth:
        medians = [statistics.median(rounds) for rounds in one.microseconds]
        shown = " → ".join(f"{value:.1f}" for value in medians)
        sizes = " → ".join(f"{size:,}" for size in one.sizes)
        mark = "reached" if one.ratio <= one.most else "missed"
        mark = "explained" if mark == "missed" and one.remark else mark
        rows.append([one.what, sizes, shown, f"{one.ratio:.2f} ×", f"≤ {one.most:g} ×", mark])
    head = ["", "sizes", "server µs per job", "ratio", "target", ""]
    remarks = [f"- {one.what}: {one.remark}" for one in growth if one.remark]
    return "\n".join([table(head, rows), *([""] if remarks else []), *remarks])


def instructions_table(recorded: record.Both) -> str:
    """Show the recorded instructions per job, the server's beside the client's."""
    if not recorded:
        return "Not recorded: `make bench-instructions ARGS=--record`."
    rows = dict.fromkeys(what for one in recorded.values() for what in one.counts)
    cells = [[what, *(number(one.counts.get(what)) for one in recorded.values())] for what in rows]
    return table(["", *(f"{side}, {one.of}" for side, one in recorded.items())], cells)


def busy_list(results: Results) -> str:
    """Say how busy the machine was during each part of the run."""
    return "\n".join(f"- {part}: {said}" for part, said in results.busy.items())


def troubles_list(results: Results) -> str:
    lines = [
        f"- {name}: {doing}: {said}"
        for name, troubles in results.troubles.items()
        for doing, said in troubles.items()
    ]
    return "\n".join(lines) or "Everybody did everything."


PAGE = """# Benchmarks

What Holdfast and its peers do with no-op jobs of 100 bytes, in one run, by turns: medians, ± half
the range of the rounds. This page is written by `make bench-peers` and `make bench-growth`. The
machine decides the numbers; read how they stand to each other.

{machine}

How busy the machine was, by part of the run. One idle-priority spinner per core keeps it awake; the
load average counts them.

{busy}

## The peers

*floor, redis-py* and *floor, own client* are the least that moves a job at all: a list and a
string, no lease, and a job is lost if its taker dies. *floor of the design* is the least that keeps
the promises of a lease (`bench/lean.lua`): one call per job that completes the last and leases the
next, with a lease that lapses, a token that fences late workers, and a remembered answer, called by
a client that only packs and reads. A queue with leases that makes a call per job cannot be much
faster. So *single*, which leases a job when the last is done, is compared with this floor and with
BullMQ *one at a time*. The other BullMQ is tuned, with many jobs under way. Rows beside a floor
without leases have no target, except for `add`.

Two processes are two workers of the kind that drained fastest alone. A round trip is one read of
the server, server time its processor time, both with jobs that are added one by one. *limited* has
ten requests with a limit and a priority each; *processes* is timed when the worker hears that a
child is done.

{peers}

## The targets

{targets}

## Instructions

Instructions per job, as [callgrind](https://valgrind.org/docs/manual/cl-manual.html) counts them:
they repeat to half a percent on a loaded machine, where times do not. `make bench-instructions`
counts anew and compares with this record, bench/instructions.json; `make bench-guard` says which
count grew by more than 3 %. The client is a Python process that makes the same calls; what it waits
for is not counted. *A part* is a job of a request. Times are given with the calls, so what the
server does once a second is not in its counts.

{instructions}

## Durable, and far away

The server is on the same machine, with and without AOF; *2 ms away* is without AOF, behind a proxy
that keeps every byte back for a millisecond each way.

{conditions}

## How they were set

The fastest of each sweep. Holdfast has its defaults.

{settings}

## Recovery

From `kill -9` of a worker to the start of its job in another that is idle, but for a job every half
second. Each was told {lease} s for whatever it calls the time after which a worker counts as dead.

{recovery}

## Growth

{growth}

## What did not work

{troubles}
"""


def page(results: Results) -> str:
    """Return docs/benchmarks.md."""
    growth = (
        growth_table(results.growth) if results.growth else "Not measured: `make bench-growth`."
    )
    return PAGE.format(
        machine="\n".join(f"- {name}: {value}" for name, value in results.machine.items()),
        busy=busy_list(results) or "- not recorded",
        peers=main_table(results),
        targets=targets_table(judged(results)),
        instructions=instructions_table(record.load()),
        conditions=conditions_table(results),
        settings=settings_table(results),
        lease=LEASE,
        recovery=recovery_table(results),
        growth=growth,
        troubles=troubles_list(results),
    )
