"""The queues of a worker: how they may be given, and the worker's own connections to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from holdfast import arguments
from holdfast.aqueue import AsyncQueue
from holdfast.asharded import AsyncShard, AsyncShardedQueue
from holdfast.errors import InvalidArgument, ServerUnavailable
from holdfast.queue import Queue
from holdfast.server import Server
from holdfast.sharded import Shard, ShardedQueue

if TYPE_CHECKING:
    from holdfast.sharding import Sharding

    AnyQueue = Queue | AsyncQueue

GREETING_SECONDS: Final = 0.5
"""A server that does not answer is not waited for: another may."""


def weighted(queues: object) -> dict[AnyQueue, int]:
    """Check the queues that were given, and return them with their weights."""
    given: list[tuple[Any, Any]]
    if isinstance(queues, Queue | AsyncQueue):
        given = [(queues, 1)]
    elif isinstance(queues, Mapping):
        given = list(queues.items())
    elif isinstance(queues, Iterable) and not isinstance(queues, str | bytes):
        given = [(queue, 1) for queue in queues]
    else:
        raise InvalidArgument(
            f"queues must be a Queue, several, or a mapping to weights, not "
            f"{arguments.shown(queues)}"
        )
    for queue, weight in given:
        if not isinstance(queue, Queue | AsyncQueue):
            raise InvalidArgument(f"queues must be Queues, not {arguments.shown(queue)}")
        arguments.whole("weight", weight, 1, 1000)
    given = [(one, weight) for queue, weight in given for one in _shards(queue)]
    names = [queue.name for queue, _ in given]
    if not names:
        raise InvalidArgument("queues must be at least one")
    if len(set(names)) < len(names):
        raise InvalidArgument("queues must be different ones: a name is given twice")
    return dict(given)


def _shards(queue: AnyQueue) -> Iterable[AnyQueue]:
    """Return the queues that one consists of."""
    return queue.shards if isinstance(queue, ShardedQueue | AsyncShardedQueue) else (queue,)


def called(queue: AnyQueue) -> str:
    """Return what users call a queue: by one name for all its shards."""
    return queue.sharding.name if isinstance(queue, Shard | AsyncShard) else queue.name


def shard_of(queue: AnyQueue) -> tuple[str, int, int] | None:
    """Return of what queue, of how many shards, which one this is, if it is one."""
    if isinstance(queue, Shard | AsyncShard):
        return queue.sharding.name, queue.sharding.count, queue.number
    return None


def own(queues: Iterable[AnyQueue], lease: float) -> list[Queue]:
    """Return the same queues with holders and connections of the worker's own.

    The shards of one queue have one holder, as to who looks at it they are one. A connection that
    does not answer is given up in time to extend by another.
    """
    mine: list[Queue] = []
    holders: dict[Sharding, Server] = {}
    for queue in queues:
        server = Server(queue.server.address, reply_within=min(5.0, lease / 3))
        said: Any = {"defaults": queue.defaults, "requeue": queue.requeue, "clock": queue.clock}
        if isinstance(queue, Shard | AsyncShard):
            server = holders.setdefault(queue.sharding, server)
            mine.append(Shard(queue.sharding, queue.number, server, **said))
        else:
            one = Queue(queue.name, server, **said)
            one.schedules = queue.schedules
            mine.append(one)
    return mine


def greet(queues: Iterable[AnyQueue]) -> None:
    """Have a server that will not have us say so; one that is lost may come back."""
    for queue in {(called(queue), queue.server): queue for queue in queues}.values():
        server = Server(queue.server.address, patience=GREETING_SECONDS)
        with suppress(ServerUnavailable), Queue(queue.name, server) as greeted:
            greeted.counts()
