"""Whether processes that take turns at the steps of one rank are to read its blocks, each of them all."""

import numpy as np
from numpy.typing import NDArray

from data_sharding.reading.record_table import RecordTable
from data_sharding.storage import byte_ranges


def blocks_pay(records: RecordTable, ids: NDArray[np.int64], ranges: NDArray[np.int64], processes: int) -> bool:
    """Whether blocks in each of so many processes cost less than the records of each step by themselves.

    A process keeps the blocks of its own steps, which have records in all blocks of the rank: so each reads them all.
    For small records that still is less, since records at most 64 KiB apart come by one request with all that is
    between them. As there, a request counts for as much as 64 KiB.

    Args:
        ids: int64[k], records of one step of the rank.
        ranges: int64[k, 2], the block of each.
    """
    if processes == 1:
        return True
    # Files one behind the other, too far apart to be joined.
    room = np.array([file.size for file in records.files], np.int64) + byte_ranges.GAP + 1
    begins = records.offsets[ids] + (np.cumsum(room) - room)[records.file_ids[ids]]
    alone = byte_ranges.merge(begins, begins + records.lengths[ids], byte_ranges.GAP)
    cost_alone = int((alone.ends - alone.begins).sum()) + byte_ranges.GAP * len(alone.begins)
    requests = float((1 / np.diff(ranges, axis=1)).sum())
    return processes * (int(records.lengths[ids].sum()) + byte_ranges.GAP * requests) < cost_alone
