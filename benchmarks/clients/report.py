"""A result as a page for people, and as a picture: how the costs of many clients grow with their number."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from benchmarks import saved
from benchmarks.scale.report import Cost, exponent, figures_of, panels, shown, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]

COSTS: Final = (
    Cost("meeting", "seconds", "workers meet, time of the server", 5.0),
    Cost("meeting", "took", "workers meet, until all know their place"),
    Cost("meeting", "received", "workers meet, bytes that each receives"),
    Cost("meeting", "memory", "workers meet, memory of the server", 1e9),
    Cost("store", "seconds", "one key each, time of the server", 5.0),
    Cost("store", "took", "one key each, until all have read"),
    Cost("mesh", "seconds", "Gloo's whole exchange, time of the server", 5.0),
    Cost("mesh", "received", "Gloo's whole exchange, bytes for each"),
    Cost("ssh", "seconds", "a job over ssh, time of the launcher"),
    Cost("ssh", "memory", "a job over ssh, memory of the launcher", 1e9),
    Cost("ssh", "started", "a start over ssh, until all have orders"),
    Cost("ssh", "told", "one worker dies, until all are told"),
)

WORKERS: Final = 10_000
"""For whom the figures are predicted."""


def markdown(result: Result) -> str:
    """The whole page."""
    about = (
        "Clients that only speak the protocols come to a rendezvous server in a process of its own, all at the same "
        "time. One key each: all put a key into Horovod's store, and read one once all are there. A small program "
        "stands for ssh and the agent behind it, a process for each host of 8 workers, and the "
        "launcher is `hvdtrain launch ssh`. Times of the server and of the launcher are seconds of that process on a "
        "processor. Others are seconds by the clock, in which the clients and the stand-ins share the cores. From "
        "the death of a worker on, the launcher leaves the others 3 s for last words, which are not counted. "
        "Gloo's whole exchange has 1.5 N² requests by Horovod's protocol, and its values were made up with 150 bytes "
        "for each other worker. The exponent e is fitted to the figures from 64 workers on: the cost grows as N to "
        "the power e. Where 10,000 workers were too many to be measured, their figure follows from the last one by the "
        "exponent; that of Gloo's whole exchange rests on two sizes, beside its known number of requests."
    )
    before = f"Before: commit {result['before']}, by the same command." if result["before"] else ""
    goals = "\n".join(_verdict(result, cost) for cost in COSTS if cost.goal is not None)
    parts = [saved.head("Costs of many clients", result), about, before, goals, table(result, COSTS)]
    return "\n\n".join(filter(None, parts)) + "\n"


def picture(result: Result) -> Figure:
    """A panel for each cost: before and now against the number of workers."""
    return panels(result, COSTS, "Costs of N clients, before and now")


def predicted(result: Result, version: str, cost: Cost) -> float:
    """For `WORKERS`, measured, or from the last figure and the exponent; NaN where there are too few figures."""
    figures = figures_of(result, version, cost)
    if WORKERS in figures:
        return figures[WORKERS]
    size, value = max(figures.items(), default=(1, math.nan))
    return value * (WORKERS / size) ** exponent(figures)


def _verdict(result: Result, cost: Cost) -> str:
    told, measured = [], False
    for version in ("before", "now"):
        if version in result["costs"]:
            value, measured = predicted(result, version, cost), WORKERS in figures_of(result, version, cost)
            reached = "reached" if cost.goal is not None and value <= cost.goal else "**not reached**"
            told.append(f"{version} {shown(cost, value)}, {reached}")
    how = "" if measured else " by the exponent"
    goal = shown(cost, cost.goal) if cost.goal is not None else ""
    return f"- {cost.title}, for {WORKERS:,} workers{how}: {'; '.join(told)} (goal {goal})."
