"""Sessions: the state of a client that must be new in every process.

It consists of the holder's name, the callers with their numbers, and their connections. A forked
child with the state of its parent would hold the parent's leases, repeat its call numbers and write
to its connections. `Settings` are the arguments of a client, to create another like it.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from holdfast import arguments
from holdfast.codec import random_name
from holdfast.connection.address import Address
from holdfast.connection.credentials import Credentials, check
from holdfast.errors import InvalidArgument
from holdfast.job import Duration

if TYPE_CHECKING:
    import asyncio

    from holdfast.connection.address import Node


class _Link(Protocol):
    def close(self) -> None:
        """Close at once. Outstanding replies are lost."""


L = TypeVar("L", bound=_Link)


class Caller(Generic[L]):
    """The name and number of calls, one in flight at a time, and their connection.

    With several servers it keeps a link to each that it has used; `link` is the one to `node`.
    """

    __slots__ = ("link", "name", "node", "number", "others")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.number = 0
        self.link: L | None = None
        self.node: Node | None = None
        self.others: dict[Node, L] = {}

    def turn_to(self, node: Node) -> None:
        """Switch to another server, and to the link to it, if there is one."""
        if node != self.node:
            if self.node and self.link:
                self.others[self.node] = self.link
            self.node, self.link = node, self.others.pop(node, None)

    def drop(self) -> None:
        """Close the link: an outstanding reply must not be taken for the reply to the next call."""
        if self.link is not None:
            self.link.close()
            self.link = None

    def close(self) -> None:
        """Close all links."""
        self.drop()
        while self.others:
            self.others.popitem()[1].close()


class Session(Generic[L]):
    """A holder, the number of its lease calls, and its idle callers."""

    def __init__(self) -> None:
        self.renew()
        _alive.add(self)

    def renew(self) -> None:
        """Reset to a new holder without callers."""
        self.holder = random_name()
        self._leases = count(1)
        self._idle: list[Caller[L]] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of its callers, if they belong to one."""
        self.undoing: set[asyncio.Task[Any]] = set()
        """Tasks that release what cancelled calls have leased."""

    def next_token(self) -> str:
        """Return the token for the next lease call."""
        return f"{self.holder}.{next(self._leases)}"

    def take_caller(self) -> Caller[L]:
        """Return an idle or new caller for exclusive use. Return it with `give_caller`."""
        try:
            return self._idle.pop()
        except IndexError:
            return Caller(random_name().encode())

    def give_caller(self, caller: Caller[L]) -> None:
        """Make a caller available again."""
        self._idle.append(caller)

    def take_callers(self) -> list[Caller[L]]:
        """Remove and return all idle callers."""
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
"""The least timeout of one step of a call, even if the patience is shorter: a busy server is not
lost."""


@dataclass(frozen=True)
class Settings:
    """The arguments of `Server` and `AsyncServer`."""

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
        """How long a call is retried."""
        patience = self.address.patience if self.patience is None else self.patience
        if patience is None:
            patience = PATIENCE_SECONDS
        return arguments.duration_ms("patience", patience, forever=True) / 1000

    @property
    def reply_seconds(self) -> float | None:
        """The timeout of replies, if `reply_within` was given."""
        return arguments.seconds_or_none("reply_within", self.reply_within)
