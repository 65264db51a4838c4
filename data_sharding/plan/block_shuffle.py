"""The order `shuffle="block"`: shuffled, yet read in long runs of neighbouring records.

A read of data that is far away costs a round trip, so neighbours should be read together. The records, in the
catalog's order but begun at another record each epoch, are cut into C streams, which each step interleaves: it draws
d = G / C records from every stream, so a batch contains records from C distant places.

    C        the largest divisor of the global batch G that is at most 64; never a function of the number of ranks
    stream   c holds S*d + clip(R - c*d, 0, d) neighbouring records, for S = N // G and R = N % G; position
             p = s*G + i is the (s*d + i % d)-th draw of stream i // d, so that the N positions are the N records
    block    `block_records` neighbours of a stream, read to its end before the next one. The order of a stream's blocks
             is shuffled, and so is the order of each block's records. A stream's first and last block may be shorter
             and keep their places; the lengths of first blocks are spread over the streams, so that streams do not all
             come to a new block in the same step

Slots of neighbouring streams are neighbours, so if the number of ranks divides C, a rank reads whole streams: in m
steps in a row at most ceil((m*d - 1) / block_records) + 1 blocks of each. Every position is computed where it is asked
for, in O(1) time and memory.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.permutation import keys_from, permute_each
from data_sharding.sample_random import GOLDEN, mix

# As many distant places as a batch is mixed from at most. Every stream has a block open: more streams, more memory.
MAX_STREAMS: Final = 64


def stream_count(global_batch: int) -> int:
    """Streams of a global batch: its largest divisor that is at most 64."""
    return next(count for count in range(min(MAX_STREAMS, global_batch), 0, -1) if global_batch % count == 0)


class BlockShuffle:
    """The block order of one epoch, which (seed, epoch) select: a bijection on [0, N), N from 1 to 2**53."""

    def __init__(self, num_records: int, global_batch: int, block_records: int, seed: int, epoch: int) -> None:
        self._num_records, self._global_batch, self._block = num_records, global_batch, block_records
        streams = np.arange(stream_count(global_batch))
        self._draws = global_batch // len(streams)
        steps, rest = divmod(num_records, global_batch)
        self._lengths = steps * self._draws + np.clip(rest - streams * self._draws, 0, self._draws)
        self._starts = np.cumsum(self._lengths) - self._lengths
        # Records that the first block lacks: multiples of the golden ratio spread any few neighbouring streams evenly.
        spread = [int(stream) * int(GOLDEN) % 2**64 for stream in streams]
        self._lacks = np.array([number * block_records >> 64 for number in spread], np.int64)
        self._first_full = (self._lacks > 0).astype(np.int64)
        self._ends_full = np.maximum((self._lengths + self._lacks) // block_records, self._first_full)
        words = keys_from(f"data_sharding.lanes/1 {seed} {epoch}", 3)
        self._offset = int(words[0]) * num_records >> 64
        self._order_keys = mix(words[1] + streams.astype(np.uint64) * GOLDEN)
        self._block_keys = mix(words[2] + streams.astype(np.uint64) * GOLDEN)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map positions int64[...] in [0, N), which is not checked, to record ids int64[...] in [0, N)."""
        steps, slots = np.divmod(positions.reshape(-1), self._global_batch)
        streams, draws = np.divmod(slots, self._draws)
        lacks = self._lacks[streams]
        # Draws counted as if the first block were full too: then block b is draws [b*B, (b+1)*B).
        draws += steps * self._draws + lacks
        places = draws - np.maximum(draws // self._block * self._block, lacks)
        blocks = self._shuffled_blocks(streams, draws // self._block)
        begins = np.maximum(blocks * self._block - lacks, 0)
        ends = np.minimum((blocks + 1) * self._block - lacks, self._lengths[streams])
        places = permute_each(places, ends - begins, mix(self._block_keys[streams] + blocks.astype(np.uint64) * GOLDEN))
        records: NDArray[np.int64] = (self._starts[streams] + begins + places + self._offset) % self._num_records
        return records.reshape(positions.shape)

    def _shuffled_blocks(self, streams: NDArray[np.int64], blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Full blocks change places within their stream; a shorter one at either end keeps its own."""
        first = self._first_full[streams]
        full = np.flatnonzero((blocks >= first) & (blocks < self._ends_full[streams]))
        first, streams = first[full], streams[full]
        shuffled = blocks.copy()
        shuffled[full] = first + permute_each(
            blocks[full] - first, self._ends_full[streams] - first, self._order_keys[streams]
        )
        return shuffled
