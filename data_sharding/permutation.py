"""A seeded shuffle of [0, n) that is computed where it is asked for, never stored.

An unbalanced Feistel network permutes the smallest power of two that holds n; values that fall outside [0, n) walk on
along their cycle until they come back (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002), fewer
than one extra pass on average. The round function is the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
This is a shuffle, not a cipher: nothing secret depends on it.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError

# Four rounds make a Feistel network indistinguishable from random for wide halves (Luby and Rackoff, 1988); halves are
# narrow for small data sets, so more are used.
_ROUNDS: Final = 8
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))


class Permutation:
    """A bijection on [0, n) that depends on (n, seed, epoch) only: the same on every machine and in every version.

    O(1) memory and O(1) access to any position.

    Args:
        n: size of the domain, 1 to 2**62.
        seed: any integer.
        epoch: any integer; each epoch has an unrelated order.
    """

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        if not 1 <= n <= 2**62:
            raise PlanError(f"A permutation of {n} elements was asked for.", "It needs 1 to 2**62.", "check the data.")
        self.n = n
        bits = (n - 1).bit_length()
        self._low_bits = np.uint64(bits // 2)
        self._low_mask = np.uint64((1 << bits // 2) - 1)
        self._high_mask = np.uint64((1 << bits - bits // 2) - 1)
        key = f"data_sharding.permutation/1 {seed} {epoch}".encode()
        self._keys = np.frombuffer(hashlib.blake2b(key, digest_size=8 * _ROUNDS).digest(), "<u8").astype(np.uint64)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map positions int64[...] in [0, n) to elements in [0, n), of the same shape.

        Raises:
            PlanError: a position is outside.
        """
        return self._walk(positions, range(_ROUNDS))

    def inverse(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map elements int64[...] back to their positions.

        Raises:
            PlanError: an element is outside [0, n).
        """
        return self._walk(elements, range(_ROUNDS - 1, -1, -1))

    def _walk(self, values: NDArray[np.int64], rounds: range) -> NDArray[np.int64]:
        values = np.asarray(values, np.int64)
        if values.size and (values.min() < 0 or values.max() >= self.n):
            raise PlanError(
                f"A value from {values.min()} to {values.max()} was to be permuted.",
                f"The permutation covers 0 to {self.n - 1}.",
                "keep positions inside the epoch.",
            )
        result = self._network(values.astype(np.uint64), rounds)
        flat = result.reshape(-1)
        outside = np.flatnonzero(flat >= self.n)
        while outside.size:
            walked = self._network(flat[outside], rounds)
            flat[outside] = walked
            outside = outside[walked >= self.n]
        return result.astype(np.int64)

    def _network(self, values: NDArray[np.uint64], rounds: range) -> NDArray[np.uint64]:
        low, high = values & self._low_mask, values >> self._low_bits
        for number in rounds:
            if number % 2:
                low ^= _mix(high ^ self._keys[number]) & self._low_mask
            else:
                high ^= _mix(low ^ self._keys[number]) & self._high_mask
        return (high << self._low_bits) | low


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values ^= values >> _SHIFTS[0]
    values *= _MULTIPLIERS[0]
    values ^= values >> _SHIFTS[1]
    values *= _MULTIPLIERS[1]
    values ^= values >> _SHIFTS[2]
    return values
