"""A call for jobs that is on its way: what it asked for, and what it tells the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.calls import Granted
    from holdfast.server import Sent
    from holdfast.worker.places import Asking
    from holdfast.worker.running import RunningJob


@dataclass(frozen=True, slots=True)
class Flight:
    """A lease call from when it was sent until its answer is read."""

    sent: Sent[Granted]
    asking: Asking
    """The places that it asks for work for."""
    most: int
    """How many jobs it may bring."""
    completed: Sequence[RunningJob]
    """What it tells the server to be done."""
    asked_at: float
    asked_after: int
    """How many runs of this worker were over by then."""
