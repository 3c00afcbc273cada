"""One name, many queues: which of them a job is in. No I/O.

A job is in the shard that its id names: the CRC-32 of the id, modulo the number of shards. The end
of an id that makes it a part or a follow-up of a request, `/<n>` or `/end/<n>`, or the tick of a
schedule, `@<time>`, is left out, so that each is in one shard with all that belongs to it.
"""

from __future__ import annotations

import re
from typing import Any, Final
from zlib import crc32

from holdfast import arguments
from holdfast.client.schedules import Schedule
from holdfast.errors import InvalidArgument
from holdfast.names import new_id, utf8_name

MOST_SHARDS: Final = 256

_AFTER_A_NAME: Final = re.compile(
    rb"(?:(?:/end)?/[0-9]+|@[0-9]{4,}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3})?Z)\Z"
)
"""Of a part, a follow-up, a tick."""


class Sharding:
    """The shards of one name."""

    def __init__(self, name: str, shards: int) -> None:
        utf8_name("queue name", name)
        self.count = arguments.whole("shards", shards, 1, MOST_SHARDS)
        self.name = name
        self.names = [f"{name}/{shards}/{number}" for number in range(shards)]
        """With the number of shards in them: those of another number are other queues."""
        self.handlers: dict[str, Any] = {}
        self.schedules: dict[str, Schedule] = {}
        """What was declared for all of them; the ticks of each schedule are of one shard."""

    def schedules_of(self, number: int) -> dict[str, Schedule]:
        """Return the schedules whose ticks are of a shard."""
        known = self.schedules.copy().items()
        return {name: one for name, one in known if self.number_of_request(name) == number}

    def number_of(self, id: str) -> int:
        """Return the shard of a job."""
        return crc32(_AFTER_A_NAME.sub(b"", utf8_name("id", id))) % self.count

    def number_of_request(self, id: str) -> int:
        """Return the shard of a request, a group or a schedule."""
        return crc32(utf8_name("id", id)) % self.count

    def namer(self, id: str | None, group: str | None) -> str:
        """Return the id of a job: one that was given, or a new one in the shard of its group."""
        if group is None:
            return id or new_id()
        utf8_name("group", group)
        number = self.number_of_request(group)
        if id is not None and self.number_of(id) != number:
            raise InvalidArgument(
                f"{id}: its group {group!r} is in another shard, as a group is whole in one: give "
                f"it no id, or one like {group + '/7'!r}"
            )
        return id or self._made_for(number)

    def namer_in(self, number: int, id: str | None, group: str | None) -> str:
        """Return the id of a job that is added in one shard: a follow-up, a tick, a staged row."""
        if id is not None and self.number_of(id) != number:
            raise InvalidArgument(
                f"{id}: this id is of another shard, and what is added here, a follow-up or a "
                "staged row, is of this one: give it no id, or add it by itself"
            )
        if group is not None and self.number_of_request(group) != number:
            raise InvalidArgument(
                f"{group}: this group is in another shard, and what is added here, a follow-up, "
                "a tick or a staged row, is of this one: add it by itself"
            )
        return id or self._made_for(number)

    def _made_for(self, number: int) -> str:
        while True:
            id = new_id()
            if crc32(id.encode()) % self.count == number:
                return id
