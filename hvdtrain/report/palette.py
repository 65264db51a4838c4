"""The colours of charts: variables of the page, which have other values in the dark.

matplotlib writes colours as numbers. So a chart is drawn in colours that stand for variables and are nowhere else, and
each is replaced afterwards.
"""

from typing import Final

_NAMES: Final = ("page", "muted", "grid", "mark", *(f"series-{number}" for number in range(1, 10)))

STANDS_FOR: Final = {f"#fa{number:02x}ce": f"var(--{name})" for number, name in enumerate(_NAMES, start=1)}
"""Colour in a drawing → what it becomes."""

_COLOURS: Final = {name: colour for colour, name in zip(STANDS_FOR, _NAMES, strict=True)}

PAGE: Final = _COLOURS["page"]
MUTED: Final = _COLOURS["muted"]
GRID: Final = _COLOURS["grid"]
MARK: Final = _COLOURS["mark"]
SERIES: Final = tuple(_COLOURS[f"series-{number}"] for number in range(1, 10))
"""Okabe and Ito's and one more, which people with any colour vision tell apart; page.css has their values."""

DASHES: Final = ((), (6, 3), (2, 2), (9, 3, 2, 3), (5, 2, 2, 2, 2, 2), (12, 4), (3, 4), (9, 2, 4, 2))
"""On and off, in units of the drawing: lines differ by these, too."""

MOST: Final = len(DASHES)
"""Lines that can be told apart."""


def colour(number: int) -> str:
    """The one that stands for the series `number`, from 0."""
    return SERIES[number % len(SERIES)]


def dashes(number: int) -> tuple[float, ...]:
    """Those of the series `number`, from 0."""
    return DASHES[number % len(DASHES)]
