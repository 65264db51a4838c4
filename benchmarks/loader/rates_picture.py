"""A result file as a picture: `python -m benchmarks.loader.plot RESULT.json PICTURE.svg`; wants matplotlib."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final

import matplotlib  # type: ignore[import-not-found,import-untyped,unused-ignore]

matplotlib.use("Agg")
from matplotlib import pyplot, ticker  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: E402

from benchmarks.loader.comparisons import LABELS, rates_of  # noqa: E402

_TITLES: Final = {"3kb": "records of 3 KB", "jpeg": "JPEGs of 110 KB", "skewed": "skewed sizes, median 2 KB"}
_MARKS: Final = {"sequential": ("o", "full"), "shuffled": ("s", "none")}


def _panel(axes: Any, result: dict[str, Any], data: str) -> None:
    arms = list(result["speed"][data]["sequential"]["blocks"][0])
    for order, (marker, fill) in _MARKS.items():
        for row, arm in enumerate(arms):
            rates = rates_of(result, data, order, arm)
            colour = (
                "#c0392b" if arm == "data_sharding" else "#e59866" if arm.startswith("data_sharding") else "#34495e"
            )
            axes.plot([min(rates), max(rates)], [row, row], color=colour, linewidth=1, alpha=0.6)
            axes.plot(statistics.median(rates), row, marker, color=colour, fillstyle=fill, markersize=6)
    axes.set_yticks(range(len(arms)), [_label(result, arm) for arm in arms], fontsize=8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlabel("records/s (log scale)", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title(_TITLES[data], fontsize=9)
    axes.grid(axis="both", which="major", alpha=0.25)


def _label(result: dict[str, Any], arm: str) -> str:
    name = LABELS[arm].strip("*").replace(" + CRC check in its source", ", own CRC check")
    return name + (" ✓" if result["damage"][arm]["noticed"] else "")


def main() -> None:
    """Draw."""
    source, target = map(Path, sys.argv[1:3])
    result = json.loads(source.read_text())
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text: smaller, and searchable
    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.9), sharey=True, layout="constrained")
    for axes, data in zip(panels, result["speed"], strict=True):
        _panel(axes, result, data)
    panels[0].invert_yaxis()
    handles = [
        pyplot.Line2D([], [], marker=marker, fillstyle=fill, color="#34495e", linestyle="", label=order)
        for order, (marker, fill) in _MARKS.items()
    ]
    figure.legend(handles=handles, fontsize=8, loc="outside upper right", ncols=2)
    machine = result["machine"]
    figure.suptitle(
        f"Record loaders on one core, {machine['cpu']}, {result['date'][:10]}; ✓ refuses damaged payloads; "
        "lines span the blocks",
        fontsize=10,
        x=0.01,
        horizontalalignment="left",
    )
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
