"""What it takes to read by a plan: requests to files behind a URL, bytes, memory; and how often groups are decoded."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.catalog import Catalog
from data_sharding.plan.shard_plan import ShardPlan
from data_sharding.storage import byte_ranges

_SLICES: Final = 64
_SLOTS: Final = 1 << 16
_RANKS: Final = 16
"""Of longer epochs 64 slices of steps are looked at; of blocks some whole ones of so many ranks."""


_Ids = NDArray[np.int64]


class ReadCost(NamedTuple):
    """Of files behind a URL, per epoch of W ranks.

    Attributes:
        requests_per_1000: requests by which 1,000 records are read.
        bytes_per_byte: bytes that are read for each byte of a record.
        kept_bytes: bytes of the blocks that all ranks together read from at a time; 0 where none are kept.
    """

    requests_per_1000: float
    bytes_per_byte: float
    kept_bytes: int


def read_cost(plan: ShardPlan, catalog: Catalog, size: int) -> ReadCost | None:
    """What W ranks read; of longer epochs by a sample.

    What a step needs is asked for at once: records at most 64 KiB apart by one request. Blocks are asked for one by
    one, and kept from their first step to their last one; nothing else is kept from one step to the next. None where
    records are not kept by their bytes (Parquet). Raises PlanError if G < W.
    """
    if catalog.format.offset_unit != "byte":
        return None
    # All files one behind the other, too far apart for their ranges to be joined.
    room = np.array([file.size for file in catalog.files], np.int64) + byte_ranges.GAP + 1
    begins = catalog.offsets + (np.cumsum(room) - room)[catalog.file_ids]
    requests = read = useful = records_read = 0
    for rank, steps in _sample(plan, size):
        for ids, together in _reads(plan, rank, size, steps):
            for records in together:
                merged = byte_ranges.merge(begins[records], begins[records] + catalog.lengths[records], byte_ranges.GAP)
                requests += int((-(-(merged.ends - merged.begins) // byte_ranges.LONGEST)).sum())
                read += int((merged.ends - merged.begins).sum())
            useful += int(catalog.lengths[np.unique(ids)].sum())
            records_read += len(ids)
    kept = plan.global_batch * plan.block_steps * catalog.total_bytes // len(catalog) if plan.shuffle == "block" else 0
    return ReadCost(1000 * requests / max(records_read, 1), read / max(useful, 1), kept)


def _sample(plan: ShardPlan, size: int) -> list[tuple[int, range]]:
    """Ranks and some neighbouring steps of each."""
    slices = plan.steps * size
    if plan.shuffle != "block":
        numbers = np.unique(np.linspace(0, slices - 1, min(_SLICES, slices)).astype(np.int64)).tolist()
        return [(number % size, range(number // size, number // size + 1)) for number in numbers]
    ranks = np.unique(np.linspace(0, size - 1, min(size, _RANKS)).astype(np.int64)).tolist()
    blocks = max(_SLOTS // (plan.global_batch * max(plan.block_steps, 1)), 1)
    together = min(blocks * max(plan.block_steps, 1), plan.steps)
    first = (plan.steps - together) // 2
    return [(rank, range(first, first + together)) for rank in ranks]


def _reads(plan: ShardPlan, rank: int, size: int, steps: range) -> list[tuple[_Ids, list[_Ids]]]:
    """For each of these steps the records that the rank uses, and those that it asks for, of each file at once."""
    all_ids, weights = plan.shards(rank, size, steps)
    used = [ids[real > 0] for ids, real in zip(all_ids, weights, strict=True)]  # a short step's other slots repeat some
    ranges = plan.block_ranges(rank, size, all_ids.reshape(-1))
    if ranges is None:
        return [(of_step, [ids]) for of_step, ids in zip(used, all_ids, strict=True)]
    found: list[tuple[_Ids, list[_Ids]]] = []
    known = _known_before(plan, rank, size, steps)
    for ids, of_step in zip(used, ranges.reshape(*all_ids.shape, 2).tolist(), strict=True):
        places = set(map(tuple, of_step))
        found.append((ids, [np.arange(begin, end) for begin, end in places - known]))
        known |= places
    return found


def _known_before(plan: ShardPlan, rank: int, size: int, steps: range) -> set[tuple[int, ...]]:
    if not steps or steps[0] == 0:
        return set()
    ids = plan.shard(rank, size, steps[0] - 1).ids
    ranges = plan.block_ranges(rank, size, ids)
    return set() if ranges is None else set(map(tuple, ranges.tolist()))


def decodes_per_group(plan: ShardPlan, size: int) -> float | None:
    """How often a group of records is decoded in an epoch by W ranks that keep the groups that they read from.

    None where records are not shuffled by groups.
    """
    if plan.shuffle != "block" or plan.group_begins is None:
        return None
    streams = min(plan.streams, plan.global_batch)
    return (len(plan.group_begins) + streams) / len(plan.group_begins) * ranks_per_block(plan, size)


def ranks_per_block(plan: ShardPlan, size: int) -> float:
    """Mean number of the W ranks that read a block, each by a request of its own: from W / streams to 1 + W / streams.

    There are no more streams for more ranks, since the order never depends on W.
    """
    streams = min(plan.streams, plan.global_batch)
    first = np.arange(streams + 1) * plan.global_batch // streams
    cuts = np.arange(1, size) * plan.global_batch // size
    shared = int((~np.isin(cuts, first)).sum())  # streams that two ranks read, or once more for each further rank
    return (streams + shared) / streams
