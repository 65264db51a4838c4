"""From blocks to a claim: medians of ratios, and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

_RESAMPLES: Final = 10_000


class Ratio(NamedTuple):
    """A median and its bootstrap interval of 95 %."""

    median: float
    low: float
    high: float

    def beyond(self, noise: Ratio) -> bool:
        """Whether it differs from 1 by more than A against A did, and by more than chance explains.

        `noise` counts with the end of its interval that is farther from 1.
        """
        floor = max(abs(noise.low - 1), abs(noise.high - 1))
        return abs(self.median - 1) > floor and not self.low <= 1 <= self.high


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Median over blocks of ours[i] / theirs[i], with the percentile bootstrap over blocks (Efron, 1979)."""
    ratios = np.asarray(ours, float) / np.asarray(theirs, float)
    picks = np.random.default_rng(0).integers(0, len(ratios), (_RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[picks], axis=1), [2.5, 97.5])
    return Ratio(float(np.median(ratios)), float(low), float(high))
