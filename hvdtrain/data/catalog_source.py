"""One rank's part of a catalog: what the engine trains and validates on, and how much of it may be damaged."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding import (
    Catalog,
    DecodeProcesses,
    LoadedBatch,
    SampleRandom,
    ShardLoader,
    ShardPlan,
    keep_at_most,
)
from data_sharding.loading.decoding import Decode, read_and_decode
from data_sharding.loading.read_ahead import READ_AHEAD_BYTES
from data_sharding.loading.slices import slice_places
from hvdtrain.config.train_config import DataConfig
from hvdtrain.data.file_cache import file_cache
from hvdtrain.data.first_batch import WatchedLoader
from hvdtrain.data.printed_lines import HandingDecode, SortingReader
from hvdtrain.data.random_draws import DrawWatch, ReportedProcesses, ReportingDecode
from hvdtrain.data.tensor_decode import TensorDecode, warn_of_float64
from hvdtrain.errors import UsageError
from hvdtrain.models.torchvision_import import DecodeElsewhere
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology
from hvdtrain.topology.virtual_workers import VirtualWorkers
from hvdtrain.units import bytes_of

_log = logging.getLogger("hvdtrain.data")


@dataclass(eq=False)
class CatalogSource:
    """Implements the engine's `Source`."""

    catalog: Catalog
    task: Task
    topology: Topology  # whose slice of each global batch is loaded
    config: DataConfig
    global_batch: int  # records a step over all ranks
    seed: int
    training: bool  # shuffle and augment; else the catalog's own order, and nothing random
    refuses_draws: bool | None = None  # a `decode` that draws random numbers of its own; False: warns; None: neither
    workers: VirtualWorkers | None = None  # whose slices of each global batch are loaded; None: that of `topology`

    def __post_init__(self) -> None:
        config = self.config
        keep_at_most(bytes_of(config.memory, "--data.memory") // self.topology.local_size)
        self._begun: tuple[int, ShardLoader] | None = None
        self._reader = SortingReader(
            self.catalog, check_crc=config.check_crc, on_corrupt=config.on_corrupt, cache=file_cache(config)
        )
        # One set of processes for all epochs: each imports the task, which takes seconds. They end with this process.
        self._decode_here = TensorDecode(self.task)
        self._decode: Decode | DecodeProcesses = self._decode_here
        self._processes: ReportedProcesses | None = None
        if processes := _processes(self.catalog, config):
            reporting = DecodeElsewhere(HandingDecode(ReportingDecode(self._decode_here)))
            self._decode = self._processes = ReportedProcesses(self._reader, reporting, processes)

    def raw(self, record_id: int) -> bytes:
        """A record's bytes as they are in its file, damaged or not."""
        return self._reader.raw(record_id)

    def describe(self, record_id: int) -> str:
        return self.catalog.describe(record_id)

    def reading(self) -> str:
        if self._processes is not None:
            return f"in {len(self._processes)} decode processes"
        reads = self._reader.reading()
        return f"reading {'; '.join(reads)}" if reads else "decoding"

    def decoded_again(self, epoch: int, ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Records ids int64[k] as `loader` gave them in that epoch, read and decoded in this thread."""
        return self._decoded(epoch, ids, ids)

    def plan(self, epoch: int) -> ShardPlan:
        return ShardPlan.for_catalog(
            self.catalog,
            global_batch=self.global_batch,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.config.shuffle if self.training else "none",
            balance=self.config.balance,
        )

    def loader(self, epoch: int, start_step: int) -> ShardLoader | WatchedLoader:
        if self.refuses_draws is not None:
            again = partial(self._first_again, epoch, start_step)
            watch = DrawWatch(self.task.decode, self.refuses_draws, self._processes, again, self._kind)
            self.refuses_draws = None  # said once
            return WatchedLoader(self._open(epoch, start_step), watch.look, partial(warn_of_float64, self.task))
        begun = self._begun
        if begun is not None and (begun[0], 0) == (epoch, start_step):
            self._begun = None
            return begun[1]
        self.abandon()
        return self._open(epoch, start_step)

    def begin(self, epoch: int) -> None:
        self.abandon()
        self._begun = epoch, self._open(epoch, 0)
        self._begun[1].start()

    def abandon(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun[1].abandon()

    def _first_again(self, epoch: int, step: int, ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Records ids int64[k] as that step had them."""
        plan, steps = self.plan(epoch), range(step, step + 1)
        drawn = plan.drawn(*self._place[:2], steps, self._place.slices).ids[0]
        longest = int(plan.longest(steps)[0]) if plan.pads else None
        places = slice_places(plan.global_batch, *self._place)
        parts = [self._decoded(epoch, drawn[rows], ids[rows], longest) for rows in places]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _decoded(
        self, epoch: int, drawn: NDArray[np.int64], ids: NDArray[np.int64], longest: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Records ids int64[k] as the draws int64[k] of that epoch gave them."""
        random = SampleRandom(self.seed, epoch, drawn) if self.training else None
        return read_and_decode(self._reader, self._decode_here, ids, random, longest).features

    def of_worker(self, epoch: int, step: int, worker: int) -> LoadedBatch:
        """What a virtual worker, of any rank, has in a step of an epoch, read and decoded now."""
        assert self.workers is not None
        place = _Place(worker, self.workers.count, 1)
        with self._opened(epoch, step, place, prefetch=1, read_ahead=0) as loader:
            return next(loader)

    @property
    def _kind(self) -> str:
        """Of the object whose items are the records; "": they are bytes of files."""
        return "" if self.catalog.format.is_stored else str(getattr(self.catalog.format, "kind", "data set"))

    @property
    def _place(self) -> "_Place":
        if self.workers is None:
            return _Place(self.topology.rank, self.topology.size, 1)
        return _Place(self.workers.own.start, self.workers.count, len(self.workers.own))

    def _open(self, epoch: int, start_step: int) -> ShardLoader:
        return self._opened(epoch, start_step, self._place, self.config.prefetch)

    def _opened(
        self, epoch: int, start_step: int, place: "_Place", prefetch: int, read_ahead: int = READ_AHEAD_BYTES
    ) -> ShardLoader:
        return ShardLoader(
            self.plan(epoch),
            self._reader,
            self._decode,
            **place._asdict(),
            augment=self.training,
            start_step=start_step,
            prefetch=prefetch,
            threads=self.config.threads,
            timeout_s=self.config.timeout,
            read_ahead=read_ahead,
        )


class _Place(NamedTuple):
    """Which slices of each global batch are loaded: so many of `size`, from `rank` on."""

    rank: int
    size: int
    slices: int


def _processes(catalog: Catalog, config: DataConfig) -> int:
    """How many decode: as many as threads where items draw numbers, since a process has its generators for itself."""
    return config.processes or (config.threads if catalog.format.draws else 0)


def require_little_lost(catalogs: Sequence[Catalog], share: float) -> None:
    """The limit of `--data.max-corrupt` for records that cannot even be counted, in bytes.

    Catalogs are equal on all ranks, so all raise or none does.
    Raises UsageError (more than that share of a catalog's bytes lies where no record can be found any more).
    """
    for catalog in catalogs:
        total = sum(file.size for file in catalog.files)
        if catalog.lost_bytes > share * total:
            first = f" {catalog.damage[0].reason}" if catalog.damage else ""
            raise UsageError(
                f"{catalog.lost_bytes:,} of {total:,} bytes lie behind damage after which no record can be "
                f"found.{first}",
                f"That is more than the share of {share:g} that --data.max-corrupt allows.",
                "restore the files (`hvdtrain shard index --on-corrupt mask` names all), or allow a larger share.",
            ).on_all_ranks()


def warn_of_damage(catalogs: Sequence[Catalog]) -> None:
    """Name all damage in this rank's log; rank 0's warnings go to the console too."""
    for catalog in catalogs:
        for damage in catalog.damage:
            _log.warning("damaged data: %s", damage.reason)
