"""Who calls: a name, a number that counts up, and the links that carry what is asked."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from holdfast.connection.address import Node


class _Link(Protocol):
    def close(self) -> None:
        """Close at once; what is under way is lost."""


L = TypeVar("L", bound=_Link)


class Caller(Generic[L]):
    """A name and a number for calls, one in flight at a time, and the link that carries them.

    Where there are several servers it has a link to each that it needed, and `link` leads to
    `node`.
    """

    __slots__ = ("link", "name", "node", "number", "others")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.number = 0
        self.link: L | None = None
        self.node: Node | None = None
        self.others: dict[Node, L] = {}

    def turn_to(self, node: Node) -> None:
        """Have the link to another server, if there is one."""
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
