"""What a summary of all ranks must say, from the whole list: the reference for reductions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hvdtrain.comm.rank_reduction import QUARTILES
from hvdtrain.measured import ALWAYS_KNOWN, PARTS, Seconds, SummarizedSeconds
from hvdtrain.rank_summary import NAMED, RankSummary, RankValue


def summarize(column: NDArray[np.float64], hosts: Sequence[str] = ()) -> RankSummary:
    """Summarize `column`, one value of each rank, NaN where it was not measured. `hosts`: of each rank, or ().

    Percentiles are values of the column: the smallest one that so large a share of the values does not exceed (the
    nearest-rank method, as numpy's "inverted_cdf").
    """
    known = np.flatnonzero(~np.isnan(column))
    if not known.size:
        return RankSummary(0, math.nan, math.nan, math.nan, math.nan, math.nan, math.nan)
    values = column[known]
    places = [math.ceil(share * values.size) - 1 for share in QUARTILES]
    ordered = np.partition(values, sorted({0, *places, values.size - 1}))
    p25, median, p75 = ordered[places].tolist()
    return RankSummary(
        count=values.size,
        mean=float(values.mean()),
        min=float(ordered[0]),
        p25=p25,
        median=median,
        p75=p75,
        max=float(ordered[-1]),
        largest=largest_of(known, values, hosts),
    )


def summarized_seconds(
    columns: Mapping[str, NDArray[np.float64]], own: Seconds, hosts: Sequence[str] = ()
) -> SummarizedSeconds:
    """Summarize the seconds of all ranks. Args: `columns`: of each part, [ranks]; `own`: of this rank."""
    known = {part for part, column in columns.items() if part in ALWAYS_KNOWN or column.any()}
    work = columns["data"] + columns["compute"]
    return SummarizedSeconds(
        own=own,
        parts={part.name: summarize(columns[part.name], hosts) for part in PARTS if part.name in known},
        work=summarize(work, hosts),
        step=summarize(work + columns["allreduce"], hosts),
        waits=summarize(columns["allreduce"] / np.maximum(work + columns["allreduce"], 1e-9), hosts),
    )


def largest_of(
    ranks: NDArray[np.int64], values: NDArray[np.float64], hosts: Sequence[str] = ()
) -> tuple[RankValue, ...]:
    """The `NAMED` largest of `values`, [k], which belong to `ranks`, [k]; of equal ones the lower ranks first."""
    if values.size > NAMED:
        least = np.partition(values, values.size - NAMED)[values.size - NAMED]
        places = np.flatnonzero(values >= least)
    else:
        places = np.arange(values.size)
    order = places[np.lexsort((ranks[places], -values[places]))][:NAMED]
    named = zip(ranks[order].tolist(), values[order].tolist(), strict=True)
    return tuple(RankValue(rank, value, hosts[rank] if rank < len(hosts) else "") for rank, value in named)
