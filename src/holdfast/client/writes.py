"""Turns the methods of staged writes into calls and flows. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from holdfast import arguments, codec
from holdfast.client.requests import part_options, refuse_id, request_name
from holdfast.engine import walks, write_calls
from holdfast.engine.call import Call, Entry, frame
from holdfast.engine.library import MAX_JOBS
from holdfast.engine.walks import Flow
from holdfast.errors import InvalidArgument
from holdfast.job import Committed, Duration, NewJob, OnConflict, Row, Staged, own_options
from holdfast.names import new_id, utf8_name

MAX_CHUNK_BYTES: Final = 1024 * 1024
"""The most bytes of a chunk, unless it is a single row."""

MAX_NAME_BYTES: Final = 440
"""The longest name of a write, a writer or a reader: other names are made from it."""

KEEP_MS: Final = 86_400_000
"""How long adopted attempts wait for their commit, and how long a commit is remembered."""


class Entering(Protocol):
    """Makes entries from a user's arguments: the `Asker` of a queue."""

    def entries(self, jobs: Iterable[object], options: Mapping[str, Any]) -> Iterator[Entry]: ...

    def entry_of(self, job: NewJob, options: Mapping[str, Any]) -> Entry: ...

    def new_ids(self, options: Mapping[str, Any]) -> Callable[[], str]: ...


class WriteAsker:
    """Turns the methods of one write into calls and flows."""

    def __init__(self, name: str | None, entering: Entering) -> None:
        self.name = new_id() if name is None else checked_name("write", name)
        self._entering = entering

    def stage(
        self,
        rows: Iterable[object],
        partition: int,
        attempt: int,
        keep_for: Duration,
        options: Mapping[str, Any],
    ) -> Flow[Staged]:
        name = self._attempt(
            arguments.whole("partition", partition, 0, arguments.NEVER_MS),
            arguments.whole("attempt", attempt, 0, arguments.NEVER_MS),
        )
        keep_ms = arguments.duration_ms("keep_for", keep_for, least=1, forever=True)
        entries = self._entries(arguments.several("rows", rows), options)
        requests: set[str] = set()
        number = total = 0
        for chunk in walks.chunks(entries, _row_size, most_bytes=MAX_CHUNK_BYTES):
            yield write_calls.stage(name, number, keep_ms, frame(chunk))
            requests.update(entry.request for entry in chunk if entry.request)
            number += 1
            total += len(chunk)
        return Staged(self.name, partition, attempt, number, total, tuple(sorted(requests)))

    def _entries(self, rows: Iterable[object], options: Mapping[str, Any]) -> Iterator[Entry]:
        [shared] = self._entering.entries([b""], options)
        make_id = self._entering.new_ids(options)
        for row in rows:
            if isinstance(row, Row) and row.request is not None:
                yield _part(row, row.request, make_id(), options)
            elif isinstance(row, NewJob):
                yield self._entering.entry_of(row, options)
            else:
                payload = codec.encode(row)
                yield Entry(make_id(), payload, True, shared.priority, b"", shared.options)

    def _attempt(self, partition: int, attempt: int) -> str:
        return f"{self.name}/{partition}.{attempt}"

    def commit(
        self,
        winners: Iterable[Staged],
        writer: str | None,
        batch: int | None,
        on_conflict: OnConflict,
    ) -> Flow[Committed]:
        if (writer is None) != (batch is None):
            raise InvalidArgument("writer and batch go together: give both or neither")
        how = arguments.update_words(on_conflict)
        if not how and on_conflict != "ignore":
            raise InvalidArgument(
                "on_conflict must be 'ignore', 'update' or an Update: rows become jobs after the "
                "commit, when it is too late to raise"
            )
        staged = [one for one in _staged(winners) if one.chunks]
        requests = sorted({request for one in staged for request in one.requests})
        name, who, number = self.name, "", 0
        if writer is not None and batch is not None:
            who = checked_name("writer", writer)
            number = arguments.whole("batch", batch, 0, arguments.NEVER_MS)
            name = f"{self.name}#{number}"
        attempts = [(_attempt_of(one), one.chunks) for one in staged]
        lists = [attempts[i : i + MAX_JOBS] for i in range(0, len(attempts), MAX_JOBS)]
        if len(lists) > MAX_JOBS:
            raise InvalidArgument(f"a write has at most {MAX_JOBS * MAX_JOBS} attempts")

        new = True
        for i in range(0, len(requests) or 1, MAX_JOBS):
            some = requests[i : i + MAX_JOBS]
            new = new and (
                yield write_calls.adopt(
                    name, who, number, None, [], keep_for_ms=KEEP_MS, requests=some
                )
            )
        for i, some_attempts in enumerate(lists):
            new = new and (
                yield write_calls.adopt(name, who, number, i, some_attempts, keep_for_ms=KEEP_MS)
            )
        new = new and (
            yield write_calls.commit(name, who, number, len(lists), keep_for_ms=KEEP_MS, how=how)
        )
        if not new:
            yield from self.abort(staged)  # Committed attempts are kept.
        rows = yield from walks.publish(name if new else "")
        return Committed(new, rows)

    def abort(self, staged: Iterable[Staged | None]) -> Flow[None]:
        left = [_attempt_of(one) for one in _staged(one for one in staged if one is not None)]
        while left:
            some, rest = left[:MAX_JOBS], left[MAX_JOBS:]
            done = yield write_calls.abort(some)
            left = [attempt for attempt, is_done in zip(some, done, strict=True) if not is_done]
            left += rest


def last_batch(writer: str) -> Call[int | None]:
    """Return the call that looks up the last batch that a writer has committed."""

    def read(records: list[Any]) -> int | None:
        [record] = records
        return int(record["batch"]) if record else None

    return write_calls.ledger(f"writer {checked_name('writer', writer)}").then(read)


def checked_name(kind: str, name: object) -> str:
    """Check the name of a write, a writer or a reader."""
    if len(utf8_name(kind, name)) > MAX_NAME_BYTES:
        raise InvalidArgument(f"{kind} must have 1 to {MAX_NAME_BYTES} bytes")
    return str(name)


def _staged(winners: Iterable[object]) -> Iterator[Staged]:
    for one in arguments.several("winners", winners):
        if not isinstance(one, Staged):
            raise InvalidArgument(f"a Staged is needed here, not {arguments.shown(one)}")
        yield one


def _part(row: Row, request: str, id: str, options: Mapping[str, Any]) -> Entry:
    """Return a row that becomes a part. Its id is used if the request is gone by then."""
    refuse_id(row)
    priority, packed = part_options({**options, **own_options(row)})
    due = b"" if row.delay is None and row.at is None else arguments.due(row.delay, row.at)
    payload = codec.encode(row.data)
    return Entry(id, payload, True, priority, due, packed, False, request_name(request))


def _attempt_of(staged: Staged) -> str:
    return f"{staged.write}/{staged.partition}.{staged.attempt}"


def _row_size(entry: Entry) -> int:
    return len(entry.payload) + len(entry.id) + 8
