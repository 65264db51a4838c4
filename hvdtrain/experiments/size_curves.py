"""Times by sizes as a picture: what was measured with its spread, and what a formula says as dashes."""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from hvdtrain.plan.picture_files import drawn_panels
from hvdtrain.units import in_bytes

Curves = Mapping[str, Mapping[int, tuple[Sequence[float], float]]]
"""Name → bytes → (seconds of each run, seconds by the formula)."""

_COLOURS: Final = ("#a02c1e", "#34495e", "#2a7f62", "#8e6c1f", "#6c4a8c")
_MARKS: Final = ("o", "s", "^", "D", "v")


def drawn_curves(panels: Mapping[str, Curves]) -> bytes:
    """An SVG of panels side by side, whose curves have the same names. Args: `panels`: by their titles."""
    draws = [partial(_draw, title, curves, number == 0) for number, (title, curves) in enumerate(panels.items())]
    return drawn_panels(7 if len(panels) == 1 else 4 * len(panels), 4, draws)


def _draw(title: str, curves: Curves, is_first: bool, _: Any, axes: Any) -> None:
    for number, (name, points) in enumerate(curves.items()):
        colour, mark = _COLOURS[number % len(_COLOURS)], _MARKS[number % len(_MARKS)]
        medians = [1e3 * statistics.median(seconds) for seconds, _ in points.values()]
        spans = [
            [m - 1e3 * min(seconds) for m, (seconds, _) in zip(medians, points.values(), strict=True)],
            [1e3 * max(seconds) - m for m, (seconds, _) in zip(medians, points.values(), strict=True)],
        ]
        axes.errorbar(list(points), medians, spans, fmt=f"{mark}-", color=colour, capsize=3, ms=4, lw=1, label=name)
        predicted = [1e3 * seconds for _, seconds in points.values()]
        axes.plot(list(points), predicted, "--", color=colour, lw=1, label=f"{name}, formula")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("bytes of each worker")
    axes.xaxis.set_major_formatter(lambda value, _: in_bytes(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    if is_first:
        axes.set_ylabel("milliseconds")
        axes.legend(frameon=False, fontsize=8)
