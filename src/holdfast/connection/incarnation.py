"""What must be new in every process: the holder's name, and the callers with their links.

A forked child that went on with its parent's would answer for the parent's leases, repeat
its numbers and talk over its connections.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.names import random_name

if TYPE_CHECKING:
    import asyncio

C = TypeVar("C")


class Incarnation(Generic[C]):
    """One life of one client: a holder, a count of its lease calls, and its idle callers."""

    def __init__(self, caller: Callable[[bytes], C]) -> None:
        self._caller = caller
        self.renew()
        _alive.add(self)

    def renew(self) -> None:
        """Begin a new life."""
        self.holder = random_name()
        self._leases = count(1)
        self._idle: list[C] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        """The one that its callers belong to, if any does."""

    def next_token(self) -> str:
        """Return the name of the next lease call."""
        return f"{self.holder}.{next(self._leases)}"

    def take_caller(self) -> C:
        """Return an idle caller, or a new one; it is the taker's alone until given back."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._caller(random_name().encode())

    def give_caller(self, caller: C) -> None:
        """Take a caller back."""
        self._idle.append(caller)

    def take_callers(self) -> list[C]:
        """Take all idle callers out."""
        idle, self._idle = self._idle, []
        return idle


_alive: weakref.WeakSet[Incarnation[Any]] = weakref.WeakSet()


def _renew_all() -> None:
    for incarnation in list(_alive):
        incarnation.renew()


os.register_at_fork(after_in_child=_renew_all)
