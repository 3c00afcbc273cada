"""Memory that a worker shares with its children, a slot for each.

A handler may close every descriptor that it finds: what stands here it cannot close.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

SLOT: Final = 64 * 1024
_HEAD: Final = struct.Struct("<?I")
"""Whether the handler should stop, and how long the last words are."""


class Board:
    """The slots. Made before the children, which inherit it."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, slots * SLOT)  # Takes no memory before it is written.

    def clear(self, slot: int) -> None:
        """Make a slot ready for the next job."""
        _HEAD.pack_into(self._memory, slot * SLOT, False, 0)

    def tell_to_stop(self, slot: int) -> None:
        """Let the handler in this slot see that nobody wants the rest."""
        self._memory[slot * SLOT] = 1

    def should_stop(self, slot: int) -> bool:
        """Tell whether the handler in this slot should stop."""
        return self._memory[slot * SLOT] != 0

    def leave(self, slot: int, words: bytes) -> None:
        """Leave last words, where they fit: who cannot say them can write them here."""
        if len(words) <= SLOT - _HEAD.size:
            first = slot * SLOT + _HEAD.size
            self._memory[first : first + len(words)] = words
            _HEAD.pack_into(self._memory, slot * SLOT, False, len(words))

    def last_words(self, slot: int) -> bytes:
        """Return what was left; nothing when nothing was."""
        _, length = _HEAD.unpack_from(self._memory, slot * SLOT)
        first = slot * SLOT + _HEAD.size
        return self._memory[first : first + length]
