"""A reading in which ranks are summarized: the columns that are reduced over ranks, and what an event says of them."""

import math
from collections.abc import Mapping
from typing import Any, Final

from hvdtrain.measured import ALWAYS_KNOWN, METRICS, PARTS, Seconds, SummarizedSeconds
from hvdtrain.rank_summary import RankSummary

_REDUCED: Final = tuple(metric for metric in METRICS if metric.reduced)
_SECONDS: Final = tuple(part.name for part in PARTS)

NAMED: Final = frozenset(
    ("data", "work", *(metric.name for metric in _REDUCED if metric.of == "rank" and metric.reduced == "max"))
)
"""Columns of which the ranks with the most are named."""


def columns_of(own: Seconds, facts: Mapping[str, float]) -> dict[str, float]:
    """What this rank gives to the reduction. Args: `own`: its seconds; `facts`: its row, NaN where it has no number."""
    return {
        **seconds_columns(own),
        "elapsed": facts["elapsed"],
        **{metric.name: facts[metric.name] for metric in _REDUCED},
    }


def seconds_columns(own: Seconds) -> dict[str, float]:
    """The part of the columns that `summary_of` needs."""
    work = own.data + own.compute
    step = work + own.allreduce
    return {**vars(own), "work": work, "step": step, "waits": own.allreduce / step if step > 0 else 0.0}


def summary_of(own: Seconds, columns: Mapping[str, RankSummary]) -> SummarizedSeconds:
    """Where time went. Args: `own`: on this rank; `columns`: reduced, by name."""
    known = [part for part in _SECONDS if part in ALWAYS_KNOWN or columns[part].max > 0]
    parts = {part: columns[part] for part in known}
    return SummarizedSeconds(own, parts, columns["work"], columns["step"], columns["waits"])


def metrics_of(facts: Mapping[str, float], columns: Mapping[str, RankSummary], ranks: int) -> dict[str, Any]:
    """What an event says of the built-in metrics. Args: `ranks`: how many there are."""
    found: dict[str, Any] = {}
    for metric in _REDUCED:
        column = columns[metric.name]
        if metric.of == "rank":
            found[metric.name] = column if column.count else ()
        elif math.isnan(facts[metric.name]):
            found[metric.name] = None
        elif column.count < ranks:
            found[metric.name] = math.nan  # some rank has none, as with lists
        else:
            has_mean = metric.reduced == "mean" and column.min != column.max  # as with lists
            found[metric.name] = column.mean if has_mean else column.max
    return found
