"""A request over data, as the one who asked for it sees it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast import JobNotFound, Outcome, Queue, arguments
from holdfast.errors import WrongState
from holdfast.progress import Part, RequestStatus
from holdfast.spark.pipeline.order import (
    Done,
    Order,
    Published,
    read_done,
    read_order,
    read_published,
    run_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.job import Duration

State: TypeAlias = Literal["planning", "running", "publishing", "done", "failed", "cancelled"]

_POLL_SECONDS = 1.0


class Progress(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """How far a request is, at one moment."""

    id: str
    state: State
    parts: int = 0
    """Parts so far; more may come while it is being planned."""
    done: int = 0
    running: int = 0
    waiting: int = 0
    failed: int = 0
    rows_in: int = 0
    rows_out: int = 0
    fraction: float = 0.0
    """Which part of it is done, with what Spark has done of running parts."""
    rate: float | None = None
    """Parts per second."""
    ends_at: float | None = None
    """When it will end, or did."""
    error: str | None = None
    """Why it failed."""
    errors: dict[int, str] = {}
    """Why parts failed, by their number."""

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.state in ("done", "failed", "cancelled")


class Handle:
    """A request of a pipeline: how far it is, and what becomes of it."""

    def __init__(self, queue: Queue, id: str) -> None:
        self.queue = queue
        self.id = id
        self._request = queue.request(id)
        self._settled: dict[int, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"Handle({self.id!r} in {self.queue.name!r})"

    # ----------------------------------------------------------------- watch

    def progress(self) -> Progress:
        """Return how far it is."""
        status = self._request.status()
        state, error = self._state(status)
        rows = list(self._rows())
        errors = {part.number: part.error or "" for part in self._failed(status)}
        running = sum(self._running()) if status.running else 0.0
        return Progress(
            id=self.id,
            state=state,
            parts=status.total,
            done=status.done,
            running=status.running,
            waiting=status.total - status.settled - status.running,
            failed=status.failed,
            rows_in=sum(read for read, _ in rows),
            rows_out=sum(written for _, written in rows),
            fraction=(status.settled + running) / status.total if status.total else 0.0,
            rate=status.rate,
            ends_at=status.ends_at,
            error=error or _failed_parts(errors),
            errors=errors,
        )

    def wait(self, timeout: Duration | None = None) -> Progress:
        """Wait until it is published, has failed or was cancelled, up to `timeout` seconds."""
        seconds = None if timeout is None else arguments.duration_ms("timeout", timeout) / 1000
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            status = self._request.status()
            state, _ = self._state(status)
            left = _POLL_SECONDS if deadline is None else deadline - time.monotonic()
            if state in ("done", "failed", "cancelled") or left <= 0:
                return self.progress()
            patience = min(left, _POLL_SECONDS)
            if state == "publishing":
                self.queue.result(_publishing(status), wait=patience)
            else:
                self._request.wait(patience)

    def _state(self, status: RequestStatus) -> tuple[State, str | None]:
        if status.state == "cancelled":
            return "cancelled", None
        if not status.ended:
            return self._unfinished(status)
        try:
            outcome = self.queue.result(_publishing(status))
        except JobNotFound:
            return "publishing", None  # The server has it, in a moment.
        if outcome is None:
            return "publishing", None
        if outcome.kind == "failed":
            return "failed", outcome.error
        return _published(outcome).state, status.reason

    def _unfinished(self, status: RequestStatus) -> tuple[State, str | None]:
        if status.sealed:
            return "running", None
        plan = self.queue.show(f"{self.id}/plan")
        if plan is not None and plan.state == "failed":
            return "failed", plan.error
        return ("running" if status.total else "planning"), None

    def _rows(self) -> Iterator[tuple[int, int]]:
        """Return rows read and written of parts that are done; each is asked for once."""
        first = next((n for n in range(len(self._settled) + 1) if n not in self._settled), 0)
        for part in self._request.results(first=first):
            if part.state == "done" and part.number not in self._settled:
                done = read_done(part.result or b"")
                self._settled[part.number] = (done.rows_in, done.rows_out)
        yield from self._settled.values()

    def _running(self) -> Iterator[float]:
        prefix = f"{self.id}/"
        for worker in self.queue.workers():
            for job in _jobs(worker.about) if worker.alive else ():
                id = str(job.get("id", ""))
                is_part = id.startswith(prefix) and id.removeprefix(prefix).isdecimal()
                if is_part and job.get("progress"):
                    yield float(job["progress"][0])

    def _failed(self, status: RequestStatus) -> Iterator[Part]:
        if status.failed:
            yield from (part for part in self._request.results() if part.state == "failed")

    def parts(self) -> Iterator[tuple[Part, Done | None]]:
        """Go through the parts, with what each that is done came to."""
        for part in self._request.results():
            yield part, read_done(part.result or b"") if part.state == "done" else None

    def priority(self) -> int:
        """Return its priority."""
        return self._request.status().priority

    def plot(self, path: str | Path) -> Path:
        """Draw which worker ran which part, and when, into a picture; return where it is."""
        from holdfast.spark.pipeline.report import draw  # noqa: PLC0415

        return draw([self], path, title=self.id)

    # ---------------------------------------------------------------- manage

    def set_limit(self, limit: int | None) -> None:
        """Let so many parts run at a time, from the next on."""
        self._request.set_limit(limit)

    def set_priority(self, priority: int) -> None:
        """Give it another priority, from the next part on."""
        self._request.set_priority(priority)

    def cancel(self) -> bool:
        """Let nothing more of it run. What was written goes away; nothing is published."""
        self.queue.cancel(f"{self.id}/plan")
        return self._request.cancel()

    def revive(self) -> int:
        """Let run again what failed: the plan, parts, or the publishing; return how many did."""
        status = self._request.status()
        names = [f"{self.id}/plan"]
        if status.ended:
            names.append(_publishing(status))
        names += [part.id for part in self._failed(status)]
        self._settled.clear()
        return sum(self.queue.revive(name) for name in names)

    def order(self) -> Order:
        """Return what was asked for, as long as it is not planned."""
        data = self.queue.data(f"{self.id}/plan")
        return read_order(data or b"")

    def read(self, spark: SparkSession) -> DataFrame:
        """Return what it published: just that, whatever else is in the directory."""
        from holdfast.spark.pipeline.files import Files, for_spark  # noqa: PLC0415
        from holdfast.spark.pipeline.publishing import read_manifest  # noqa: PLC0415

        status = self._request.status()
        published = _published(self.queue.result(_publishing(status)) if status.ended else None)
        if published.state != "done":
            raise WrongState(f"{self.id} has published nothing: it is {self.progress().state}")
        manifest = read_manifest(Files(spark), published.output, self.id, run_of(status))
        if manifest is None:
            raise WrongState(f"{published.output} was replaced by another request")
        reader = spark.read.format(manifest.format).options(**manifest.options)
        return reader.load([for_spark(f"{published.output}/{name}") for name in manifest.files])


def _publishing(status: RequestStatus) -> str:
    return f"{status.id}/end/{status.endings}"


def _published(outcome: Outcome | None) -> Published:
    if outcome is None or not outcome.result:
        return Published("failed")
    return read_published(outcome.result)


def _jobs(about: dict[str, Any]) -> list[dict[str, Any]]:
    return [job for job in about.get("running", ()) if isinstance(job, dict)]


def _failed_parts(errors: dict[int, str]) -> str | None:
    if not errors:
        return None
    number, error = next(iter(errors.items()))
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    return f"part {number}: {error}{more}"
