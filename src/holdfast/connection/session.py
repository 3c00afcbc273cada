"""One life of one client: what must be new in every process, and in every client of a process.

The name of the holder, the callers with their numbers, and their connections. A forked child that
went on with those of its parent would answer for the parent's leases, repeat its numbers and talk
over its connections. And the settings of a client, as one value, to make another one like it.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from holdfast import arguments
from holdfast.connection.address import Address
from holdfast.connection.credentials import Credentials, check
from holdfast.errors import InvalidArgument
from holdfast.job import Duration
from holdfast.names import random_name

if TYPE_CHECKING:
    import asyncio

    from holdfast.connection.address import Node


class _Link(Protocol):
    def close(self) -> None:
        """Close at once; replies that are under way are lost."""


L = TypeVar("L", bound=_Link)


class Caller(Generic[L]):
    """A name and a number for calls, one in flight at a time, and the link that carries them.

    With several servers it has a link to each one that it needed, and `link` leads to `node`.
    """

    __slots__ = ("link", "name", "node", "number", "others")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.number = 0
        self.link: L | None = None
        self.node: Node | None = None
        self.others: dict[Node, L] = {}

    def turn_to(self, node: Node) -> None:
        """Use the link to another server, if there is one."""
        if node != self.node:
            if self.node and self.link:
                self.others[self.node] = self.link
            self.node, self.link = node, self.others.pop(node, None)

    def drop(self) -> None:
        """Close the link: a reply may still be on its way, and must not meet the next call."""
        if self.link is not None:
            self.link.close()
            self.link = None

    def close(self) -> None:
        """Close all links."""
        self.drop()
        while self.others:
            self.others.popitem()[1].close()


class Session(Generic[L]):
    """A holder, a count of its lease calls, and its idle callers."""

    def __init__(self) -> None:
        self.renew()
        _alive.add(self)

    def renew(self) -> None:
        """Begin a new life."""
        self.holder = random_name()
        self._leases = count(1)
        self._idle: list[Caller[L]] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        """The one that its callers belong to, if any does."""
        self.undoing: set[asyncio.Task[Any]] = set()
        """Tasks that give back what cancelled calls took."""

    def next_token(self) -> str:
        """Return the name of the next lease call."""
        return f"{self.holder}.{next(self._leases)}"

    def take_caller(self) -> Caller[L]:
        """Return an idle caller, or a new one; it is the taker's alone until given back."""
        try:
            return self._idle.pop()
        except IndexError:
            return Caller(random_name().encode())

    def give_caller(self, caller: Caller[L]) -> None:
        """Take a caller back."""
        self._idle.append(caller)

    def take_callers(self) -> list[Caller[L]]:
        """Take all idle callers out."""
        idle, self._idle = self._idle, []
        return idle


_alive: weakref.WeakSet[Session[Any]] = weakref.WeakSet()


def _renew_all() -> None:
    for session in list(_alive):
        session.renew()


os.register_at_fork(after_in_child=_renew_all)


# ---------------------------------------------------------------------------------- settings


PATIENCE_SECONDS: Final = 15.0

LEAST_SECONDS: Final = 1.0
"""What one step of a call may take even if patience is shorter: a busy server is not lost."""


@dataclass(frozen=True)
class Settings:
    """The arguments of `Server` and `AsyncServer`, which see."""

    address: Address
    patience: Duration | None = None
    reply_within: Duration | None = None
    credentials: Credentials | None = field(default=None, repr=False)
    client_name: str | None = None

    def __post_init__(self) -> None:
        check(self.credentials)
        if self.client_name is not None and not isinstance(self.client_name, str):
            raise InvalidArgument(
                f"client_name must be a str, not {type(self.client_name).__name__}"
            )

    @property
    def patience_seconds(self) -> float:
        """For how long a call is tried again."""
        patience = self.address.patience if self.patience is None else self.patience
        if patience is None:
            patience = PATIENCE_SECONDS
        return arguments.duration_ms("patience", patience, forever=True) / 1000

    @property
    def reply_seconds(self) -> float | None:
        """How long a reply is waited for, where somebody said so."""
        return arguments.seconds_or_none("reply_within", self.reply_within)
