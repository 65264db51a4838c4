"""A job of many workers, event by event: slow workers, failures, checkpoints and restarts.

Between two events nothing happens but steps, so that 10,000 workers cost no more than one: the slowest of W workers is
drawn at once, by the distribution of the largest of W numbers.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.algorithms.checkpoint_interval import young_daly

_AT_A_TIME: Final = 100_000  # steps that are drawn together: bounds the memory
_QUANTILES: Final = 2048
_MOST_FAILURES: Final = 100_000  # a job that fails more often than it saves may never end,
_MOST_STEPS: Final = 20_000_000  # nor one whose steps take much longer than it runs without a failure


@dataclass(frozen=True)
class Disturbances:
    """What slows a job down."""

    jitter: float = 0.05  # standard deviation of the logarithm of a worker's time for a step
    mtbf: float = 50_000.0  # hours between two failures of one worker; inf: it never fails
    restart: float = 60.0  # seconds from a failure until training goes on
    save: float = 1.0  # seconds for which training waits for a checkpoint


@dataclass(frozen=True)
class Simulated:
    """A job that has ended."""

    seconds: float  # from its start to its end
    steps: int  # that it made and that count
    stragglers: float  # seconds of waiting for the slowest worker of each step, in steps that count
    saving: float  # waiting for checkpoints
    repeated: float  # in steps that a failure undid
    restarting: float  # from failures until training went on
    failures: int  # how many there were
    interval: float  # seconds between checkpoints, by Young and Daly

    @property
    def goodput(self) -> float:
        """The share of the time in which a job without disturbances would have made the same steps."""
        lost = self.stragglers + self.saving + self.repeated + self.restarting
        return (self.seconds - lost) / self.seconds


def simulated(compute: float, others: float, workers: int, steps: int, what: Disturbances, seed: int = 0) -> Simulated:
    """A job of `steps` steps that count; fewer, if it fails again and again.

    Args:
        compute: seconds of a step in which a worker computes, which is what varies.
        others: seconds of a step that do not vary.
        workers: any of which may fail or be slow.
    """
    random = np.random.default_rng(seed)
    mtbf = what.mtbf * 3600 / workers
    interval = young_daly(what.save, mtbf) if math.isfinite(mtbf) else math.inf
    stretch = max(1, min(steps, int(min(interval / (compute + others), steps))))
    slowest = _slowest_of(workers, what.jitter)
    clock = stragglers = saving = repeated = restarting = 0.0
    failures = done = drawn = 0
    next_failure = _until_failure(random, mtbf)
    while done < steps and failures < _MOST_FAILURES and drawn < _MOST_STEPS:
        count = min(stretch, steps - done)
        drawn += count
        took = _seconds(random, slowest, count) * compute + count * others
        if clock + took > next_failure:
            failures, restarting = failures + 1, restarting + what.restart
            repeated += max(0.0, next_failure - clock)  # it may strike while a checkpoint is saved
            clock = max(clock, next_failure) + what.restart
            next_failure = clock + _until_failure(random, mtbf)
            continue
        clock, done, stragglers = clock + took, done + count, stragglers + took - count * (compute + others)
        if done < steps:
            clock, saving = clock + what.save, saving + what.save
    return Simulated(clock, done, stragglers, saving, repeated, restarting, failures, interval)


def _until_failure(random: np.random.Generator, mtbf: float) -> float:
    return float(random.exponential(mtbf)) if math.isfinite(mtbf) else math.inf


def _seconds(random: np.random.Generator, slowest: NDArray[np.float64], count: int) -> float:
    """Of `count` steps, in which the median worker takes a second."""
    total = 0.0
    for begin in range(0, count, _AT_A_TIME):
        drawn = random.integers(0, len(slowest), min(_AT_A_TIME, count - begin))
        total += float(slowest[drawn].sum())
    return total


def _slowest_of(workers: int, jitter: float) -> NDArray[np.float64]:
    """Equally likely values of the largest of `workers` lognormal numbers with median 1.

    If U is uniform, the largest is where one number's distribution function is U^(1/W).
    """
    uniform = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    normal = NormalDist()
    # 1 - U^(1/W), which is tiny for many workers, without losing its digits.
    above = -np.expm1(np.log(uniform) / workers)
    return np.exp([-jitter * normal.inv_cdf(share) for share in above.tolist()])
