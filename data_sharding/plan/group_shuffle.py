"""The order `shuffle="block"` of records that are decoded in groups, such as row groups of Parquet: these are blocks.

As in `block_shuffle`, the records are cut into C streams of neighbours, and each slot of a step belongs to one of them.
A stream is read group by group, in a shuffled order, and within a group in a shuffled order of its records. Groups have
any sizes, so they are looked up: O(groups) memory, made once an epoch, and O(log groups) time for each position. A
group that lies across the cut between two streams is decoded for both.
"""

import numpy as np
from numpy.typing import NDArray

from data_sharding.permutation import keys_from, permute_each
from data_sharding.sample_random import GOLDEN, mix


class GroupShuffle:
    """The order of one epoch, which (seed, epoch) select: a bijection on [0, N).

    Args:
        begins: int64[m], ascending: the first record of each group; that of the first one is 0.
        streams: C, 1 to G.
    """

    def __init__(
        self, num_records: int, global_batch: int, streams: int, begins: NDArray[np.int64], seed: int, epoch: int
    ) -> None:
        self._num_records, self._global_batch = num_records, global_batch
        steps, rest = divmod(num_records, global_batch)
        self._slots = np.arange(streams + 1) * global_batch // streams
        self._draws = np.diff(self._slots)
        self._starts = steps * self._slots[:-1] + np.minimum(self._slots[:-1], rest)
        words = keys_from(f"data_sharding.groups/2 {seed} {epoch}", 3)
        self._offset = int(words[0]) * num_records >> 64
        self._key = words[2]
        # Parts of groups on the circle of records, from the offset on: cut where streams begin, and where it is closed.
        turned = (begins - self._offset) % num_records
        self._parts = np.unique(np.concatenate([turned, self._starts[self._starts < num_records], [0]]))
        lengths = np.diff(self._parts, append=num_records)
        streams_of = np.searchsorted(self._starts, self._parts, "right") - 1
        draws = mix(words[1] + np.arange(len(self._parts), dtype=np.uint64) * GOLDEN)
        self._order = np.lexsort([draws, streams_of])
        self._ends = np.cumsum(lengths[self._order])
        self._lengths = lengths

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map positions int64[...] in [0, N), which is not checked, to record ids int64[...] in [0, N)."""
        steps, slots = np.divmod(positions.reshape(-1), self._global_batch)
        streams = np.searchsorted(self._slots, slots, "right") - 1
        # Of the incomplete last step all slots before the last record's are there, so this holds for it too.
        taken = self._starts[streams] + steps * self._draws[streams] + slots - self._slots[streams]
        ranks = np.searchsorted(self._ends, taken, "right")
        parts = self._order[ranks]
        lengths = self._lengths[parts]
        places = taken - (self._ends[ranks] - lengths)
        places = permute_each(places, lengths, mix(self._key + parts.astype(np.uint64) * GOLDEN))
        records: NDArray[np.int64] = (self._parts[parts] + places + self._offset) % self._num_records
        return records.reshape(positions.shape)
