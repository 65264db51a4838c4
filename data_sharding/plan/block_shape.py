"""How many streams `shuffle="block"` cuts the data into, and how long its blocks are: never a function of the ranks."""

import hashlib
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from data_sharding.draws.draw_rule import DrawRule
from data_sharding.plan.block_shuffle import BlockShuffle
from data_sharding.plan.group_shuffle import GroupShuffle

OPEN_BYTES: Final = 256 << 20
"""What the open blocks of all ranks may take together: half of what one host keeps by default, so that blocks that are
read ahead fit too. A constant, since other blocks are another order."""

BLOCK_ORDER: Final = 2
"""Which order by the name "block" this is: positions of the first one mean other records. Checkpoints name it."""

FEW_STREAMS: Final = 64
"""As many distant places as a batch is mixed from, where records are so large that more would not fit."""

_BLOCKS_OF_A_STREAM: Final = 4
_PARTS_OF_GROUPS: Final = 4
"""Streams cut groups, which are then decoded for both: one in so many, at most."""


class BlockShape(NamedTuple):
    """Streams, neighbouring records of a block, and the first record of each group, int64[m], if there are groups."""

    streams: int
    block_records: int
    group_begins: NDArray[np.int64] | None = None

    def steps(self, global_batch: int) -> int:
        """Steps of a block: a stream takes as many records in each as it has slots."""
        return max(self.block_records // -(-global_batch // self.streams), 1)

    def order(self, num_records: int, global_batch: int, seed: int, epoch: int) -> BlockShuffle | GroupShuffle:
        """The order of an epoch."""
        if self.group_begins is not None:
            return GroupShuffle(num_records, global_batch, self.streams, self.group_begins, seed, epoch)
        return BlockShuffle(num_records, global_batch, self.streams, self.steps(global_batch), seed, epoch)

    def identity(self) -> tuple[int, int, int, str]:
        """What two shapes of the same order have in common."""
        begins = b"" if self.group_begins is None else self.group_begins.astype("<i8").tobytes()
        return BLOCK_ORDER, self.streams, self.block_records, hashlib.sha256(begins).hexdigest()


class _Records(Protocol):
    @property
    def epoch_length(self) -> int: ...
    @property
    def draws(self) -> DrawRule | None: ...
    def __len__(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def group_begins(self) -> NDArray[np.int64] | None: ...


def shape_for(records: _Records, global_batch: int, block_records: int) -> BlockShape:
    """The shape of the blocks of a data set: as many streams as fit, each of several blocks.

    Args: `block_records`: neighbours of a block, where records are small enough.
    """
    count, begins = records.epoch_length, records.group_begins if records.draws is None else None
    few = min(FEW_STREAMS, global_batch)
    fit = max(OPEN_BYTES * len(records) // max(records.total_bytes, 1), 1)  # records that may be in open blocks
    if begins is not None:
        groups = max(min(fit * len(begins) // count, len(begins) // _PARTS_OF_GROUPS), 1)
        return BlockShape(min(few, groups), block_records, begins)
    block = max(min(fit // few, block_records), 1)
    streams = max(min(fit // block, count // (_BLOCKS_OF_A_STREAM * block), global_batch), few)
    alike = -(-global_batch // -(-global_batch // streams))  # nearly all with equally many slots: blocks of one length
    return BlockShape(alike if alike >= few else streams, block)
