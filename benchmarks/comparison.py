"""One table of a result: the blocks of several arms, one of which is ours."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.statistics import Estimate, Ratio, estimate_of, ratio_of


@dataclass(frozen=True)
class Comparison:
    """Times of arms.

    Args:
        blocks: seconds by arm.
        ours: the arm that others are compared with.
        again: the same arm, measured once more in each block.
    """

    blocks: Sequence[Mapping[str, float]]
    ours: str
    again: str

    def times(self, arm: str) -> list[float]:
        """Seconds in each block."""
        return [block[arm] for block in self.blocks]

    def median(self, arm: str) -> float:
        """Seconds."""
        return statistics.median(self.times(arm))

    def ours_over(self, arm: str) -> Ratio:
        """Our time divided by the arm's."""
        return ratio_of(self.times(self.ours), self.times(arm))

    def more_than(self, base: str, arm: str) -> Estimate:
        """Seconds by which an arm takes longer than another one."""
        return estimate_of([block[arm] - block[base] for block in self.blocks])

    @cached_property
    def noise(self) -> Ratio:
        """A against A."""
        return self.ours_over(self.again)

    @property
    def arms(self) -> list[str]:
        """The fastest first; without the second measurement of ours."""
        return sorted((arm for arm in self.blocks[0] if arm != self.again), key=self.median)

    @property
    def others(self) -> list[str]:
        """The arms that are not ours, the fastest first."""
        return [arm for arm in self.arms if arm != self.ours]

    def is_won(self, arm: str) -> bool:
        """Whether we take less time than the arm, by more than A against A and chance explain."""
        return wins(self.ours_over(arm), self.noise)


def wins(ratio: Ratio, noise: Ratio) -> bool:
    """Whether ours / theirs says that we take less time, by more than A against A and chance explain."""
    return ratio.median < 1 and ratio.beyond(noise)
