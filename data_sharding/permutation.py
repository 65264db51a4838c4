"""Seeded shuffles of [0, n) that are computed where they are asked for, never stored.

An unbalanced Feistel network permutes the smallest power of two that holds n; values that fall outside [0, n) walk on
along their cycle until they come back (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002), fewer
than one extra pass on average. The round function is `sample_random.mix`. This is a shuffle, not a cipher.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.checks import whole
from data_sharding.errors import PlanError
from data_sharding.sample_random import mix

_ROUNDS: Final = 8  # four make a Feistel network look random for wide halves (Luby and Rackoff, 1988); ours are narrow

_UInt64s = np.uint64 | NDArray[np.uint64]
"""One number, or one for each value that is permuted."""


class Permutation:
    """A bijection on [0, n) that depends on (n, seed, epoch) only: the same on every machine and in every version.

    O(1) memory and O(1) access to any position. n is 1 to 2**62, seed and epoch any integers: each epoch has an
    unrelated order.
    """

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        n, seed, epoch = whole("n", n), whole("seed", seed), whole("epoch", epoch)
        if not 1 <= n <= 2**62:
            raise PlanError(f"A permutation of {n} elements was asked for.", "It needs 1 to 2**62.", "check the data.")
        self.n = n
        self._halves = _Halves.of_bits(np.uint64((n - 1).bit_length()))
        self._keys = keys_from(f"data_sharding.permutation/1 {seed} {epoch}", _ROUNDS)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map positions int64[...] in [0, n) to elements in [0, n), of the same shape.

        Raises PlanError (a position is outside).
        """
        return self._walk(positions, range(_ROUNDS))

    def inverse(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map elements int64[...] back to their positions. Raises PlanError if an element is outside [0, n)."""
        return self._walk(elements, range(_ROUNDS - 1, -1, -1))

    def _walk(self, values: NDArray[np.int64], rounds: range) -> NDArray[np.int64]:
        values = np.asarray(values, np.int64)
        if values.size and (values.min() < 0 or values.max() >= self.n):
            fact = f"A value from {values.min()} to {values.max()} was to be permuted."
            raise PlanError(fact, f"The permutation covers 0 to {self.n - 1}.", "keep positions inside the epoch.")
        keys = [self._keys[number] for number in rounds]
        result = _cycle_walk(values.reshape(-1), np.uint64(self.n), self._halves, keys, rounds)
        return result.reshape(values.shape)


def permute_each(values: NDArray[np.int64], sizes: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Map values int64[k] in [0, sizes[i]) each by its own permutation: that of [0, sizes[i]) which keys[i] selects.

    Args:
        values: not checked: one outside may walk for ever.
        sizes: int64[k], 1 to 2**53.
        keys: uint64[k], well mixed: those that differ in few low bits only do not select unrelated permutations.
    """
    # frexp gives the bit length of size - 1 exactly, for it is exact in a float64.
    halves = _Halves.of_bits(np.frexp((sizes - 1).astype(np.float64))[1].astype(np.uint64))
    round_keys = [keys ^ constant for constant in _ROUND_CONSTANTS]
    return _cycle_walk(values, sizes.astype(np.uint64), halves, round_keys, range(_ROUNDS))


def keys_from(text: str, count: int) -> NDArray[np.uint64]:
    """Unrelated keys uint64[count], at most 8, that depend on the text only."""
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8 * count).digest(), "<u8").astype(np.uint64)


class _Halves(NamedTuple):
    """How values are split for the network: one split, or one for each value."""

    low_bits: _UInt64s
    low_mask: _UInt64s
    high_mask: _UInt64s

    @classmethod
    def of_bits(cls, bits: Any) -> "_Halves":
        one = np.uint64(1)
        low = bits >> one
        return cls(low, (one << low) - one, (one << (bits - low)) - one)


def _cycle_walk(
    values: NDArray[np.int64], sizes: _UInt64s, halves: _Halves, keys: Sequence[_UInt64s], rounds: range
) -> NDArray[np.int64]:
    """Apply the network to values int64[k] until each is below its size."""
    result = _network(values.astype(np.uint64), halves, keys, rounds)
    outside = np.flatnonzero(result >= sizes)
    while outside.size:
        some = [_at(key, outside) for key in keys]
        walked = _network(result[outside], _Halves(*(_at(part, outside) for part in halves)), some, rounds)
        result[outside] = walked
        outside = outside[walked >= _at(sizes, outside)]
    return result.astype(np.int64)


def _at(numbers: _UInt64s, indices: NDArray[np.int64]) -> _UInt64s:
    return numbers[indices] if isinstance(numbers, np.ndarray) else numbers


def _network(
    values: NDArray[np.uint64], halves: _Halves, keys: Sequence[_UInt64s], rounds: range
) -> NDArray[np.uint64]:
    low, high = values & halves.low_mask, values >> halves.low_bits
    for number, key in zip(rounds, keys, strict=True):
        if number % 2:
            low ^= mix(high ^ key) & halves.low_mask
        else:
            high ^= mix(low ^ key) & halves.high_mask
    return (high << halves.low_bits) | low


# What makes eight round keys of one: any unrelated words do. "Nothing up my sleeve": a hash of this text.
_ROUND_CONSTANTS: Final = keys_from("data_sharding.permute_each/1", _ROUNDS)
