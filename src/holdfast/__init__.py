"""Holdfast: a work queue that does not lose work, on Redis or Valkey."""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.codec import Json
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
from holdfast.escaping import guard_the_log
from holdfast.handler import QueueHandler, TypedReceipt
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
from holdfast.progress import GroupStatus, Part, RequestStatus
from holdfast.queue import Queue
from holdfast.reader import Reader
from holdfast.request import Request
from holdfast.server import Server
from holdfast.sharded import ShardedQueue
from holdfast.ticking import Schedule
from holdfast.write import Write

if TYPE_CHECKING:
    from holdfast.ahandler import AsyncQueueHandler, AsyncTypedReceipt
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

# Asyncio and what runs handlers take longer to import than all the rest: only for who uses them.
_LATER = {
    "AsyncQueue": "holdfast.aqueue",
    "AsyncQueueHandler": "holdfast.ahandler",
    "AsyncReader": "holdfast.areader",
    "AsyncRequest": "holdfast.arequest",
    "AsyncServer": "holdfast.aserver",
    "AsyncShardedQueue": "holdfast.asharded",
    "AsyncTypedReceipt": "holdfast.ahandler",
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


guard_the_log()  # Before any module logs: its lines hold text from outside.


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
