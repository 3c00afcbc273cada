"""Poll a status until it has ended: one line, redrawn on a terminal, else a line per poll."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import click

from holdfast.cli.text import CLEAR_LINE, can_draw, draw, emit_line, fitted


class Watched(Protocol):
    """A status that is polled."""

    @property
    def ended(self) -> bool:
        """Whether it is final, so that polling stops."""


W = TypeVar("W", bound=Watched)


def follow(
    look: Callable[[], W],
    line: Callable[[W], str],
    as_json: Callable[[W], Any] | None,
    every: float,
) -> W:
    """Call `look` until the status has ended; print each as a line, or JSON. Return the last."""
    live = can_draw(sys.stdout) and as_json is None
    while True:
        seen = look()
        if as_json is not None:
            emit_line(as_json(seen))
        else:
            if live:
                draw(CLEAR_LINE)
            whole = not live or seen.ended
            click.echo(line(seen) if whole else fitted(line(seen)), nl=not live)
            sys.stdout.flush()
        if seen.ended:
            break
        time.sleep(every)
    if live:
        click.echo()
    return seen
