"""What a pipeline worker does: plans, parts and outputs are jobs, each run in a thread on Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import count
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from holdfast import Queue, Request
from holdfast.client.status import RequestStatus
from holdfast.errors import HoldfastError, InvalidArgument, LeaseLost, WrongState
from holdfast.escaping import logger, visible
from holdfast.spark.pipeline import foreign, stages
from holdfast.spark.pipeline.applying import GivenBack
from holdfast.spark.pipeline.attempts import group_of, run_finish, run_part, try_transform
from holdfast.spark.pipeline.canonical import remember
from holdfast.spark.pipeline.files import Files
from holdfast.spark.pipeline.notices import Notices
from holdfast.spark.pipeline.order import (
    Done,
    Order,
    PartData,
    Plan,
    Published,
    Slice,
    read_order,
    read_part_data,
    read_target,
    run_of,
    staging_of,
)
from holdfast.spark.pipeline.pinning import own_session, unlike
from holdfast.spark.pipeline.planning import plan_parts, read_plan
from holdfast.spark.pipeline.publishing import abandon, publish, read_manifest
from holdfast.spark.pipeline.roots import Roots
from holdfast.spark.pipeline.sources import fingerprint
from holdfast.spark.pipeline.transforms import registered
from holdfast.spark.pipeline.trouble import (
    is_lost,
    is_of_a_row,
    is_output_full,
    is_permanent,
    name_input,
    place_of,
    probe,
    reason,
    trace_of,
)
from holdfast.worker import Fail, Release, Retry, RunningJob, Worker
from holdfast.worker.outcomes import RaisedElsewhere

log = logger(__name__)

LOOK_SECONDS: Final = 0.2
"""How often running jobs are looked at: whether they were cancelled, and how far they are."""
SPOILED_SECONDS: Final = 60.0
"""For how long tasks may go on to write that were cancelled, on a cluster that is slow to hear."""
LAST_SECONDS: Final = 3.0
"""What tasks have to end that were cancelled shortly before their worker leaves."""


FULL_SECONDS: Final = 30.0
"""For how long a part is given back when the disk for its output is full."""
GIVEN_BACK_PER_SECOND: Final = 20
"""How many parts of a request this worker may have to give back per second, on average."""
CHECK_SECONDS: Final = 10.0
"""How often a worker asks to check a request whose parts fail for good."""
CHECK_PRIORITY: Final = 99
"""A check goes before the parts of its request, which may run in vain."""
MOST_LOGGED: Final = 1000
"""Tracebacks and warnings that are remembered, so that each is logged once."""


class SparkLost(HoldfastError):
    """A pipeline worker cannot work any more: what it ran was given back. Start it again.

    Its JVM is gone, or a small job fails as well: local directories were removed, a disk is full.
    """


class _Reopened(Exception):
    """Parts of a request were revived while it was published."""


class Duties:
    """The handlers of a pipeline worker."""

    def __init__(self, spark: SparkSession, queue: Queue, roots: Roots, worker: Worker) -> None:
        self.lost: str | None = None
        """Why this worker can do nothing any more."""
        self._spark = spark
        self._queue = queue
        self._roots = roots
        self._worker = worker
        self._files = Files(spark, roots)
        self._plans: dict[str, Plan] = {}
        self._lock = threading.Lock()
        self._pools: dict[str, tuple[int, int]] = {}
        """The number of each request's pool, and how many of its jobs run in it."""
        self._logged: set[tuple[str, str]] = set()
        """What was logged of a request, and is not logged again."""
        self._notices = Notices(worker.notes)
        self._checked: dict[str, float] = {}
        """Requests that were to be checked, and when they may be again."""
        self._spoiled: dict[str, float] = {}
        """Directories into which stopped tasks may still write, and until when."""
        if spark.sparkContext.getConf().get("spark.scheduler.mode", "FIFO") != "FAIR":
            log.warning(
                "%s: this Spark session schedules FIFO, so a big part holds up those of other "
                "requests: build it with spark.scheduler.mode=FAIR",
                queue.name,
            )
        for one in registered():
            fingerprint(one.function)  # As it was imported: a deploy may replace the files.
            remember(one.function.__module__.partition(".")[0])
        for duty in (self.plan, self.part, self.publish, self.cancel):
            worker.handler(duty.__name__)(self._guarded(duty))

    def _guarded(self, duty: Callable[[RunningJob], Any]) -> Callable[[RunningJob], Any]:
        def handle(job: RunningJob) -> Any:
            if self.lost:
                raise Release
            context = self._spark.sparkContext
            try:
                context.setJobGroup(group_of(job), job.id, interruptOnCancel=True)
                with self._pool(job.request or job.id):
                    result = msgspec.to_builtins(duty(job))
                self._notices.remove(foreign.whose(job.id))
                return result
            except GivenBack as error:
                if self._is_new(job, error.why):
                    log.warning(
                        "%s: given back, to be looked at again later: %s", job.id, error.why
                    )
                seconds = self._pause(job, error)
                self._notices.put(foreign.whose(job.id), error.why, seconds)
                raise Release(after=seconds) from error
            except (Fail, Retry) as error:
                error.reason = visible(error.reason)  # A file may have any name.
                raise
            except Release:
                raise
            except Exception as error:
                raise self._verdict(job, error) from error

        return handle

    def _pause(self, job: RunningJob, error: GivenBack) -> float:
        """Return for how long to give a job back that this worker cannot run.

        The more parts of its request wait for that, the longer: the rate at which they come due is
        bounded, and is more than the workers that can run them need.
        """
        seconds = (error.after_ms or 0) / 1000
        if job.request is None:
            return seconds
        delayed = self._queue.request(job.request).status().delayed
        return max(seconds, delayed / GIVEN_BACK_PER_SECOND)

    @contextmanager
    def _pool(self, request: str) -> Iterator[None]:
        """Give a request a FAIR pool of its own while something of it runs here.

        Pools are used again, since Spark keeps each for ever.
        """
        with self._lock:
            taken = {number for number, _ in self._pools.values()}
            free = next(number for number in count() if number not in taken)
            number, users = self._pools.get(request, (free, 0))
            self._pools[request] = number, users + 1
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"holdfast-{number}")
        try:
            yield
        finally:
            with self._lock:
                number, users = self._pools.pop(request)
                if users > 1:
                    self._pools[request] = number, users - 1

    def _verdict(self, job: RunningJob, error: Exception) -> Fail | Retry | Release:
        """Decide what follows from an error: whose fault it is."""
        if job.cancelled or isinstance(error, LeaseLost):
            return Release()  # It was ended for that reason.
        if is_lost(self._spark):
            self.lost = self.lost or reason(error)
            return Release()
        told = self._told(job, error)
        if is_permanent(error):
            return Fail(told)
        if is_output_full(error):
            if self._is_new(job, "full"):
                log.warning(
                    "%s: no room for the output. Parts are given back for %d s at no cost, until "
                    "there is: %s",
                    job.id,
                    FULL_SECONDS,
                    told,
                )
            why = f"no room for the output: {told}"
            self._notices.put(foreign.whose(job.id), why, FULL_SECONDS)
            return Release(after=FULL_SECONDS)
        if is_of_a_row(error):
            return Retry(told)
        try:
            probe(own_session(self._spark))
        except Exception as trouble:  # noqa: BLE001  # Whatever it is, a part would meet it too.
            if not job.cancelled:
                self.lost = self.lost or f"{told}. A small job fails too: {reason(trouble)}"
            return Release()
        return Retry(told)

    def _told(self, job: RunningJob, error: Exception) -> str:
        """Return an error in one line; the traceback of the user's code is logged, once."""
        told = reason(error)
        with suppress(msgspec.DecodeError):  # Not a part.
            told = name_input(told, read_part_data(job.data))
        told = visible(told)
        place = place_of(error)
        if place and self._is_new(job, str(place)):
            trace = RaisedElsewhere(trace_of(error))
            log.warning("%s: raised in %s", job.id, place, exc_info=trace)
        return told

    def _is_new(self, job: RunningJob, what: str) -> bool:
        """Tell whether nothing of the kind was logged for the request of a job."""
        known = foreign.whose(job.id), what
        with self._lock:
            if known in self._logged:
                return False
            if len(self._logged) >= MOST_LOGGED:
                self._logged.clear()
            self._logged.add(known)
            return True

    # ---------------------------------------------------------------- duties

    def plan(self, job: RunningJob) -> dict[str, int]:
        """Split a request into parts."""
        order = foreign.decoded(f"the order {job.id!a}", read_order, job.data)
        request = self._queue.request(foreign.planned_request(job.id, order))
        foreign.check_order(self._roots, order)
        status = request.status()
        if status.sealed:
            return {"parts": self._check(order, request, status, job)}
        order = msgspec.structs.replace(order, run=run_of(status))
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
        data = foreign.decoded(f"the part {job.id!a}", read_part_data, job.data)
        plan = self._plan_of(data, foreign.part_request(job.id, job.request))
        foreign.check_slice(self._roots, data.slice)
        with self._noting(data.staging, job):
            self._give_back_unlike(plan)
            try:
                return run_part(self._spark, self._files, plan, data.slice, job)
            except Exception as error:
                if isinstance(error, Fail) or is_permanent(error):
                    with suppress(HoldfastError):  # The error of the part says more.
                        self._ask_for_check(plan.order, job)
                raise

    def _ask_for_check(self, order: Order, job: RunningJob) -> None:
        """Add a job that looks whether the error of a failed part is one of the whole request.

        It has the id of the plan, which is over by now: there is one of them at a time. With
        partial=True each part is tried, so that what can be done is published.
        """
        request = self._queue.request(order.id)
        now = time.monotonic()
        with self._lock:
            is_soon = now < self._checked.get(order.id, now)
        if order.partial or job.cancelled or is_soon:
            return
        order = msgspec.structs.replace(order, limit=request.status().limit)
        added = self._queue.add(
            msgspec.json.encode(order),
            id=f"{order.id}/plan",
            handler="plan",
            priority=CHECK_PRIORITY,
            max_failures=order.max_failures,
        )
        if added:
            with self._lock:
                if len(self._checked) >= MOST_LOGGED:
                    self._checked.clear()
                self._checked[order.id] = now + CHECK_SECONDS

    def _check(self, order: Order, request: Request, status: RequestStatus, job: RunningJob) -> int:
        """Look whether the transform of a planned request still works; hold it up if it does not.

        What fails here would fail in each part. So this job fails instead of them, and they wait,
        with a limit of 0, until it is revived and succeeds.
        """
        if order.run != run_of(status) or status.ended or status.state == "stopping":
            return status.total  # Nothing waits, or a plan ran to its end and could not say so.
        plan = self._plan_of(PartData(order.staging, Slice([])), order.id)
        self._give_back_unlike(plan)
        try:
            try_transform(self._spark, self._files, plan, job)
        except Exception as error:
            if isinstance(error, Fail) or is_permanent(error):
                job.extend()
                with suppress(WrongState):  # What still ran has ended, and the request with it.
                    request.set_limit(0)
            raise
        if status.limit == 0:
            with suppress(WrongState):
                request.set_limit(order.limit)
        return status.total

    def publish(self, job: RunningJob) -> Published:
        """Put the output of a request into place, if it has one."""
        output = foreign.decoded(f"the target {job.id!a}", read_target, job.data).output
        foreign.check_output(self._roots, output)
        request = self._queue.request(foreign.ended_request(job.id))
        status = request.status()
        run = run_of(status)
        staging = staging_of(output, request.id, run)
        plan = read_plan(self._files, staging)
        if (
            plan is None
            or status.state == "cancelled"
            or read_manifest(self._files, output, request.id, run)
        ):
            found = abandon(self._files, output, request.id, run)
            if found.state == "done":  # By a publisher that died before it could say so.
                return found
            if status.state == "completed":
                raise Fail(
                    f"{staging} is gone, and with it what the parts wrote: submit the request again"
                )
            return found if status.state == "cancelled" else Published("failed", output)
        foreign.check_plan(self._roots, plan, output, request.id, run)
        order = plan.order
        parts = list(request.results())
        complete = status.state == "completed" and status.failed == 0
        if not status.ended or not (complete or order.partial):
            return Published("failed", output)  # Finished parts are kept: others may be revived.
        winners = [(part, foreign.done_of(part)) for part in parts if part.state == "done"]
        missing = [part.number for part in parts if part.state != "done"]

        def still_ours() -> None:
            job.extend()
            if (now := request.status()).endings != status.endings or not now.ended:
                raise _Reopened

        with self._noting(staging, job), suppress(_Reopened):
            finished = self._finish(plan, [done for _, done in winners], job)
            return publish(self._files, order, winners, missing, finished, still_ours)
        return Published("failed", output)  # Parts were revived: the next ending publishes them.

    def cancel(self, job: RunningJob) -> Published:
        """Give up a request whose parts have ended: remove what it has not published."""
        output = foreign.decoded(f"the target {job.id!a}", read_target, job.data).output
        foreign.check_output(self._roots, output)
        id, ending = foreign.cancelled_request(job.id)
        self._queue.cancel(publishing := f"{id}/end/{ending}")
        found = self._queue.show(publishing)
        if found is not None and found.state != "ended":
            raise Release(after=LOOK_SECONDS)  # It still runs, and is stopping.
        request = self._queue.request(id)
        status = request.status()
        if not status.ended or status.endings != ending:
            return Published("failed", output)  # Failed parts were revived.
        return abandon(self._files, output, id, run_of(status))

    def _give_back_unlike(self, plan: Plan) -> None:
        """Leave a request to workers like the planner's."""
        if why := unlike(plan, self._spark):
            raise GivenBack(why)

    def _finish(self, plan: Plan, winners: list[Done], job: RunningJob) -> Done | None:
        """Run the last transform, once: what it came to is written down before it is used."""
        order = plan.order
        if order.finish is None:
            return None
        attempts = "\n".join(winner.attempt for winner in winners)
        path = f"{order.staging}/_finished.{sha256(attempts.encode()).hexdigest()[:16]}.json"
        known = self._files.read(path)
        if known is None:
            self._give_back_unlike(plan)
            for winner in winners:  # Spark reads all that is there.
                self._files.refuse_links(f"{order.staging}/{winner.attempt}")
            done = run_finish(self._spark, self._files, plan, winners, job)
            self._files.write(path, msgspec.json.encode(done))
            return done
        return foreign.finished_of(known)

    @contextmanager
    def _noting(self, staging: str, job: RunningJob) -> Iterator[None]:
        """Watch a directory for a while after a run in it was stopped."""
        try:
            yield
        except BaseException as error:
            if job.cancelled or isinstance(error, LeaseLost):
                self._spoiled[staging] = time.monotonic() + SPOILED_SECONDS
            raise

    def _tidy(self) -> None:
        """Remove what tasks wrote after they were cancelled: no later run uses these directories.

        A task is told to stop, and not waited for. Where there is no plan the request is over.
        """
        for staging, until in list(self._spoiled.items()):
            with suppress(InvalidArgument):  # It is a link now: let it be.
                if self._files.exists(staging) and read_plan(self._files, staging) is None:
                    self._files.remove(staging)
            if time.monotonic() > until:
                self._spoiled.pop(staging, None)

    def _plan_of(self, data: PartData, id: str) -> Plan:
        """Return the plan of a request, from the staging directory that its part must have."""
        run = run_of(self._queue.request(id).status())
        output = foreign.staging_output(self._roots, data.staging, id, run)
        plan = self._plans.get(data.staging)
        if plan is None:
            plan = read_plan(self._files, data.staging)
            if plan is None:
                raise Fail(f"{data.staging}/_plan.json is gone: the request cannot go on")
        foreign.check_plan(self._roots, plan, output, id, run)
        if len(self._plans) > 1000:
            self._plans.clear()
        self._plans[data.staging] = plan
        return plan

    # ----------------------------------------------------------------- watch

    def watch(self, over: threading.Event) -> None:
        """End the jobs that were cancelled, and tell how far the others are."""
        context = self._spark.sparkContext
        while not over.wait(LOOK_SECONDS):
            try:
                for job in self._worker.running():
                    if job.cancelled:
                        context.cancelJobGroup(group_of(job))
                    elif (fraction := stages.progress(context, group_of(job))) is not None:
                        job.progress(fraction)
                self._tidy()
                self._notices.tidy()
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
