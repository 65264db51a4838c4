"""Numbers, times and lists as people write them."""

import math
import time
from collections.abc import Iterable
from typing import Any, Final

from hvdtrain.history.reading import finite
from hvdtrain.measured import METRICS
from hvdtrain.units import in_duration

NOTHING: Final = "–"
_TITLES: Final = {metric.name: metric.title for metric in METRICS}


def amount(value: float | None) -> str:
    """A measured value with four digits: 0.9778, 12.35, 1.234e-05; a dash for None."""
    if value is None:
        return NOTHING
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        decimals = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
        text = f"{value:,.{decimals}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.3e}"


def count(value: float | None) -> str:
    """A whole number with its thousands apart; a dash for None."""
    return NOTHING if value is None else f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """A duration: 0.25 ms, 3.2 s, 12 min 5 s, 3 h 20 min, 2 d 4 h; a dash for None."""
    return NOTHING if value is None else in_duration(value)


def share(value: float | None) -> str:
    """Of a whole: 97 %, 0.4 %."""
    if value is None:
        return NOTHING
    return f"{value * 100:.1f} %" if 0 < abs(value) < 0.1 else f"{value * 100:.0f} %"


def moment(at: float | None) -> str:
    """A time of `time.time()`, as this machine's clock shows it; a dash for None."""
    try:
        return NOTHING if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):  # of a file that anybody may have written
        return NOTHING


def plural(number: float, noun: str) -> str:
    """ "1 worker", "1,200 workers"."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def listed(words: Iterable[str]) -> str:
    """ "a, b and c"."""
    *others, last = list(words) or [""]
    return f"{', '.join(others)} and {last}" if others else last


def plain(value: Any) -> str:
    """A value of a config: text as it is, true and false, a dash for null."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    number = finite(value)
    if number is not None and not isinstance(value, int):
        return f"{number:g}"
    return str(value)


def title_of(measure: str) -> str:
    """The name of a measure as a heading: "Gradient norm", "Learning rate", "Accuracy"."""
    return _TITLES.get(measure) or measure[:1].upper() + measure[1:].replace("_", " ")
