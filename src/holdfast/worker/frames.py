"""What a worker and its children say to each other: msgpack, each message after its length.

Nothing is pickled: a child gets bytes and values that it checks, and answers with the same.
"""

from __future__ import annotations

import socket
import struct
from typing import Final, TypeVar

import msgspec

from holdfast.engine.call import Entry
from holdfast.job import Lease
from holdfast.worker.outcomes import Answer

T = TypeVar("T")

_LENGTH: Final = struct.Struct("<I")


class Jobs(msgspec.Struct, frozen=True, tag="jobs"):
    """To a child: run these."""

    queue: str
    leases: list[Lease]


class Answered(msgspec.Struct, frozen=True):
    """How one of them ended."""

    answer: Answer
    follow_ups: list[Entry] | None = None
    trace: str = ""


class Answers(msgspec.Struct, frozen=True, tag="answers"):
    """From a child: how they ended."""

    jobs: list[Answered]
    seconds: float
    megabytes: float


class Extend(msgspec.Struct, frozen=True, tag="extend"):
    """From a child: extend this lease."""

    number: int
    seconds: float | None


class Extended(msgspec.Struct, frozen=True, tag="extended"):
    """To a child: it is extended, or why not."""

    refused: str = ""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """From a child: how far this job is."""

    number: int
    fraction: float
    note: str


ToChild = Jobs | Extended
FromChild = Answers | Extend | Progress


class Line:
    """One end of the connection between a worker and a child."""

    listening = True

    def __init__(self, connection: socket.socket, reads: type[T] | object) -> None:
        self._connection = connection
        self._decode = msgspec.msgpack.Decoder(reads).decode
        self._encode = msgspec.msgpack.Encoder().encode

    def send(self, message: object) -> None:
        """Send a message."""
        packed = self._encode(message)
        self._connection.sendall(_LENGTH.pack(len(packed)) + packed)

    def read(self) -> object:
        """Return the next message; EOFError when the other side is gone."""
        (length,) = _LENGTH.unpack(self._take(_LENGTH.size))
        return self._decode(self._take(length))

    def _take(self, count: int) -> bytes:
        taken = self._connection.recv(count, socket.MSG_WAITALL)
        if len(taken) == count:
            return taken
        parts = [taken]
        while (count := count - len(parts[-1])) and parts[-1]:
            parts.append(self._connection.recv(count, socket.MSG_WAITALL))
        if count:
            raise EOFError
        return b"".join(parts)

    def fileno(self) -> int:
        """Return what to wait for before a read that shall not block."""
        return self._connection.fileno()

    def close(self) -> None:
        """Let the other side see the end."""
        self._connection.close()
