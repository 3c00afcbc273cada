"""Holdfast: a work queue that does not lose work, on Redis or Valkey."""

from holdfast.ahandler import AsyncQueueHandler
from holdfast.aqueue import AsyncQueue
from holdfast.arequest import AsyncRequest
from holdfast.aserver import AsyncServer
from holdfast.asharded import AsyncShardedQueue
from holdfast.errors import (
    CodecError,
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
    Counts,
    Event,
    Extended,
    Facts,
    Job,
    JobOptions,
    Lease,
    Leases,
    NewJob,
    Outcome,
    Problem,
    Receipt,
    Tidied,
    Update,
    WorkerInfo,
)
from holdfast.progress import GroupStatus, Part, RequestStatus
from holdfast.queue import Queue
from holdfast.request import Request
from holdfast.server import Server
from holdfast.sharded import ShardedQueue
from holdfast.ticking import Schedule
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
    "AsyncRequest",
    "AsyncRunningJob",
    "AsyncServer",
    "AsyncShardedQueue",
    "Auto",
    "CodecError",
    "Counts",
    "Event",
    "Extended",
    "Facts",
    "Fail",
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
    "Outcome",
    "Part",
    "Problem",
    "Queue",
    "QueueFull",
    "QueueHandler",
    "Receipt",
    "Refused",
    "Release",
    "Request",
    "RequestStatus",
    "Retry",
    "RunningJob",
    "Schedule",
    "Server",
    "ServerRefused",
    "ServerUnavailable",
    "ShardedQueue",
    "Tidied",
    "UnsupportedServer",
    "Update",
    "Worker",
    "WorkerInfo",
    "WrongState",
]
