"""Holdfast: a work queue that does not lose work, on Redis or Valkey."""

from holdfast.aqueue import AsyncQueue
from holdfast.arequest import AsyncRequest
from holdfast.aserver import AsyncServer
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

__all__ = [
    "AsyncQueue",
    "AsyncRequest",
    "AsyncServer",
    "CodecError",
    "Counts",
    "Event",
    "Extended",
    "Facts",
    "GroupStatus",
    "HoldfastError",
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
    "Receipt",
    "Refused",
    "Request",
    "RequestStatus",
    "Server",
    "ServerRefused",
    "ServerUnavailable",
    "Tidied",
    "UnsupportedServer",
    "Update",
    "WorkerInfo",
    "WrongState",
]
