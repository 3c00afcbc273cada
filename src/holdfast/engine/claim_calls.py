"""The calls of readers, which claim jobs in batches: which script, which arguments. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.engine.call import Call, flag
from holdfast.engine.library import (
    CLAIM,
    OPEN_READER,
    READ_CLAIM,
    RENEW_CLAIMS,
    RETURN_CLAIM,
    SETTLE_CLAIMS,
)
from holdfast.engine.replies import read_leases
from holdfast.errors import LeaseLost, WrongState
from holdfast.job import Lease, Opened


def token_of(reader: str, n: int) -> str:
    """Return the token under which all jobs of a claim are leased."""
    return f"claim:{reader}.{n}"


def open_reader(reader: str) -> Call[Opened]:
    """Open a reader, and fence off all earlier readers of its name."""
    return Call(OPEN_READER, [reader.encode()], lambda reply: Opened(*reply))


@dataclass(frozen=True, slots=True)
class Claiming:
    """The state of a claim."""

    sealed: bool
    sizes: list[int]
    """How many jobs each chunk has."""


def claim(
    reader: str,
    epoch: int,
    n: int,
    number: int,
    count: int,
    *,
    claim_ms: int,
    to_the_back: bool = False,
    seal: bool = False,
) -> Call[Claiming]:
    """Take the next chunk of a claim, unless the chunk exists or the claim is sealed."""
    args = [*_words(reader, epoch, n), b"%d" % number, b"%d" % claim_ms, b"%d" % count]
    args += [flag(to_the_back), flag(seal)]
    return _about(
        reader, n, Call(CLAIM, args, lambda reply: Claiming(reply[0] == 1, list(reply[1:])))
    )


def read_claim(reader: str, epoch: int, n: int, number: int) -> Call[list[Lease]]:
    """Return the jobs of one chunk of a claim."""
    token = token_of(reader, n)

    args = [*_words(reader, epoch, n), b"%d" % number]
    return _about(reader, n, Call(READ_CLAIM, args, lambda reply: read_leases(token, *reply)))


def renew_claims(reader: str, epoch: int, claim_ms: int) -> Call[int]:
    """Extend the claims of a reader; return how many it holds."""
    args = [reader.encode(), b"%d" % epoch, b"%d" % claim_ms]
    return _about(reader, 0, Call(RENEW_CLAIMS, args, lambda reply: int(reply[0])))


def settle_claims(reader: str, epoch: int, below: int) -> Call[tuple[int, bool]]:
    """Complete the next chunk of claims; return how many jobs, and whether there is more."""
    args = _words(reader, epoch, below)
    return _about(
        reader, below, Call(SETTLE_CLAIMS, args, lambda reply: (reply[0], bool(reply[1])))
    )


def return_claim(
    reader: str, epoch: int, n: int, *, to_the_back: bool = False
) -> Call[tuple[int, bool]]:
    """Give back the next chunk of a claim; return how many jobs, and whether there is more."""
    args = [*_words(reader, epoch, n), flag(to_the_back)]
    return _about(reader, n, Call(RETURN_CLAIM, args, lambda reply: (reply[0], bool(reply[1]))))


def _words(reader: str, epoch: int, n: int) -> list[bytes]:
    return [reader.encode(), b"%d" % epoch, b"%d" % n]


def _about(reader: str, n: int, call: Call[Any]) -> Call[Any]:
    """Add the reader and the number of the claim, so that a refusal can name them."""
    return Call(call.function, call.args, call.read, ids=(reader, f"{n}"))


def lost(reader: str, n: object, why: str) -> LeaseLost:
    """Return the error for a claim that lapsed or was given back."""
    return LeaseLost(
        f"{reader}: claim {n} no longer exists: {why}, and its jobs went back to the queue, where "
        "other readers may run them. It cannot be read again: go on with the next claim"
    )


def settled(reader: str, n: object) -> WrongState:
    """Return the error for a claim that cannot be read any more because it is settled."""
    return WrongState(f"{reader}: claim {n} is settled: its jobs are completed")
