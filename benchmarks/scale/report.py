"""A result as a page for people, and as a picture: how each cost grows with the number of workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from benchmarks import saved
from benchmarks.pictures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]


class Cost(NamedTuple):
    """A figure of a result."""

    of: str  # what happens, or what is written
    figure: str  # one of `_BYTES`, or else of seconds
    title: str
    goal: float | None = None  # at most, for the largest number of workers


COSTS: Final = (
    Cost("reading", "seconds", "a reading, time of a rank", 1e-3),
    Cost("reading", "received", "a reading, bytes that a rank receives", 10e3),
    Cost("line", "seconds", "a line of metrics, time of rank 0"),
    Cost("line", "bytes", "a line of metrics, bytes", 4096),
    Cost("result", "bytes", "result.json, bytes", 200e3),
    Cost("result", "seconds", "the result, time of rank 0"),
    Cost("result", "received", "the result, bytes that a rank receives"),
    Cost("start", "seconds", "a start's own work, time of rank 0", 5.0),
    Cost("start", "received", "a start, bytes that a rank receives"),
    Cost("start", "memory", "a start, memory of rank 0", 1e9),
    Cost("save", "seconds", "the audit at a save, time of rank 0"),
    Cost("save", "bytes", "the audit at a save, bytes that it writes"),
    Cost("env", "bytes", "env.json, bytes"),
    Cost("step", "seconds", "a step's own work, time of rank 0"),
    Cost("step", "received", "a step's agreements, bytes that a rank receives"),
    Cost("checkpoint", "seconds", "a save itself, time of rank 0"),
    Cost("checkpoint", "received", "a save itself, bytes that a rank receives"),
    Cost("save", "received", "the audit at a save, bytes that a rank receives"),
    Cost("stop", "received", "a stop, bytes that a rank receives"),
    Cost("failure", "received", "an error of all, bytes that a rank receives"),
    Cost("failure", "seconds", "the launcher's report of a failure, time"),
    Cost("heartbeats", "bytes", "heartbeats, bytes of a file"),
    Cost("heartbeats", "all_bytes", "heartbeats, bytes of all files"),
    Cost("logs_of_ranks", "bytes", "logs, bytes of a file"),
    Cost("logs_of_ranks", "all_bytes", "logs, bytes of all files"),
    Cost("stall", "bytes", "a stall, bytes that a host writes"),
    Cost("stall", "seconds", "a stall, time of rank 0 to explain it"),
    Cost("top", "seconds", "`top`, time", 2.0),
    Cost("top", "memory", "`top`, memory", 300e6),
    Cost("report", "seconds", "`report`, time", 2.0),
    Cost("report", "memory", "`report`, memory", 300e6),
    Cost("compare", "seconds", "`compare`, time"),
    Cost("logs", "seconds", "`logs`, time"),
    Cost("logs", "memory", "`logs`, memory"),
    Cost("verify", "seconds", "`shard verify`, time"),
    Cost("verify", "memory", "`shard verify`, memory"),
)

_BYTES: Final = ("received", "bytes", "all_bytes", "memory")

MOST_SECONDS: Final = 60
"""On a processor: a command that needs more is ended, and has no figure."""

_LABELS: Final = {"before": "before", "now": "now"}
_FROM: Final = 64
"""Workers from which on the exponent is fitted."""


def markdown(result: Result) -> str:
    """The whole page."""
    about = (
        "One process is rank 0 of N; a communicator stands for the other ranks, whose rows are made up. Times are "
        "seconds of the process on a processor, with imports for commands; an allreduce counts as twice its array, as "
        "a ring receives it. A reading is the fastest of 12, as other work on the machine only adds to it. A run "
        "folder has 20 lines of metrics, and a heartbeat and a log of 20 lines for each worker; from 64 workers on, "
        "the heartbeats of a host of 8 are one file. The exponent e is fitted to the figures from "
        f"{_FROM} workers on: the cost grows as N to the power e. "
        "The time of the network itself is not in these figures. A command that needed more than "
        f"{MOST_SECONDS} s of a processor was ended, and has none."
    )
    before = f"Before: commit {result['before']}, by the same command." if result["before"] else ""
    costs = measured(result, COSTS)
    parts = [saved.head("Costs of many workers", result), about, before, verdicts(result, costs), table(result, costs)]
    return "\n\n".join(filter(None, parts)) + "\n"


def measured(result: Result, costs: Sequence[Cost]) -> list[Cost]:
    """Those that the result has: an older one has fewer."""
    return [cost for cost in costs if figures_of(result, "now", cost)]


def exponent(figures: Mapping[int, float]) -> float:
    """Of the power of N that fits best, in logarithms, from `_FROM` on; NaN where fewer than two are known."""
    known = [(math.log(size), math.log(value)) for size, value in figures.items() if size >= _FROM and value > 0]
    if len(known) < 2:
        return math.nan
    sizes, values = zip(*known, strict=True)
    return float(np.polyfit(sizes, values, 1)[0])


def figures_of(result: Result, version: str, cost: Cost) -> dict[int, float]:
    """By the number of workers."""
    found = result["costs"][version].items()
    return {
        int(size): figures[cost.of][cost.figure] for size, figures in found if cost.figure in figures.get(cost.of, {})
    }


def picture(result: Result) -> Figure:
    """A panel for each cost: before and now against the number of workers."""
    return panels(result, measured(result, COSTS), "Costs of N workers, before and now")


def panels(result: Result, costs: Sequence[Cost], title: str) -> Figure:
    """As `picture`, of these costs."""
    columns = 4
    rows = math.ceil(len(costs) / columns)
    drawn = style.empty_figure(f"{title}\n{style.subtitle(result)}", 11, 2.4 * rows)
    places = drawn.subplots(rows, columns).flat
    for axes in places[len(costs) :]:
        axes.remove()
    for axes, cost in zip(places, costs, strict=False):
        style.plain(axes)
        for version, colour, mark in (("before", style.THEIRS, "s--"), ("now", style.OURS, "o-")):
            if version in result["costs"]:
                figures = figures_of(result, version, cost)
                label = f"{_LABELS[version]}, exponent {_shown_exponent(figures)}"
                axes.plot(list(figures), list(figures.values()), mark, color=colour, label=label, lw=1, ms=4)
        values = [value for version in result["costs"] for value in figures_of(result, version, cost).values()]
        if cost.goal is not None:
            values.append(cost.goal)
            axes.axhline(cost.goal, color="black", lw=0.5, ls=":")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values) * 1.01)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(lambda value, _, cost=cost: shown(cost, value))
        axes.yaxis.set_minor_formatter(lambda _value, _: "")
        axes.set_title(cost.title.replace("`", ""), fontsize=style.SMALL)
        axes.legend(fontsize=style.SMALL - 1, frameon=False)
    return drawn


def shown(cost: Cost, value: float) -> str:
    """With its unit."""
    if cost.figure not in _BYTES:
        return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def verdicts(result: Result, costs: Sequence[Cost]) -> str:
    """A line for each goal: whether the largest number of workers reaches it."""
    lines = []
    for cost in costs:
        if cost.goal is not None:
            size, value = max(figures_of(result, "now", cost).items())
            reached = "reached" if value <= cost.goal else "**not reached**"
            goal = f"goal {shown(cost, cost.goal)}"
            lines.append(f"- {cost.title}: {shown(cost, value)} with {size:,} workers, {goal}: {reached}.")
    return "\n".join(lines)


def _shown_exponent(figures: Mapping[int, float]) -> str:
    power = exponent(figures)
    return "–" if math.isnan(power) else f"{power:.2f}".replace("-0.00", "0.00")


def table(result: Result, costs: Sequence[Cost]) -> str:
    """A row for each cost and version."""
    versions = [version for version in _LABELS if version in result["costs"]]
    sizes = sorted(map(int, result["costs"]["now"]))
    heads = ["cost", "version", *(f"N = {size:,}" for size in sizes), "exponent"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for cost in costs:
        for version in versions:
            figures = figures_of(result, version, cost)
            cells = [
                cost.title,
                _LABELS[version],
                *(shown(cost, figures[size]) if size in figures else "–" for size in sizes),
            ]
            lines.append(f"| {' | '.join(cells)} | {_shown_exponent(figures)} |")
    return "\n".join(lines)
