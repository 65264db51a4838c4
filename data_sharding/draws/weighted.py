"""Records by weights: as often as their weights say, or at random with replacement."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from data_sharding.draws.draw_rule import nothing_drawn
from data_sharding.errors import PlanError
from data_sharding.permutation import keys_from
from data_sharding.sample_random import SampleRandom

_UNIT: Final = 1 << 20
"""A draw, in the integers that weights are kept as: sums of those are exact."""
_MOST_DRAWS: Final = 1 << 33  # what fits into the 53 bits that a random number has
_GOLDEN_STEP: Final = 648_055  # nearest odd number to _UNIT / golden ratio: an epoch's shift from the one before


@dataclass(frozen=True, eq=False)
class Weighted:
    """`length` draws of an epoch, of which record i gets its share by weight, rounded down or up in each epoch.

    Systematic sampling (Madow and Madow, 1944): the records' shares lie behind each other on a line, and draw k is the
    record at the place k + u, where u changes from epoch to epoch.

    Attributes:
        weights: int64[N], records' shares of the epoch in units of 2**-20 draws; they add up to `length`.
        replacement: draw k is the record at a place of its own at random instead: a record may come more often, or not
            at all.
    """

    weights: NDArray[np.int64]
    length: int
    seed: int
    replacement: bool
    _ends: NDArray[np.int64] = field(init=False, repr=False)

    together = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", np.cumsum(self.weights))

    @classmethod
    def by(cls, weights: ArrayLike, records: int, length: int | None, seed: int, replacement: bool) -> "Weighted":
        """Draws by weights float[records]; without `length` as many as their sum.

        Raises PlanError: weights are no such array, negative, not finite or all 0, or nothing would be drawn.
        """
        given = np.asarray(weights)
        if given.shape != (records,) or given.dtype.kind not in "biuf":
            raise PlanError(
                f"Weights of {given.dtype} of shape {list(given.shape)} were given.",
                f"Each of {records:,} records has one number as its weight.",
                "give an array of one number a record.",
            )
        exact = given.astype(np.float64)
        with np.errstate(over="ignore"):
            total = float(exact.sum())
        if not math.isfinite(total) or (exact < 0).any() or not total > np.finfo(np.float64).tiny:
            raise nothing_drawn(
                f"Weights from {exact.min():g} to {exact.max():g} were given, which add up to {total:g}.",
                "give weights of 0 or more, at least one of them more than 0.",
            )
        draws = round(total) if length is None else length
        if not 1 <= draws <= _MOST_DRAWS:
            raise PlanError(
                f"Weights that add up to {total:g} were given, and {draws:,} records were to be drawn.",
                f"An epoch draws 1 to {_MOST_DRAWS:,} records by weight.",
                "give the number of draws, epoch=N: weights then count in proportion to each other.",
            )
        return cls(_in_units(exact, draws), draws, seed, replacement)

    def records(self, numbers: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        total = self.length * _UNIT
        if self.replacement:
            flat = numbers.reshape(-1)
            places = SampleRandom(self.seed, epoch, flat).integers("data_sharding.weighted", 0, total)
            places = places.reshape(numbers.shape)
        else:
            begin = int(keys_from(f"data_sharding.weighted/1 {self.seed}", 1)[0] % _UNIT)
            places = numbers * _UNIT + (begin + epoch * _GOLDEN_STEP) % _UNIT
        ids: NDArray[np.int64] = np.searchsorted(self._ends, places, side="right")
        return ids

    def describe(self) -> Mapping[str, Any]:
        return {"rule": "weighted", "length": self.length, "seed": self.seed, "replacement": self.replacement}


def _in_units(weights: NDArray[np.float64], draws: int) -> NDArray[np.int64]:
    """Shares int64[N] that add up to draws × 2**20; one of 0 stays 0."""
    total = draws * _UNIT
    units = np.rint(weights * (total / weights.sum())).astype(np.int64)
    positive = np.flatnonzero(weights > 0)
    while left := total - int(units.sum()):  # what rounding has left over, a unit a record
        some = positive if left > 0 else positive[units[positive] > 0]
        units[some[: abs(left)]] += np.sign(left)
    return np.asarray(units, np.int64)
