"""Writes that are staged first, for asyncio."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.client.writes import WriteAsker
from holdfast.job import Committed, Duration, JobOptions, OnConflict, Row, Staged

if TYPE_CHECKING:
    from typing import Unpack

    from holdfast.client.aio.queue import AsyncQueue


class AsyncWrite:
    """Rows from many processes that become jobs all together: made by `queue.write`.

    Tasks stage, and tell what they have staged to one who commits what counts.
    """

    def __init__(self, queue: AsyncQueue, ask: WriteAsker) -> None:
        self.queue = queue
        self.name = ask.name
        self._ask = ask

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} to {self.queue.name!r})"

    async def stage(
        self,
        rows: Iterable[object | Row],
        *,
        partition: int,
        attempt: int,
        keep_for: Duration = 86400,
        **options: Unpack[JobOptions],
    ) -> Staged:
        """Send the rows of one attempt of one task, in chunks; none of them is a job yet.

        Rows are payloads, `NewJob` values, or `Row` values, which may be parts of an open
        request. What is not committed is forgotten `keep_for` seconds after its last chunk.
        Every attempt has numbers of its own: what is staged twice under one counts once.
        """
        return await self.queue._drive(self._ask.stage(rows, partition, attempt, keep_for, options))

    async def commit(
        self,
        winners: Iterable[Staged],
        *,
        writer: str | None = None,
        batch: int | None = None,
        on_conflict: OnConflict = "ignore",
    ) -> Committed:
        """Let all rows of these attempts become jobs, or none of them.

        One record is the commit. An error before it (`WrongState` where something staged is
        gone or a request is not open) leaves nothing behind. After it the rows become jobs, here
        or, when this process dies, by whoever leases. False when this was committed before:
        the same write, or this batch or a later one of this `writer`.
        """
        return await self.queue._drive(self._ask.commit(winners, writer, batch, on_conflict))

    async def abort(self, staged: Iterable[Staged | None]) -> None:
        """Forget what these attempts have staged, unless it is committed."""
        await self.queue._drive(self._ask.abort(staged))
