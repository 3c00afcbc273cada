"""What staged writes and claims cost, in rows per second and in server time per row.

`python -m bench.staging [rows]`: one client on loopback, no persistence, payloads of 100 bytes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from bench.measure import BenchServer, bench_server
from holdfast import Queue, Row, Staged, Write

PAYLOAD = b"x" * 100


def row(server: BenchServer, name: str, rows: int, go: Callable[[], object]) -> None:
    used, begun = server.script_usec(), time.perf_counter()
    go()
    seconds, used = time.perf_counter() - begun, server.script_usec() - used
    print(f"{name:<34} {rows / seconds:>10,.0f} rows/s {used / rows:>8.2f} µs of the server")


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with bench_server() as server:
        print(server.version())
        queue = Queue("bench", server.url)
        queue.add(PAYLOAD)
        write, reader = queue.write(), queue.reader("bench")
        staged: list[Staged] = []
        plain = [PAYLOAD] * rows
        named = [Row(PAYLOAD, id=f"{n}", priority=n % 3) for n in range(rows)]
        row(server, "stage payloads", rows, lambda: staged.append(_stage(write, plain, 0)))
        row(server, "stage named rows", rows, lambda: staged.append(_stage(write, named, 1)))
        row(server, "commit and publish", 2 * rows, lambda: write.commit(staged))
        reader.open()
        row(server, "claim", 2 * rows, lambda: reader.claim(0, 2 * rows))
        chunks = reader.look(0).chunks
        row(server, "read", 2 * rows, lambda: [reader.read(0, n) for n in range(len(chunks))])
        row(server, "renew", 1, reader.renew)
        row(server, "settle", 2 * rows, lambda: reader.settle(1))
        queue.delete()
        queue.close()


def _stage(write: Write, rows: Sequence[object], partition: int) -> Staged:
    return write.stage(rows, partition=partition, attempt=0)


if __name__ == "__main__":
    main()
