"""Holdfast: a work queue that does not lose work, on Redis or Valkey."""

from holdfast.ahandler import AsyncQueueHandler
from holdfast.aqueue import AsyncQueue
from holdfast.areader import AsyncReader
from holdfast.arequest import AsyncRequest
from holdfast.aserver import AsyncServer
from holdfast.awrite import AsyncWrite
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
    Update,
    WorkerInfo,
)
from holdfast.progress import GroupStatus, Part, RequestStatus
from holdfast.queue import Queue
from holdfast.reader import Reader
from holdfast.request import Request
from holdfast.server import Server
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
from holdfast.write import Write

__all__ = [
    "AsyncQueue",
    "AsyncQueueHandler",
    "AsyncReader",
    "AsyncRequest",
    "AsyncRunningJob",
    "AsyncServer",
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
    "Staged",
    "Tidied",
    "UnsupportedServer",
    "Update",
    "Worker",
    "WorkerInfo",
    "Write",
    "WrongState",
]
