"""How requests end, and what follows for them from what has happened to their jobs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from holdfast.job import Update
from model.jobs import Jobs
from model.values import NEVER, Change, EndedPart, Job, Request, after

MOST_PER_CALL = 1000
"""Jobs that one call moves: of a request with more of them the next call takes the others."""
LEAST_KEPT = 10_000
"""A request that has ended is kept for so long, so that who waits for it learns how."""


class Closing(Jobs):
    """The jobs of a queue, and requests that come to an end."""

    room = MOST_PER_CALL

    def ask(self, now: int, caller: str, number: int, question: Callable[[int], Any]) -> Any:
        """Answer, and draw the consequences for requests in the same call."""

        def answer(now: int) -> Any:
            self.met, self.room = [], MOST_PER_CALL
            answer = question(now)
            self._decide(now)
            self._leave_no_empty_group()
            return answer

        return super().ask(now, caller, number, answer)

    def _leave_no_empty_group(self) -> None:
        owners = {job.owner for job in self.jobs.values()}
        for group in [group for group in self.requests.values() if group.is_group]:
            if group.name not in owners:
                del self.requests[group.name]

    def _decide(self, now: int) -> None:
        """Empty and end requests, and see whose turn it is."""
        while self.met:  # One that ends may add a job to a group, which then is met once more.
            request = self.requests.get(self.met.pop(0))
            if request is None:
                continue
            if request.stopping:
                self._empty(request, now)
            if request.sealed and not request.outcome and not self.standing(request):
                self._end_request(request, now)
            self._take_turn(request)

    # -------------------------------------------------------------------- ending

    def _end_request(self, request: Request, now: int) -> None:
        badly = self.fellows(request.name, "failed") or request.ended_as("handled")
        request.outcome = request.stopping or ("failed" if badly else "completed")
        request.stopping, request.walked = None, 0
        request.ended_at, request.endings = now, request.endings + 1
        request.term = after(now, max(request.opening.keep_for, LEAST_KEPT))
        self.tally["ended"] += 1
        given = request.opening.follow_up
        if given:
            ids = (f"{request.name}/end/{n}" for n in count(request.endings))
            id = next(id for id in ids if not self._state_of_taken(id, now))
            # A delay begins now; a time was given when the request was opened.
            due = given.due(request.opened_at if given.delay is None else now)
            self._create(id, [Change(given, Update(), due)], now)

    def _empty(self, request: Request, now: int) -> None:
        """Cancel the parts that wait: first for a place, then those that wait for their time."""
        parked = self.waiting(request.name)[: self.room]
        self._let_go(request, parked, now)
        self.room -= len(parked)
        if self.fellows(request.name, "delayed"):
            numbers = range(request.walked, min(request.walked + self.room, request.total))
            delayed = self.fellows(request.name, "delayed")
            self._let_go(request, [part for part in delayed if part.number in numbers], now)
            self.room -= len(numbers)
            request.walked = numbers.stop if numbers.stop < request.total else 0
        waiting = self.fellows(request.name, "parked", "delayed")
        request.term = now if waiting else NEVER

    def _let_go(self, request: Request, parts: list[Job], now: int) -> None:
        for part in parts:
            del self.jobs[part.id]
            request.ended[part.number] = EndedPart("cancelled", now)
        self.tally["cancelled"] += len(parts)

    # ------------------------------------------------------------------- tending

    def _maintain(self, now: int, force: bool = False) -> tuple[int, int, int]:
        self._tend(now)
        return super()._maintain(now, force)

    def _tend(self, now: int) -> None:
        """Stop what is open for too long, go on with what is to be emptied, forget what is over."""
        due = [request for request in self.requests.values() if request.term <= now]
        due.sort(key=lambda request: (request.term, request.name.encode()))
        for request in due:
            if self.room == 0:
                return
            self.room -= 1
            self._meet(request.name)
            if request.outcome:
                self._forget_request(request, now)
            elif not request.sealed:
                request.stopping, request.sealed = "failed", True
                request.reason = "open for too long"

    def _forget_request(self, request: Request, now: int) -> None:
        """Unless some part waits for somebody's decision, or is with its failure handler."""
        if self.fellows(request.name, "failed", "leased"):
            request.term = after(now, max(request.opening.keep_for, 1000))
            return
        numbers = range(request.walked, min(request.walked + self.room, request.total))
        for number in numbers:
            request.ended[number].kept, request.ended[number].result = False, None
        self.room -= len(numbers)
        request.walked = numbers.stop
        if request.walked == request.total:
            del self.requests[request.name]
            self.tally["forgotten"] += 1
