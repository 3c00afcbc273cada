"""Holdfast beside its peers, in one run: `make bench-peers`.

Every peer is installed into .bench/, tried with its settings, and measured by turns with the others
and with the floor. A run has parts (see PARTS); what each measured is kept in .bench/, so that
they can be run one at a time, and docs/benchmarks.md is written from all of them.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import Empty

import redis

from bench import results as r
from bench.crew import Trouble
from bench.distance import distance
from bench.measure import BenchServer, Load, bench_server, seconds, steady_cores
from bench.page import busy_list, main_table, page, targets_table, troubles_list
from bench.peers.contenders import Contender, Settings, chosen
from bench.peers.environments import ROOT, NotHere
from bench.results import Results, fastest
from bench.rounds import Life, Rounds
from bench.targets import judged

DOCS = ROOT.parent / "docs" / "benchmarks.md"
TRIP = 0.002
BRIEF = 0.3
"""How long rounds are where each job takes longer."""
NOT_HERE = (Trouble, NotHere, Empty, OSError)


@dataclass(frozen=True)
class Plan:
    """How much is measured, and of whom."""

    contenders: Sequence[Contender]
    rounds: int
    scale: float
    patience: float
    quick: bool

    def swept(self, contender: Contender) -> Sequence[Settings]:
        """Return the settings to try; a quick look tries two."""
        return (
            contender.sweep[:: max(1, len(contender.sweep) - 1)] if self.quick else contender.sweep
        )


class Compare:
    """Measures by turns, and keeps what was measured after each."""

    def __init__(self, plan: Plan, results: Results, file: Path) -> None:
        self.plan, self.results, self._file = plan, results, file
        self._failed: set[tuple[str, str, str]] = set()

    # -------------------------------------------------------------------------- parts

    def peers(self) -> None:
        """All measures, without AOF and near."""
        with bench_server() as server:
            rounds = Rounds(server, server.url, self.plan.scale)
            self.sweep(r.NEAR, rounds)
            self.by_turns(r.NEAR, {"life": rounds.life}, self.plan.contenders)
            two: Measure = lambda one, settings: rounds.drain(one, settings, 2)  # noqa: E731
            self.by_turns(r.NEAR, {r.TWO: two}, self.plan.contenders)
            bulk = [one for one in self.plan.contenders if one.bulk]
            self.by_turns(r.NEAR, {r.BULK: rounds.bulk}, bulk)
            self.by_turns(r.NEAR, {r.LATENCY: rounds.latency}, self.plan.contenders)

    def durable(self) -> None:
        """Add and drain with AOF."""
        for condition, aof in ((r.EVERYSEC, "everysec"), (r.ALWAYS, "always")):
            with bench_server(aof) as server:
                self.briefly(condition, server, server.url)

    def far(self) -> None:
        """Add and drain with a round trip of two milliseconds."""
        with bench_server() as server, distance(server.url, TRIP) as url:
            self.results.machine[r.FAR] = f"a PING takes {ping_ms(url):.1f} ms"
            self.sweep(r.FAR, Rounds(server, url, BRIEF * self.plan.scale))
            self.briefly(r.FAR, server, url)

    def recovery(self) -> None:
        """The time from kill -9 of a worker until another has its job."""
        with bench_server() as server:
            rounds = Rounds(server, server.url, self.plan.scale)
            able = [one for one in self.plan.contenders if one.recovers]
            ways = [one for one in able if one.is_peer or one.name == "Holdfast, threads"]

            def measure(one: Contender, settings: Settings) -> float:
                return rounds.recovery(one, settings, self.plan.patience)

            self.by_turns(r.NEAR, {r.RECOVERY: measure}, ways, rounds=1)

    def briefly(self, condition: str, server: BenchServer, url: str) -> None:
        rounds = Rounds(server, url, BRIEF * self.plan.scale)
        measures: dict[str, Measure] = {
            r.ADD: rounds.add,
            r.DRAIN: lambda one, settings: rounds.drain(one, settings, 1),
        }
        plain = [one for one in self.plan.contenders if one.name != "Holdfast, limited"]
        self.by_turns(condition, measures, plain)

    # ---------------------------------------------------------------------- how it goes

    def sweep(self, condition: str, rounds: Rounds) -> None:
        """Find the setting with which each drains fastest."""
        found = self.results.settings.setdefault(condition, {})
        for one in self.plan.contenders:
            settings = self.plan.swept(one)
            if len(settings) == 1:
                found[one.name] = settings[0]
                continue
            tries = settings if self.plan.quick else [*settings, *settings]
            rates, said, doing = [], "", f"{condition}, sweep"
            for setting in tries:
                try:
                    rates.append((setting, rounds.drain(one, setting, 1)))
                except NOT_HERE as trouble:
                    said = str(trouble)
            if rates:
                found[one.name] = fastest(rates)
                self.results.cured(one.name, doing)
                self.tell(f"{condition}: {one.name} is fastest with {found[one.name]}")
            else:
                self.results.trouble(one.name, doing, said)

    def settings_of(self, condition: str, one: Contender) -> Settings:
        """Return what was fastest here, else what was fastest near, else what comes first."""
        for where in (condition, r.NEAR):
            if one.name in self.results.settings.get(where, {}):
                return self.results.settings[where][one.name]
        return one.sweep[0]

    def by_turns(
        self,
        condition: str,
        measures: dict[str, Measure],
        contenders: Sequence[Contender],
        rounds: int = 0,
    ) -> None:
        for number in range(rounds or self.plan.rounds):
            for one in contenders:
                for name, measure in measures.items():
                    self.once(condition, name, one, measure, first=number == 0)
            self.results.save(self._file)

    def once(
        self, condition: str, name: str, one: Contender, measure: Measure, *, first: bool
    ) -> None:
        """Measure one round. Who cannot do it is not asked again."""
        if (condition, name, one.name) in self._failed:
            return
        doing = name if condition == r.NEAR else f"{condition}, {name}"
        try:
            found = measure(one, self.settings_of(condition, one))
        except NOT_HERE as trouble:
            self._failed.add((condition, name, one.name))
            self.results.trouble(one.name, doing, str(trouble))
            self.tell(f"{condition}: {one.name}: {name}: {trouble}")
            return
        self.results.cured(one.name, doing)
        for measured, value in as_values(name, found).items():
            if first:
                self.results.forget(condition, measured, one.name)
            self.results.add(condition, measured, one.name, value)
            self.tell(f"{condition}: {one.name}: {measured}: {value:,.2f}")

    def tell(self, what: str) -> None:
        print(what, file=sys.stderr, flush=True)


Measure = Callable[[Contender, Settings], "float | Life"]

PARTS = ("peers", "durable", "far", "recovery")


def as_values(name: str, found: float | Life) -> dict[str, float]:
    """Return the measures that a round gave."""
    if not isinstance(found, Life):
        return {name: found}
    return {
        r.ADD: found.added_per_second,
        r.DRAIN: found.drained_per_second,
        r.BYTES: found.bytes_per_job,
        r.TRIPS: found.trips_per_job,
        r.SERVER: found.server_us_per_job,
    }


def ping_ms(url: str) -> float:
    """Return the median of some round trips."""
    with redis.Redis.from_url(url) as client:
        return 1000 * statistics.median(seconds(client.ping) for _ in range(100))


def machine(command: str) -> dict[str, str]:
    """Tell where and with what this was measured."""
    with bench_server() as server:
        version = server.version()
    processor = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        processor = named[0].partition(": ")[2] if named else processor
    found = {
        "machine": f"{os.cpu_count()} cores, {processor}",
        "server": f"{version}, loopback TCP",
        "Python": platform.python_version(),
    }
    try:
        node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
        found["Node"] = node.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        found["Node"] = "none"
    return {**found, "command": f"`{command}`"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="size of each round")
    parser.add_argument("--only", default="", help="words of names, with commas between them")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="does everybody work? No numbers")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    given = parser.parse_args()
    parts = given.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    logging.disable(logging.WARNING)  # The server has no persistence, and we know it.
    file = ROOT / ("quick.json" if given.quick else "results.json")
    results = Results.load(file)
    plan = Plan(
        chosen(given.only),
        1 if given.quick else given.rounds,
        0.02 if given.quick else given.scale,
        20.0 if given.quick else 150.0,
        given.quick,
    )
    if not given.page:
        arguments = " ".join(sys.argv[1:])
        results.machine = machine(
            "make bench-peers" + (f' ARGS="{arguments}"' if arguments else "")
        )
        compare = Compare(plan, results, file)
        with ExitStack() as stack:
            if not given.quick:
                stack.enter_context(steady_cores())
            for part in parts:
                load = Load()
                getattr(compare, part)()
                results.busy[part] = str(load)
        results.save(file)
    shown = [busy_list(results), main_table(results), targets_table(judged(results))]
    print("", *shown, troubles_list(results), sep="\n\n")
    target = ROOT / "quick.md" if given.quick else DOCS
    target.write_text(page(results))
    print(f"\nThe page is in {target.relative_to(ROOT.parent)}")


if __name__ == "__main__":
    main()
