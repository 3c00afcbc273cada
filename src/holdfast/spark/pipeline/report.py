"""The timeline of a pipeline as a picture: which worker ran which part, and when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def bars(handles: Iterable[Handle]) -> list[Bar]:
    """Return the runs of parts that are done, each in a lane of its worker."""
    runs = [
        (done.began_at, done.seconds, done.worker, handle)
        for handle in handles
        for _, done in handle.parts()
        if done
    ]
    ends: dict[tuple[str, int], float] = {}
    priorities: dict[str, int] = {}
    found = []
    for began, seconds, worker, handle in sorted(runs, key=lambda run: run[0]):
        lane = next(n for n in range(len(ends) + 1) if ends.get((worker, n), 0.0) <= began)
        ends[worker, lane] = began + seconds
        priority = priorities.setdefault(handle.id, handle.priority())
        found.append(Bar(handle.id, priority, f"{worker} #{lane}", began, seconds))
    return found


def draw(handles: Iterable[Handle], path: str | Path, *, title: str = "") -> Path:
    """Draw the timeline into a picture (.png, .svg, .pdf); return where it is."""
    found = bars(handles)
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
        axes.barh(
            [lanes.index(bar.lane) for bar in mine],
            [bar.seconds for bar in mine],
            left=[bar.began_at - first for bar in mine],
            height=0.8,
            color=colours[number % len(colours)],
            edgecolor="white",
            label=f"{_text(request)} (priority {mine[0].priority})",
        )
    axes.set_yticks(range(len(lanes)), [_text(lane) for lane in lanes])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(_text(title) or "Parts by worker")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=3, frameon=False)
    figure.savefig(path, dpi=120)
    plot.close(figure)
    return Path(path)


def _text(text: str) -> str:
    """Return text as it stands: a dollar would be taken for a formula."""
    return text.replace("$", r"\$")


def _plot() -> Any:
    try:
        import matplotlib as mpl  # noqa: PLC0415
    except ImportError:
        raise InvalidArgument("a picture needs matplotlib: pip install 'holdfast[plot]'") from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    return plt
