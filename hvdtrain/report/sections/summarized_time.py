"""Where the time of many ranks went: how it is spread over them, and for which ranks the others waited most often."""

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from hvdtrain.history.ranks import disjoint
from hvdtrain.history.reading import mapping, number
from hvdtrain.history.summarized_ranks import SPREAD, SummarizedTimes
from hvdtrain.measured import PARTS, REST
from hvdtrain.report import wording
from hvdtrain.report.charts import bar_chart
from hvdtrain.report.markup import Markup, details, join, table, tag

_MOST_NAMED: Final = 16
_HEADS: Final = {"mean": "mean", "min": "least", "p25": "25 %", "median": "median", "p75": "75 %", "max": "most"}
_QUANTILES: Final = {"p50": "median step", "p90": "90 % of steps", "p99": "99 % of steps", "max": "longest step"}

_TITLES: Final = {part.name: part.title for part in PARTS}
SERIES: Final = {part.name: part.series for part in PARTS} | {REST: 8}
"""Of each part: its colour. "compute" is not there where its parts are."""


def name_of(part: str) -> str:
    """A part of the time, for people."""
    return _TITLES.get(part, part.replace("_", " "))


def summary_chart(times: SummarizedTimes) -> Markup | None:
    """A bar of the mean rank's seconds, and tables; None where no line has a summary."""
    means = disjoint({part: sums["mean"] for part, sums in times.parts.items()})
    parts = [part for part, seconds in means.items() if seconds]
    if not parts:
        return None
    bar = {"mean": {name_of(part): means[part] for part in parts}}
    label = f"Seconds of the mean of {times.ranks} ranks: " + ", ".join(
        f"{name_of(part)} {wording.seconds(means[part])}" for part in parts
    )
    note = (
        f"{wording.count(times.ranks)} ranks. Each line of metrics says how a part of the time is spread over them; "
        "these numbers are sums over lines."
    )
    rows = [[name_of(part), *(f"{sums[name]:,.2f}" for name in SPREAD)] for part, sums in times.parts.items()]
    spread = table("Seconds by part", ("part", *(_HEADS[name] for name in SPREAD)), rows, visible=True)
    numbers = join(tag("p", note, class_="note"), details("Numbers", spread), _named(times))
    return bar_chart(
        "Time of a rank, mean of all", f"{label}.", bar, {name_of(part): SERIES[part] for part in parts}, numbers
    )


def _named(times: SummarizedTimes) -> Markup | None:
    """Who had the longest work, which others wait for."""
    named = times.most_often(_MOST_NAMED)
    if not named:
        return None
    title = "Ranks with the longest work of their own"
    heads = ("rank", "host", "lines in which it was among the longest", "lines in which it was the longest")
    rows = [
        (f"rank {each.rank}", each.host, f"{each.lines:,} of {times.lines:,}", f"{each.longest:,}") for each in named
    ]
    return details(title, table(title, heads, rows, visible=True))


def summarized_steps(names: Mapping[str, Any]) -> Markup | None:
    """How long single steps took on all ranks, as the result has it."""
    rows = [
        [f"{name_of(name)}, {head}", *(wording.seconds(number(mapping(quantiles, key), column)) for column in SPREAD)]
        for name, quantiles in islice(names.items(), len(PARTS))
        if isinstance(quantiles, dict)
        for key, head in _QUANTILES.items()
    ]
    if not rows:
        return None
    title = "Times of single steps"
    return details(title, table(title, ("part and steps", *(_HEADS[name] for name in SPREAD)), rows))
