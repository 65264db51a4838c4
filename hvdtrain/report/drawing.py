"""What the charts have in common: a drawing of matplotlib as SVG inside a page, without ids, fonts and colours of its
own; its axes; the signs of its legend.

matplotlib writes colours as numbers, and a page has other colours in the dark. So a chart is drawn in colours that
stand for variables of the page and are nowhere else, and each is replaced afterwards.
"""

import io
import itertools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from hvdtrain.report.markup import Markup, join, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH: Final = 380
"""Of a drawing, in the units in which its text is `TEXT_SIZE` high: on a phone of 360 px it becomes a bit smaller."""

TEXT_SIZE: Final = 13

BOTTOM: Final = 42
"""Room for the texts below the axes, in units of the drawing."""

_LEFT, _RIGHT, _TOP = 58, 10, 10

_NAMES: Final = ("page", "muted", "grid", "mark", *(f"series-{number}" for number in range(1, 10)))
_STANDS_FOR: Final = {f"#fa{number:02x}ce": f"var(--{name})" for number, name in enumerate(_NAMES, start=1)}
PAGE, MUTED, GRID, MARK, *_SERIES = _STANDS_FOR
"""The series are Okabe and Ito's and one more, which people with any colour vision tell apart; page.css has them."""

_DASHES: Final = ((), (6, 3), (2, 2), (9, 3, 2, 3), (5, 2, 2, 2, 2, 2), (12, 4), (3, 4), (9, 2, 4, 2))
"""On and off, in units of the drawing: lines differ by these, too."""

MOST: Final = len(_DASHES)
"""Lines that can be told apart."""

_POINTS_PER_INCH: Final = 72
_STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hvdtrain",
    "font.size": TEXT_SIZE,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # which comes with matplotlib: others need not be looked for
    "axes.unicode_minus": True,
    "path.simplify": True,
    "text.usetex": False,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_NO_METADATA: Final = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def colour(number: int) -> str:
    """The one that stands for the series `number`, from 0."""
    return _SERIES[number % len(_SERIES)]


def dashes(number: int) -> tuple[float, ...]:
    """Those of the series `number`, from 0."""
    return _DASHES[number % len(_DASHES)]


def drawn(height: int, label: str, draw: Callable[["Figure"], None]) -> Markup:
    """What `draw` draws, as an element that a screen reader reads as `label`."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():  # the task may have a style of its own, which is neither used nor changed
        mpl.rcdefaults()
        parameters: Any = mpl.rcParams  # which type checkers know by name only
        parameters.update(_STYLE)
        figure = Figure(figsize=(WIDTH / _POINTS_PER_INCH, height / _POINTS_PER_INCH), dpi=_POINTS_PER_INCH)
        figure.patch.set_visible(False)
        draw(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata=_NO_METADATA, transparent=True)
    inside = _inside(file.getvalue())
    return tag("svg", inside, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=label, class_="chart")


def with_own_ids(page: Markup) -> Markup:
    """The page, in which no two drawings have an id in common: equal parts of different ones have equal ids."""
    numbers = itertools.count(1)

    def renamed(drawing: re.Match[str]) -> str:
        number = next(numbers)
        return re.sub(r' id="|href="#|url\(#', lambda reference: f"{reference[0]}c{number}-", drawing[0])

    return Markup(re.sub(r"<svg [^>]*class=\"chart\">.*?</svg>", renamed, page, flags=re.DOTALL))


def _inside(drawing: str) -> Markup:
    """What lies inside of <svg>, with the page's colours and fonts, and only those ids that something refers to."""
    start = drawing.index(">", drawing.index("<svg")) + 1
    text = drawing[start : drawing.rindex("</svg>")]
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->|<defs>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*;?", "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub("|".join(_STANDS_FOR), lambda found: _STANDS_FOR[found[0]], text)
    named = set(re.findall(r"(?:href=\"#|url\(#)([\w-]+)", text))
    text = re.sub(r" id=\"([\w.-]+)\"", lambda found: found[0] if found[1] in named else "", text)
    return Markup(re.sub(r"\s*\n\s*", "\n", text).strip())


def few_ticks() -> Any:
    """A locator of about five round numbers."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(5)


def empty_axes(figure: "Figure", height: float) -> "Axes":
    """One, with a light grid, that leaves room for the texts beside it."""
    left, bottom = _LEFT / WIDTH, BOTTOM / height
    axes = figure.add_axes((left, bottom, 1 - left - _RIGHT / WIDTH, 1 - bottom - _TOP / height))
    axes.patch.set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=1)
    axes.set_axisbelow(True)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)
    axes.tick_params(colors=MUTED, labelsize=TEXT_SIZE, length=0, pad=6)
    axes.tick_params(which="minor", length=0)
    axes.xaxis.set_major_locator(few_ticks())
    return axes


def swatch(colour: str, dashes: Sequence[float], width: float = 2) -> Markup:
    """A piece of a line."""
    style = f"stroke: {_STANDS_FOR[colour]}; stroke-width: {width}"
    dashed = " ".join(map(str, dashes)) or None
    inside = tag("line", x1="0", y1="5", x2="28", y2="5", style=style, stroke_dasharray=dashed)
    return tag("svg", inside, viewBox="0 0 28 10", class_="swatch", aria_hidden="true")


def box(colour: str) -> Markup:
    """A piece of a bar."""
    style = f"fill: {_STANDS_FOR[colour]}"
    inside = tag("rect", x="0", y="0", width="10", height="10", rx="2", style=style)
    return tag("svg", inside, viewBox="0 0 10 10", class_="box", aria_hidden="true")


def side_by_side(*figures: Markup) -> Markup:
    """Figures in as many columns as the page has room for."""
    return tag("div", join(*figures), class_="figures")
