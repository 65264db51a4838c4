"""A result as a page for people, and as a picture: records a second, time to the first batch, what was fetched."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

from benchmarks import saved
from benchmarks.pictures import style
from benchmarks.remote.arms import ARMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Result = dict[str, Any]

BASE: Final = "cached"
_SHUFFLED: Final = 0.9
"""Peers whose batches are of less than this share of the classes that ours have are not shuffled alike."""


def markdown(result: Result) -> str:
    """The whole page."""
    data, options = result["data"], result["options"]
    about = (
        f"{data['records']:,} records of {data['bytes']:,} bytes in {data['shards']} files, sorted by class; "
        f"{options['latency_ms']:g} ms before each answer, batches of {options['batch']}. Each arm's epoch runs in a "
        f"process of its own, with an empty cache, and is cut off after {options['seconds']:g} s. Medians, and in "
        f"brackets the least and the largest."
    )
    earlier = result.get("earlier")  # results of before have none
    about += f" The earlier version is commit {earlier}." if earlier else ""
    parts = [saved.head("Records from a slow store", result), about]
    for mbit in result["networks"]:
        parts += [f"## {mbit} Mbit/s", _verdict(result, mbit), _table(result, mbit)]
    return "\n\n".join(parts) + "\n"


def picture(result: Result) -> Figure:
    """A panel for the records a second of each network, and one for the time to its first batch."""
    data, options = result["data"], result["options"]
    title = (
        f"{data['records']:,} records of {data['bytes']:,} bytes over {options['latency_ms']:g} ms, "
        f"{style.subtitle(result)}; lines span the epochs"
    )
    figure = style.empty_figure(title, 12, 0.6 + 1.0 * len(result["networks"]) + 0.3 * len(ARMS))
    panels = figure.subplots(len(result["networks"]), 2, sharey=True, squeeze=False)
    for row, mbit in zip(panels, result["networks"], strict=True):
        _draw(row[0], result, mbit, "rate", f"{mbit} Mbit/s: records/s (log scale)")
        _draw(row[1], result, mbit, "first_batch_s", f"{mbit} Mbit/s: seconds to the first batch (log scale)")
    panels[0][0].invert_yaxis()  # all share it
    return figure


def figures(result: Result, mbit: str, arm: str, what: str) -> list[float]:
    """One figure of an arm in every block; "rate" is records a second."""
    blocks = [block[arm] for block in result["networks"][mbit]]
    if what == "rate":
        return [block["records"] / block["seconds"] for block in blocks]
    if what == "overhead":
        return [block["bytes"] / (block["records"] * result["data"]["bytes"]) for block in blocks]
    if what == "requests":
        return [1000 * block["requests"] / block["records"] for block in blocks]
    return [block[what] for block in blocks]


def _verdict(result: Result, mbit: str) -> str:
    """Where ours with a cache, the first arm, is not ahead of another one that shuffles alike."""
    behind = []
    classes = statistics.median(figures(result, mbit, BASE, "classes"))
    for arm in result["networks"][mbit][0]:
        if arm == BASE or statistics.median(figures(result, mbit, arm, "classes")) < _SHUFFLED * classes:
            continue
        for what, is_less in (("rate", False), ("first_batch_s", True)):
            ours, theirs = (statistics.median(figures(result, mbit, name, what)) for name in (BASE, arm))
            if (ours > theirs) if is_less else (ours < theirs):
                behind.append(f"{ARMS[arm].label} ({'first batch' if is_less else 'records/s'})")
    listed = ", ".join(behind) or "none"
    return f"Ahead of `global` with a cache, of the arms that shuffle alike: {listed}."


def _table(result: Result, mbit: str) -> str:
    lines = [
        "| | records/s | first batch, s | fetches | bytes per byte used | requests per 1,000 records "
        "| classes in a batch |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm in result["networks"][mbit][0]:
        cells = [
            _spread(figures(result, mbit, arm, "rate"), ",.0f"),
            _spread(figures(result, mbit, arm, "first_batch_s"), ".2f"),
            ARMS[arm].fetches,
            f"{statistics.median(figures(result, mbit, arm, 'overhead')):.2f}",
            f"{statistics.median(figures(result, mbit, arm, 'requests')):,.1f}",
            f"{statistics.median(figures(result, mbit, arm, 'classes')):.0f}",
        ]
        lines.append(f"| {ARMS[arm].label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _draw(axes: Axes, result: Result, mbit: str, what: str, label: str) -> None:
    arms = list(result["networks"][mbit][0])
    for row, arm in enumerate(arms):
        values = figures(result, mbit, arm, what)
        colour = style.OURS if "data_sharding" in ARMS[arm].label else style.THEIRS
        axes.plot([min(values), max(values)], [row, row], color=colour, linewidth=1, alpha=0.6)
        axes.plot(statistics.median(values), row, color=colour, marker="o", markersize=6)
    style.plain(axes)
    axes.set_yticks(range(len(arms)), [ARMS[arm].label.replace("*", "").replace("`", "") for arm in arms])
    axes.tick_params(labelsize=style.SMALL)
    style.logarithmic(axes)
    axes.set_xlabel(label, fontsize=style.SMALL)
    axes.grid(axis="y", which="major", alpha=0.25)
