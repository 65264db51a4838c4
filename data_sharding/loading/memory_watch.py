"""Says once that data which are decoded in groups do not fit into the memory for them, where each is needed again."""

import logging

from data_sharding.kept_blocks import KEPT
from data_sharding.plan.shard_plan import ShardPlan
from data_sharding.reading.record_reader import RecordReader

_log = logging.getLogger(__name__)


class MemoryWatch:
    """Looks, on rank 0, whether groups were dropped that a shuffle of all records comes back to."""

    def __init__(self, plan: ShardPlan, reader: RecordReader, rank: int) -> None:
        returns = plan.shuffle in ("global", "length") and reader.keeps_groups
        self._watches = rank == 0 and returns and reader.cache is None  # a cache that is full says so itself
        self._dropped = KEPT.dropped

    def look(self) -> None:
        """Warn if one was dropped since the first look. To be called after each batch."""
        if not self._watches or KEPT.dropped == self._dropped:
            return
        self._watches = False
        _log.warning(
            "The decoded row groups of the data take more than the %d MiB in which this process keeps them. A shuffle "
            "of all records decodes them again and again. HINT: read them group by group (--data.shuffle block), keep "
            "them on a local disk (--data.cache-dir), or allow more memory (--data.memory; keep_at_most).",
            KEPT.limit >> 20,
        )
