"""Names of queues and ids of jobs: check them, and make new ids.

A new id has 20 characters, time first, so that ids sort by age: 8 characters of time (48 bits of
milliseconds), 8 random characters that are drawn once per process, and 4 that count up. The random
characters are drawn again after 16 million ids, and after a fork.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from typing import Final

from holdfast.errors import InvalidArgument

MAX_NAME_BYTES: Final = 512

_ALPHABET: Final = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_PAIRS: Final = tuple(a + b for a in _ALPHABET for b in _ALPHABET)
_COUNT: Final = len(_PAIRS) ** 2
_LATER: Final = 2**42
"""Added to the time, so that no id begins with a dash: a command would take it for an option."""


def utf8_name(kind: str, name: object) -> bytes:
    """Return a queue name or an id as bytes; refuse a name that cannot be stored exactly."""
    if not isinstance(name, str):
        raise InvalidArgument(f"{kind} must be a str, not {type(name).__name__}")
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{kind} cannot be written as UTF-8: {name!a}") from None
    if not 1 <= len(raw) <= MAX_NAME_BYTES:
        raise InvalidArgument(f"{kind} must have 1 to {MAX_NAME_BYTES} bytes, not {len(raw)}")
    return raw


def _encode(value: int, pairs: int) -> str:
    return "".join(_PAIRS[(value >> 12 * place) & 4095] for place in reversed(range(pairs)))


def random_name() -> str:
    """Return 12 random characters (72 bits): the name of a holder or a caller."""
    return _encode(secrets.randbits(72), 6)


class _Maker:
    __slots__ = ("_count", "_ms", "_random", "_time")

    def __init__(self) -> None:
        self.draw()

    def draw(self) -> None:
        self._random = _encode(secrets.randbits(48), 4)
        self._count = itertools.count()
        self._ms = -1
        self._time = ""

    def new(self) -> str:
        number = next(self._count)
        if number >= _COUNT:
            self.draw()
            return self.new()
        ms = time.time_ns() // 1_000_000
        prefix = self._time
        if ms != self._ms:
            prefix = self._time = _encode(ms + _LATER, 4)
            self._ms = ms
        return f"{prefix}{self._random}{_PAIRS[number >> 12]}{_PAIRS[number & 4095]}"


_maker = _Maker()
new_id = _maker.new
os.register_at_fork(after_in_child=_maker.draw)
