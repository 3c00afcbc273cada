"""Instructions per job, counted by callgrind: `make bench-instructions`.

The same calls (`bench.counted`) are counted twice: on the server, which runs under callgrind, and
in a Python process that does, beside a plain server. Counts repeat to a fraction of a percent on a
loaded machine, where times do not. They are compared with those in bench/instructions.json.

Callgrind writes its counters to a file, and begins anew, each time that one function is called: for
the server PING's, for Python `getloadavg`, which nothing else calls. So the marks around each row
need nothing but the calls themselves.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.counted import Counted
from bench.measure import bench_server
from bench.page import MISSING, table
from bench.record import RECORD, Both, Counts, growth, load, save, verdict

ROOT = Path(__file__).parent.parent
QUIET = (
    *("--hz", "1", "--dynamic-hz", "no", "--activerehashing", "no"),
    *("--slowlog-log-slower-than", "-1", "--latency-tracking", "no"),
)
"""Settings of a server whose work does not depend on how long things take."""
NO_VALGRIND = "instructions were not counted: there is no valgrind (Debian: apt install valgrind)"


class NotCounted(Exception):
    """Callgrind did not count; the message says why."""


# ------------------------------------------------------------------------------ counting


def callgrind(folder: Path, mark: str) -> list[str]:
    """Return the command that runs a program under callgrind; calls of `mark` dump and reset."""
    if not (valgrind := shutil.which("valgrind")):
        raise NotCounted(NO_VALGRIND)
    out = f"--callgrind-out-file={folder / 'dump'}"
    return [valgrind, "--tool=callgrind", f"--dump-before={mark}", out]


def instructions_in(dump: str) -> int:
    """Return the instructions of one dump."""
    found = re.search(r"^summary: (\d+)$", dump, re.MULTILINE)
    if not found:
        raise NotCounted("this is no output of callgrind: it has no summary")
    return int(found[1])


def dumps(folder: Path) -> list[int]:
    """Return the instructions of each dump, in their order."""
    numbered = {int(file.suffix[1:]): file for file in folder.glob("dump.*")}
    return [instructions_in(numbered[number].read_text()) for number in sorted(numbered)]


def per_job(found: Sequence[int], jobs: dict[str, int]) -> dict[str, int]:
    """Return the counts of rows, each of which is what the second of its two marks dumped."""
    if len(found) != 2 * len(jobs):
        raise NotCounted(
            f"{len(found)} marks were seen, not {2 * len(jobs)}: has the program no symbols?"
        )
    return {
        what: round(counted / count)
        for (what, count), counted in zip(jobs.items(), found[1::2], strict=True)
    }


def count_server() -> Counts:
    with tempfile.TemporaryDirectory(prefix="hf-bench") as name:
        folder = Path(name)
        with bench_server(under=callgrind(folder, "pingCommand"), more=QUIET) as server:
            before = len(dumps(folder))  # The first PINGs asked whether it is there.
            jobs = Counted(server.url, server.client.ping, still=True).run()
            version = server.version()
        return Counts(version, per_job(dumps(folder)[before:], jobs))


def count_client() -> Counts:
    with tempfile.TemporaryDirectory(prefix="hf-bench") as name, bench_server() as server:
        folder = Path(name)
        program = [sys.executable, "-m", "bench.counted", server.url]
        ended = subprocess.run(
            [*callgrind(folder, "getloadavg"), *program],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        if ended.returncode:
            raise NotCounted(f"the client failed: {ended.stderr.strip()[-500:]}")
        jobs: dict[str, int] = json.loads(ended.stdout.splitlines()[-1])
        return Counts(f"Python {platform.python_version()}", per_job(dumps(folder), jobs))


def count() -> Both:
    """Count both sides. Raises NotCounted where that cannot be done."""
    logging.disable(logging.WARNING)
    return {"server": count_server(), "client": count_client()}


# ------------------------------------------------------------------------------ comparing


def counts_table(both: Both, recorded: Both) -> str:
    """Show both sides, with what is recorded of the same build."""
    rows = []
    for side, one in both.items():
        before = recorded.get(side)
        comparable = before is not None and one.compares(before)
        for what, now in one.counts.items():
            then = before.counts.get(what) if before and comparable else None
            shown = [f"{then:,}", f"{growth(now, then):+.1%}"] if then else [MISSING, MISSING]
            rows.append([f"{side}, {one.of}", what, f"{now:,}", *shown])
    return table(["", "", "instructions", "recorded", "growth"], rows)


def guard() -> tuple[list[str], bool]:
    """Count and compare; return the lines to print, and whether a count grew."""
    try:
        return verdict(count(), load())
    except NotCounted as reason:
        return [str(reason)], False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the counts into the record")
    parser.add_argument("--strict", action="store_true", help="fail where a count grew")
    given = parser.parse_args()
    try:
        both = count()
    except NotCounted as reason:
        print(reason, file=sys.stderr)
        return 1 if given.strict or given.record else 0
    recorded = load()
    print(counts_table(both, recorded))
    lines, any_grew = verdict(both, recorded)
    print("", *lines, sep="\n")
    if given.record:
        save(both)
        print(f"recorded in {RECORD.relative_to(ROOT)}")
        return 0
    return 1 if given.strict and any_grew else 0


if __name__ == "__main__":
    sys.exit(main())
