"""What the charts have in common: their axes, the signs of their legends, how they lie on a page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from hvdtrain.report import palette
from hvdtrain.report.markup import Markup, join, tag
from hvdtrain.report.svg import TEXT_SIZE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BOTTOM: Final = 42
"""Room for the texts below the axes, in units of the drawing."""

_LEFT, _RIGHT, _TOP = 58, 10, 10


def few_ticks() -> Any:
    """A locator of about five round numbers."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(5)


def empty_axes(figure: "Figure", height: float) -> "Axes":
    """One, with a light grid, that leaves room for the texts beside it."""
    left, bottom = _LEFT / WIDTH, BOTTOM / height
    axes = figure.add_axes((left, bottom, 1 - left - _RIGHT / WIDTH, 1 - bottom - _TOP / height))
    axes.patch.set_visible(False)
    axes.grid(axis="y", color=palette.GRID, linewidth=1)
    axes.set_axisbelow(True)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(palette.GRID)
    axes.tick_params(colors=palette.MUTED, labelsize=TEXT_SIZE, length=0, pad=6)
    axes.tick_params(which="minor", length=0)
    axes.xaxis.set_major_locator(few_ticks())
    return axes


def swatch(colour: str, dashes: Sequence[float], width: float = 2) -> Markup:
    """A piece of a line."""
    style = f"stroke: {palette.STANDS_FOR[colour]}; stroke-width: {width}"
    dashed = " ".join(map(str, dashes)) or None
    inside = tag("line", x1="0", y1="5", x2="28", y2="5", style=style, stroke_dasharray=dashed)
    return tag("svg", inside, viewBox="0 0 28 10", class_="swatch", aria_hidden="true")


def box(colour: str) -> Markup:
    """A piece of a bar."""
    style = f"fill: {palette.STANDS_FOR[colour]}"
    inside = tag("rect", x="0", y="0", width="10", height="10", rx="2", style=style)
    return tag("svg", inside, viewBox="0 0 10 10", class_="box", aria_hidden="true")


def side_by_side(*figures: Markup) -> Markup:
    """Figures in as many columns as the page has room for."""
    return tag("div", join(*figures), class_="figures")
