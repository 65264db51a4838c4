"""Summaries of what all ranks have, by two allreduces whose size does not depend on the number of ranks.

The first one takes maxima: of each column and of its negative, and of slots in which ranks place what they have, so
that those with the most can be named. The second one takes sums: of each column, and of a histogram between its least
value above zero and its most, whose buckets grow by the same factor; zeros have a bucket of their own. Counts, means,
minima and maxima are exact. Quartiles are those of the histogram: they differ from the ranks' values by less than a
bucket, which is 1/63 of the logarithm of most / least above zero.

A rank has a slot in each of two tables, of sizes without a common divisor. It is not named only if in both of them
there is a rank with a larger value. The one with the most is always named.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvdtrain.comm.communicator import Communicator
from hvdtrain.rank_summary import NAMED, RankSummary, RankValue

QUARTILES: Final = (0.25, 0.5, 0.75)
TABLES: Final = (9, 7)
BUCKETS: Final = 64  # the first one has the zeros
_RANK_BITS: Final = 21  # with the 31 bits of a float32, as many as a float64 holds exactly
_LAST_RANK: Final = 2**_RANK_BITS - 1
_EXACT_BITS: Final = 53

Column = NDArray[np.float64]


class Reduced(NamedTuple):
    """The same on all ranks."""

    totals: Column  # sums over ranks, [t]
    summaries: list[RankSummary]  # of each column
    equal: bool  # whether `same` is


def reduce_ranks(
    comm: Communicator,
    columns: Sequence[float],
    operation: str,
    *,
    named: Sequence[int] = (),
    totals: Sequence[float] = (),
    same: Sequence[float] = (),
    hosts: Sequence[str] = (),
) -> Reduced:
    """Reduce this rank's values. Collective, except for its second half where `same` differs, which all ranks see.

    Args:
        columns: to be summarized: not negative, or NaN where this rank has none. As many on all ranks.
        operation: the collectives' name.
        named: places in `columns` of which the ranks with the largest values are named.
        totals: to be summed; of as many numbers on all ranks if `same` is equal. NaN and infinity stay what they are.
        same: must be equal on all ranks: else there are neither totals nor summaries.
        hosts: of all ranks, or ().
    """
    size, rank = comm.topology.size, comm.topology.rank
    values = np.array(columns, np.float64)
    checked = np.array(same, np.float64)
    slots = np.full((len(named), sum(TABLES)), -1.0)
    for begin, slot_count in zip(accumulate(TABLES, initial=0), TABLES, strict=False):
        slots[:, begin + rank % slot_count] = _coded(values[list(named)], rank)
    known = np.where(np.isnan(values), -np.inf, values)
    negative = np.where(np.isnan(values), -np.inf, -values)
    above_zero = np.where(values > 0, -values, -np.inf)
    ours = [known, negative, above_zero, checked, -checked, slots.reshape(-1)]
    peaks = comm.allreduce(np.concatenate(ours), f"{operation}.most", "max")
    most, least, low, first, second, filled = np.split(peaks, np.cumsum([part.size for part in ours[:-1]]))
    least, low = -least, -low
    if (first != -second).any():
        return Reduced(np.empty(0), [], False)
    bits = size.bit_length()
    is_known = ~np.isnan(values)
    sent = [np.array(totals, np.float64), is_known, np.where(is_known, values, 0.0), _packed(values, low, most, bits)]
    sums = comm.allreduce(np.concatenate(sent, dtype=np.float64), f"{operation}.sums")
    of_totals, counts, of_values, packed = np.split(sums, np.cumsum([len(totals), values.size, values.size]))
    histograms = _unpacked(packed, values.size, bits)
    summaries = _summaries(counts, of_values, (least, low, most), histograms)
    for place, ranks in zip(named, _largest(filled.reshape(slots.shape), hosts), strict=True):
        summaries[place] = replace(summaries[place], largest=ranks)
    return Reduced(of_totals, summaries, True)


def _coded(values: Column, rank: int) -> Column:
    """One number that grows with the value, as float32; of equal values the lower rank has the larger; -1 for NaN."""
    bits = np.maximum(values, 0.0).astype(np.float32).view(np.int32).astype(np.float64)
    return np.where(np.isnan(values), -1.0, bits * (_LAST_RANK + 1) + (_LAST_RANK - rank))


def _largest(coded: Column, hosts: Sequence[str]) -> list[tuple[RankValue, ...]]:
    """The `NAMED` largest of each row of slots, [columns, slots]; the order of codes is that of values."""
    falling = -np.sort(-coded, axis=1)
    falling[:, 1:][falling[:, 1:] == falling[:, :-1]] = -1.0  # a rank that has its slot in both tables
    most = -np.sort(-falling, axis=1)[:, :NAMED].astype(np.int64)
    values = (most >> _RANK_BITS).astype(np.int32).view(np.float32).tolist()
    rows = zip((_LAST_RANK - (most & _LAST_RANK)).tolist(), values, (most >= 0).tolist(), strict=True)
    return [
        tuple(
            RankValue(rank, value, hosts[rank] if rank < len(hosts) else "")
            for rank, value, is_filled in zip(*row, strict=True)
            if is_filled
        )
        for row in rows
    ]


def _packed(values: Column, low: Column, most: Column, bits: int) -> Column:
    """A 1 in the bucket of each column, several counts in each number: a count of all ranks has so many bits."""
    each = _EXACT_BITS // bits
    buckets = _bucket(values, low, most)
    packed = np.zeros((values.size, math.ceil(BUCKETS / each)))
    known = np.flatnonzero(~np.isnan(values))
    packed[known, buckets[known] // each] = 2.0 ** (bits * (buckets[known] % each))
    return packed.reshape(-1)


def _unpacked(packed: Column, columns: int, bits: int) -> NDArray[np.int64]:
    """Counts, [columns, buckets]."""
    each = _EXACT_BITS // bits
    numbers = packed.astype(np.int64).reshape(columns, -1, 1)
    counts: NDArray[np.int64] = (numbers >> (bits * np.arange(each))) & (2**bits - 1)
    of_columns: NDArray[np.int64] = counts.reshape(columns, -1)[:, :BUCKETS]
    return of_columns


def _bucket(values: Column, low: Column, most: Column) -> NDArray[np.int64]:
    low, width = _scale(low, most)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        places = 1 + np.clip(np.nan_to_num(np.floor(np.log(values / low) / width)), 0, BUCKETS - 2)
    buckets: NDArray[np.int64] = np.where(values > 0, places, 0).astype(np.int64)
    return buckets


def _scale(low: Column, most: Column) -> tuple[Column, Column]:
    """Where the second bucket begins, and the logarithm of the factor by which buckets grow; 1 where all are equal."""
    low = np.where(np.isfinite(low), low, 1.0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        width = (np.log(np.where(most > low, most, low)) - np.log(low)) / (BUCKETS - 1)
    return low, np.where(np.isfinite(width) & (width > 0), width, 1.0)


def _summaries(
    counts: Column, sums: Column, bounds: tuple[Column, Column, Column], histograms: NDArray[np.int64]
) -> list[RankSummary]:
    """Of each column, by one call of numpy for all of them. `bounds`: the least, the least above zero, the most."""
    least, low, most = bounds
    low, width = _scale(low, most)
    ends = histograms.cumsum(axis=1)
    columns = np.arange(counts.size)
    numbers = [sums / np.maximum(counts, 1), least]
    for share in QUARTILES:
        place = np.ceil(share * counts)
        bucket = np.minimum((ends < place[:, None]).sum(axis=1), BUCKETS - 1)
        inside = histograms[columns, bucket]
        share_inside = (place - (ends[columns, bucket] - inside) - 0.5) / np.maximum(1, inside)
        begin, end = low * np.exp((bucket - 1) * width), low * np.exp(bucket * width)
        numbers.append(np.where(bucket == 0, least, np.clip(begin + share_inside * (end - begin), low, most)))
    rows = np.array([*numbers, most])
    rows[:, counts == 0] = math.nan
    return [RankSummary(int(count), *row) for count, row in zip(counts, rows.T.tolist(), strict=True)]
