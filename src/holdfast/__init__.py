"""Holdfast: a work queue that does not lose work, on Redis or Valkey."""

__distribution__ = "holdfast-queue"  # `distribution.py` reads it before the imports below are done.

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast import distribution
from holdfast.client.schedules import Schedule
from holdfast.client.status import GroupStatus, Part, RequestStatus
from holdfast.client.sync.batches import Reader, Write
from holdfast.client.sync.handlers import QueueHandler, TypedReceipt
from holdfast.client.sync.queue import Queue
from holdfast.client.sync.requests import Request
from holdfast.client.sync.sharded import ShardedQueue
from holdfast.codec import Json
from holdfast.connection.server import Server
from holdfast.errors import (
    CodecError,
    Fenced,
    GroupNotFound,
    HoldfastError,
    InvalidArgument,
    JobCancelled,
    JobExists,
    JobNotFound,
    LeaseLost,
    QueueFull,
    Refused,
    RequestNotFound,
    ServerNotStarted,
    ServerRefused,
    ServerUnavailable,
    UnsupportedServer,
    WrongState,
)
from holdfast.job import (
    Claim,
    Committed,
    Counts,
    EndedFacts,
    Event,
    Extended,
    Facts,
    Failure,
    Job,
    JobOptions,
    Lease,
    Leases,
    NewJob,
    Opened,
    Outcome,
    Problem,
    Receipt,
    Row,
    Staged,
    Tidied,
    Totals,
    Update,
    WorkerInfo,
)

if TYPE_CHECKING:
    __version__: str

    from holdfast.client.aio.batches import AsyncReader, AsyncWrite
    from holdfast.client.aio.handlers import AsyncQueueHandler, AsyncTypedReceipt
    from holdfast.client.aio.queue import AsyncQueue
    from holdfast.client.aio.requests import AsyncRequest
    from holdfast.client.aio.sharded import AsyncShardedQueue
    from holdfast.connection.async_server import AsyncServer
    from holdfast.worker import (
        AsyncRunningJob,
        Auto,
        Fail,
        Hooks,
        Release,
        Retry,
        RunningJob,
        Worker,
    )

__all__ = [
    "AsyncQueue",
    "AsyncQueueHandler",
    "AsyncReader",
    "AsyncRequest",
    "AsyncRunningJob",
    "AsyncServer",
    "AsyncShardedQueue",
    "AsyncTypedReceipt",
    "AsyncWrite",
    "Auto",
    "Claim",
    "CodecError",
    "Committed",
    "Counts",
    "EndedFacts",
    "Event",
    "Extended",
    "Facts",
    "Fail",
    "Failure",
    "Fenced",
    "GroupNotFound",
    "GroupStatus",
    "HoldfastError",
    "Hooks",
    "InvalidArgument",
    "Job",
    "JobCancelled",
    "JobExists",
    "JobNotFound",
    "JobOptions",
    "Json",
    "Lease",
    "LeaseLost",
    "Leases",
    "NewJob",
    "Opened",
    "Outcome",
    "Part",
    "Problem",
    "Queue",
    "QueueFull",
    "QueueHandler",
    "Reader",
    "Receipt",
    "Refused",
    "Release",
    "Request",
    "RequestNotFound",
    "RequestStatus",
    "Retry",
    "Row",
    "RunningJob",
    "Schedule",
    "Server",
    "ServerNotStarted",
    "ServerRefused",
    "ServerUnavailable",
    "ShardedQueue",
    "Staged",
    "Tidied",
    "Totals",
    "TypedReceipt",
    "UnsupportedServer",
    "Update",
    "Worker",
    "WorkerInfo",
    "Write",
    "WrongState",
]

# Asyncio and the worker take longer to import than the rest, so they are imported on first use.
_LATER = {
    "AsyncQueue": "holdfast.client.aio.queue",
    "AsyncQueueHandler": "holdfast.client.aio.handlers",
    "AsyncReader": "holdfast.client.aio.batches",
    "AsyncRequest": "holdfast.client.aio.requests",
    "AsyncServer": "holdfast.connection.async_server",
    "AsyncShardedQueue": "holdfast.client.aio.sharded",
    "AsyncTypedReceipt": "holdfast.client.aio.handlers",
    "AsyncWrite": "holdfast.client.aio.batches",
    **dict.fromkeys(
        (
            "AsyncRunningJob",
            "Auto",
            "Fail",
            "Hooks",
            "Release",
            "Retry",
            "RunningJob",
            "Worker",
        ),
        "holdfast.worker",
    ),
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        found = globals()[name] = distribution.version()
        return found
    if name not in _LATER:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
