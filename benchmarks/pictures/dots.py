"""Ratios of blocks as dots: one row for each arm, with its median and interval, and A against A as a grey band."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.claims import shown
from benchmarks.comparison import Comparison, wins
from benchmarks.pictures import style
from benchmarks.statistics import Ratio, estimate_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS_OVER_THEIRS: Final = "time of ours / time of theirs; left of 1, ours takes less"
_LOGARITHMIC_FROM: Final = 3.0
_ROW_INCHES, _PANEL_INCHES, _HEAD_INCHES = 0.3, 0.95, 0.75
_LEGEND: Final = (
    "small dots: blocks; large: median, with its 95 % interval; filled: below 1 by more than chance and A against A"
)


@dataclass(frozen=True)
class Row:
    """One comparison.

    Args:
        label: for people.
        ratios: ours / theirs in each block.
        noise: A against A; the claim, and so the dot's filling, depends on it. None where there is no such thing.
        goal: what the ratio should be at most, if there is a goal.
    """

    label: str
    ratios: Sequence[float]
    noise: Ratio | None = None
    goal: float | None = None

    @property
    def ratio(self) -> Ratio:
        """The median and its interval."""
        return Ratio(*estimate_of(self.ratios))


@dataclass(frozen=True)
class Panel:
    """Rows under one title, over an axis with this label."""

    title: str
    rows: Sequence[Row]
    axis: str = OURS_OVER_THEIRS


def panel_of(
    title: str, comparison: Comparison, labels: Mapping[str, str], goals: Mapping[str, float] | None = None
) -> Panel:
    """All arms of a table but ours, the fastest at the top; `goals` by arm."""
    ours = comparison.times(comparison.ours)
    rows = []
    for arm in comparison.others:
        ratios = [one / other for one, other in zip(ours, comparison.times(arm), strict=True)]
        rows.append(Row(labels[arm], ratios, comparison.noise, (goals or {}).get(arm)))
    return Panel(title, rows)


def figure(title: str, result: dict[str, Any], panels: Sequence[Panel]) -> Figure:
    """The picture of a result: its panels one below the other."""
    heights = [_PANEL_INCHES + _ROW_INCHES * len(panel.rows) for panel in panels]
    drawn = style.empty_figure(f"{title}\n{style.subtitle(result)}", 8.5, _HEAD_INCHES + sum(heights))
    every = drawn.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, panel in zip(every, panels, strict=True):
        _draw(axes, panel)
    rows = [row for panel in panels for row in panel.rows]
    parts = [_LEGEND]
    parts += ["grey: A against A"] if any(row.noise for row in rows) else []
    parts += ["dashed: goal"] if any(row.goal for row in rows) else []
    drawn.supxlabel("; ".join(parts), x=0.01, horizontalalignment="left", fontsize=style.SMALL - 1)
    return drawn


def _draw(axes: Axes, panel: Panel) -> None:
    style.plain(axes)
    low, high = _limits(panel.rows)
    if max(high, 1 / low) > _LOGARITHMIC_FROM:
        axes.set_xscale("log")
        _plain_numbers(axes)
    axes.set_xlim(low, high)
    axes.set_ylim(len(panel.rows) - 0.5, -0.5)
    axes.set_yticks(range(len(panel.rows)), [row.label for row in panel.rows], fontsize=style.SMALL)
    axes.axvline(1, color="black", linewidth=1)
    for place, row in enumerate(panel.rows):
        _draw_row(axes, row, place, low)
    axes.set_title(panel.title, fontsize=style.SMALL + 1, loc="left")
    axes.set_xlabel(panel.axis, fontsize=style.SMALL)


def _draw_row(axes: Axes, row: Row, place: int, left: float) -> None:
    ratio = row.ratio
    if row.noise is not None:
        reach = row.noise.reach
        axes.fill_betweenx([place - 0.5, place + 0.5], max(1 / reach, left), reach, color="0.88", linewidth=0)
    if row.goal is not None:
        axes.plot([row.goal] * 2, [place - 0.4, place + 0.4], "--", color="black", linewidth=1)
    won = wins(ratio, row.noise or Ratio(1.0, 1.0, 1.0))
    axes.plot(row.ratios, [place] * len(row.ratios), "o", color=style.THEIRS, markersize=3, alpha=0.3, linewidth=0)
    axes.plot([ratio.low, ratio.high], [place] * 2, color=style.THEIRS, linewidth=1.5)
    filling = style.THEIRS if won else "white"
    axes.plot(ratio.median, place, "o", color=style.THEIRS, markerfacecolor=filling, markersize=6)
    beside = axes.get_yaxis_transform()
    axes.text(1.01, place, shown(ratio), transform=beside, fontsize=style.SMALL, verticalalignment="center")


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """All blocks, 1 and goals, with a margin. A band of A against A that is wider is cut off at twice the rest."""
    points = [1.0, *(ratio for row in rows for ratio in row.ratios), *_goals_of(rows)]
    low, high = min(points), max(points)
    reach = max((row.noise.reach for row in rows if row.noise), default=1.0)
    low, high = min(low, max(1 / reach, low / 2)), max(high, min(reach, high * 2))
    margin = max((high / low) ** 0.05, 1.01)
    return low / margin, high * margin


def _goals_of(rows: Sequence[Row]) -> Iterator[float]:
    return (row.goal for row in rows if row.goal is not None)


def _plain_numbers(axes: Axes) -> None:
    from matplotlib import ticker

    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(ticker.NullLocator())
