"""All checks before a run, on all ranks together, before a model exists or a file is written."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from data_sharding import Catalog, LoadedBatch, RecordReader
from data_sharding.plan.block_shape import BLOCK_ORDER
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.adapters.chosen_framework import device_kind
from hvdtrain.algorithms.lr_schedule import Schedule, scaled_lr
from hvdtrain.algorithms.micro_batches import count_for_fewer_workers
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree, gather_json, is_same_on_all
from hvdtrain.config.logger_options import named_loggers
from hvdtrain.config.schedule_options import schedule_of
from hvdtrain.config.train_config import DataConfig, TrainConfig
from hvdtrain.config.validation_options import require_validation
from hvdtrain.config.value_syntax import require_trained
from hvdtrain.data.catalog_source import CatalogSource
from hvdtrain.data.file_cache import file_cache
from hvdtrain.data.pipe_source import AgreedPipeSource, PipeSource, open_pipe_source
from hvdtrain.errors import UsageError
from hvdtrain.run.compute_threads import compute_threads
from hvdtrain.run.data_opening import DataOpening, OpenedData
from hvdtrain.run.sinks.logger_api import require_loggers
from hvdtrain.run.stage_checks import micro_batch_count, require_stages
from hvdtrain.run.virtual_worker_checks import require_same_threads, virtual_workers
from hvdtrain.set_names import UNNAMED
from hvdtrain.task.task import Task, TaskDefaults
from hvdtrain.tasks.task_registry import argument_defaults, task_arguments
from hvdtrain.topology import Topology
from hvdtrain.topology.launcher_variables import asked_size
from hvdtrain.topology.topology import Grid
from hvdtrain.topology.virtual_workers import VirtualWorkers
from hvdtrain.world_channel import WORLD_VARIABLE

_VERIFY_RECORDS = 1024  # read at a time: bounds the memory that verifying takes


@dataclass(frozen=True)
class RunSetup:
    """What will be trained, completely decided. `config` contains the task's defaults."""

    config: TrainConfig
    task: Task
    train: CatalogSource | PipeSource | AgreedPipeSource
    validation: Mapping[str, CatalogSource]  # by the names of sets; empty where there are none
    schedule: Schedule
    epochs: int
    about: dict[str, Any]
    workers: VirtualWorkers | None = None  # those of this rank; None: no worker computes several
    asked_resume: str | None = None  # --resume as it was given, where `config` has what it is for this start

    @property
    def catalogs(self) -> list[Catalog]:
        """Of training and validation, where they are read from files."""
        sources = (self.train, *self.validation.values())
        return [source.catalog for source in sources if isinstance(source, CatalogSource)]

    @property
    def total_steps(self) -> int:
        """The update with which training ends at the latest."""
        steps = self.epochs * self.train.plan(0).steps
        return min(steps, self.config.max_steps or steps)

    @property
    def may_change_workers(self) -> bool:
        """Whether this process may train on with others after a loss. On GPUs all start again."""
        return WORLD_VARIABLE in os.environ and device_kind(self.task.framework) == "CPU"


def prepare(
    config: TrainConfig, task_class: type[Task], comm: Communicator, opening: DataOpening | None = None
) -> RunSetup:
    """Open the task's data and cut it for this rank. `opening`: of this data, which may have begun. Raises UsageError:
    on every rank, whichever of them could not."""
    agree(comm, lambda: require_stages(config, task_class, comm.topology), "hvdtrain.prepare.stages")
    grid = Grid(comm.topology, config.parallel.stages_of_workers)
    config = with_defaults(config, task_class.defaults, grid.replicas)
    if loggers := named_loggers(config):  # of which rank 0 alone makes use
        agree(comm, lambda: require_loggers(loggers) if comm.topology.is_root else None, "hvdtrain.prepare.loggers")
    opening = opening or DataOpening(config, task_class)
    task, data = agree(comm, opening.result, "hvdtrain.prepare.data")
    require_same_data(comm, data.parts())
    agree(comm, lambda: _verify(config.data, data, comm.topology), "hvdtrain.prepare.verify")
    setup = agree(comm, lambda: _build_sources(config, task, data, comm), "hvdtrain.prepare.plan")
    if config.virtual_workers and (threads := compute_threads(config)) is not None:
        require_same_threads(comm, threads)
    if config.data.mode == "pipe":  # each host reads a plan file of its own
        require_same(comm, [["training", setup.train.plan(0).num_records, setup.about["data"]]])
    return setup


def fixed_batch(setup: RunSetup) -> LoadedBatch:
    """This rank's slice of the first global batch, for measurements, which train on it again and again. Every slot
    counts, also those that a small data set fills twice."""
    with setup.train.loader(0, 0) as loader:
        batch: LoadedBatch = next(iter(loader))
    weights = np.ones(len(batch.ids), np.float32)
    return batch._replace(weights=weights, global_weight=float(setup.train.plan(0).global_batch))


def seconds_of_step(adapter: Adapter, batch: LoadedBatch, numbers: Sequence[int]) -> float:
    """Mean of the steps with these numbers. The learning rate is 0: weights stay where numbers are as usual."""
    begin = time.perf_counter()
    for number in numbers:
        adapter.train_step(batch, number, 0.0)
    adapter.read_sums()  # waits for the device, and forgets the sums
    return (time.perf_counter() - begin) / len(numbers)


def with_defaults(config: TrainConfig, defaults: TaskDefaults, size: int) -> TrainConfig:
    """Fill in what the user left open: then `global_batch_size`, `epochs`, `lr`, `warmup_epochs` are numbers."""
    batch = config.global_batch_size or defaults.global_batch_size
    if config.batch_size is not None:
        batch = config.batch_size * size * config.accumulate_steps
    epochs = config.epochs or defaults.epochs
    warmup = config.warmup_epochs
    if warmup is None:  # a default must not prevent a run of few epochs
        warmup = min(defaults.warmup_epochs, epochs / 2)
    return replace(
        config,
        batch_size=None,
        global_batch_size=batch,
        epochs=epochs,
        lr=config.lr or defaults.lr,
        warmup_epochs=warmup,
    )


def _verify(config: DataConfig, data: OpenedData, topology: Topology) -> None:
    """This rank's share of a small data set's records, read once with their checksums."""
    for part in data.parts().values():
        has_checks = config.check_crc and part.format.is_stored
        if has_checks and config.on_corrupt == "raise" and part.total_bytes <= config.verify_bytes:
            if (cache := file_cache(config)) is not None:  # all of it is needed now
                cache.fetch_all(part.files)
            local_rows = np.arange(topology.rank, len(part), topology.size)
            with RecordReader(part, cache=cache) as reader:
                for start in range(0, len(local_rows), _VERIFY_RECORDS):
                    reader.read(local_rows[start : start + _VERIFY_RECORDS])


def require_same_data(comm: Communicator, parts: Mapping[str, Catalog]) -> None:
    """`parts`: what this rank sees, by name. Collective. Raises UsageError: on all ranks; one of them sees other
    records, or gives the parts other names or another order."""
    require_same(comm, [[name, len(part), part.fingerprint] for name, part in parts.items()])


def require_same(comm: Communicator, local: list[list[Any]]) -> None:
    """As `require_same_data`. `local`: name, records and fingerprint of each part."""
    if is_same_on_all(comm, local, "hvdtrain.prepare.fingerprints"):
        return
    everywhere = gather_json(comm, local, "hvdtrain.prepare.fingerprints")
    other = next((rank for rank, seen in enumerate(everywhere) if seen != everywhere[0]), None)
    if other is not None:
        raise UsageError(
            f"Rank {other} sees other data than rank 0: {_counts(everywhere[other])} against {_counts(everywhere[0])}.",
            "Each rank reads its part of one plan, so that some records would be read twice and others never.",
            "give every host the same files (`hvdtrain env --explain` shows where each rank runs); if the data are an "
            "object, seed what shuffles or samples it.",
        ).on_all_ranks()


def _counts(parts: list[list[Any]]) -> str:
    return ", ".join(f"{count:,} records of {name} ({fingerprint[:8]})" for name, count, fingerprint in parts)


def _build_sources(config: TrainConfig, task: Task, data: OpenedData, comm: Communicator) -> RunSetup:
    batch, epochs, peak = config.global_batch_size, config.epochs, config.lr
    require_validation(config, bool(data.validation))
    if batch is None or epochs is None or peak is None or config.warmup_epochs is None:
        raise ValueError("with_defaults has not been applied")
    place = Grid(comm.topology, config.parallel.stages_of_workers).data_topology()
    if batch < place.size:
        raise UsageError(
            f"The global batch holds {batch} records for {place.size} workers.",
            "Some workers would have nothing to do in any step.",
            f"give --global-batch-size {place.size} or more, or start fewer workers.",
        )
    (asked, most), of_each = asked_size(os.environ, place.size), config.accumulate_steps * task.smallest_slice
    if place.size < most and batch < most * of_each and config.parallel.stages == 1:
        raise UsageError(
            f"The global batch holds {batch} records, and the job may grow to {most} workers.",
            f"Each of them needs {of_each} or more.",
            f"give --global-batch-size {most * of_each} or more, or --max-workers {max(1, batch // of_each)}.",
        )
    workers = virtual_workers(config.virtual_workers, place, batch, max(asked, most))
    most_parts = batch // place.size // task.smallest_slice
    micro_batches = micro_batch_count(config.parallel, most_parts)
    _require_large_enough(batch, place.size if workers is None else workers.count, config, task, micro_batches)

    watched = config.same_bits if comm.topology.is_root else None

    def source(catalog: Catalog, training: bool) -> CatalogSource:
        look = watched if training else None
        return CatalogSource(catalog, task, place, config.data, batch, config.seed, training, look, workers)

    train: CatalogSource | PipeSource | AgreedPipeSource
    if data.train is None:
        train = open_pipe_source(config.data, task, comm, batch, config.seed, watched)
        fingerprint = train.fingerprint
    else:
        train, fingerprint = source(data.train, True), data.train.fingerprint
    steps = train.plan(0).steps
    if config.trace is not None:
        require_trained(config.trace, min(epochs * steps, config.max_steps or epochs * steps))
    scaled = scaled_lr(peak, config.lr_scaling, batch, config.reference_batch_size or batch)
    schedule = schedule_of(config, scaled, epochs, config.warmup_epochs, steps)
    validation = {name: source(catalog, False) for name, catalog in data.validation.items()}
    if config.parallel.stages > 1:
        config = replace(config, parallel=replace(config.parallel, micro_batches=micro_batches))
    elif (
        workers is None and config.steps_per_call == 1 and config.sparse_gradients != "allgather"
    ):  # which go with micro batches
        # More micro batches, where a launcher that was asked for more workers has lost some.
        count = count_for_fewer_workers(config.accumulate_steps, place.size, asked, most_parts)
        config = replace(config, accumulate_steps=count)
    about = _about(config, task, fingerprint, data.validation, comm.topology)
    return RunSetup(config, task, train, validation, schedule, epochs, about, workers)


def _require_large_enough(batch: int, size: int, config: TrainConfig, task: Task, micro_batches: int) -> None:
    """Every micro batch of every worker (of every replica of a model in stages) holds as many records as it needs."""
    count = config.accumulate_steps * micro_batches
    parts = size * count
    smallest = 1 if config.sync_batch_norm and size > 1 else task.smallest_slice
    if batch // parts >= smallest:
        return
    kind, fewer = "workers", "start fewer workers"
    if config.virtual_workers is not None:
        kind, fewer = "virtual workers", "fewer --virtual-workers"
    cut = f"{size} {kind}" + (f" × {count} micro batches" if count > 1 else "")
    if count > 1:
        fewer = f"a smaller {'--parallel.micro-batches' if micro_batches > 1 else '--accumulate-steps'}"
    raise UsageError(
        f"The global batch of {batch} records leaves {batch // parts} to some of the {cut}.",
        "Each needs one record or more."
        if smallest == 1
        else f"BatchNorm takes its statistics from the records of one worker's micro batch, of which there must be "
        f"{smallest} or more.",
        f"give --global-batch-size {parts * smallest} or more, or {fewer}.",
    )


def _about(
    config: TrainConfig, task: Task, fingerprint: str, validation: Mapping[str, Catalog], topology: Topology
) -> dict[str, Any]:
    prints = {name: catalog.fingerprint for name, catalog in validation.items()}
    return {
        "framework": task.framework,
        "task": config.task,
        "mode": config.data.mode,
        "data": fingerprint,
        "validation": prints.get(UNNAMED, prints or None),
        "task_args": task_arguments(type(task), config.model, config.task_args),
        "task_defaults": argument_defaults(type(task)),
        "optimizer": config.optimizer,
        "global_batch_size": config.global_batch_size,
        "seed": config.seed,
        "shuffle": config.data.shuffle,
        "block_order": BLOCK_ORDER if config.data.shuffle == "block" else None,
        "virtual_workers": config.virtual_workers,
        "compute_threads": compute_threads(config) if config.virtual_workers else None,
        "world_size": topology.size,
    }
