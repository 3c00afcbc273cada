"""What a worker says about itself when it starts: one line for a log."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from holdfast.worker.queues import called, shard_of

if TYPE_CHECKING:
    from holdfast.worker.handlers import ExecutorKind, Handlers
    from holdfast.worker.queues import AnyQueue


def described(
    queues: Collection[AnyQueue],
    handlers: Handlers,
    bounds: tuple[int, int],
    executor: ExecutorKind,
    lease: float,
) -> str:
    """Return servers, queues, handlers, concurrency, executor and lease, in one line."""
    least, most = bounds
    concurrency = str(least) if least == most else f"auto ({least} to {most})"
    return "; ".join(
        [
            *_places(queues),
            f"handlers: {_handlers(queues, handlers)}",
            f"concurrency {concurrency}, executor {executor}, lease {lease:g} s",
        ]
    )


def _places(queues: Collection[AnyQueue]) -> list[str]:
    """Return the queues by server; an address is written without its password."""
    found: dict[str, dict[str, None]] = {}
    for queue in queues:
        shard = shard_of(queue)
        name = f"{called(queue)} ({shard[1]} shards)" if shard else called(queue)
        found.setdefault(str(queue.server.address), {})[name] = None
    return [
        f"{'queue' if len(names) == 1 else 'queues'} {', '.join(names)} on {server}"
        for server, names in found.items()
    ]


def _handlers(queues: Collection[AnyQueue], handlers: Handlers) -> str:
    """Return the names of handlers: those of the worker, and those that its queues declare."""
    declared = {name for queue in queues for name in queue.handlers}
    names = sorted(declared.union(handlers.names()))
    if handlers.take_nameless():
        names.append("jobs without a name")
    if any(handlers.for_failures(called(queue)) for queue in queues):
        names.append("failed jobs")
    return ", ".join(names) or "none"
