"""A short bench for every change: ratios to the floor in the same run, and counts of instructions.

    make bench-guard

It reports and never fails. The machine of a CI run is noisy, so a low ratio means something only if
it is low in several runs. A count of instructions is exact, but the record may be of another
machine: a line says which count grew by more than 3 %, and `make bench-instructions ARGS=--strict`
fails where one did.
"""

from __future__ import annotations

import logging
import sys
import traceback

from bench import instructions
from bench.measure import Load, bench_server, steady_cores
from bench.queue import Bench, Row, show

ROUNDS, SCALE = 3, 0.2


def rows(bench: Bench) -> list[Row]:
    return [
        bench.add_one_by_one(0.8, bench.floor.add, "SET + LPUSH, our client"),
        bench.add_in_bulk(),
        bench.drain(100, 50_000),
        bench.drain_beside_the_lean(5_000),
        bench.bytes_per_job(),
        bench.server_time(),
    ]


def main() -> int:
    logging.disable(logging.WARNING)
    try:
        load = Load()
        with bench_server() as server, steady_cores():
            show(rows(Bench(server, ROUNDS, SCALE)), server, load)
        lines, _ = instructions.guard()
        print("", *lines, sep="\n")
    except Exception:  # noqa: BLE001  # It reports; it does not decide.
        print("the guard could not measure:", file=sys.stderr)
        traceback.print_exc()
    return 0


if __name__ == "__main__":
    sys.exit(main())
