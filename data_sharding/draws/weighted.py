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

_UNIT_BITS: Final = 20
"""A draw is at least 2**20 of the integers that weights are kept as: sums of those are exact."""
_COARSE_FROM_BITS, _SHARE_BITS = 14, 10
"""Where there are more than 2**14 records for a draw, it is more: a record of mean weight has 2**10 at least."""
_MOST_DRAWS: Final = 1 << 33  # what fits into the 53 bits that a random number has
_TINY: Final = 1e-250
_GOLDEN_RATIO: Final = 0.6180339887498949  # of a draw: an epoch's shift from the one before, as an odd number


@dataclass(frozen=True, eq=False)
class Weighted:
    """`length` draws of an epoch, of which record i gets its share by weight, rounded down or up in each epoch.

    Systematic sampling (Madow and Madow, 1944): the records' shares lie behind each other on a line, and draw k is the
    record at the place k + u, where u changes from epoch to epoch.

    Attributes:
        weights: int64[N], records' shares of the epoch in units of 2**-20 draws, or less where there are many records
            for a draw; they add up to `length` draws.
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
        total = int(self._ends[-1])
        unit = total // self.length
        if self.replacement:
            flat = numbers.reshape(-1)
            places = SampleRandom(self.seed, epoch, flat).integers("data_sharding.weighted", 0, total)
            places = places.reshape(numbers.shape)
        else:
            begin = int(keys_from(f"data_sharding.weighted/1 {self.seed}", 1)[0] % unit)
            places = numbers * unit + (begin + epoch * (int(unit * _GOLDEN_RATIO) | 1)) % unit
        ids: NDArray[np.int64] = np.searchsorted(self._ends, places, side="right")
        return ids

    def describe(self) -> Mapping[str, Any]:
        return {"rule": "weighted", "length": self.length, "seed": self.seed, "replacement": self.replacement}


def _in_units(weights: NDArray[np.float64], draws: int) -> NDArray[np.int64]:
    """Shares int64[N] that add up to a multiple of draws × 2**20; one of 0 stays 0."""
    bits = (-(-len(weights) // draws) - 1).bit_length()
    total = draws << (_UNIT_BITS if bits <= _COARSE_FROM_BITS else bits + _SHARE_BITS)
    if weights.max() < _TINY:  # its reciprocal would be infinite
        weights = weights / weights.max()
    units = np.rint(weights * (total / weights.sum())).astype(np.int64)
    positive = np.flatnonzero(weights > 0)
    while left := total - int(units.sum()):  # what rounding has left over, a unit a record
        some = positive if left > 0 else positive[units[positive] > 0]
        units[some[: abs(left)]] += np.sign(left)
    return np.asarray(units, np.int64)
