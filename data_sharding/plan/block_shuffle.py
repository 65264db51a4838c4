"""The order `shuffle="block"`: shuffled, yet read in long runs of neighbouring records, each run once.

A read of data that is far away costs a round trip, so neighbours should be read together. The records, in the
catalog's order but begun at another record each epoch, are cut into C streams. Each slot of a step belongs to one
stream, and takes one record of it in each step, so a batch contains records from C distant places.

    slots    of stream c: [c*G // C, (c+1)*G // C), d of them, of the global batch G; never a function of the number of
             ranks. A rank's slice is a row of slots, so of a stream that two ranks share each reads other records
    stream   c holds S*d + clip(R - c*G // C, 0, d) neighbouring records, for S = N // G and R = N % G: position
             p = s*G + i is that of slot i in step s, so that the N positions are the N records
    block    k steps of a stream: d*k neighbours, read to their end before the next block. Of these, slot j of the d has
             the k neighbours [j*k, (j+1)*k) to itself, so that the slots of a rank are one range. The order of a
             stream's blocks is shuffled, and so is the order of each slot's k records. A stream's first and last block
             may have fewer steps and keep their places, and its records of the incomplete last step come at its end;
             the lengths of first blocks are spread over the streams, so that not all come to a new block together

Whatever the number of ranks, each record is in the range of one rank: with each range kept from its first step to its
last one, every byte is read once. Every position is computed where it is asked for, in O(1) time and memory.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.permutation import keys_from, permute_each
from data_sharding.sample_random import GOLDEN, mix

_Ids = NDArray[np.int64]


class _Blocks(NamedTuple):
    """Where blocks are in their streams, int64[k] each: the first record, and the steps."""

    begins: _Ids
    steps: _Ids


class BlockShuffle:
    """The block order of one epoch, which (seed, epoch) select: a bijection on [0, N), N from 1 to 2**53.

    Args:
        streams: C, 1 to G.
        block_steps: k, at least 1.
    """

    def __init__(
        self, num_records: int, global_batch: int, streams: int, block_steps: int, seed: int, epoch: int
    ) -> None:
        self._num_records, self._global_batch, self._k = num_records, global_batch, block_steps
        self._steps, rest = divmod(num_records, global_batch)
        numbers = np.arange(streams)
        self._slots = np.arange(streams + 1) * global_batch // streams
        self._draws = np.diff(self._slots)
        self._lengths = self._steps * self._draws + np.clip(rest - self._slots[:-1], 0, self._draws)
        self._starts = np.cumsum(self._lengths) - self._lengths
        # Steps that the first block lacks: multiples of the golden ratio spread any few neighbouring streams evenly.
        spread = [int(stream) * int(GOLDEN) % 2**64 for stream in numbers]
        self._lacks = np.array([number * block_steps >> 64 for number in spread], np.int64)
        self._first_full = (self._lacks > 0).astype(np.int64)
        self._ends_full = np.maximum((self._steps + self._lacks) // block_steps, self._first_full)
        words = keys_from(f"data_sharding.blocks/2 {seed} {epoch}", 3)
        self._offset = int(words[0]) * num_records >> 64
        self._order_keys = mix(words[1] + numbers.astype(np.uint64) * GOLDEN)
        self._block_key = words[2]

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map positions int64[...] in [0, N), which is not checked, to record ids int64[...] in [0, N)."""
        steps, slots = np.divmod(positions.reshape(-1), self._global_batch)
        streams = np.searchsorted(self._slots, slots, "right") - 1
        within = slots - self._slots[streams]
        places = self._draws[streams] * self._steps + within  # those of the incomplete last step
        full = np.flatnonzero(steps < self._steps)
        places[full] = self._places(steps[full], slots[full], streams[full], within[full])
        records: NDArray[np.int64] = (self._starts[streams] + places + self._offset) % self._num_records
        return records.reshape(positions.shape)

    def ranges(self, records: NDArray[np.int64], first: int, end: int) -> NDArray[np.int64]:
        """The neighbours that a rank with the slots [first, end) reads together with each record.

        Args: `records`: int64[k], which are in these slots.

        Returns int64[k, 2], begin and end of a range of records that holds this one.
        """
        turned = (records - self._offset) % self._num_records
        streams = np.searchsorted(self._starts, turned, "right") - 1
        blocks = self._blocks(streams, self._block_of(streams, turned - self._starts[streams]))
        is_tail = turned - self._starts[streams] >= self._draws[streams] * self._steps
        slots = np.stack([np.full_like(streams, first), np.full_like(streams, end)], axis=1)
        slots = np.clip(slots - self._slots[streams][:, None], 0, self._draws[streams][:, None])
        bounds = blocks.begins[:, None] + slots * blocks.steps[:, None]
        tail = np.minimum((self._draws[streams] * self._steps)[:, None] + slots, self._lengths[streams][:, None])
        bounds = np.where(is_tail[:, None], tail, bounds) + (self._starts[streams] + self._offset)[:, None]
        return self._on_one_side(bounds, records)

    def _on_one_side(self, bounds: NDArray[np.int64], records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ranges int64[k, 2] on the circle of records, cut where it is closed: the part in which each record is."""
        bounds = bounds - (bounds[:, :1] // self._num_records) * self._num_records
        over = bounds[:, 1] > self._num_records
        behind = over & (records < bounds[:, 0])
        begins = np.where(behind, 0, bounds[:, 0])
        ends = np.where(behind, bounds[:, 1] - self._num_records, np.minimum(bounds[:, 1], self._num_records))
        return np.stack([begins, ends], axis=1)

    def _places(self, steps: _Ids, slots: _Ids, streams: _Ids, within: _Ids) -> _Ids:
        """Places in their streams of the records that these slots take in these full steps."""
        lacks = self._lacks[streams]
        # Steps counted as if the first block were full too: then block b is steps [b*k, (b+1)*k).
        counted = steps + lacks
        numbers = counted // self._k
        places = counted - np.maximum(numbers * self._k, lacks)
        numbers = self._shuffled(streams, numbers)
        blocks = self._blocks(streams, numbers)
        keys = mix(mix(self._block_key + slots.astype(np.uint64) * GOLDEN) + numbers.astype(np.uint64) * GOLDEN)
        return blocks.begins + within * blocks.steps + permute_each(places, blocks.steps, keys)

    def _blocks(self, streams: _Ids, numbers: _Ids) -> _Blocks:
        lacks = self._lacks[streams]
        begins = np.maximum(numbers * self._k - lacks, 0)
        ends = np.minimum((numbers + 1) * self._k - lacks, self._steps)
        return _Blocks(begins * self._draws[streams], ends - begins)

    def _block_of(self, streams: _Ids, places: _Ids) -> _Ids:
        """The number of the block in which a place of a stream is."""
        return (places // self._draws[streams] + self._lacks[streams]) // self._k

    def _shuffled(self, streams: _Ids, blocks: _Ids) -> _Ids:
        """Full blocks change places within their stream; a shorter one at either end keeps its own."""
        first = self._first_full[streams]
        full = np.flatnonzero((blocks >= first) & (blocks < self._ends_full[streams]))
        first, streams = first[full], streams[full]
        shuffled = blocks.copy()
        shuffled[full] = first + permute_each(
            blocks[full] - first, self._ends_full[streams] - first, self._order_keys[streams]
        )
        return shuffled
