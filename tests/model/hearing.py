"""Every question: who asks, when, and whether it was asked before.

Silence of everybody is not a lapse, a question asked again is looked up in `answers`, and
callers who were silent for long are forgotten. What is asked is the model's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from model.values import Refusal

SILENCE = 5_000
CALLER_IS_KEPT = 600_000
NOTHING_IS_LEFT = object()


class Hearing:
    """What a queue knows about those who ask."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, int, Any]] = {}
        self.seen: int | None = None
        self.patience = 0
        """After a silence: the end of the time in which leases are protected."""
        self.before = 0
        """When the last call before that silence was heard."""

    def ask(self, now: int, caller: str, number: int, question: Callable[[int], Any]) -> Any:
        """Answer a question once; the same one again with the same answer."""
        last, _, answer = self.answers.get(caller, (0, 0, None))
        if number < last:
            raise Refusal("STALE")
        if number > last:
            before = self.seen, self.patience, self.before
            self._hear(now)
            try:
                answer = question(now)
            except Refusal:
                self.seen, self.patience, self.before = before
                raise
            if answer is NOTHING_IS_LEFT:
                return True
            self.answers[caller] = number, now, answer
        return answer

    def _hear(self, now: int) -> None:
        """Silence of everybody is not a lapse: let the living extend first."""
        if self.seen is not None and now - self.seen > SILENCE:
            self.patience, self.before = now + SILENCE, self.seen
        if self.seen is None or not 0 <= now - self.seen < 1000:
            self.seen = now

    def patient_until(self, now: int) -> int:
        # A patience that ends later than any could is one from before the clock was set back.
        return self.patience if self.patience <= now + SILENCE else 0

    def may_be_reclaimed(self, lapsed_at: int, now: int, force: bool = False) -> bool:
        """Tell whether a lease that lapsed at this time may be taken back.

        After a silence only if it had lapsed at the last call before it, as far as is known.
        """
        protects = now < self.patient_until(now) and not force
        return lapsed_at <= (min(now, self.before) if protects else now)

    def is_forgotten(self, caller: str, now: int) -> bool:
        """Tell whether the engine need not know a caller any more: it was silent for ten minutes.

        Right after a silence it may be the clock that jumped, and not the caller who was
        silent for so long.
        """
        known_until = self.before if now < self.patient_until(now) else now
        _, asked_at, _ = self.answers.get(caller, (0, 0, None))
        return known_until - asked_at > CALLER_IS_KEPT

    def forget_caller(self, caller: str, now: int) -> None:
        """Follow the engine, which looks at a few callers now and then."""
        assert self.is_forgotten(caller, now), f"{caller} forgotten too soon"
        del self.answers[caller]
