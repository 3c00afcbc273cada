"""Memory that a worker shares with its children, a slot for each.

A handler may close every descriptor that it finds: what stands here it cannot close.
"""

from __future__ import annotations

import mmap
import struct
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
