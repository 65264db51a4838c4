"""A result as a page for people, and as a picture: rows a second in each order, as shares of those in order."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

from benchmarks import saved
from benchmarks.parquet.tables import FILES, SHAPES
from benchmarks.pictures import style
from benchmarks.statistics import Estimate, ratio_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]

_GOAL: Final = 0.5
"""Of the rows a second in order."""

LABELS: Final = {
    "none": "in the order of the files",
    "block": "`block`",
    "global": "`global`",
    "global_on_disk": "`global`, with a cache on the disk",
    "pyarrow": "pyarrow alone, in the order of the files",
    "earlier_block": "`block`, earlier version",
    "earlier_global": "`global`, earlier version",
}


def markdown(result: Result) -> str:
    """The whole page."""
    about = (
        f"Each data set has {FILES} files in the page cache, and is read in batches of 256 on one core, without "
        f"decoding, for {result['options']['seconds']:g} s a run. Rows are counted by CPU second; what is kept is "
        "limited by the default of `--data.memory`, 512 MiB. Shares are of the rows a second in the order of the "
        "files, with intervals of 95 %."
    )
    if "global_on_disk" in result["tables"]["pictures"][0]:
        about += " The cache on the disk stays from run to run, so that the first run of each data set fills it."
    earlier = f"The earlier version is commit {result['earlier']}." if result["earlier"] else ""
    parts = [saved.head("Rows of Parquet files", result), " ".join(filter(None, [about, earlier])), _verdict(result)]
    for name, shape in SHAPES.items():
        what = f"{shape.total_rows:,} {shape.label}, in {FILES * shape.groups} row groups"
        parts += [f"## {what}", _table(result, name)]
    return "\n\n".join(parts) + "\n"


def picture(result: Result) -> Figure:
    """A panel for each data set: the share of each arm."""
    title = f"Rows a second of Parquet files, as shares of those in order; {style.subtitle(result)}"
    figure = style.empty_figure(title, 12, 3.2)
    for axes, (name, shape) in zip(figure.subplots(1, len(SHAPES), sharey=True), SHAPES.items(), strict=True):
        arms = [arm for arm in result["tables"][name][0] if arm != "none"]
        for row, arm in enumerate(arms):
            share = share_of(result, name, arm)
            colour = style.OURS if arm in ("block", "global", "global_on_disk") else style.THEIRS
            axes.plot([share.low, share.high], [row, row], color=colour, linewidth=1, alpha=0.6)
            axes.plot(share.median, row, color=colour, marker="o", markersize=6)
        axes.axvline(1, color="black", linewidth=0.5)
        axes.axvline(_GOAL, color="black", linewidth=0.5, linestyle="--")
        style.plain(axes)
        style.logarithmic(axes)
        axes.set_yticks(range(len(arms)), [LABELS[arm].replace("`", "") for arm in arms], fontsize=style.SMALL)
        axes.set_xlabel(f"{shape.label} (log scale; dashed: the goal)", fontsize=style.SMALL)
    axes.invert_yaxis()
    return figure


def share_of(result: Result, name: str, arm: str) -> Estimate:
    """Of the rows a second in order: the median of the blocks' ratios, and its interval."""
    return ratio_of(_rates(result, name, arm), _rates(result, name, "none"))


def _rates(result: Result, name: str, arm: str) -> list[float]:
    """Rows by CPU second, in every block."""
    blocks = [block[arm] for block in result["tables"][name]]
    return [statistics.mean(run["rows"] / run["cpu_s"] for run in runs) for runs in blocks]


def _verdict(result: Result) -> str:
    below = [
        f"`{arm}` of {SHAPES[name].label}"
        for name in SHAPES
        for arm in ("block", "global")
        if share_of(result, name, arm).low < _GOAL
    ]
    return f"Not surely at the goal, {_GOAL:g} of the rows a second in order: {', '.join(below) or 'none'}."


def _table(result: Result, name: str) -> str:
    lines = ["| | rows a second | share |", "|---|---|---|"]
    for arm in result["tables"][name][0]:
        share = share_of(result, name, arm)
        rate = f"{statistics.median(_rates(result, name, arm)):,.0f}"
        of_order = f"{share.median:.3f} ({share.low:.3f} to {share.high:.3f})"
        lines.append(f"| {LABELS[arm]} | {rate} | {of_order} |")
    return "\n".join(lines)
