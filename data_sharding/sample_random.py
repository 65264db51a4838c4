"""Random numbers for augmentation that belong to the sample, not to the process that happens to read it.

And the hash that they and the shuffles are made of: the finalizer of SplitMix64 (Steele, Lea, Flood, "Fast Splittable
Pseudorandom Number Generators", OOPSLA 2014).
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.checks import whole
from data_sharding.errors import PlanError

# SplitMix64's increment, 2**64 / golden ratio: its multiples are spread evenly, and never 0, which `mix` maps to 0.
GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))

_TO_UNIT: Final = 2.0**-53
_LARGEST_RANGE: Final = 1 << 53


class SampleRandom:
    """Draws that depend on (seed, epoch, record id, name of the draw) only.

    The same record gets the same augmentation in the same epoch at every world size and after every resume, in
    whichever order draws are made. Each draw needs a name of its own: `uniform`, `integers` and `coin` of one name use
    the same bits. Each number is output of SplitMix64 at a counter made of the record id and the place in the draw,
    under a key hashed from the rest.

    Args:
        seed, epoch: any integers; others are refused with PlanError.
        ids: int64[k] record ids, whose order is the order of the rows of all draws. Where an epoch uses a record more
            than once, numbers that differ between these uses.
    """

    def __init__(self, seed: int, epoch: int, ids: NDArray[np.int64]) -> None:
        self._seed, self._epoch = whole("seed", seed), whole("epoch", epoch)
        self._about = f"data_sharding.sample_random/1 {self._seed} {self._epoch}"
        self._ids = np.asarray(ids, np.int64).astype(np.uint64)

    def __len__(self) -> int:
        return len(self._ids)

    def of_records(self, ids: NDArray[np.int64]) -> "SampleRandom":
        """The draws of other records, ids int64[k], in the same epoch: for what a record is combined with."""
        return SampleRandom(self._seed, self._epoch, ids)

    def of_rows(self, rows: slice | NDArray[np.int64]) -> "SampleRandom":
        """The draws of some of the records, by their places."""
        return SampleRandom(self._seed, self._epoch, self._ids[rows].astype(np.int64))

    def uniform(self, name: str, low: float = 0.0, high: float = 1.0, shape: Sequence[int] = ()) -> NDArray[np.float64]:
        """float64[k, *shape], uniform in [low, high). Raises PlanError if low > high, or one of them is not finite."""
        if not -math.inf < low <= high < math.inf:
            raise _bad_range(name, low, high, "use low <= high")
        unit = _unit(self._bits(name, shape))
        if (low, high) == (0.0, 1.0):
            return unit
        values = low + (high - low) * unit
        # The last number below `high` times the width may round up to it.
        return np.minimum(values, math.nextafter(high, low))

    def integers(self, name: str, low: int, high: int, shape: Sequence[int] = ()) -> NDArray[np.int64]:
        """int64[k, *shape], uniform in [low, high); the probability of each is right to 2**-53.

        Raises PlanError (the range is empty, or wider than 2**53).
        """
        if not 0 < high - low <= _LARGEST_RANGE:
            raise _bad_range(name, low, high, "use low < high, and no more than 2**53 values")
        return low + (_unit(self._bits(name, shape)) * float(high - low)).astype(np.int64)

    def coin(self, name: str, probability: float = 0.5) -> NDArray[np.bool_]:
        """bool[k], True with the given probability. Raises PlanError if the probability is outside [0, 1]."""
        if not 0.0 <= probability <= 1.0:
            raise _bad_range(name, 0, probability, "use a probability from 0 to 1")
        return _unit(self._bits(name, ())) < probability

    def normal(self, name: str, shape: Sequence[int] = ()) -> NDArray[np.float64]:
        """float64[k, *shape], standard normal (Box and Muller, 1958)."""
        pairs = _unit(self._bits(name, (2, *shape)))
        return np.asarray(np.sqrt(-2.0 * np.log1p(-pairs[:, 0])) * np.cos(2 * math.pi * pairs[:, 1]))

    def generators(self, name: str) -> list[np.random.Generator]:
        """One numpy Generator a record, for libraries that want one; slower than the draws above."""
        words = self._bits(name, ()).tolist()
        return [np.random.Generator(np.random.Philox(key=word)) for word in words]

    def _bits(self, name: str, shape: Sequence[int]) -> NDArray[np.uint64]:
        """uint64[k, *shape] of independent uniform bits."""
        key = np.frombuffer(hashlib.blake2b(f"{self._about} {name}".encode(), digest_size=16).digest(), "<u8")
        # Mixed twice, for the record and for the place: sums of multiples of one constant would repeat each other
        # along the diagonals of (id, place).
        rows = mix(self._ids * GOLDEN + key[0])
        places = np.arange(1, math.prod(shape) + 1, dtype=np.uint64) * GOLDEN
        return mix((rows[:, None] + places) ^ key[1]).reshape(len(self._ids), *shape)


def _unit(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """float64 in [0, 1): the upper 53 bits, which is what a double holds."""
    return (bits >> np.uint64(11)).astype(np.float64) * _TO_UNIT


def _bad_range(name: str, low: float, high: float, hint: str) -> PlanError:
    return PlanError(f"The draw {name!r} was asked for in [{low}, {high}).", "It has no such range.", f"{hint}.")


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Replace each uint64 by its hash, a bijection; in place, and returned."""
    values ^= values >> _SHIFTS[0]
    values *= _MULTIPLIERS[0]
    values ^= values >> _SHIFTS[1]
    values *= _MULTIPLIERS[1]
    values ^= values >> _SHIFTS[2]
    return values
