"""The messages between a worker and its children: msgpack, after a constant and the length.

Nothing is pickled: both sides decode into typed messages.
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
"""The start of each message. If it is missing, other code wrote into the connection."""
_LONGEST: Final = 2**30
_CHUNK: Final = 256 * 1024


class Jobs(msgspec.Struct, frozen=True, tag="jobs"):
    """To a child: run these."""

    number: int
    """The number of the run, and of its ticket."""
    queue: str
    leases: list[Lease]
    lapses_at: float
    """After this time, on the monotonic clock, they must not start."""
    shard: tuple[str, int, int] | None = None
    """If the queue is a shard: name of the queue, number of shards, number of this shard."""
    defaults: JobOptions | None = None
    """The queue's defaults, for follow-ups."""


class Answered(msgspec.Struct, frozen=True):
    """How one job ended."""

    answer: Answer
    follow_ups: list[Entry] | None = None
    trace: str = ""


class Answers(msgspec.Struct, frozen=True, tag="answers"):
    """From a child: how the jobs of a run ended."""

    jobs: list[Answered]
    megabytes: float


class Extend(msgspec.Struct, frozen=True, tag="extend"):
    """From a child: extend this lease."""

    number: int
    seconds: float | None


class Extended(msgspec.Struct, frozen=True, tag="extended"):
    """To a child: the lease was extended, or why not."""

    refused: str = ""
    unavailable: bool = False
    """Refused because the server did not answer."""
    cancelled: bool = False
    """Refused because the job was cancelled."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """From a child: the progress of a job."""

    number: int
    fraction: float
    note: str


ToChild = Jobs | Extended
FromChild = Answers | Extend | Progress

# Created before there are threads: msgspec crashes when two threads create the first decoder of a
# type at once.
read_by_child = msgspec.msgpack.Decoder(ToChild).decode
read_from_child = msgspec.msgpack.Decoder(FromChild).decode
read_last_words = msgspec.msgpack.Decoder(Answers).decode


def pack(message: object) -> bytes:
    """Encode a message."""
    packed = msgspec.msgpack.encode(message)
    return _HEAD.pack(_START, len(packed)) + packed


class Garbled(Exception):
    """Other code wrote into the connection."""


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
        """Send a message, and wait until it is sent. Thread-safe."""
        with self._lock:
            self._connection.sendall(pack(message))

    def post(self, packed: bytes) -> None:
        """Send encoded messages without waiting. `flush` sends the part that does not fit."""
        with self._lock:
            self._unsent.append(memoryview(packed))
            self._flush()

    def flush(self) -> None:
        """Send more of what `post` could not, without waiting."""
        with self._lock:
            self._flush()

    def has_unsent(self) -> bool:
        """Return whether something is left for `flush`."""
        return bool(self._unsent)

    def _flush(self) -> None:
        with suppress(BlockingIOError):
            while self._unsent:
                sent = self._connection.send(self._unsent[0], socket.MSG_DONTWAIT)
                self._unsent[0] = self._unsent[0][sent:]
                if not self._unsent[0]:
                    self._unsent.popleft()

    def read(self) -> object:
        """Wait for the next message; raise EOFError when the other side is gone."""
        while (message := self._next()) is None:
            self._receive()
        return message

    def ready(self) -> Iterator[object]:
        """Yield the messages that have arrived, once the connection is readable."""
        self._receive()
        while (message := self._next()) is not None:
            yield message

    def drop_unread(self) -> None:
        """Drop messages that are no longer wanted; raise EOFError when the other side is gone."""
        with suppress(BlockingIOError):
            while True:
                self._receive(socket.MSG_DONTWAIT)
                while self._next() is not None:
                    pass

    def _receive(self, flags: int = 0) -> None:
        try:
            received = self._connection.recv(_CHUNK, flags)
        except ConnectionResetError:  # The other side is gone without having read all.
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
        """Return the descriptor to wait for before `ready`."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
