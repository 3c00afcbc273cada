"""What a pipeline worker does: plans, parts and outputs are jobs, each run in a thread on Spark."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from holdfast import Queue
from holdfast.errors import HoldfastError, InvalidArgument, LeaseLost
from holdfast.progress import Part
from holdfast.spark.pipeline import stages
from holdfast.spark.pipeline.attempts import group_of, is_lost, reason, run_finish, run_part
from holdfast.spark.pipeline.files import Files
from holdfast.spark.pipeline.order import (
    Done,
    Order,
    PartData,
    Plan,
    Published,
    read_done,
    read_order,
    read_part_data,
    read_target,
    run_of,
    staging_of,
)
from holdfast.spark.pipeline.planning import plan_parts, read_plan
from holdfast.spark.pipeline.publishing import as_published, publish, read_manifest
from holdfast.spark.pipeline.roots import Roots
from holdfast.worker import Fail, Release, Retry, RunningJob, Worker

log = logging.getLogger("holdfast")

LOOK_SECONDS: Final = 0.2
"""How often running jobs are looked at: whether somebody cancelled them, and how far they are."""
SPOILED_SECONDS: Final = 60.0
"""For how long tasks may go on to write that were cancelled, on a cluster that is slow to hear."""
LAST_SECONDS: Final = 3.0
"""What tasks have to end that were cancelled shortly before their worker leaves."""


class SparkLost(HoldfastError):
    """The JVM of a pipeline worker is gone: what it ran was given back. Start it again."""


class Duties:
    """The handlers of a pipeline worker."""

    def __init__(self, spark: SparkSession, queue: Queue, roots: Roots, worker: Worker) -> None:
        self.lost: str | None = None
        """Why this worker can do nothing any more."""
        self._spark = spark
        self._queue = queue
        self._roots = roots
        self._worker = worker
        self._files = Files(spark)
        self._plans: dict[str, Plan] = {}
        self._spoiled: dict[str, float] = {}
        """Directories into which somebody may still write who was told to stop, and until when."""
        for name, duty in (("plan", self.plan), ("part", self.part), ("publish", self.publish)):
            worker.handler(name)(self._guarded(duty))

    def _guarded(self, duty: Callable[[RunningJob], Any]) -> Callable[[RunningJob], Any]:
        def handle(job: RunningJob) -> Any:
            context = self._spark.sparkContext
            try:
                context.setJobGroup(group_of(job), job.id, interruptOnCancel=True)
                context.setLocalProperty("spark.scheduler.pool", job.request or job.queue)
                return msgspec.to_builtins(duty(job))
            except (Fail, Retry, Release):
                raise
            except Exception as error:
                # Whatever was ended for that reason.
                if job.cancelled or isinstance(error, LeaseLost):
                    raise Release from error
                if is_lost(self._spark):
                    self.lost = reason(error)
                    raise Release from error
                if isinstance(error, InvalidArgument):
                    raise Fail(str(error)) from error
                raise Retry(reason(error)) from error

        return handle

    # ---------------------------------------------------------------- duties

    def plan(self, job: RunningJob) -> dict[str, int]:
        """Split a request into parts."""
        order = read_order(job.data)
        request = self._queue.request(order.id)
        order = msgspec.structs.replace(order, run=run_of(request.status()))
        if read_manifest(self._files, order.output, order.id, order.run):
            return {"parts": 0}  # Planned, run and published while this run was frozen.
        with self._noting(order.staging, job):
            return {
                "parts": plan_parts(
                    self._spark, self._files, self._roots, order, request, job.extend
                )
            }

    def part(self, job: RunningJob) -> Done:
        """Run a part."""
        data = read_part_data(job.data)
        for path in data.slice.files:
            if not self._roots.holds_file(path):
                raise Fail(f"{path} leads out of {self._roots!r}")
        with self._noting(data.staging, job):
            return run_part(self._spark, self._files, self._plan_of(data), data.slice, job)

    def publish(self, job: RunningJob) -> Published:
        """Put the output of a request into place, if it has one."""
        output = read_target(job.data).output
        if self._roots.locate_output(output) != output:
            raise Fail(f"{output} leads elsewhere here: {self._roots!r}")
        request = self._queue.request(job.id.rpartition("/end/")[0])
        status = request.status()
        run = run_of(status)
        staging = staging_of(output, request.id, run)
        published = read_manifest(self._files, output, request.id, run)
        plan = read_plan(self._files, staging)
        if status.state == "cancelled" or published or plan is None:
            self._files.remove(staging)
            if published:  # By a publisher that died before it could say so.
                return as_published(output, published)
            return Published("cancelled" if status.state == "cancelled" else "failed")
        order = plan.order
        parts = list(request.results())
        if not (status.state == "completed" and status.failed == 0) and not order.partial:
            return Published("failed")  # What is done is kept: the failed parts may be revived.
        winners = [(part, _done(part)) for part in parts if part.state == "done"]
        missing = [part.number for part in parts if part.state != "done"]
        with self._noting(staging, job):
            finished = self._finish(order, [done for _, done in winners], job)
            return publish(self._files, order, winners, missing, finished, job.extend)

    def _finish(self, order: Order, winners: list[Done], job: RunningJob) -> Done | None:
        """Run the last transform, once: what it came to is written down before it is used."""
        if order.finish is None:
            return None
        path = f"{order.staging}/_finished.json"
        known = self._files.read(path)
        if known is None:
            done = run_finish(self._spark, self._files, order, winners, job)
            self._files.write(path, msgspec.json.encode(done))
            return done
        return read_done(known)

    @contextmanager
    def _noting(self, staging: str, job: RunningJob) -> Iterator[None]:
        """Look after a directory for a while where a run in it was told to stop."""
        try:
            yield
        except BaseException as error:
            if job.cancelled or isinstance(error, LeaseLost):
                self._spoiled[staging] = time.monotonic() + SPOILED_SECONDS
            raise

    def _tidy(self) -> None:
        """Remove what tasks wrote after they were cancelled: nobody ever looks there again.

        A task is told to stop, and not waited for. Where there is no plan the request is over.
        """
        for staging, until in list(self._spoiled.items()):
            if self._files.exists(staging) and read_plan(self._files, staging) is None:
                self._files.remove(staging)
            if time.monotonic() > until:
                self._spoiled.pop(staging, None)

    def _plan_of(self, data: PartData) -> Plan:
        plan = self._plans.get(data.staging)
        if plan is None:
            plan = read_plan(self._files, data.staging)
            if plan is None:
                raise Fail(f"{data.staging}/_plan.json is gone: the request cannot go on")
            if self._roots.locate_output(plan.order.output) != plan.order.output:
                raise Fail(f"{plan.order.output} leads elsewhere here: {self._roots!r}")
            if len(self._plans) > 1000:
                self._plans.clear()
            self._plans[data.staging] = plan
        return plan

    # ----------------------------------------------------------------- watch

    def watch(self, over: threading.Event) -> None:
        """End what nobody wants any more, and tell how far the rest is."""
        context = self._spark.sparkContext
        while not over.wait(LOOK_SECONDS):
            try:
                for job in self._worker.running():
                    if job.cancelled:
                        context.cancelJobGroup(group_of(job))
                    elif (fraction := stages.progress(context, group_of(job))) is not None:
                        job.progress(fraction)
                self._tidy()
            except Exception as error:  # noqa: BLE001  # Of Java's side, which a handler tells too.
                if is_lost(self._spark):
                    self.lost = self.lost or reason(error)
                else:
                    log.warning("pipeline: %s", reason(error))
            if self.lost:
                self._worker.stop(0)  # It would take and give back for ever.
                return
        with suppress(Exception):  # As far as it can be done.
            deadline = time.monotonic() + LAST_SECONDS
            while self._spoiled and time.monotonic() < deadline:
                self._tidy()
                time.sleep(LOOK_SECONDS)


def _done(part: Part) -> Done:
    return read_done(part.result or b"")
