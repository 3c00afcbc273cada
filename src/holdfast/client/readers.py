"""Turns the methods of readers into calls and flows. No I/O."""

from __future__ import annotations

from typing import Any

from holdfast import arguments
from holdfast.client.writes import checked_name
from holdfast.engine import claim_calls, write_calls
from holdfast.engine.call import Call
from holdfast.engine.claim_calls import Claiming, lost, settled
from holdfast.engine.library import MAX_JOBS
from holdfast.engine.walks import Flow
from holdfast.errors import InvalidArgument, WrongState
from holdfast.job import Claim, Duration, Lease, Opened


class ReaderAsker:
    """Turns the methods of one reader into calls and flows."""

    def __init__(self, name: str, epoch: int | None, to_the_back: bool) -> None:
        self.name = checked_name("reader", name)
        if any(character.isspace() for character in name):
            raise InvalidArgument(f"reader must have no spaces in it: {arguments.shown(name)}")
        self._epoch = None if epoch is None else arguments.whole("epoch", epoch, 1, 2**53 - 1)
        self._to_the_back = to_the_back

    @property
    def epoch(self) -> int:
        if self._epoch is None:
            raise InvalidArgument(
                f"{self.name}: open this reader first, or pass the epoch of an open reader"
            )
        return self._epoch

    def open(self) -> Call[Opened]:
        def read(opened: Opened) -> Opened:
            self._epoch = opened.epoch
            return opened

        return claim_calls.open_reader(self.name).then(read)

    def claim(self, n: int, count: int, claim_for: Duration) -> Flow[Claim]:
        epoch = self.epoch
        _number("n", n)
        left = arguments.whole("count", count, 1, MAX_JOBS * MAX_JOBS)
        claim_ms = arguments.duration_ms("claim_for", claim_for, least=1, forever=True)
        number, found = 0, Claiming(sealed=False, sizes=[])
        while not found.sealed:
            found = yield claim_calls.claim(
                self.name,
                epoch,
                n,
                number,
                min(left, MAX_JOBS),
                claim_ms=claim_ms,
                to_the_back=self._to_the_back,
                seal=left <= MAX_JOBS or number == MAX_JOBS - 1,
            )
            if not found.sizes:
                break
            left = max(1, count - sum(found.sizes))
            number = len(found.sizes)
        return Claim(n, tuple(found.sizes))

    def look(self, n: int) -> Call[Claim]:
        def read(records: list[Any]) -> Claim:
            reader, claim = records
            if claim and claim.get("over"):
                raise lost(self.name, n, str(claim["over"]))
            if claim and claim.get("sealed"):
                return Claim(n, tuple(claim["sizes"]))
            if reader and n < reader["settled"]:
                raise settled(self.name, n)
            raise WrongState(f"{self.name}: claim {n} does not exist yet")

        return write_calls.ledger(
            f"reader {self.name}", f"claim {_number('n', n)} {self.name}"
        ).then(read)

    def read(self, n: int, chunk: int) -> Call[list[Lease]]:
        return claim_calls.read_claim(
            self.name, self.epoch, _number("n", n), _number("chunk", chunk)
        )

    def renew(self, claim_for: Duration) -> Call[int]:
        claim_ms = arguments.duration_ms("claim_for", claim_for, least=1, forever=True)
        return claim_calls.renew_claims(self.name, self.epoch, claim_ms)

    def settle(self, below: int) -> Flow[int]:
        epoch, total, more = self.epoch, 0, True
        _number("below", below)
        while more:
            some, more = yield claim_calls.settle_claims(self.name, epoch, below)
            total += some
        return total

    def give_back(self, n: int) -> Flow[int]:
        epoch, total, more = self.epoch, 0, True
        _number("n", n)
        while more:
            some, more = yield claim_calls.return_claim(
                self.name, epoch, n, to_the_back=self._to_the_back
            )
            total += some
        return total


def _number(name: str, value: object) -> int:
    return arguments.whole(name, value, 0, 2**53 - 1)
