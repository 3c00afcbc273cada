"""Follow something until it is over: one line that changes on a terminal, else a line each time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import click

from holdfast.cli.text import ANEW, can_draw, draw, emit_line, fitted


class Watched(Protocol):
    """What is followed."""

    @property
    def ended(self) -> bool:
        """Whether it is over."""


W = TypeVar("W", bound=Watched)


def follow(
    look: Callable[[], W],
    line: Callable[[W], str],
    as_json: Callable[[W], Any] | None,
    every: float,
) -> W:
    """Look again and again until it is over; write a line, or JSON. Returns the last look."""
    live = can_draw(sys.stdout) and as_json is None
    while True:
        seen = look()
        if as_json is not None:
            emit_line(as_json(seen))
        else:
            if live:
                draw(ANEW)
            over = not live or seen.ended
            click.echo(line(seen) if over else fitted(line(seen)), nl=not live)
            sys.stdout.flush()
        if seen.ended:
            break
        time.sleep(every)
    if live:
        click.echo()
    return seen
