"""Workers lease jobs, run their handlers and settle them."""

from holdfast.worker.concurrency import Auto
from holdfast.worker.handlers import Hooks
from holdfast.worker.job import AsyncRunningJob, RunningJob
from holdfast.worker.outcomes import Fail, Release, Retry
from holdfast.worker.worker import Worker

__all__ = ["AsyncRunningJob", "Auto", "Fail", "Hooks", "Release", "Retry", "RunningJob", "Worker"]
