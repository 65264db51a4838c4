"""What all pictures have in common: readable in print, and the same bytes for the same result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS: Final = "#a02c1e"
THEIRS: Final = "#34495e"
SMALL: Final = 8


def empty_figure(title: str, width: float, height: float) -> Figure:
    """A figure with a title at its left, whose parts make room for each other. Inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=SMALL + 2)
    return figure


def subtitle(result: dict[str, Any]) -> str:
    """Where and when, for a title."""
    return f"{result['machine']['cpu']}, {result['machine']['cores']} cores, {result['date'][:10]}"


def plain(axes: Axes) -> None:
    """Small ticks, a faint grid, and no frame at the top and the right."""
    axes.tick_params(labelsize=SMALL)
    axes.grid(axis="x", which="major", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def logarithmic(axes: Axes) -> None:
    """A logarithmic axis from left to right, with plain numbers at 1, 2, 5, 10, and so on."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path) -> None:
    """As SVG, without a date. Text stays text, which is smaller and can be searched; names inside are not random."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "hvdtrain"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
