"""What a worker and a child process share: a connection for messages, memory, and tickets.

A message is msgpack after a constant and the length. Nothing is pickled: both sides decode into
typed messages. A handler may close all descriptors of its process, but not the memory.
"""

from __future__ import annotations

import mmap
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from holdfast.engine.call import Entry
from holdfast.engine.library import MAX_JOBS
from holdfast.errors import JobCancelled, LeaseLost, ServerUnavailable
from holdfast.job import Lease
from holdfast.worker.job import Origin
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
    origin: Origin
    leases: list[Lease]
    lapses_at: float
    """After this time, on the monotonic clock, they must not start."""


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

    def check(self) -> None:
        """Raise the error of a refused extension."""
        if self.unavailable:
            raise ServerUnavailable(self.refused)
        if self.refused:
            raise (JobCancelled if self.cancelled else LeaseLost)(self.refused)


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


# ------------------------------------------------------------------------- shared memory


SLOT: Final = 64 * 1024
MOST_RUNS: Final = 255
"""The most runs that a child may have at a time."""
_LENGTH: Final = struct.Struct("<I")
"""The length of the last message."""
_FLAGS: Final = MAX_JOBS
"""One byte per job of a run: the mark of the run in which its handler should stop."""
_WORDS: Final = _LENGTH.size + _FLAGS


class Board:
    """The slots: length of the last message, flags, last message. Children inherit the memory."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, slots * SLOT)  # Uses memory only once it is written.

    def clear(self, slot: int) -> None:
        """Clear a slot for the next child."""
        self._memory[slot * SLOT : slot * SLOT + _WORDS] = bytes(_WORDS)

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
        if len(words) <= SLOT - _WORDS:
            first = slot * SLOT + _WORDS
            self._memory[first : first + len(words)] = words
            _LENGTH.pack_into(self._memory, slot * SLOT, len(words))

    def last_words(self, slot: int) -> bytes:
        """Return the last message of a child, or b""."""
        (length,) = _LENGTH.unpack_from(self._memory, slot * SLOT)
        first = slot * SLOT + _WORDS
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


class Tickets:
    """The worker's side of the tickets: both ends of the socket, since it may take some back."""

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
