"""The distribution of times in bounded memory: a histogram whose buckets grow by the same factor.

The idea of DDSketch (Masson, Rim and Lee, VLDB 2019, arXiv:1908.10693), with a fixed range instead of buckets that
appear as they are needed. Its package adds one value at a time, in Python; here a step's time is put aside, and many of
them are added by one call of numpy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

RELATIVE_ERROR: Final = 0.02
"""By how much a quantile may differ from the value that it stands for, between `SHORTEST` and `LONGEST`."""

SHORTEST, LONGEST = 1e-6, 1e4
"""Seconds. Shorter times count as `SHORTEST`, longer ones as `LONGEST`; the largest is known exactly."""

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
        own = np.asarray(values, np.float64)
        if own.size == 0:
            return
        # Bucket k holds the values above SHORTEST · gamma^(k-1), up to SHORTEST · gamma^k.
        places = np.ceil(np.log(np.clip(own, SHORTEST, LONGEST) / SHORTEST) / _LOG_GAMMA).astype(np.int64)
        self._counts += np.bincount(np.minimum(places, _BUCKETS - 1), minlength=_BUCKETS)
        self._largest = max(self._largest, float(own.max()))

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
