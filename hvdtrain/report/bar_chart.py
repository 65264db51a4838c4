"""Bars of seconds, one for each rank, divided into the parts of its time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdtrain.report import palette
from hvdtrain.report.axes import BOTTOM, box, empty_axes
from hvdtrain.report.markup import Markup, tag
from hvdtrain.report.svg import drawn
from hvdtrain.units import in_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Bar:
    """One bar of parts that are stacked: a rank and its seconds by part."""

    name: str
    parts: Mapping[str, float]


@dataclass(frozen=True)
class BarPart:
    """One part of all bars. Args: `key`: in `Bar.parts`; `name`: for people; `series`: decides its colour, from 0."""

    key: str
    name: str
    series: int


def bar_chart(title: str, label: str, bars: Sequence[Bar], parts: Sequence[BarPart], note: Markup) -> Markup:
    """A figure with a bar of seconds for each of `bars`, divided into `parts`.

    Args:
        label: its facts in a sentence, for screen readers.
        note: what follows the picture.
    """
    height = round(30 + 26 * len(bars) + BOTTOM)
    picture = drawn(height, label, lambda figure: _draw_bars(figure, height, bars, parts))
    entries = [tag("li", box(palette.colour(part.series)), part.name) for part in parts]
    return tag("figure", tag("figcaption", title), tag("ul", entries, class_="legend"), picture, note)


def _draw_bars(figure: "Figure", height: float, bars: Sequence[Bar], parts: Sequence[BarPart]) -> None:
    axes = empty_axes(figure, height)
    axes.grid(visible=False)
    axes.grid(axis="x", color=palette.GRID, linewidth=1)
    places = [-place for place in range(len(bars))]
    begin = [0.0] * len(bars)
    for part in parts:
        lengths = [bar.parts.get(part.key, 0.0) for bar in bars]
        colour = palette.colour(part.series)
        axes.barh(places, lengths, left=begin, height=0.62, color=colour, edgecolor=palette.PAGE)
        begin = [a + b for a, b in zip(begin, lengths, strict=True)]
    axes.set_yticks(places, [bar.name for bar in bars])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: in_count(value))
    axes.set_xlabel("seconds", color=palette.MUTED)
