"""The timeline of a pipeline as a picture: which worker ran which part, and when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.distribution import install_command
from holdfast.errors import InvalidArgument, WrongState

if TYPE_CHECKING:
    from holdfast.spark.pipeline.handle import Handle


@dataclass(frozen=True)
class Bar:
    """One run of a part."""

    request: str
    priority: int
    lane: str
    began_at: float
    seconds: float
    cut: bool = False
    """Whether it came to nothing, as its worker died."""


@dataclass(frozen=True)
class Cut:
    """A run of a part that was seen and came to nothing: no result names it."""

    request: str
    worker: str
    began_at: float
    seconds: float


def bars(handles: Iterable[Handle], cut: Iterable[Cut] = ()) -> list[Bar]:
    """Return the runs of parts that are done or were cut off, each in a lane of its worker."""
    known = {handle.id: handle for handle in handles}
    runs = [
        (done.began_at, done.seconds, done.worker, handle, False)
        for handle in known.values()
        for _, done in handle.parts()
        if done
    ]
    runs += [(one.began_at, one.seconds, one.worker, known[one.request], True) for one in cut]
    ends: dict[tuple[str, int], float] = {}
    priorities: dict[str, int] = {}
    found = []
    for began, seconds, worker, handle, lost in sorted(runs, key=lambda run: run[0]):
        lane = next(n for n in range(len(ends) + 1) if ends.get((worker, n), 0.0) <= began)
        ends[worker, lane] = began + seconds
        priority = priorities.setdefault(handle.id, handle.priority())
        found.append(Bar(handle.id, priority, f"{worker} #{lane}", began, seconds, lost))
    return found


def draw(
    handles: Iterable[Handle], path: str | Path, *, title: str = "", cut: Iterable[Cut] = ()
) -> Path:
    """Draw the timeline into a picture (.png, .svg, .pdf); return where it is.

    Runs that were `cut` off are hatched.
    """
    found = bars(handles, cut)
    if not found:
        raise WrongState("there is nothing to draw: no part is done")
    plot = _plot()
    lanes = sorted({bar.lane for bar in found})
    first = min(bar.began_at for bar in found)
    requests = list(dict.fromkeys(bar.request for bar in found))
    colours = plot.colormaps["tab10"].colors
    figure, axes = plot.subplots(figsize=(10, 1.5 + 0.4 * len(lanes)), layout="constrained")
    for number, request in enumerate(requests):
        mine = [bar for bar in found if bar.request == request]
        for lost in (False, True):
            some = [bar for bar in mine if bar.cut is lost]
            if some:
                axes.barh(
                    [lanes.index(bar.lane) for bar in some],
                    [bar.seconds for bar in some],
                    left=[bar.began_at - first for bar in some],
                    height=0.8,
                    color=colours[number % len(colours)],
                    edgecolor="white",
                    hatch="xxx" if lost else "",
                    label=f"{_text(request)} ({_about(mine[0], lost=lost)})",
                )
    axes.set_yticks(range(len(lanes)), [_text(lane) for lane in lanes])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(_text(title) or "Parts by worker")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=3, frameon=False)
    figure.savefig(path, dpi=120)
    plot.close(figure)
    return Path(path)


def _about(bar: Bar, *, lost: bool) -> str:
    return "cut off: its worker died" if lost else f"priority {bar.priority}"


def _text(text: str) -> str:
    """Return text as it stands: a dollar would be taken for a formula."""
    return text.replace("$", r"\$")


def _plot() -> Any:
    try:
        import matplotlib as mpl  # noqa: PLC0415
    except ImportError:
        raise InvalidArgument(f"a picture needs matplotlib: {install_command('plot')}") from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    return plt
