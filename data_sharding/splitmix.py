"""A 64-bit integer hash: the finalizer of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

# SplitMix64's increment, 2**64 / golden ratio: its multiples are spread evenly, and never 0, which `mix` maps to 0.
GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Replace each uint64 by its hash, a bijection; in place, and returned."""
    values ^= values >> _SHIFTS[0]
    values *= _MULTIPLIERS[0]
    values ^= values >> _SHIFTS[1]
    values *= _MULTIPLIERS[1]
    values ^= values >> _SHIFTS[2]
    return values
