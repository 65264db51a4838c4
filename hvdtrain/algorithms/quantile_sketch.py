"""The distribution of times in bounded memory: a histogram whose buckets grow by the same factor.

The idea of DDSketch (Masson, Rim and Lee, VLDB 2019, arXiv:1908.10693), with a fixed range instead of buckets that
appear as they are needed. Its package adds one value at a time, in Python; here a step's time is put aside, and many of
them are added by one call of numpy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

RELATIVE_ERROR: Final = 0.02
"""By how much a quantile may differ from the value that it stands for, between `SHORTEST` and `LONGEST`."""

SHORTEST, LONGEST = 1e-6, 1e4
"""Seconds. Shorter times count as `SHORTEST`, longer ones as `LONGEST`; the largest is known exactly."""

FOLDED: Final = 512
"""Steps whose times are put aside before they are added: bounds the memory that they take."""

_GAMMA: Final = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GAMMA: Final = math.log(_GAMMA)
_BUCKETS: Final = math.ceil(math.log(LONGEST / SHORTEST) / _LOG_GAMMA) + 1


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds of `count` steps: half of them took `p50` at most, 90 % `p90`, 99 % `p99`, and none more than `max`."""

    count: int
    p50: float
    p90: float
    p99: float
    max: float


class QuantileSketch:
    """Counts of values in buckets. Its memory is 5 KB, however many values are added."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self._largest = 0.0

    def add(self, values: Sequence[float] | NDArray[np.float64]) -> None:
        """Add values, all of them finite."""
        added = np.asarray(values, np.float64)
        if added.size == 0:
            return
        # Bucket k holds the values above SHORTEST · gamma^(k-1), up to SHORTEST · gamma^k.
        places = np.ceil(np.log(np.clip(added, SHORTEST, LONGEST) / SHORTEST) / _LOG_GAMMA).astype(np.int64)
        self._counts += np.bincount(np.minimum(places, _BUCKETS - 1), minlength=_BUCKETS)
        self._largest = max(self._largest, float(added.max()))

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    def quantile(self, share: float) -> float:
        """The value that a `share` of all values, from 0 to 1, does not exceed; 0 where there are none."""
        count = self.count
        if count == 0:
            return 0.0
        rank = max(1, math.ceil(share * count))  # of the value among all, from 1
        place = int(np.searchsorted(np.cumsum(self._counts), rank))
        # Between the ends of the bucket, where the relative error is the same for both.
        middle = SHORTEST * _GAMMA**place * 2 / (1 + _GAMMA)
        return float(min(middle, self._largest))

    def summary(self) -> Quantiles:
        """The quantiles that people look at."""
        p50, p90, p99 = (self.quantile(share) for share in (0.5, 0.9, 0.99))
        return Quantiles(self.count, p50, p90, p99, self._largest)


class SketchedSteps:
    """The times of steps in named columns: put aside, and added to the sketches of the columns many at once.

    Args: `names`: of the columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._rows: list[Sequence[float]] = []  # of steps that are not in the sketches yet
        self._unread = 0  # of these, the last ones: they are not in the sums either
        self._sums = [0.0] * len(self._names)
        self._sketches = self._empty()

    def append(self, row: Sequence[float]) -> None:
        """One more step: a time for each column."""
        self._rows.append(row)
        self._unread += 1
        if len(self._rows) >= FOLDED:
            self._fold()

    def take_sums(self) -> list[float]:
        """The sum of each column since the last call."""
        self._add_up()
        sums, self._sums = self._sums, [0.0] * len(self._names)
        return sums

    def take_sketches(self) -> Mapping[str, QuantileSketch]:
        """How long the steps since the last call took, by column; empty where there was no step."""
        self._fold()
        sketches, self._sketches = self._sketches, self._empty()
        return sketches if any(sketch.count for sketch in sketches.values()) else {}

    def _empty(self) -> dict[str, QuantileSketch]:
        return {name: QuantileSketch() for name in self._names}

    def _add_up(self) -> None:
        if self._unread:
            rows, self._unread = self._rows[-self._unread :], 0
            self._sums = [sum(values) for values in zip(self._sums, *rows, strict=True)]

    def _fold(self) -> None:
        if self._rows:
            self._add_up()
            columns: Any = np.array(self._rows, np.float64).T
            for sketch, column in zip(self._sketches.values(), columns, strict=True):
                sketch.add(column)
            self._rows = []
