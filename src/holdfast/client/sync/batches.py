"""Writes and readers, for threads. Generated from aio/batches.py: do not edit."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from holdfast import arguments
from holdfast.client.inputs import KEEP_MS, MAX_CHUNK_BYTES, attempt_of, checked_name, staged_of
from holdfast.codec import new_id
from holdfast.engine import claim_calls, walks, write_calls
from holdfast.engine.call import Call, Entry, frame
from holdfast.engine.library import MAX_JOBS
from holdfast.errors import InvalidArgument, WrongState
from holdfast.job import (
    Claim,
    Committed,
    Duration,
    JobOptions,
    Lease,
    OnConflict,
    Opened,
    Row,
    Staged,
)

if TYPE_CHECKING:
    from typing import Unpack

    from holdfast.client.sync.queue import Queue


class Write:
    """Rows from many processes that become jobs all together. Made by `queue.write`.

    Tasks stage rows and send the returned `Staged` to one process, which commits the right ones.
    """

    def __init__(self, queue: Queue, name: str | None = None) -> None:
        self.queue = queue
        self.name = new_id() if name is None else checked_name("write", name)

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
        arguments.whole("partition", partition, 0, arguments.NEVER_MS)
        arguments.whole("attempt", attempt, 0, arguments.NEVER_MS)
        keep_ms = arguments.duration_ms("keep_for", keep_for, least=1, forever=True)
        arguments.several("rows", rows)
        entries = self.queue._entries.many(rows, options, staged=True)
        requests: set[str] = set()
        number = total = 0
        for chunk in walks.chunks(entries, _row_size, most_bytes=MAX_CHUNK_BYTES):
            name = f"{self.name}/{partition}.{attempt}"
            self.queue._run(write_calls.stage(name, number, keep_ms, frame(chunk)))
            requests.update(entry.request for entry in chunk if entry.request)
            number += 1
            total += len(chunk)
        return Staged(self.name, partition, attempt, number, total, tuple(sorted(requests)))

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
        if (writer is None) != (batch is None):
            raise InvalidArgument("writer and batch go together: give both or neither")
        how = arguments.update_words(on_conflict)
        if not how and on_conflict != "ignore":
            raise InvalidArgument(
                "on_conflict must be 'ignore', 'update' or an Update: rows become jobs after the "
                "commit, when it is too late to raise"
            )
        staged = [one for one in staged_of(winners) if one.chunks]
        requests = sorted({request for one in staged for request in one.requests})
        name, who, number = self.name, "", 0
        if writer is not None and batch is not None:
            who = checked_name("writer", writer)
            number = arguments.whole("batch", batch, 0, arguments.NEVER_MS)
            name = f"{self.name}#{number}"
        attempts = [(attempt_of(one), one.chunks) for one in staged]
        lists = [attempts[i : i + MAX_JOBS] for i in range(0, len(attempts), MAX_JOBS)]
        if len(lists) > MAX_JOBS:
            raise InvalidArgument(f"a write has at most {MAX_JOBS * MAX_JOBS} attempts")

        adopt = partial(write_calls.adopt, name, who, number, keep_for_ms=KEEP_MS)
        places = range(0, len(requests) or 1, MAX_JOBS)
        steps = [adopt(None, [], requests=requests[i : i + MAX_JOBS]) for i in places]
        steps += [adopt(i, some) for i, some in enumerate(lists)]
        steps += [write_calls.commit(name, who, number, len(lists), keep_for_ms=KEEP_MS, how=how)]
        new = True
        for step in steps:
            new = new and self.queue._run(step)
        if not new:
            self.abort(staged)  # Committed attempts are kept.
        return Committed(new, self.queue._drive(walks.publish(name if new else "")))

    def abort(self, staged: Iterable[Staged | None]) -> None:
        """Discard the rows that these attempts have staged, unless they are committed."""
        left = [attempt_of(one) for one in staged_of(one for one in staged if one is not None)]
        while left:
            some, rest = left[:MAX_JOBS], left[MAX_JOBS:]
            done = self.queue._run(write_calls.abort(some))
            left = [attempt for attempt, is_done in zip(some, done, strict=True) if not is_done]
            left += rest


def _row_size(entry: Entry) -> int:
    return len(entry.payload) + len(entry.id) + 8


class Reader:
    """Claims jobs in numbered batches that can be read again. Made by `queue.reader`.

    A claim is a batch of leases, named by the reader and a number. It is held until it is settled,
    given back, or lapses as a whole.
    """

    def __init__(self, queue: Queue, name: str, epoch: int | None = None) -> None:
        self.queue = queue
        self.name = checked_name("reader", name)
        if any(character.isspace() for character in name):
            raise InvalidArgument(f"reader must have no spaces in it: {arguments.shown(name)}")
        self._epoch = None if epoch is None else arguments.whole("epoch", epoch, 1, 2**53 - 1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} of {self.queue.name!r})"

    @property
    def epoch(self) -> int:
        """The number that it presents with every call. Pass it to processes that read for it."""
        if self._epoch is None:
            raise InvalidArgument(
                f"{self.name}: open this reader first, or pass the epoch of an open reader"
            )
        return self._epoch

    def open(self) -> Opened:
        """Become the newest reader of this name. Every call of an older reader raises `Fenced`."""
        opened = self.queue._run(claim_calls.open_reader(self.name))
        self._epoch = opened.epoch
        return opened

    def claim(self, n: int, count: int, *, claim_for: Duration = 3600) -> Claim:
        """Claim up to `count` jobs, the best first, under this number.

        `n` must be the next number, or that of a held claim, which is returned unchanged. If there
        are no jobs, nothing is claimed, and the number can be used again. A claim lapses
        `claim_for` seconds after the last call of `claim` or `renew` for it: then its jobs go back
        at no cost, and using it raises `LeaseLost`.
        """
        epoch = self.epoch
        _number("n", n)
        left = arguments.whole("count", count, 1, MAX_JOBS * MAX_JOBS)
        claim_ms = arguments.duration_ms("claim_for", claim_for, least=1, forever=True)
        sizes: list[int] = []
        while True:
            found = self.queue._run(
                claim_calls.claim(
                    self.name,
                    epoch,
                    n,
                    len(sizes),
                    min(left, MAX_JOBS),
                    claim_ms=claim_ms,
                    to_the_back=self.queue._to_the_back,
                    seal=left <= MAX_JOBS or len(sizes) == MAX_JOBS - 1,
                )
            )
            sizes = found.sizes
            if found.sealed or not sizes:
                return Claim(n, tuple(sizes))
            left = max(1, count - sum(sizes))

    def look(self, n: int) -> Claim:
        """Return a held claim. Raises `LeaseLost` if it is not held any more."""
        entries = f"reader {self.name}", f"claim {_number('n', n)} {self.name}"
        reader, claim = self.queue._run(write_calls.ledger(*entries))
        if claim and claim.get("over"):
            raise claim_calls.lost(self.name, n, str(claim["over"]))
        if claim and claim.get("sealed"):
            return Claim(n, tuple(claim["sizes"]))
        if reader and n < reader["settled"]:
            raise claim_calls.settled(self.name, n)
        raise WrongState(f"{self.name}: claim {n} does not exist yet")

    def read(self, n: int, chunk: int) -> list[Lease]:
        """Return the jobs of one chunk of a claim, always the same in the same order.

        Raises `LeaseLost` if the claim lapsed or was given back, `WrongState` if it is settled or
        one of its jobs was taken away by force.
        """
        place = _number("n", n), _number("chunk", chunk)
        return self.queue._run(claim_calls.read_claim(self.name, self.epoch, *place))

    def renew(self, *, claim_for: Duration = 3600) -> int:
        """Extend all claims to `claim_for` seconds from now. Return how many there are."""
        claim_ms = arguments.duration_ms("claim_for", claim_for, least=1, forever=True)
        return self.queue._run(claim_calls.renew_claims(self.name, self.epoch, claim_ms))

    def settle(self, below: int) -> int:
        """Complete the jobs of all claims below a number. Return how many.

        Jobs of a claim that lapsed before are not completed: they may run again.
        """
        call = claim_calls.settle_claims(self.name, self.epoch, _number("below", below))
        return self._until_done(call)

    def give_back(self, n: int) -> int:
        """Release the jobs of a claim at no cost. Return how many. It cannot be read again."""
        back = self.queue._to_the_back
        call = claim_calls.return_claim(self.name, self.epoch, _number("n", n), to_the_back=back)
        return self._until_done(call)

    def _until_done(self, call: Call[tuple[int, bool]]) -> int:
        """Make a call again until nothing is left to do. Return how many jobs that were."""
        total, more = 0, True
        while more:
            some, more = self.queue._run(call)
            total += some
        return total


def _number(name: str, value: object) -> int:
    return arguments.whole(name, value, 0, 2**53 - 1)
