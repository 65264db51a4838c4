"""From blocks to a claim: medians, and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

_RESAMPLES: Final = 10_000


class Estimate(NamedTuple):
    """A median and its bootstrap interval of 95 %."""

    median: float
    low: float
    high: float


class Ratio(Estimate):
    """An estimate of a ratio, which is 1 where two arms are alike."""

    __slots__ = ()

    def beyond(self, noise: Ratio) -> bool:
        """Whether it differs from 1 by more than A against A did, and by more than chance explains."""
        return max(self.median, 1 / self.median) > noise.reach and not self.low <= 1 <= self.high

    @property
    def reach(self) -> float:
        """The end of the interval that is farther from 1, as a factor above 1: the same for A / B and B / A."""
        return max(self.high, 1 / self.high, self.low, 1 / self.low)


def estimate_of(blocks: Sequence[float]) -> Estimate:
    """The median of the blocks, with the percentile bootstrap over them (Efron, 1979)."""
    values = np.asarray(blocks, float)
    picks = np.random.default_rng(0).integers(0, len(values), (_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[picks], axis=1), [2.5, 97.5])
    return Estimate(float(np.median(values)), float(low), float(high))


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The estimate of ours[i] / theirs[i]."""
    return Ratio(*estimate_of([one / other for one, other in zip(ours, theirs, strict=True)]))
