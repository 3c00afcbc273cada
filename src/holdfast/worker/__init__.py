"""Workers: they lease jobs, run handlers and settle what they did."""

from holdfast.worker.auto import Auto
from holdfast.worker.hooks import Hooks
from holdfast.worker.outcomes import Fail, Release, Retry
from holdfast.worker.running import AsyncRunningJob, RunningJob
from holdfast.worker.worker import Worker

__all__ = ["AsyncRunningJob", "Auto", "Fail", "Hooks", "Release", "Retry", "RunningJob", "Worker"]
