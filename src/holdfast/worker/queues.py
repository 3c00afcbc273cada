"""The queues of a worker: its connections to them, its entries there, and their schedules."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast import arguments
from holdfast.client.aio.queue import AsyncQueue
from holdfast.client.aio.sharded import AsyncShard, AsyncShardedQueue
from holdfast.client.inputs import Entries
from holdfast.client.schedules import Ticked
from holdfast.client.sharding import Sharding
from holdfast.client.sync.queue import Queue
from holdfast.client.sync.sharded import Shard, ShardedQueue
from holdfast.codec import MAX_ERROR_BYTES
from holdfast.connection.retries import is_passing
from holdfast.connection.server import Server
from holdfast.errors import HoldfastError, InvalidArgument, ServerUnavailable
from holdfast.escaping import logger
from holdfast.worker.job import Origin

if TYPE_CHECKING:
    from holdfast.engine.call import Entry
    from holdfast.job import NewJob
    from holdfast.worker.handlers import ExecutorKind, Handlers

    AnyQueue = Queue | AsyncQueue

log = logger(__name__)

CHECK_SECONDS: Final = 0.5
"""The start of a worker does not wait longer for one server: others may answer."""
REPLY_SECONDS: Final = 5.0
"""The longest that a worker waits for a reply."""


def weighted(queues: object) -> dict[AnyQueue, int]:
    """Check the argument `queues`, and return the queues with their weights."""
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
        raise InvalidArgument("queues must be different: a name is given twice")
    return dict(given)


def _shards(queue: AnyQueue) -> Iterable[AnyQueue]:
    """Return the shards of a sharded queue, or the queue itself."""
    return queue.shards if isinstance(queue, ShardedQueue | AsyncShardedQueue) else (queue,)


def origin_of(queue: AnyQueue) -> Origin:
    """Return what a child process has to know of a queue."""
    shard = (queue.sharding.count, queue.number) if isinstance(queue, Shard | AsyncShard) else None
    name = queue.sharding.name if isinstance(queue, Shard | AsyncShard) else queue.name
    return Origin(name, shard, queue.defaults)


def entries(origin: Origin, new: Iterable[NewJob]) -> list[Entry]:
    """Check and encode follow-ups, in a process that has no connection to the queue."""
    namer = None
    if origin.shard:
        shards, number = origin.shard
        namer = partial(Sharding(origin.queue, shards).namer_in, number)
    return list(Entries(origin.defaults, namer).many(new))


def own(queues: Iterable[AnyQueue], lease: float) -> list[Queue]:
    """Return the same queues with new holders and connections for the worker.

    The servers keep the user's settings. Only `reply_within` may be shorter: a connection that does
    not answer is dropped early enough to extend leases on a new one. The shards of one queue share
    a holder, so that they appear as one.
    """
    mine: list[Queue] = []
    holders: dict[Sharding, Server] = {}
    for queue in queues:
        within = min(queue.server._reply_seconds or REPLY_SECONDS, REPLY_SECONDS, lease / 3)
        server = Server.like(queue.server, reply_within=within)
        server._for_ever = True
        said: Any = {"defaults": queue.defaults, "requeue": queue.requeue, "clock": queue.clock}
        if isinstance(queue, Shard | AsyncShard):
            server = holders.setdefault(queue.sharding, server)
            mine.append(Shard(queue.sharding, queue.number, server, **said))
        else:
            one = Queue(queue.name, server, **said)
            one.schedules = queue.schedules
            mine.append(one)
    return mine


def check_servers(queues: Iterable[AnyQueue]) -> None:
    """Raise the error of a server that will never serve this worker, such as a wrong password.

    A server that is lost, loads its data or accepts no more clients is not an error: it may serve
    the worker later.
    """
    checked: set[tuple[str, object]] = set()
    for queue in queues:
        one = origin_of(queue).queue, queue.server
        if one in checked:
            continue
        checked.add(one)
        server = Server.like(queue.server, patience=CHECK_SECONDS)
        with Queue(queue.name, server) as asked:
            try:
                asked.counts()
            except HoldfastError as error:
                if not is_passing(error):
                    raise


# ------------------------------------------------------------------ the directory of workers


def fitting(about: Mapping[str, object]) -> dict[str, object]:
    """Return a worker's entry, cut down to the size that the directory accepts."""
    fits = dict(about)
    for name in ("schedules", "notes", "running", "handlers", "coroutines", "queues"):
        while (listed := fits.get(name)) and len(msgspec.msgpack.encode(fits)) > MAX_ERROR_BYTES:
            assert isinstance(listed, list)
            # List all handlers or none: in a partial list some would seem to be missing.
            all_or_none = name in ("handlers", "coroutines")
            fits[name] = None if all_or_none else listed[: len(listed) // 2]
    return fits


# ----------------------------------------------------------------------------- schedules


LOOK_SECONDS: Final = 60.0
"""The longest time between two checks: the server's clock may be set."""
MOVED_SECONDS: Final = 1.0
"""The same for a queue whose clock a test moves."""
REFUSED_SECONDS: Final = 5.0
"""The pause after a refused tick, for example because the server is full."""


class Ticker:
    """Makes the ticks of schedules in a control loop."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._longest = MOVED_SECONDS if queue.clock else LOOK_SECONDS
        self._look_at: dict[str, float] = {}
        self._in_trouble: set[str] = set()

    def about(self) -> dict[str, object]:
        """Return the entry in the directory of workers about the schedules: each in four words."""
        declared = [
            [one.name, one.job.handler or None, one.missed, one.rule]
            for one in self._queue.schedules.copy().values()
        ]
        return {"schedules": declared, "schedule_count": len(declared)} if declared else {}

    def next_at(self) -> float:
        """Return when the next tick is due, on the monotonic clock."""
        look_at = math.inf
        for name in list(self._queue.schedules):
            look_at = min(look_at, self._look_at.get(name, 0.0))
        return look_at

    def tick(self) -> None:
        """Make the ticks that are due. A refused tick does not stop the worker."""
        for name, schedule in list(self._queue.schedules.items()):
            if time.monotonic() < self._look_at.get(name, 0.0):
                continue
            try:
                ticked = self._queue._make_ticks(schedule)
            except ServerUnavailable:
                raise
            except Exception as error:  # noqa: BLE001  # A user's time zone class may raise anything.
                self._complain(name, error)
                ticked = Ticked([], REFUSED_SECONDS)
            else:
                self._in_trouble.discard(name)
            again_in = self._longest if ticked.again_in is None else ticked.again_in
            self._look_at[name] = time.monotonic() + min(again_in, self._longest)

    def _complain(self, name: str, error: Exception) -> None:
        """Log the error once, not on every retry."""
        if name not in self._in_trouble:
            self._in_trouble.add(name)
            unexpected = None if isinstance(error, HoldfastError) else error
            log.warning(
                "%s: its ticks cannot be made; trying again: %s", name, error, exc_info=unexpected
            )


# --------------------------------------------------------- what a worker says when it starts


def described(
    queues: Collection[AnyQueue],
    handlers: Handlers,
    bounds: tuple[int, int],
    executor: ExecutorKind,
    lease: float,
) -> str:
    """Return one line with servers, queues, handlers, concurrency, executor and lease."""
    found: dict[str, dict[str, None]] = {}
    for queue in queues:
        origin = origin_of(queue)
        name = f"{origin.queue} ({origin.shard[0]} shards)" if origin.shard else origin.queue
        # Addresses are written without passwords.
        found.setdefault(str(queue.server.address), {})[name] = None
    places = [
        f"{'queue' if len(there) == 1 else 'queues'} {', '.join(there)} on {server}"
        for server, there in found.items()
    ]
    names = handlers.names().union(*(queue.handlers for queue in queues))
    known = sorted(name for name in names if name is not None)
    if None in names:
        known.append("jobs without a name")
    if any(handlers.for_failures(origin_of(queue).queue) for queue in queues):
        known.append("failed jobs")
    least, most = bounds
    concurrency = str(least) if least == most else f"auto ({least} to {most})"
    settings = f"concurrency {concurrency}, executor {executor}, lease {lease:g} s"
    return "; ".join([*places, f"handlers: {', '.join(known) or 'none'}", settings])
