"""Read a file and make a request of every line: its priority, its limit, its parts.

    python examples/create_requests.py requests.txt --wait

A line is `limit:part:part:…`, or `limit@priority:part:part:…`; `-` is no limit. Without a priority
the first line goes first, as each line gets one less than the line before. Empty lines and lines
that begin with `#` are skipped. `worker_manager.py` runs the parts, before or after.

The file can be given again, after a crash or after an edit. A request is named after the file and
the text of its line: a line that is there already is not added twice, and a line that was edited is
a new request. The request of the old line stays: cancel it with `holdfast request cancel`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast import InvalidArgument, Queue, Request, WrongState


@dataclass(frozen=True)
class Line:
    """A request as the file says it."""

    number: int
    name: str
    """The digest of its text; of lines that are alike, the second has `-2` behind it."""
    priority: int
    limit: int | None
    parts: list[str]


def read(raw: bytes) -> Iterator[Line]:
    """Yield the requests of a file; refuse a line that is none."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = raw.count(b"\n", 0, error.start) + 1
        raise InvalidArgument(
            f"line {number} is not UTF-8: save the file as UTF-8 and try again"
        ) from None
    priority = 99
    alike: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        head, *parts = line.split(":")
        limit, _, own = head.partition("@")
        try:
            said = int(own) if own else max(priority, 0)
            places = None if limit.strip() == "-" else int(limit)
        except ValueError:
            raise InvalidArgument(
                f"line {number}: {head!r} is no limit: write 2:first:second, or 2@80:first:second"
            ) from None
        name = hashlib.sha256(line.encode()).hexdigest()[:12]
        alike[name] += 1
        if alike[name] > 1:
            name += f"-{alike[name]}"
        yield Line(number, name, said, places, parts)
        priority -= 1


def create(queue: Queue, file: str, lines: list[Line]) -> list[Request]:
    """Add the requests; return all of them."""
    requests = [
        queue.request(f"{file}-{line.name}", priority=line.priority, limit=line.limit)
        for line in lines
    ]
    for request, line in zip(requests, lines, strict=True):
        try:
            # Not `with request:`, which cancels it after Ctrl-C: then it could not be gone on with.
            request.open()
            request.add_many(line.parts)
            request.seal()
        except WrongState as error:  # Sealed before, or even done: its parts are there.
            print(f"line {line.number} is already there: {error}")
            continue
        limit = "no limit" if line.limit is None else f"limit {line.limit}"
        told = f"{len(line.parts)} parts, priority {line.priority}, {limit}"
        print(f"line {line.number}: {request.id}: {told}")
    return requests


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--queue", default="requests", help="default: requests")
    arguments.add_argument("--url", help="of the server; else HOLDFAST_URL, else the embedded one")
    arguments.add_argument("--wait", action="store_true", help="until all have ended")
    said = arguments.parse_args()
    with Queue(said.queue, said.url) as queue:
        try:
            requests = create(queue, said.file.name, list(read(said.file.read_bytes())))
        except (InvalidArgument, OSError) as error:
            sys.exit(f"{said.file}: {error}")
        if said.wait:
            for request in requests:
                status = request.wait()
                print(f"{request.id}: {status.state}, {status.done} of {status.total} parts done")


if __name__ == "__main__":
    main()
