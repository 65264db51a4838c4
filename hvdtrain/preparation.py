"""All that can be refused is refused here, on all ranks together, before a model exists or a file is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_sharding import Catalog, RecordReader
from data_sharding.errors import ShardingError
from hvdtrain.comm import Communicator, agree, gather_json
from hvdtrain.config import DataConfig, TrainConfig
from hvdtrain.data_access import DataAccess
from hvdtrain.errors import UsageError
from hvdtrain.pipe_source import AgreedPipeSource, PipeSource, open_pipe_source
from hvdtrain.schedule import Schedule, scaled_lr
from hvdtrain.source import CatalogSource
from hvdtrain.task import Splits, Task, TaskDefaults, build_task
from hvdtrain.topology import Topology
from hvdtrain.user_cache import user_cache

_VERIFY_RECORDS = 1024  # read at a time: bounds the memory that verifying takes


@dataclass(frozen=True)
class Prepared:
    """What is to be trained, fully decided. `config` has the task's defaults filled in."""

    config: TrainConfig
    task: Task
    train: CatalogSource | PipeSource | AgreedPipeSource
    validation: CatalogSource | None
    schedule: Schedule
    epochs: int
    about: dict[str, Any]


def prepare(config: TrainConfig, kind: type[Task], comm: Communicator) -> Prepared:
    """Open the task's data and cut it for this rank.

    Raises:
        UsageError: on every rank, whichever of them could not.
    """
    config = with_defaults(config, kind.defaults, comm.topology.size)
    task, splits = agree(comm, lambda: _open(config, kind), "hvdtrain.prepare.data", (ShardingError,))
    _require_same_data(comm, splits)
    agree(comm, lambda: _verify(config.data, splits, comm.topology), "hvdtrain.prepare.verify", (ShardingError,))
    return agree(comm, lambda: _cut(config, task, splits, comm), "hvdtrain.prepare.plan", (ShardingError,))


def with_defaults(config: TrainConfig, defaults: TaskDefaults, size: int) -> TrainConfig:
    """Fill in what the user left open: then `global_batch_size`, `epochs`, `lr`, `warmup_epochs` are numbers."""
    batch = config.global_batch_size or defaults.global_batch_size
    if config.batch_size is not None:
        batch = config.batch_size * size
    warmup = defaults.warmup_epochs if config.warmup_epochs is None else config.warmup_epochs
    return replace(
        config,
        batch_size=None,
        global_batch_size=batch,
        epochs=config.epochs or defaults.epochs,
        lr=config.lr or defaults.lr,
        warmup_epochs=warmup,
    )


def _open(config: TrainConfig, kind: type[Task]) -> tuple[Task, Splits]:
    task = build_task(kind, config.task_args)
    if kind.needs_data_dir and config.data.dir is None:
        raise UsageError(
            f"The task {config.task} reads its records from a folder, and none was given.",
            "There is nothing to train on.",
            "give it as --data.dir DIR.",
        )
    return task, task.open_data(_data_access(config.data))


def _data_access(config: DataConfig) -> DataAccess:
    folder = config.dir
    if folder is not None and "://" not in folder:
        path = Path(folder).expanduser().absolute()
        if not path.exists():
            raise UsageError(f"There is no folder {path}.", "It was given as --data.dir.", "give one that exists.")
        folder = str(path)
    return DataAccess(folder, user_cache() / "data", config.on_corrupt)


def _verify(config: DataConfig, splits: Splits, topology: Topology) -> None:
    """This rank's share of a small data set's records, read once with their checksums."""
    for part in _parts(splits):
        if config.check_crc and config.on_corrupt == "raise" and part.total_bytes <= config.verify_bytes:
            own = np.arange(topology.rank, len(part), topology.size)
            with RecordReader(part) as reader:
                for start in range(0, len(own), _VERIFY_RECORDS):
                    reader.read(own[start : start + _VERIFY_RECORDS])


def _parts(splits: Splits) -> list[Catalog]:
    return [splits.train] if splits.validation is None else [splits.train, splits.validation]


def _require_same_data(comm: Communicator, splits: Splits) -> None:
    own = [[len(part), part.fingerprint] for part in _parts(splits)]
    everywhere = gather_json(comm, own, "hvdtrain.prepare.fingerprints")
    other = next((rank for rank, seen in enumerate(everywhere) if seen != everywhere[0]), None)
    if other is not None:
        raise UsageError(
            f"Rank {other} sees other data than rank 0: {_counts(everywhere[other])} against {_counts(everywhere[0])}.",
            "Each rank reads its part of one plan, so that some records would be read twice and others never.",
            "give every host the same files; `hvdtrain env --explain` shows where each rank runs.",
        ).on_all_ranks()


def _counts(parts: list[list[Any]]) -> str:
    return " and ".join(f"{count:,} records ({fingerprint[:8]})" for count, fingerprint in parts)


def _cut(config: TrainConfig, task: Task, splits: Splits, comm: Communicator) -> Prepared:
    batch, epochs, peak = config.global_batch_size, config.epochs, config.lr
    if batch is None or epochs is None or peak is None or config.warmup_epochs is None:
        raise ValueError("with_defaults has not been applied")
    if batch < comm.topology.size:
        raise UsageError(
            f"The global batch holds {batch} records for {comm.topology.size} workers.",
            "Some workers would have nothing to do in any step.",
            f"give --global-batch-size {comm.topology.size} or more, or start fewer workers.",
        )

    def source(catalog: Catalog, training: bool) -> CatalogSource:
        return CatalogSource(catalog, task, comm.topology, config.data, batch, config.seed, training)

    train: CatalogSource | PipeSource | AgreedPipeSource = source(splits.train, True)
    about = _about(config, task, splits, comm)
    if config.data.mode == "pipe":
        train = open_pipe_source(config.data, task, comm, batch, config.seed)
        about["data"] = train.fingerprint
    steps = train.plan(0).steps
    schedule = Schedule(
        peak=scaled_lr(peak, config.lr_scaling, batch, config.reference_batch_size or batch),
        total_steps=epochs * steps,
        warmup_steps=round(config.warmup_epochs * steps),
        shape=config.lr_schedule,
    )
    if schedule.warmup_steps >= schedule.total_steps:
        raise UsageError(
            f"Warm-up takes {schedule.warmup_steps} steps of {schedule.total_steps}.",
            "The learning rate would never reach its peak.",
            f"give --warmup-epochs less than the {epochs} epochs.",
        )
    validation = source(splits.validation, False) if splits.validation is not None else None
    return Prepared(config, task, train, validation, schedule, epochs, about)


def _about(config: TrainConfig, task: Task, splits: Splits, comm: Communicator) -> dict[str, Any]:
    return {
        "framework": task.framework,
        "task": config.task,
        "data": splits.train.fingerprint,
        "validation": splits.validation.fingerprint if splits.validation is not None else None,
        "task_args": config.task_args,
        "global_batch_size": config.global_batch_size,
        "seed": config.seed,
        "shuffle": config.data.shuffle,
        "world_size": comm.topology.size,
    }
