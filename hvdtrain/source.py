"""A catalog cut for one rank: what the engine trains and validates on."""

from __future__ import annotations

from typing import final

from data_sharding import Catalog, RecordReader, ShardLoader, ShardPlan
from data_sharding.plan import Shuffle
from hvdtrain.config import DataConfig
from hvdtrain.task import Task
from hvdtrain.topology import Topology


@final
class CatalogSource:
    """Implements the engine's `Source`.

    Args:
        catalog: the records.
        task: decodes them.
        topology: whose slice of each global batch is loaded.
        config: how they are read.
        global_batch: records a step over all ranks.
        seed: of the order.
        shuffle: "global", or "none" for the catalog's own order.
    """

    def __init__(
        self,
        catalog: Catalog,
        task: Task,
        topology: Topology,
        config: DataConfig,
        global_batch: int,
        seed: int,
        shuffle: Shuffle,
    ) -> None:
        self._catalog = catalog
        self._task = task
        self._topology = topology
        self._config = config
        self._global_batch = global_batch
        self._seed = seed
        self._shuffle = shuffle
        self._reader = RecordReader(catalog, check_crc=config.check_crc)

    def plan(self, epoch: int) -> ShardPlan:
        return ShardPlan.for_catalog(
            self._catalog, global_batch=self._global_batch, seed=self._seed, epoch=epoch, shuffle=self._shuffle
        )

    def loader(self, epoch: int, start_step: int) -> ShardLoader:
        return ShardLoader(
            self.plan(epoch),
            self._reader,
            self._task.decode,
            rank=self._topology.rank,
            size=self._topology.size,
            start_step=start_step,
            prefetch=self._config.prefetch,
            timeout_s=self._config.timeout,
        )
