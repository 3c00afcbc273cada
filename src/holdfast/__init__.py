"""Holdfast: a work queue that does not lose work, on Redis or Valkey."""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.errors import (
    CodecError,
    Fenced,
    HoldfastError,
    InvalidArgument,
    JobExists,
    JobNotFound,
    LeaseLost,
    QueueFull,
    Refused,
    ServerRefused,
    ServerUnavailable,
    UnsupportedServer,
    WrongState,
)
from holdfast.handler import QueueHandler
from holdfast.job import (
    Claim,
    Committed,
    Counts,
    Event,
    Extended,
    Facts,
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
from holdfast.progress import GroupStatus, Part, RequestStatus
from holdfast.queue import Queue
from holdfast.reader import Reader
from holdfast.request import Request
from holdfast.server import Server
from holdfast.sharded import ShardedQueue
from holdfast.ticking import Schedule
from holdfast.write import Write

if TYPE_CHECKING:
    from holdfast.ahandler import AsyncQueueHandler
    from holdfast.aqueue import AsyncQueue
    from holdfast.areader import AsyncReader
    from holdfast.arequest import AsyncRequest
    from holdfast.aserver import AsyncServer
    from holdfast.asharded import AsyncShardedQueue
    from holdfast.awrite import AsyncWrite
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
    "AsyncWrite",
    "Auto",
    "Claim",
    "CodecError",
    "Committed",
    "Counts",
    "Event",
    "Extended",
    "Facts",
    "Fail",
    "Fenced",
    "GroupStatus",
    "HoldfastError",
    "Hooks",
    "InvalidArgument",
    "Job",
    "JobExists",
    "JobNotFound",
    "JobOptions",
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
    "RequestStatus",
    "Retry",
    "Row",
    "RunningJob",
    "Schedule",
    "Server",
    "ServerRefused",
    "ServerUnavailable",
    "ShardedQueue",
    "Staged",
    "Tidied",
    "Totals",
    "UnsupportedServer",
    "Update",
    "Worker",
    "WorkerInfo",
    "Write",
    "WrongState",
]

# Asyncio and what runs handlers take longer to import than all the rest: only for who uses them.
_LATER = {
    "AsyncQueue": "holdfast.aqueue",
    "AsyncQueueHandler": "holdfast.ahandler",
    "AsyncReader": "holdfast.areader",
    "AsyncRequest": "holdfast.arequest",
    "AsyncServer": "holdfast.aserver",
    "AsyncShardedQueue": "holdfast.asharded",
    "AsyncWrite": "holdfast.awrite",
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
    if name not in _LATER:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
