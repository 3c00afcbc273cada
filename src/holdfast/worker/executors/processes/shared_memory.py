"""Memory that a worker shares with its children: one slot each.

A handler may close all descriptors of its process, but not this memory.
"""

from __future__ import annotations

import mmap
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from holdfast.engine.library import MAX_JOBS

SLOT: Final = 64 * 1024
MOST_RUNS: Final = 255
"""The most runs that a child may have at a time."""
_LENGTH: Final = struct.Struct("<I")
"""The length of the last message."""
_FLAGS: Final = MAX_JOBS
"""One byte per job of a run: the mark of the run in which its handler should stop."""
_HEAD: Final = _LENGTH.size + _FLAGS


class Board:
    """The slots: length of the last message, flags, last message. Children inherit the memory."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, slots * SLOT)  # Uses memory only once it is written.

    def clear(self, slot: int) -> None:
        """Clear a slot for the next child."""
        self._memory[slot * SLOT : slot * SLOT + _HEAD] = bytes(_HEAD)

    def tell_to_stop(self, slot: int, run: int, job: int) -> None:
        """Ask the handler in this slot to stop with a job of a run."""
        self._memory[slot * SLOT + _LENGTH.size + job] = _mark(run)

    def forget(self, slot: int) -> None:
        """Clear the flags, so that a later run with the same mark does not see them."""
        first = slot * SLOT + _LENGTH.size
        self._memory[first : first + _FLAGS] = bytes(_FLAGS)

    def should_stop(self, slot: int, run: int, job: int) -> bool:
        """Return whether the handler in this slot should stop with a job of a run."""
        return self._memory[slot * SLOT + _LENGTH.size + job] == _mark(run)

    def leave(self, slot: int, words: bytes) -> None:
        """Store a last message if it fits: for a child whose connection is closed."""
        if len(words) <= SLOT - _HEAD:
            first = slot * SLOT + _HEAD
            self._memory[first : first + len(words)] = words
            _LENGTH.pack_into(self._memory, slot * SLOT, len(words))

    def last_words(self, slot: int) -> bytes:
        """Return the last message of a child, or b""."""
        (length,) = _LENGTH.unpack_from(self._memory, slot * SLOT)
        first = slot * SLOT + _HEAD
        return self._memory[first : first + length]


def _mark(run: int) -> int:
    """Return a nonzero byte that is unique among the runs of a child."""
    return run % MOST_RUNS + 1


# ----------------------------------------------------------------------------------- tickets
# A worker sends a child several short runs at a time, so that neither waits for the other. The
# child takes a ticket from a socket before it starts a run. The worker takes back the remaining
# tickets when a run takes longer than expected or the child has died. Each ticket has one taker.


_NUMBER: Final = struct.Struct("<I")
NUMBERS: Final = 2**32
"""Run numbers are modulo this."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the sockets for putting and taking tickets. Worker and child may both take."""
    return socket.socketpair()


class Tickets:
    """The worker's side of the tickets."""

    def __init__(self, put: socket.socket, take: socket.socket) -> None:
        self._put = put
        self._take = take

    def give(self, numbers: Sequence[int]) -> None:
        """Allow the child to start these runs."""
        self._put.sendall(b"".join(map(_NUMBER.pack, numbers)))

    def take_back(self, most: int) -> int:
        """Take the tickets that the child has not taken, at most `most`. Return how many."""
        with suppress(OSError):  # There are none, or the socket is closed.
            return len(self._take.recv(most * _NUMBER.size, socket.MSG_DONTWAIT)) // _NUMBER.size
        return 0

    def close(self) -> None:
        """Close both sockets: the child sees the end."""
        self._put.close()
        self._take.close()


def take(tickets: socket.socket) -> int:
    """Wait for the next ticket, in a child; raise EOFError when the worker is gone."""
    ticket = tickets.recv(_NUMBER.size)
    if len(ticket) < _NUMBER.size:
        raise EOFError
    (number,) = _NUMBER.unpack(ticket)
    return int(number)
