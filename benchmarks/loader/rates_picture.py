"""A result as a picture: the records per second of each loader, for each data set and order."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

from benchmarks.loader.comparisons import LABELS, Result, rates_of
from benchmarks.pictures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLES: Final = {"3kb": "records of 3 KB", "jpeg": "JPEGs of 110 KB", "skewed": "skewed sizes, median 2 KB"}
_MARKS: Final[dict[str, dict[str, Any]]] = {
    "sequential": {"marker": "o"},
    "shuffled": {"marker": "s", "fillstyle": "none"},
}


def picture(result: Result) -> Figure:
    """A panel for each data set; lines span the blocks."""
    from matplotlib.lines import Line2D

    title = f"Record loaders on one core, {style.subtitle(result)}; ✓ refuses damaged payloads; lines span the blocks"
    figure = style.empty_figure(title, 12, 4.1)
    panels = figure.subplots(1, len(result["speed"]), sharey=True, squeeze=False)[0]
    for axes, data in zip(panels, result["speed"], strict=True):
        _draw(axes, result, data)
    panels[0].invert_yaxis()
    handles = [Line2D([], [], linestyle="", color=style.THEIRS, label=order, **mark) for order, mark in _MARKS.items()]
    figure.legend(handles=handles, fontsize=style.SMALL, loc="outside lower right", ncols=2)
    return figure


def _draw(axes: Axes, result: Result, data: str) -> None:
    from matplotlib import ticker

    arms = list(result["speed"][data]["sequential"]["blocks"][0])
    for order, mark in _MARKS.items():
        for row, arm in enumerate(arms):
            rates, colour = rates_of(result, data, order, arm), _colour(arm)
            axes.plot([min(rates), max(rates)], [row, row], color=colour, linewidth=1, alpha=0.6)
            axes.plot(statistics.median(rates), row, color=colour, markersize=6, **mark)
    style.plain(axes)
    axes.set_yticks(range(len(arms)), [_label(result, arm) for arm in arms], fontsize=style.SMALL)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlabel("records/s (log scale)", fontsize=style.SMALL)
    axes.set_title(_TITLES[data], fontsize=style.SMALL + 1)
    axes.grid(axis="y", which="major", alpha=0.25)


def _colour(arm: str) -> str:
    return style.OURS if arm.startswith("data_sharding") else style.THEIRS


def _label(result: Result, arm: str) -> str:
    name = LABELS[arm].strip("*").replace(" + CRC check in its source", ", own CRC check")
    return name + (" ✓" if result["damage"][arm]["noticed"] else "")
