"""The queues of a worker: how they may be given, and the worker's own connections to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from holdfast import arguments
from holdfast.errors import InvalidArgument, ServerUnavailable
from holdfast.queue import Queue
from holdfast.server import Server

if TYPE_CHECKING:
    from holdfast.aqueue import AsyncQueue

    AnyQueue = Queue | AsyncQueue

GREETING_SECONDS: Final = 0.5
"""A server that does not answer is not waited for: another may."""


def weighted(queues: object) -> dict[AnyQueue, int]:
    """Check the queues that were given, and return them with their weights."""
    from holdfast.aqueue import AsyncQueue  # noqa: PLC0415  # Only to tell one from something else.

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
    names = [queue.name for queue, _ in given]
    if not names:
        raise InvalidArgument("queues must be at least one")
    if len(set(names)) < len(names):
        raise InvalidArgument("queues must be different ones: a name is given twice")
    return dict(given)


def own(queue: AnyQueue, lease: float) -> Queue:
    """Return the same queue with a holder and connections of the worker's own.

    A connection that does not answer is given up in time to extend by another.
    """
    server = Server(queue.server.address, reply_within=min(5.0, lease / 3))
    mine = Queue(
        queue.name,
        server,
        defaults=queue.defaults,
        requeue=queue.requeue,
        clock=queue.clock,
    )
    mine.schedules = queue.schedules
    return mine


def greet(queues: Iterable[AnyQueue]) -> None:
    """Have a server that will not have us say so; one that is lost may come back."""
    for queue in queues:
        server = Server(queue.server.address, patience=GREETING_SECONDS)
        with suppress(ServerUnavailable), Queue(queue.name, server) as greeted:
            greeted.counts()
