"""Staged writes, for threads. Generated from aio/writes.py: do not edit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.client.writes import WriteAsker
from holdfast.job import Committed, Duration, JobOptions, OnConflict, Row, Staged

if TYPE_CHECKING:
    from typing import Unpack

    from holdfast.client.sync.queue import Queue


class Write:
    """Rows from many processes that become jobs all together. Made by `queue.write`.

    Tasks stage rows and send the returned `Staged` to one process, which commits the right ones.
    """

    def __init__(self, queue: Queue, ask: WriteAsker) -> None:
        self.queue = queue
        self.name = ask.name
        self._ask = ask

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} to {self.queue.name!r})"

    def stage(
        self,
        rows: Iterable[object | Row],
        *,
        partition: int,
        attempt: int,
        keep_for: Duration = 86400,
        **options: Unpack[JobOptions],
    ) -> Staged:
        """Stage the rows of one attempt of one task, in chunks. They are not jobs yet.

        Rows are payloads, `NewJob` values, or `Row` values, which may be parts of an open request.
        Rows that are not committed are forgotten `keep_for` seconds after their last chunk. Every
        attempt needs its own number: rows staged twice under the same number count once.
        """
        return self.queue._drive(self._ask.stage(rows, partition, attempt, keep_for, options))

    def commit(
        self,
        winners: Iterable[Staged],
        *,
        writer: str | None = None,
        batch: int | None = None,
        on_conflict: OnConflict = "ignore",
    ) -> Committed:
        """Turn all rows of these attempts into jobs, or none of them.

        The commit is one record. An error before it is written (`WrongState` if staged rows are
        gone or a request is not open) leaves nothing behind. Afterwards this call turns the rows
        into jobs; if this process dies, the next lease call does. The return value is false if the
        same write, or this batch or a later one of this `writer`, was committed before.
        """
        return self.queue._drive(self._ask.commit(winners, writer, batch, on_conflict))

    def abort(self, staged: Iterable[Staged | None]) -> None:
        """Discard the rows that these attempts have staged, unless they are committed."""
        self.queue._drive(self._ask.abort(staged))
