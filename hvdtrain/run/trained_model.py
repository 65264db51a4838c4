"""The model of a checkpoint on all ranks, and the records that it is measured on or predicts."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from data_sharding import Catalog
from hvdtrain.adapters.adapter_protocol import TunableAdapter
from hvdtrain.checkpoints.format import Checkpoint
from hvdtrain.checkpoints.resume import checkpoint_at
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree, gather_json
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.parser import train_config_of
from hvdtrain.config.train_config import DataConfig, TrainConfig
from hvdtrain.data.catalog_source import CatalogSource
from hvdtrain.engine.state_sync import broadcast_state, weights_in_common
from hvdtrain.errors import UsageError
from hvdtrain.run.data_opening import data_access, given_validation, named_sets, tasks_validation
from hvdtrain.run.job import joined_ranks, load_task_class
from hvdtrain.run.prepare import require_same_data
from hvdtrain.run.start import open_adapter
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology
from hvdtrain.weights.rebuild import rebuilt_task, task_named

_log = logging.getLogger(__name__)

VALIDATION: Final = "validation"
"""What the records that training has validated on are called, where they have no name."""


@dataclass(frozen=True)
class TrainedModel:
    """What a checkpoint holds, ready to be used on this rank."""

    source: Path  # as the user has named it
    step: int  # updates that the model has had
    config: TrainConfig  # of its training, with today's data folder, and without what only training needs
    task: Task
    adapter: TunableAdapter
    comm: Communicator
    folder_is_given: bool  # the data folder, which is that of the training otherwise
    validated_on: Mapping[str, str]  # name → fingerprint of the records that its training has validated on

    @property
    def training_batch(self) -> int:
        """Records in a global batch of the training."""
        return int(self.config.global_batch_size or 1)

    def open_sets(self, sets: Mapping[str, str | None] | None) -> dict[str, CatalogSource]:
        """The records of each set, by its name. Collective.

        Args: `sets`: name → pattern in the data folder; in the place of a pattern, None: the training's set of that
        name; in the place of all: all sets of the training.

        Raises UsageError: on all ranks; there are no records, or not the same ones on all ranks.
        """
        config = self.config.data

        def open_all() -> dict[str, Catalog]:
            return _catalogs(self.task, config, data_access(config, not self.folder_is_given), sets)

        catalogs = agree(self.comm, open_all, "hvdtrain.trained.sets")
        require_same_data(self.comm, catalogs)
        if self.comm.topology.is_root:
            self._warn_of_others({name: part for name, part in catalogs.items() if sets is None or sets[name] is None})
        topology = self.comm.topology
        batch = step_batch(self.training_batch, topology.size)
        return {
            name: CatalogSource(catalog, self.task, topology, config, batch, self.config.seed, training=False)
            for name, catalog in catalogs.items()
        }

    def _warn_of_others(self, catalogs: Mapping[str, Catalog]) -> None:
        """Tell where the training's sets have other records today."""
        for name, catalog in catalogs.items():
            then = self.validated_on.get(name)
            if then is not None and then != catalog.fingerprint:
                _log.warning(
                    "the %s records of %s are not those that the training has validated on (fingerprint %s, then %s)",
                    f"{len(catalog):,}",
                    name,
                    catalog.fingerprint[:8],
                    then[:8],
                )


def step_batch(training_batch: int, workers: int) -> int:
    """The global batch of a forward pass: the training's, doubled until each worker gets a record, so that where some
    of the larger batches begin, some of the smaller ones do."""
    batch = training_batch
    while batch < workers:
        batch *= 2
    return batch


@contextmanager
def open_trained(
    source: Path, data: Mapping[str, Any], topology: Topology, task_class: type[Task] | None = None
) -> Iterator[TrainedModel]:
    """Connect the ranks and give each of them the model of a checkpoint; at the end of the block all end together.

    Args:
        source: a run folder (its newest checkpoint) or a checkpoint's folder, which all ranks must see.
        data: keys of `DataConfig` that are to be others than in the training: "dir", "on_corrupt", "max_corrupt".
        task_class: the task, where the checkpoint only names it.

    Raises as `open_job`.
    """
    checkpoint = checkpoint_at(source, "RUN")
    config = _config_of(checkpoint, data)
    kind = load_task_class(config, task_class)
    about = checkpoint.about
    validated = about.get("validation") or {}  # the fingerprint of the only set, where it has no name
    with joined_ranks(config, kind.framework, topology, config.parallel) as comm:
        _require_same_checkpoint(comm, checkpoint)
        task = agree(comm, lambda: rebuilt_task(about, kind.framework, kind), "hvdtrain.trained.task")
        adapter = agree(
            comm,
            lambda: open_adapter(task, topology, config.seed, config.lr or task.defaults.lr, config),
            "hvdtrain.trained.adapter",
        )
        state = broadcast_state(comm, checkpoint.state if topology.is_root else None)
        step = checkpoint.position.step
        del checkpoint  # its arrays are needed no more
        agree(comm, partial(adapter.load_state, state), "hvdtrain.trained.load")
        del state
        weights_in_common(comm, adapter, "After the checkpoint was loaded")
        prints = {VALIDATION: validated} if isinstance(validated, str) else validated
        yield TrainedModel(source, step, config, task, adapter, comm, "dir" in data, prints)


def _config_of(checkpoint: Checkpoint, data: Mapping[str, Any]) -> TrainConfig:
    """The options of a training, without those that say how its steps are divided: only the forward pass is run."""
    about = checkpoint.about
    values: Mapping[str, Any] = about.get("config", {})
    config = train_config_of(
        {
            **values,
            "task": task_named(about),
            "framework": about["framework"],
            "data": {**values.get("data", {}), **{key: value for key, value in data.items() if key != "dir"}, **_FILES},
            "parallel": vars(ParallelOptions()),
            **_ONLY_TRAINING,
        }
    )
    folder = data.get("dir", config.data.dir)
    return replace(config, data=replace(config.data, dir=folder, download=False, balance="records"))


_FILES: Final = {"mode": "file", "pipe_dir": None, "pipe_plan": None, "pipe_steps": None}
_PLAIN: Final = TrainConfig()
_ONLY_TRAINING: Final = {
    **{
        option: getattr(_PLAIN, option)
        for option in (
            *("accumulate_steps", "virtual_workers", "check_workers", "steps_per_call", "shard", "trace"),
            *("init_weights", "init_weights_exclude", "sync_every", "process_sets", "reduce_op", "compression"),
            *("powersgd_rank", "sparse_gradients", "gradient_sync"),
        )
    },
    "tune": "never",
}


def _require_same_checkpoint(comm: Communicator, checkpoint: Checkpoint) -> None:
    about = hashlib.sha256(json.dumps(checkpoint.about, sort_keys=True).encode()).hexdigest()
    seen = gather_json(comm, [checkpoint.position.step, about], "hvdtrain.trained.checkpoint")
    common = seen[0]
    other = next((rank for rank, found in enumerate(seen) if found != common), None)
    if other is not None:
        raise UsageError(
            f"Rank {other} sees the checkpoint of step {seen[other][0]}, and rank 0 that of step {common[0]}.",
            "All ranks must use the same weights and options.",
            "name one checkpoint, RUN/checkpoints/step_…, in a folder that all hosts see.",
        ).on_all_ranks()


def _catalogs(
    task: Task, config: DataConfig, access: DataAccess, sets: Mapping[str, str | None] | None
) -> dict[str, Catalog]:
    if sets is None:
        return _of_training(task, access, config)
    named = named_sets(task, access, {name: pattern for name, pattern in sets.items() if pattern is not None})
    if len(named) == len(sets):
        return named
    known = _of_training(task, access, config)
    if unknown := [name for name, pattern in sets.items() if pattern is None and name not in known]:
        raise UsageError(
            f"The training has no validation set {unknown[0]}.",
            f"It has {', '.join(known)}.",
            f"choose one of these, or name other records: {unknown[0]}=PATTERN.",
        )
    return {name: named[name] if name in named else known[name] for name in sets}


def _of_training(task: Task, access: DataAccess, config: DataConfig) -> dict[str, Catalog]:
    given = given_validation(task, access, config)
    if given is None and task.needs_data_dir and access.dir is None:
        raise UsageError(
            "The task reads its records from a folder, and none was given.",
            "There are no records to read.",
            "give it as --data.dir DIR.",
        )
    sets = tasks_validation(task, access, config) if given is None else given
    if not sets:
        raise UsageError(
            f"The task {type(task).__name__} has no validation records.",
            "Nothing says which records are meant.",
            "name them: --set NAME=PATTERN.",
        )
    return {name or VALIDATION: catalog for name, catalog in sets.items()}
