"""A drawing of matplotlib as SVG inside a page: without ids, fonts and colours of its own."""

import io
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from hvdtrain.report.markup import Markup, tag
from hvdtrain.report.palette import STANDS_FOR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH: Final = 380
"""Of a drawing, in the units in which its text is `TEXT_SIZE` high: on a phone of 360 px it becomes a bit smaller."""

TEXT_SIZE: Final = 13

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


def drawn(height: int, label: str, draw: Callable[["Figure"], None]) -> Markup:
    """What `draw` draws, as an element that a screen reader reads as `label`."""
    from matplotlib.figure import Figure

    with _plain_style():
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


@contextmanager
def _plain_style() -> Iterator[None]:
    """The task may have a style of its own, which is neither used nor changed."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()  # in this block only
        parameters: Any = mpl.rcParams  # which type checkers know by name only
        parameters.update(_STYLE)
        yield


def _inside(drawing: str) -> Markup:
    """What lies inside of <svg>, with the page's colours and fonts, and only those ids that something refers to."""
    start = drawing.index(">", drawing.index("<svg")) + 1
    text = drawing[start : drawing.rindex("</svg>")]
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->|<defs>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*;?", "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub("|".join(STANDS_FOR), lambda found: STANDS_FOR[found[0]], text)
    named = set(re.findall(r"(?:href=\"#|url\(#)([\w-]+)", text))
    text = re.sub(r" id=\"([\w.-]+)\"", lambda found: found[0] if found[1] in named else "", text)
    return Markup(re.sub(r"\s*\n\s*", "\n", text).strip())
