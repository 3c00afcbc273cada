"""Holdfast: a work queue that does not lose work, on Redis or Valkey."""

from holdfast.aqueue import AsyncQueue
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
    Facts,
    JobOptions,
    Lease,
    Leases,
    NewJob,
    Problem,
    Receipt,
    Tidied,
)
from holdfast.queue import Queue
from holdfast.server import Server

__all__ = [
    "AsyncQueue",
    "AsyncServer",
    "CodecError",
    "Counts",
    "Event",
    "Facts",
    "HoldfastError",
    "InvalidArgument",
    "JobExists",
    "JobNotFound",
    "JobOptions",
    "Lease",
    "LeaseLost",
    "Leases",
    "NewJob",
    "Problem",
    "Queue",
    "QueueFull",
    "Receipt",
    "Refused",
    "Server",
    "ServerRefused",
    "ServerUnavailable",
    "Tidied",
    "UnsupportedServer",
    "WrongState",
]
