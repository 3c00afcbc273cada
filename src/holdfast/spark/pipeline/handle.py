"""A request over data, as its producer sees it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from holdfast import JobNotFound, Outcome, Queue, Request, arguments
from holdfast.client.status import Part, RequestStatus
from holdfast.errors import InvalidArgument, WrongState
from holdfast.spark.pipeline import foreign, notices
from holdfast.spark.pipeline.formats import output_options, own_options
from holdfast.spark.pipeline.order import (
    Done,
    Order,
    Published,
    Target,
    many_parts,
    read_order,
    read_published,
    run_of,
)
from holdfast.spark.pipeline.roots import Roots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.job import Duration, WorkerInfo

State: TypeAlias = Literal[
    "planning", "running", "publishing", "cancelling", "done", "failed", "cancelled"
]

ENDED: Final = ("done", "failed", "cancelled")

_POLL_SECONDS = 1.0
PAGE: Final = 1000
"""Parts that are read in one call."""
MOST_PAGES: Final = 2
"""Calls that one look at the progress of a request costs, however many parts it has."""
KEPT_SECONDS: Final = 7 * 86400
"""For how long it is remembered that a request was given up after its parts had ended."""
MOST_ERRORS: Final = 20
"""Failed parts whose errors `progress` tells."""


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
    counted: int = 0
    """Parts whose rows are in these. Each look counts up to two thousand more, until all that are
    done are counted. Of a request that is done all are."""
    fraction: float = 0.0
    """Which part of it is done, with what Spark has done of running parts."""
    rate: float | None = None
    """Parts per second."""
    ends_at: float | None = None
    """When it will end, or did."""
    error: str | None = None
    """Why it failed."""
    errors: dict[int, str] = {}
    """Why the first failed parts failed, by their number; `handle.errors()` has all."""
    warning: str | None = None
    """What is unwise about it."""
    waiting_because: str | None = None
    """Why nothing of it runs: no worker is alive, the queue is paused, or its limit is 0. Or why
    workers gave jobs of it back, at no cost, to be looked at again later."""

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.state in ENDED


class Tally:
    """What settled parts came to, as far as they are read. Each part is counted once."""

    def __init__(self, run: str = "") -> None:
        self.run = run
        """Which request of its id it is about."""
        self.rows_in = self.rows_out = self.failed = 0
        self.errors: dict[int, str] = {}
        """Of the first failed parts."""
        self._known: set[int] = set()
        self._known_in: Counter[int] = Counter()
        """How many parts are known of each page, so that a page that is complete is passed over."""
        self._next = 0
        """The page that is read next."""

    def update(self, request: Request, status: RequestStatus) -> None:
        """Read some of what was settled since the last time: whole pages, by turns."""
        pages, left = -(-status.total // PAGE), MOST_PAGES
        for _ in range(pages):
            if not left or self.counted >= status.settled:
                break
            page, self._next = self._next % pages, self._next + 1
            if self._known_in[page] < PAGE:
                left -= 1
                for part in islice(request.results(first=page * PAGE), PAGE):
                    if part.number not in self._known:
                        self._read(page, part)

    @property
    def counted(self) -> int:
        """How many parts are in it."""
        return len(self._known)

    def _read(self, page: int, part: Part) -> None:
        if part.state not in ("done", "failed", "cancelled"):
            return
        self._known.add(part.number)
        self._known_in[page] += 1
        if part.state == "done":
            if done := _done(part):
                self.rows_in += done.rows_in
                self.rows_out += done.rows_out
        elif part.state == "failed":
            self.failed += 1
            self.errors[part.number] = part.error or ""
            if len(self.errors) > MOST_ERRORS:
                del self.errors[max(self.errors)]


class Handle:
    """A request of a pipeline: how far it is, and what becomes of it."""

    def __init__(self, queue: Queue, id: str, roots: Roots) -> None:
        self.queue = queue
        self.id = id
        self._roots = roots
        self._request = queue.request(id)
        self._tally = Tally()

    def __repr__(self) -> str:
        return f"Handle({self.id!r} in {self.queue.name!r})"

    # ----------------------------------------------------------------- watch

    def progress(self) -> Progress:
        """Return how far it is."""
        status = self._request.status()
        state, error, published = self._state(status)
        tally = self._counted(status)
        rows_in, rows_out, counted = tally.rows_in, tally.rows_out, tally.counted
        if published and state == "done":
            rows_in, rows_out, counted = published.rows_in, published.rows_out, status.settled
        idle = state not in ENDED and not status.running
        may_wait = idle or (state not in ENDED and (status.delayed or not status.sealed))
        workers = self.queue.workers() if status.running or may_wait else []
        held = self._held_up(status, workers) if idle else None
        running = sum(self._running(workers)) if status.running else 0.0
        return Progress(
            id=self.id,
            state=state,
            parts=status.total,
            done=status.done,
            running=status.running,
            waiting=status.total - status.settled - status.running,
            failed=status.failed,
            rows_in=rows_in,
            rows_out=rows_out,
            counted=counted,
            fraction=(status.settled + running) / status.total if status.total else 0.0,
            rate=status.rate,
            ends_at=None if held else status.ends_at,
            error=error or _failed_parts(tally.errors, status.failed),
            errors=dict(sorted(tally.errors.items())),
            warning=many_parts(status.total),
            waiting_because=held or (notices.found(workers, self.id) if may_wait else None),
        )

    def _held_up(self, status: RequestStatus, workers: list[WorkerInfo]) -> str | None:
        """Return why nothing of it will run, whatever workers do."""
        if not any(worker.alive for worker in workers):
            return f"no worker of {self.queue.name} is alive: start one (holdfast pipeline work)"
        if self.queue.counts().paused:
            return f"{self.queue.name} is paused: resume it (holdfast resume)"
        if status.limit == 0 and status.settled < status.total:
            return "its limit is 0: raise it (handle.set_limit)"
        return None

    def _counted(self, status: RequestStatus) -> Tally:
        """Return what the settled parts came to."""
        if status.failed < self._tally.failed or self._tally.run != run_of(status):
            self._tally = Tally(run_of(status))  # Parts were revived, or the id was used again.
        self._tally.update(self._request, status)
        return self._tally

    def wait(self, timeout: Duration | None = None) -> Progress:
        """Wait until it is published, has failed or was cancelled, up to `timeout` seconds."""
        seconds = None if timeout is None else arguments.duration_ms("timeout", timeout) / 1000
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            status = self._request.status()
            state, _, _ = self._state(status)
            left = _POLL_SECONDS if deadline is None else deadline - time.monotonic()
            if state in ENDED or left <= 0:
                return self.progress()
            patience = min(left, _POLL_SECONDS)
            if state in ("publishing", "cancelling"):
                awaited = _publishing(status) if state == "publishing" else _giving_up(status)
                try:
                    self.queue.result(awaited, wait=patience)
                except JobNotFound:  # Forgotten meanwhile, as the request will be in a moment.
                    time.sleep(min(patience, 0.1))
            else:
                self._request.wait(patience)

    def _state(self, status: RequestStatus) -> tuple[State, str | None, Published | None]:
        """Return the state, why it failed, and what was published."""
        if status.state == "cancelled":
            return "cancelled", None, None
        if not status.ended:
            return *self._unfinished(status), None
        outcome = self._outcome(_publishing(status))
        published = _published(outcome)
        if outcome and outcome.kind == "completed" and published.state != "failed":
            return published.state, status.reason, published
        if self.queue.show(_giving_up(status)) is not None:
            given_up = self._outcome(_giving_up(status))
            if given_up is None:
                return "cancelling", None, published
            if given_up.kind == "failed":
                return "failed", f"it could not be cancelled: {given_up.error}", published
            if (found := _published(given_up)).state != "failed":
                return found.state, None, found
        if outcome is None or outcome.kind == "cancelled":
            return "publishing", None, None  # The server has it, or a worker, in a moment.
        error = outcome.error if outcome.kind == "failed" else status.reason
        return "failed", error, published

    def _outcome(self, id: str) -> Outcome | None:
        """Return how a job ended; None where it has not, or is not there yet."""
        try:
            return self.queue.result(id)
        except JobNotFound:
            return None

    def _unfinished(self, status: RequestStatus) -> tuple[State, str | None]:
        if status.sealed and status.limit != 0:
            return "running", None
        plan = self.queue.show(f"{self.id}/plan")  # Of a planned request: its check.
        error = plan.error if plan else None
        if plan and plan.state == "failed":
            return "failed", error
        return ("running" if status.total else "planning"), error

    def _running(self, workers: list[WorkerInfo]) -> Iterator[float]:
        prefix = f"{self.id}/"
        for worker in workers:
            for job in _jobs(worker.about) if worker.alive else ():
                id = str(job.get("id", ""))
                is_part = id.startswith(prefix) and id.removeprefix(prefix).isdecimal()
                if is_part and job.get("progress"):
                    yield float(job["progress"][0])

    def errors(self) -> dict[int, str]:
        """Return why parts failed, by their number: of all that did."""
        return {part.number: part.error or "" for part in self._failed(self._request.status())}

    def _failed(self, status: RequestStatus) -> Iterator[Part]:
        if status.failed:
            yield from (part for part in self._request.results() if part.state == "failed")

    def parts(self) -> Iterator[tuple[Part, Done | None]]:
        """Iterate over the parts, with the result of each part that is done and has a valid one."""
        for part in self._request.results():
            yield part, _done(part) if part.state == "done" else None

    def priority(self) -> int:
        """Return its priority."""
        return self._request.status().priority

    def plot(self, path: str | Path) -> Path:
        """Draw which worker ran which part, and when, into a picture; return where it is."""
        from holdfast.spark.pipeline.report import draw  # noqa: PLC0415

        return draw([self], path, title=self.id)

    # ---------------------------------------------------------------- manage

    def set_limit(self, limit: int | None) -> None:
        """Change how many parts may run at a time, from the next part on."""
        self._request.set_limit(limit)

    def set_priority(self, priority: int) -> None:
        """Give it another priority, from the next part on."""
        self._request.set_priority(priority)

    def cancel(self) -> bool:
        """Cancel it: nothing more of it runs, nothing is published, and what it wrote goes away.

        Return True if this call cancelled it. At the very end of publishing that may be too late:
        `wait()` returns which of the two happened.
        """
        self.queue.cancel(f"{self.id}/plan")
        if self._request.cancel():
            return True
        status = self._request.status()
        state, _, published = self._state(status)
        if not status.ended or state not in ("publishing", "failed"):
            return False
        if self.queue.revive(_giving_up(status)):
            return True  # It was cancelled before, and that failed.
        data = self.queue.data(_publishing(status))
        if data is None and published:
            data = msgspec.json.encode(Target(published.output))
        if not data:
            return False
        # This job gives it up, whoever dies now. That the publishing stops does not wait for it.
        added = self.queue.add(
            data, id=_giving_up(status), handler="cancel", priority=99, result_for=KEPT_SECONDS
        )
        self.queue.cancel(_publishing(status))
        return bool(added)

    def revive(self) -> int:
        """Run the failed plan, parts or publishing again; return how many jobs that are.

        Revived parts end the request again, which publishes it. A request that is published
        already, with partial=True, is not published again.
        """
        status = self._request.status()
        state = self._state(status)[0]
        if state in ("cancelled", "cancelling"):
            raise WrongState(f"{self.id} was cancelled: submit the request again")
        if status.failed and state == "done":
            raise WrongState(
                f"{self.id} has published its output without {status.failed} failed parts: submit "
                "the request again, with mode='overwrite'"
            )
        names = [f"{self.id}/plan", *(part.id for part in self._failed(status))]
        self._tally = Tally()
        revived = sum(self.queue.revive(name) for name in names)
        if not revived and status.ended:
            revived = int(self.queue.revive(_publishing(status)))
        return revived

    def order(self) -> Order:
        """Return what was asked for, as long as it is not planned."""
        data = self.queue.data(f"{self.id}/plan")
        if data is None:
            raise WrongState(f"{self.id} is planned: its manifest has the order")
        return foreign.decoded(f"the order of {self.id!a}", read_order, data)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return what it published: just that, whatever else is in the directory."""
        from holdfast.spark.pipeline.files import Files, for_spark  # noqa: PLC0415
        from holdfast.spark.pipeline.publishing import read_manifest  # noqa: PLC0415

        status = self._request.status()
        state, _, published = self._state(status)
        if state != "done" or published is None:
            raise WrongState(f"{self.id} has published nothing: it is {state}")
        output = published.output
        foreign.check_output(self._roots, output)
        files = Files(spark, self._roots)
        manifest = read_manifest(files, output, self.id, run_of(status))
        if manifest is None:
            raise WrongState(f"{output} was replaced by another request")
        options = output_options(manifest.format, manifest.options) | own_options(manifest.format)
        paths = [f"{output}/{name}" for name in manifest.files]
        there = files.regular(output)
        for name, path in zip(manifest.files, paths, strict=True):
            foreign.check_place(self._roots, path)
            if name not in there:
                raise WrongState(f"{path} is gone: the output is damaged")
        reader = spark.read.format(manifest.format).options(**options)
        return reader.load([for_spark(path) for path in paths])


def _publishing(status: RequestStatus) -> str:
    return f"{status.id}/end/{status.endings}"


def _giving_up(status: RequestStatus) -> str:
    return f"{_publishing(status)}/cancel"


def _published(outcome: Outcome | None) -> Published:
    if outcome is None or not outcome.result:
        return Published("failed")
    try:
        return foreign.decoded("the result", read_published, outcome.result)
    except InvalidArgument:
        return Published("failed")


def _done(part: Part) -> Done | None:
    try:
        return foreign.done_of(part)
    except InvalidArgument:  # The worker that publishes says what is wrong with it.
        return None


def _jobs(about: dict[str, Any]) -> list[dict[str, Any]]:
    return [job for job in about.get("running", ()) if isinstance(job, dict)]


def _failed_parts(errors: dict[int, str], failed: int) -> str | None:
    if not errors:
        return None
    number = min(errors)
    more = f", and {failed - 1} more" if failed > 1 else ""
    return f"part {number}: {errors[number]}{more}"
