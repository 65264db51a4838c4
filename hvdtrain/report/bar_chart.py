"""Bars of seconds, one for each rank, divided into the parts of its time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdtrain.report import palette, wording
from hvdtrain.report.axes import BOTTOM, box, empty_axes
from hvdtrain.report.markup import Markup, tag
from hvdtrain.report.svg import drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Bar:
    """One bar of parts that are stacked: a rank and its seconds by part."""

    name: str
    parts: dict[str, float]


def bar_chart(title: str, label: str, bars: Sequence[Bar], parts: Sequence[str], note: Markup | None = None) -> Markup:
    """A figure with a bar of seconds for each of `bars`, divided into `parts`.

    Args:
        label: its facts in a sentence, for screen readers.
        note: what follows the picture.
    """
    height = round(30 + 26 * len(bars) + BOTTOM)
    picture = drawn(height, label, lambda figure: _draw_bars(figure, height, bars, parts))
    entries = [tag("li", box(palette.colour(number)), part) for number, part in enumerate(parts)]
    return tag("figure", tag("figcaption", title), tag("ul", entries, class_="legend"), picture, note)


def _draw_bars(figure: "Figure", height: float, bars: Sequence[Bar], parts: Sequence[str]) -> None:
    axes = empty_axes(figure, height)
    axes.grid(visible=False)
    axes.grid(axis="x", color=palette.GRID, linewidth=1)
    places = [-place for place in range(len(bars))]
    begin = [0.0] * len(bars)
    for number, part in enumerate(parts):
        lengths = [bar.parts.get(part, 0.0) for bar in bars]
        axes.barh(places, lengths, left=begin, height=0.62, color=palette.colour(number), edgecolor=palette.PAGE)
        begin = [a + b for a, b in zip(begin, lengths, strict=True)]
    axes.set_yticks(places, [bar.name for bar in bars])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: wording.compact(value))
    axes.set_xlabel("seconds", color=palette.MUTED)
