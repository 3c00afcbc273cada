"""Memory that a worker shares with its children, a slot for each.

A handler may close every descriptor that it finds: what stands here it cannot close.
"""

from __future__ import annotations

import mmap
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from holdfast.engine.scripts import MAX_JOBS

SLOT: Final = 64 * 1024
MOST_RUNS: Final = 255
"""That a child may have at a time."""
_LENGTH: Final = struct.Struct("<I")
"""Of the last words,"""
_FLAGS: Final = MAX_JOBS
"""of each job of a run whether its handler should stop, and in which run; then come the words."""
_HEAD: Final = _LENGTH.size + _FLAGS


class Board:
    """The slots. Made before the children, which inherit it."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, slots * SLOT)  # Takes no memory before it is written.

    def clear(self, slot: int) -> None:
        """Make a slot ready for the next child."""
        self._memory[slot * SLOT : slot * SLOT + _HEAD] = bytes(_HEAD)

    def tell_to_stop(self, slot: int, run: int, job: int) -> None:
        """Let the handler in this slot see that nobody wants the rest of this job of this run."""
        self._memory[slot * SLOT + _LENGTH.size + job] = _mark(run)

    def forget(self, slot: int) -> None:
        """Let no later run take for its own what was told."""
        first = slot * SLOT + _LENGTH.size
        self._memory[first : first + _FLAGS] = bytes(_FLAGS)

    def should_stop(self, slot: int, run: int, job: int) -> bool:
        """Tell whether the handler in this slot should stop with this job of this run."""
        return self._memory[slot * SLOT + _LENGTH.size + job] == _mark(run)

    def leave(self, slot: int, words: bytes) -> None:
        """Leave last words, where they fit: who cannot say them can write them here."""
        if len(words) <= SLOT - _HEAD:
            first = slot * SLOT + _HEAD
            self._memory[first : first + len(words)] = words
            _LENGTH.pack_into(self._memory, slot * SLOT, len(words))

    def last_words(self, slot: int) -> bytes:
        """Return what was left; nothing when nothing was."""
        (length,) = _LENGTH.unpack_from(self._memory, slot * SLOT)
        first = slot * SLOT + _HEAD
        return self._memory[first : first + length]


def _mark(run: int) -> int:
    """Return what a run is known by among those that a child has at a time: one byte, not 0."""
    return run % MOST_RUNS + 1


# ----------------------------------------------------------------------------------- tickets
# A worker gives a child several short runs at a time, so that neither waits for the other. The
# child takes a ticket before it begins a run. The worker takes back the tickets that are left when
# one run takes longer than expected, or when the child has died. One reader of the socket gets each
# ticket.


_NUMBER: Final = struct.Struct("<I")
NUMBERS: Final = 2**32
"""How many there are; then they begin anew."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return where tickets are put, and where they are taken: both sides may take."""
    return socket.socketpair()


class Tickets:
    """The worker's side."""

    def __init__(self, put: socket.socket, take: socket.socket) -> None:
        self._put = put
        self._take = take

    def give(self, numbers: Sequence[int]) -> None:
        """Let the child begin these."""
        self._put.sendall(b"".join(map(_NUMBER.pack, numbers)))

    def take_back(self, most: int) -> int:
        """Take those that the child has not taken; return how many. There are at most so many."""
        with suppress(OSError):  # There are none, or nobody may take any.
            return len(self._take.recv(most * _NUMBER.size, socket.MSG_DONTWAIT)) // _NUMBER.size
        return 0

    def close(self) -> None:
        """Let the child see that there are no more."""
        self._put.close()
        self._take.close()


def take(tickets: socket.socket) -> int:
    """Wait for the next ticket, in a child; EOFError when the worker is gone."""
    ticket = tickets.recv(_NUMBER.size)
    if len(ticket) < _NUMBER.size:
        raise EOFError
    (number,) = _NUMBER.unpack(ticket)
    return int(number)
