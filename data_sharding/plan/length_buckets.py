"""The order `shuffle="length"`: shuffled, in global batches of records of similar length.

A batch of sequences is padded to its longest one, so that a batch of equal ones wastes nothing. The records are ranked
by length and cut into K buckets of neighbouring ranks, as many as leave each of them about 8 batches, at most 256. In
each epoch every bucket is shuffled and cut into batches; what is left of a bucket behind its last whole batch is put
together with what is left of the next ones, in the order of length, and cut into batches too. The order of all whole
batches is shuffled; records that fill no batch are the epoch's last step. Every position is computed where it is asked
for, and each record comes once an epoch.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.permutation import Permutation, keys_from, permute_each
from data_sharding.sample_random import GOLDEN, mix

_MOST_BUCKETS: Final = 256
_BATCHES_A_BUCKET: Final = 8


class LengthBuckets:
    """The order of one epoch, which (seed, epoch) select: a bijection on [0, N).

    Args:
        by_length: int64[N], ids of all records in the order of their lengths.
    """

    def __init__(self, by_length: NDArray[np.int64], global_batch: int, seed: int, epoch: int) -> None:
        count = len(by_length)
        buckets = int(np.clip(count // (global_batch * _BATCHES_A_BUCKET), 1, _MOST_BUCKETS))
        bounds = np.arange(buckets + 1) * count // buckets
        self._by_length, self._global_batch = by_length, global_batch
        self._begins, self._sizes = bounds[:-1], np.diff(bounds)
        whole = self._sizes // global_batch
        self._first_left = whole * global_batch  # in each bucket
        self._batch_ends = np.cumsum(whole)
        self._left_ends = np.cumsum(self._sizes - self._first_left)
        self._whole_batches = count // global_batch
        words = keys_from(f"data_sharding.length_buckets/1 {seed} {epoch}", 1)
        self._keys = mix(words[0] + (np.arange(buckets, dtype=np.uint64) + np.uint64(1)) * GOLDEN)
        self._batches = Permutation(max(1, self._whole_batches), seed, epoch)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map positions int64[...] in [0, N), which is not checked, to record ids int64[...] in [0, N)."""
        batches, slots = np.divmod(positions.reshape(-1), self._global_batch)
        whole = np.flatnonzero(batches < self._whole_batches)
        batches[whole] = self._batches(batches[whole])
        in_bucket = batches < self._batch_ends[-1]
        bucket, place = np.empty_like(batches), np.empty_like(batches)
        bucket[in_bucket] = np.searchsorted(self._batch_ends, batches[in_bucket], side="right")
        earlier = np.concatenate([[0], self._batch_ends])
        begun = batches[in_bucket] - earlier[bucket[in_bucket]]
        place[in_bucket] = begun * self._global_batch + slots[in_bucket]
        left = ~in_bucket
        number = (batches[left] - self._batch_ends[-1]) * self._global_batch + slots[left]
        bucket[left] = np.searchsorted(self._left_ends, number, side="right")
        earlier = np.concatenate([[0], self._left_ends])
        place[left] = self._first_left[bucket[left]] + number - earlier[bucket[left]]
        ranks = self._begins[bucket] + permute_each(place, self._sizes[bucket], self._keys[bucket])
        ids: NDArray[np.int64] = self._by_length[ranks]
        return ids.reshape(positions.shape)
