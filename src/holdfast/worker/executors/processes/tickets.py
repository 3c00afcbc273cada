"""Tickets: a child begins a run when it has taken the ticket for it, and not otherwise.

A worker gives a child several short runs at a time, so that neither waits for the other. The child
takes the tickets one by one; the worker takes back those that are left when one run takes longer
than believed, or the child has died. Who reads a ticket from the socket has it, and nobody else.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

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
