"""Whose jobs may run, and whose turn it is: requests, and groups, which never end.

Nothing is counted along the way. How many jobs of a request run is how many of the jobs that
name it are leased, and whoever has a free place and a part that waits has a turn.
"""

from __future__ import annotations

from collections import Counter

from model.hearing import Hearing
from model.values import Job, Opening, Request


class Owners(Hearing):
    """The jobs of a queue, and the requests and groups that some of them are of."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, Job] = {}
        self.requests: dict[str, Request] = {}
        self.met: list[str] = []
        """Those that the question has to do with, in the order in which it came to them."""
        self.tally: Counter[str] = Counter()
        self.paused = False
        self.ticks: dict[str, int] = {}
        """The last tick of each schedule."""
        self.numbers = 0
        """Given to what is added, promoted or put behind its equals."""
        self.wake = 0
        """Tokens for sleepers: at most one."""

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _wake_sleeper(self, came_up: object) -> None:
        if came_up and not self.paused:
            self.wake = 1

    # ------------------------------------------------------------------- looking

    def fellows(self, owner: str, *states: str) -> list[Job]:
        """Return the jobs of a request or group that stand in these states."""
        return [job for job in self.jobs.values() if job.owner == owner and job.state in states]

    def waiting(self, owner: str) -> list[Job]:
        """Return its jobs that wait for a turn, best first."""
        return sorted(self.fellows(owner, "parked"), key=_place)

    def standing(self, request: Request) -> int:
        """Return how many of its parts have neither ended nor failed."""
        return len(self.fellows(request.name, "parked", "delayed", "leased"))

    def has_free_place(self, owner: Request) -> bool:
        return owner.limit is None or len(self.fellows(owner.name, "leased")) < owner.limit

    def turns(self) -> list[Request]:
        """Return who has a turn, best first."""
        return sorted(
            (owner for owner in self.requests.values() if owner.turn is not None),
            key=lambda owner: (-self.priority_of(owner), owner.turn),
        )

    def priority_of(self, owner: Request) -> int:
        """Return its own; that of the best job of a group, whose jobs each have one."""
        return self.waiting(owner.name)[0].priority if owner.is_group else owner.priority

    def ready(self) -> list[Job]:
        """Return the jobs of nobody that can be leased, best first."""
        return sorted((job for job in self.jobs.values() if job.state == "ready"), key=_place)

    def best(self) -> Job | None:
        """Return the job that is to be leased next: ready, or of who has the turn."""
        best = min(self.ready(), key=_place, default=None)
        for owner in self.turns()[:1]:
            place = -self.priority_of(owner), owner.turn or 0
            if best is None or place < _place(best):
                best = self.waiting(owner.name)[0]
        return best

    def in_order(self, state: str) -> list[Job]:
        """Return the jobs of a state: in the order of its times, then in that of ids."""
        jobs = [job for job in self.jobs.values() if job.state == state]
        if state == "ready":
            return self.ready()
        if state == "parked":
            return sorted(jobs, key=lambda job: (_name_in_order(job.owner or ""), *_place(job)))
        return sorted(jobs, key=lambda job: (job.when, job.id.encode()))

    # -------------------------------------------------------------------- moving

    def _meet(self, owner: str | None) -> None:
        """Remember to draw the consequences for this one."""
        if owner is not None and owner not in self.met:
            self.met.append(owner)

    def _join(self, job: Job, now: int) -> None:
        """Let a job be of the group that it names, unless a request has that name by now."""
        name = job.options.get("group")
        self._meet(job.group)
        self._meet(name)
        job.group = None
        if name is None:
            return
        group = self.requests.get(name)
        if group is None:
            group = self.requests[name] = Request(name, now, Opening(), is_group=True)
        if group.is_group:
            job.group = name
            group.limit = job.options.get("group_limit", group.limit)

    def _vacate(self, job: Job, now: int) -> None:
        """The run of a job is over, if there was one: its place is free."""
        if job.owner is not None and job.state == "leased":
            self._meet(job.owner)
            self.requests[job.owner].last_at = now

    def _take_turn(self, owner: Request) -> None:
        """Give a turn to who has a free place and a part that waits, and only to them."""
        over = owner.outcome or owner.stopping
        if over or not self.waiting(owner.name) or not self.has_free_place(owner):
            owner.turn = None
            return
        if owner.turn is None:
            owner.turn = self._number()
        self._wake_sleeper(True)

    def _give_out_best(self, count: int, token: str, until: int, now: int) -> list[Job]:
        """Lease the best. Who has the turn gives several parts where many are asked for."""
        granted: list[Job] = []
        while len(granted) < count and (job := self.best()):
            owner = self.requests[job.owner] if job.owner else None
            most = min(at_a_time(count), count - len(granted)) if owner else 1
            for part in self.waiting(owner.name)[:most] if owner else [job]:
                if owner and not self.has_free_place(owner):
                    break
                if owner and owner.is_group and part.priority != job.priority:
                    break
                self._give_out(part, token, until, now)
                granted.append(part)
        return granted

    def _give_out(self, job: Job, token: str, until: int, now: int) -> None:
        """Let a job be leased. Whose part it is goes behind its equals, and all that are there."""
        was_parked, job.state = job.state == "parked", "leased"
        job.when, job.token, job.leased_at = until, token, now
        if job.owner is None:
            return
        self._meet(job.owner)
        owner = self.requests[job.owner]
        owner.first_at = now if owner.first_at is None else owner.first_at
        if was_parked:
            owner.turn = self._number()
            if not self.waiting(owner.name) or not self.has_free_place(owner):
                owner.turn = None


def at_a_time(count: int) -> int:
    """Return how many parts one gives before it goes behind its equals, in a call for so many."""
    return max(1, min(4, count // 4))


def _place(job: Job) -> tuple[int, int]:
    return -job.priority, job.place


def _name_in_order(owner: str) -> bytes:
    """Shorter names stand before longer ones."""
    name = owner.encode()
    return b"%03d" % len(name) + name
