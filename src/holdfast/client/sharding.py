"""Assigns jobs to the shards of a sharded queue, and joins what the shards answer. No I/O.

The shard of a job is the CRC-32 of its id, modulo the number of shards. A suffix that makes it a
part or a follow-up of a request (`/<n>` or `/end/<n>`) or a tick of a schedule (`@<time>`) is
ignored, so that each request or schedule is in one shard with its jobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

from msgspec.structs import replace

from holdfast import arguments
from holdfast.client.schedules import Schedule
from holdfast.codec import new_id, utf8_name
from holdfast.engine import walks
from holdfast.errors import InvalidArgument
from holdfast.job import Job, State, WorkerInfo

MOST_SHARDS: Final = 256

NEVER_WORK: Final = frozenset({"leased", "result", "pruned", "forgotten", "paused", "sealed"})
"""Events that never make a job available."""

_AFTER_A_NAME: Final = re.compile(
    rb"(?:(?:/end)?/[0-9]+|@[0-9]{4,}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3})?Z)\Z"
)
"""The suffixes of parts, follow-ups and ticks."""


class Sharding:
    """The shards of one queue name."""

    def __init__(self, name: str, shards: int) -> None:
        utf8_name("queue name", name)
        self.count = arguments.whole("shards", shards, 1, MOST_SHARDS)
        self.name = name
        self.names = [f"{name}/{shards}/{number}" for number in range(shards)]
        """The names include the number of shards, so that another number uses other queues."""
        self.handlers: dict[str, Any] = {}
        self.schedules: dict[str, Schedule] = {}
        """The schedules of all shards. The ticks of each schedule are in one shard."""

    def schedules_of(self, number: int) -> dict[str, Schedule]:
        """Return the schedules whose ticks are in a shard."""
        known = self.schedules.copy().items()
        return {name: one for name, one in known if self.number_of_request(name) == number}

    def number_of(self, id: str) -> int:
        """Return the shard of a job."""
        return crc32(_AFTER_A_NAME.sub(b"", utf8_name("id", id))) % self.count

    def number_of_request(self, id: str) -> int:
        """Return the shard of a request, a group or a schedule."""
        return crc32(utf8_name("id", id)) % self.count

    def places(self, ids: Iterable[str]) -> dict[int, list[int]]:
        """Return which of these ids each shard has, by their places."""
        places: dict[int, list[int]] = {}
        for place, id in enumerate(ids):
            places.setdefault(self.number_of(id), []).append(place)
        return places

    def namer(self, id: str | None, group: str | None) -> str:
        """Check the id of a job, or return a new one. A job must be in the shard of its group."""
        if group is None:
            return id or new_id()
        utf8_name("group", group)
        number = self.number_of_request(group)
        if id is not None and self.number_of(id) != number:
            raise InvalidArgument(
                f"{id}: its group {group!r} is in another shard, but must be in the same: give "
                f"it no id, or one like {group + '/7'!r}"
            )
        return id or self._made_for(number)

    def namer_in(self, number: int, id: str | None, group: str | None) -> str:
        """Check the id of a follow-up, tick or staged row, or return a new one in its shard."""
        if id is not None and self.number_of(id) != number:
            raise InvalidArgument(
                f"{id}: this id belongs to another shard, but a follow-up or a staged row must be "
                "in this one: give it no id, or add it by itself"
            )
        if group is not None and self.number_of_request(group) != number:
            raise InvalidArgument(
                f"{group}: this group is in another shard, but a follow-up, a tick or a staged "
                "row must be in this one: add it by itself"
            )
        return id or self._made_for(number)

    def _made_for(self, number: int) -> str:
        while True:
            id = new_id()
            if crc32(id.encode()) % self.count == number:
                return id


class Spread(NamedTuple):
    """How items of one kind are spread over shards."""

    id_of: Callable[[Any], str]
    size: Callable[[Any], int]
    """How many bytes of a call an item takes."""
    so_far: Literal["receipts", "answers"]
    """Where an error keeps the answers that came before it."""


JOBS: Final = Spread(attrgetter("id"), walks.payload_size, "receipts")
SETTLES: Final = Spread(itemgetter(0), walks.result_size, "answers")


def of_a_shard(why: str) -> InvalidArgument:
    """Return the error for a method that only a shard has."""
    return InvalidArgument(f"{why}, so it belongs to one shard: use queue.shards[0], for example")


# ------------------------------------------------- one answer from those of all shards


def merged_jobs(state: State, answers: Iterable[Sequence[Job]]) -> list[Job]:
    """Merge the first jobs of all shards. Without a time to sort by, the shards take turns."""
    if state in ("ready", "parked"):
        ranked = [
            (-(job.priority or 0), rank, job) for own in answers for rank, job in enumerate(own)
        ]
        return [job for _, _, job in sorted(ranked, key=lambda ranked: ranked[:2])]
    return sorted((job for own in answers for job in own), key=attrgetter("at"))


def merged_workers(answers: Iterable[Iterable[WorkerInfo]]) -> list[WorkerInfo]:
    """Merge the directories of all shards: a worker registers in each."""
    seen: dict[str, WorkerInfo] = {}
    for own in answers:
        for worker in own:
            other = seen.get(worker.holder)
            seen[worker.holder] = _merged(other, worker) if other else worker
    return list(seen.values())


def _merged(one: WorkerInfo, other: WorkerInfo) -> WorkerInfo:
    last = max(one, other, key=attrgetter("alive_until"))
    running = [*one.about.get("running", ()), *other.about.get("running", ())]
    about = {**last.about, "running": running} if running else last.about
    return replace(last, alive=one.alive or other.alive, about=about)
