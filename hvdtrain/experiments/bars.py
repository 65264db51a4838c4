"""Measurements of several ways as a picture: the median of each, with all of its runs."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hvdtrain.plan.picture_files import drawn_svg


def drawn_bars(title: str, values: Mapping[str, Sequence[float]]) -> bytes:
    """An SVG with a bar for each name, whose error bar is 1.96 standard deviations.

    Args:
        values: of each run.
    """

    def draw(_: Any, axes: Any) -> None:
        names = list(values)[::-1]
        medians = [statistics.median(values[name]) for name in names]
        spreads = [1.96 * statistics.stdev(values[name]) if len(values[name]) > 1 else 0.0 for name in names]
        axes.barh(names, medians, xerr=spreads, color="#34495e", height=0.6, error_kw={"capsize": 3, "ecolor": "0.4"})
        for place, median in enumerate(medians):
            axes.text(0, place, f" {median:,.3g}", va="center", color="white", fontsize=8)
        axes.set_title(title, loc="left", fontsize=10)
        axes.tick_params(labelsize=8)
        axes.grid(visible=False, axis="y")

    return drawn_svg(7, 1.2 + 0.3 * len(values), draw)
