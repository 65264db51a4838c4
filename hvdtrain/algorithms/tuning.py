"""Which of several settings trains fastest: what may be measured of them, in which order, and the verdict.

Steps of one machine differ by noise, which drifts. So each setting is looked at twice, in the order A B C … C B A, and
one that is not the default must be faster than it in all looks, by more than noise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

Arm = TypeVar("Arm")

COST: Final = 0.02
"""The share of the remaining steps' time that a measurement may take."""

MOST_SECONDS: Final = 5.0
"""The most that the looks may take."""

GAIN: Final = 0.03
"""By how much the slower look at a setting must be faster than the faster look at the default."""

FIRST_STEPS: Final = 3
"""Steps before all looks: one that compiles or connects, then those that say how long a step takes."""

_FEWEST, _MOST = 2, 50  # steps of a look that are timed, after one that is not

SHORTEST_RUN: Final = math.ceil((FIRST_STEPS + 2 * 2 * (1 + _FEWEST)) / COST)
"""Remaining steps below which no two settings may be looked at, however fast a step is."""


@dataclass(frozen=True)
class Looks:
    """What is measured."""

    order: tuple[int, ...]  # of the settings, in which each occurs twice
    steps: int  # timed together in each look, after one step that is not timed


def affordable(
    arms: Sequence[int], remaining: int, step: float, change: float, most_seconds: float = MOST_SECONDS
) -> Looks | None:
    """Looks at as many of `arms` as may be measured, at least at two; None where that costs too much.

    Args:
        arms: the default, then others, the most promising first.
        remaining: steps of the run that are left.
        step: seconds of one.
        change: seconds that the first step with a setting takes longer.
        most_seconds: that all looks may take.
    """
    budget = min(most_seconds, (COST * remaining - FIRST_STEPS) * step)
    for count in range(len(arms), 1, -1):
        steps = math.floor((budget - (count - 1) * change) / (2 * count * step)) - 1 if step > 0 else _MOST
        if steps >= _FEWEST:
            chosen = tuple(arms[:count])
            return Looks(chosen + chosen[::-1], min(steps, _MOST))
    return None


def fastest(default: Arm, looks: Mapping[Arm, Sequence[float]]) -> Arm:
    """The setting whose slowest look is the fastest, of those that beat all looks at the default by more than noise.

    Args:
        default: what is kept where none does.
        looks: seconds of a step for each setting, the default among them; the same numbers give the same answer,
            in whatever order.
    """
    limit = (1 - GAIN) * min(looks[default])
    slowest = {arm: max(times) for arm, times in looks.items() if arm != default and max(times) < limit}
    return min(slowest, key=lambda arm: (slowest[arm], repr(arm)), default=default)
