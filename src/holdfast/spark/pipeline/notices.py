"""Why a worker gave jobs of a request back: it says so in the directory of workers.

The engine keeps no reason with a job that is released. So each worker publishes its reasons with
its registration, and `handle.progress()` reads them there: one call, however many parts wait. A
reason goes away when a job of the request succeeds in this worker, when the worker has not given
anything of the request back for a while, and when the worker is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from holdfast.escaping import visible

if TYPE_CHECKING:
    from holdfast.job import WorkerInfo

MOST_REQUESTS: Final = 10
"""Requests whose reasons a worker publishes: an entry of the directory has a few kilobytes."""
LONGEST: Final = 300
"""Characters of a reason."""
SLACK_SECONDS: Final = 15.0
"""How much longer than its job waits a reason stands: the job must be leased again."""


class Notices:
    """The reasons of one worker, by request."""

    def __init__(self, published: dict[str, str]) -> None:
        self._published = published
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()

    def put(self, request: str, why: str, seconds: float) -> None:
        """Say why a job of a request was given back, and for how many seconds."""
        until = time.monotonic() + seconds + SLACK_SECONDS
        with self._lock:
            self._drop(request)
            if len(self._until) >= MOST_REQUESTS:
                self._drop(next(iter(self._until)))
            self._until[request] = until
            self._published[request] = why if len(why) <= LONGEST else f"{why[:LONGEST]}…"

    def remove(self, request: str) -> None:
        """Take the reason of a request away: a job of it succeeded here."""
        if request in self._until:
            with self._lock:
                self._drop(request)

    def tidy(self) -> None:
        """Take away what has not been said again."""
        now = time.monotonic()
        with self._lock:
            for request in [one for one, until in self._until.items() if until < now]:
                self._drop(request)

    def _drop(self, request: str) -> None:
        self._until.pop(request, None)
        self._published.pop(request, None)


def found(workers: Iterable[WorkerInfo], request: str) -> str | None:
    """Return why workers gave jobs of a request back, in one line; None where none did."""
    by_reason: dict[str, list[str]] = {}
    for worker in workers:
        if worker.alive:
            for why in _of(worker.about, request):
                who = f"{worker.about.get('host')}:{worker.about.get('pid')}"
                by_reason.setdefault(why, []).append(visible(who))
    told = [f"{why} (worker {_names(who)})" for why, who in sorted(by_reason.items())]
    return "; ".join(told) or None


def _of(about: dict[str, Any], request: str) -> Iterator[str]:
    """Return the reasons in a worker's entry. Any client of the server may have written it."""
    notes = about.get("notes")
    for note in notes if isinstance(notes, list) else ():
        if isinstance(note, list) and len(note) == 2 and note[0] == request:
            yield visible(str(note[1]))[: LONGEST + 1]


def _names(who: list[str]) -> str:
    first, *others = sorted(who)
    return f"{first}, and {len(others)} more" if others else first
