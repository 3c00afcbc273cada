"""What a worker and its children say to each other: msgpack, after a constant and the length.

Nothing is pickled: a child gets bytes and values that it checks, and answers with the same.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import msgspec

from holdfast.engine.call import Entry
from holdfast.job import JobOptions, Lease
from holdfast.worker.outcomes import Answer

_HEAD: Final = struct.Struct("<4sI")
_START: Final = b"\xf7hf\x01"
"""Begins each message. Where it is missing, something else wrote into the connection."""
_LONGEST: Final = 2**30
_CHUNK: Final = 256 * 1024


class Jobs(msgspec.Struct, frozen=True, tag="jobs"):
    """To a child: run these."""

    number: int
    """Of the run: that of its ticket."""
    queue: str
    leases: list[Lease]
    lapses_at: float
    """Then they are not begun any more."""
    shard: tuple[str, int, int] | None = None
    """Of what queue, of how many, which one, where the queue is a shard."""
    defaults: JobOptions | None = None
    """Of the queue, for follow-ups."""


class Answered(msgspec.Struct, frozen=True):
    """How one of them ended."""

    answer: Answer
    follow_ups: list[Entry] | None = None
    trace: str = ""


class Answers(msgspec.Struct, frozen=True, tag="answers"):
    """From a child: how they ended."""

    jobs: list[Answered]
    megabytes: float


class Extend(msgspec.Struct, frozen=True, tag="extend"):
    """From a child: extend this lease."""

    number: int
    seconds: float | None


class Extended(msgspec.Struct, frozen=True, tag="extended"):
    """To a child: it is extended, or why not."""

    refused: str = ""
    unavailable: bool = False
    """Whether that is since the server did not answer,"""
    cancelled: bool = False
    """or since the job was cancelled."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """From a child: how far this job is."""

    number: int
    fraction: float
    note: str


ToChild = Jobs | Extended
FromChild = Answers | Extend | Progress

# Made before there are threads: msgspec crashes when two make the first of a type at once.
read_by_child = msgspec.msgpack.Decoder(ToChild).decode
read_from_child = msgspec.msgpack.Decoder(FromChild).decode
read_last_words = msgspec.msgpack.Decoder(Answers).decode


def pack(message: object) -> bytes:
    """Return a message as it is sent."""
    packed = msgspec.msgpack.encode(message)
    return _HEAD.pack(_START, len(packed)) + packed


class Garbled(Exception):
    """Somebody else wrote into the line."""


class Line:
    """One end of the connection between a worker and a child."""

    listening = True

    def __init__(self, connection: socket.socket, decode: Callable[[bytes], object]) -> None:
        self._connection = connection
        self._decode = decode
        self._received = bytearray()
        self._unsent: deque[memoryview] = deque()
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message, and wait until it is sent. Threads may, one after the other."""
        with self._lock:
            self._connection.sendall(pack(message))

    def post(self, packed: bytes) -> None:
        """Send as much of these packed messages as fits now, and the rest with `flush`."""
        with self._lock:
            self._unsent.append(memoryview(packed))
            self._flush()

    def flush(self) -> None:
        """Send what was posted and did not fit, as much as fits now."""
        with self._lock:
            self._flush()

    def has_unsent(self) -> bool:
        """Tell whether something is left for `flush`."""
        return bool(self._unsent)

    def _flush(self) -> None:
        with suppress(BlockingIOError):
            while self._unsent:
                sent = self._connection.send(self._unsent[0], socket.MSG_DONTWAIT)
                self._unsent[0] = self._unsent[0][sent:]
                if not self._unsent[0]:
                    self._unsent.popleft()

    def read(self) -> object:
        """Wait for the next message; EOFError when the other side is gone."""
        while (message := self._next()) is None:
            self._receive()
        return message

    def ready(self) -> Iterator[object]:
        """Return the messages that are there, once there is something to read."""
        self._receive()
        while (message := self._next()) is not None:
            yield message

    def drop_unread(self) -> None:
        """Drop what was said and nobody waits for; EOFError when the other side is gone."""
        with suppress(BlockingIOError):
            while True:
                self._receive(socket.MSG_DONTWAIT)
                while self._next() is not None:
                    pass

    def _receive(self, flags: int = 0) -> None:
        try:
            received = self._connection.recv(_CHUNK, flags)
        except ConnectionResetError:  # It is gone, and had not read all.
            raise EOFError from None
        if not received:
            raise EOFError
        self._received += received

    def _next(self) -> object | None:
        if not _START.startswith(self._received[: len(_START)]):
            raise Garbled
        if len(self._received) < _HEAD.size:
            return None
        _, length = _HEAD.unpack_from(self._received)
        if length > _LONGEST:
            raise Garbled
        end = _HEAD.size + length
        if len(self._received) < end:
            return None
        packed = bytes(self._received[_HEAD.size : end])
        del self._received[:end]
        try:
            return self._decode(packed)
        except msgspec.DecodeError:
            raise Garbled from None

    def fileno(self) -> int:
        """Return what to wait for before `ready`."""
        return self._connection.fileno()

    def close(self) -> None:
        """Let the other side see the end."""
        self._connection.close()
