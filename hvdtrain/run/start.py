"""Make the models of all ranks equal before the first step."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from data_sharding.storage import is_remote
from hvdtrain import activity
from hvdtrain.adapters.adapter_protocol import Adapter, TunableAdapter
from hvdtrain.audit.ledger import LEDGER, trained_updates
from hvdtrain.checkpoints.format import Checkpoint, Position
from hvdtrain.checkpoints.kept_copy import kept_copy
from hvdtrain.checkpoints.resume import checkpoint_at, require_same_training
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import SAVE_SECONDS, agree, broadcast_json, do_while_others_wait
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.data.catalog_source import CatalogSource
from hvdtrain.engine.state_sync import broadcast_state, weights_in_common
from hvdtrain.files import unwritable
from hvdtrain.named_arrays import State
from hvdtrain.run.begun import begin_in, goes_on_after_loss, note_begun, resume_now
from hvdtrain.run.host_memory import host_memory_left
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.run.virtual_worker_checks import with_order_of_sums
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology
from hvdtrain.topology.virtual_workers import VirtualWorkers
from hvdtrain.weights.initial_weights import initial_state

_log = logging.getLogger("hvdtrain.run")


def with_common_resume(setup: RunSetup, comm: Communicator) -> RunSetup:
    """`setup` with what --resume is for this start, as rank 0 finds: another rank that looked a moment later, or at
    another disk, may have seen something else. Collective."""
    own = agree(comm, lambda: resume_now(setup.config) if comm.topology.is_root else "", "hvdtrain.resume.now")
    resume = broadcast_json(comm, own, "hvdtrain.resume.from")
    return replace(setup, config=replace(setup.config, resume=resume), asked_resume=setup.config.resume)


def named_checkpoint(setup: RunSetup, comm: Communicator) -> Checkpoint | None:
    """On rank 0 the checkpoint that `--resume PATH` names, or a URL. It may be refused, so this comes before the run
    folder."""
    resume = setup.config.resume
    if not comm.topology.is_root or resume in ("auto", "never"):
        return None
    if not is_remote(resume):
        return require_same_training(checkpoint_at(Path(resume)), setup.about)
    from hvdtrain.checkpoints.remote_folder import checkpoint_behind

    return require_same_training(checkpoint_behind(resume, "--resume"), setup.about)


def newest_checkpoint(setup: RunSetup, folder: RunFolder, comm: Communicator) -> Checkpoint | None:
    """On rank 0, with `--resume auto`, the newest sound checkpoint of the run folder, if there is one. With
    `--checkpoint-url` it may come from there."""
    if not comm.topology.is_root:
        kept_copy.forget()  # this process was rank 0 in an earlier world
        return None
    if setup.config.resume == "auto":  # before anything is fetched: this job may be lost while it is
        try:
            note_begun(folder.path, "auto", is_whole=True)
        except OSError as error:
            raise unwritable(folder.path, error) from error
    if setup.config.checkpoint_url is not None:
        _open_mirror(setup, folder, setup.config.checkpoint_url)
    if setup.config.resume != "auto":
        warn_of_lost_updates(folder.path, f"from {setup.config.resume}")
        return None
    try:
        folder.checkpoints.restore_replaced()
    except OSError as error:
        raise unwritable(folder.path, error) from error
    checkpoint = folder.checkpoints.newest()
    if checkpoint is None:
        _warn_of_lost_checkpoints(folder)
        warn_of_lost_updates(folder.path, "from the beginning")
    return None if checkpoint is None else require_same_training(checkpoint, setup.about)


def _warn_of_lost_checkpoints(folder: RunFolder) -> None:
    """Of a run whose checkpoints someone has removed. One may be missing that was just about to be written."""
    trained = trained_updates(folder.audit)
    if trained:
        _log.warning(
            "%s tells of %d updates, and there is no checkpoint: training begins again from the beginning. HINT: if "
            "the checkpoints are elsewhere, stop this, and give --resume PATH and a new --output-dir",
            folder.audit / LEDGER,
            trained,
        )


def warn_of_lost_updates(folder: Path, where: str) -> None:
    """Of a job that goes on after a loss, whose checkpoints were on the host of the rank 0 that it has lost."""
    if goes_on_after_loss() and activity.now.reached:
        _log.warning(
            "the workers had done %d updates, and training begins again %s: %s has no checkpoint of this job on the "
            "host of the new rank 0. HINT: give an --output-dir that all hosts share, or --checkpoint-url; where none "
            "was written yet, a shorter --checkpoint-interval",
            activity.now.reached,
            where,
            folder,
        )


def _open_mirror(setup: RunSetup, folder: RunFolder, url: str) -> None:
    from hvdtrain.checkpoints.mirror import Mirror  # imports fsspec
    from hvdtrain.checkpoints.remote_folder import RemoteFolder

    mirror = Mirror(RemoteFolder(url), folder.path, folder.checkpoints)
    mirror.bind(setup.config.resume == "auto", goes_on_after_loss())
    if setup.config.resume == "auto":
        mirror.fetch()
    folder.checkpoints.copy = mirror.send


def open_own_adapter(setup: RunSetup, comm: Communicator) -> TunableAdapter:
    """This rank's model and optimizer, on its device. Collective. Raises UsageError: on every rank, whichever of them
    could not build it."""
    config, peak = setup.config, setup.schedule.peak
    cuts = _cuts(setup, comm)
    workers = None if setup.workers is None else with_order_of_sums(setup.workers, comm)
    return agree(
        comm,
        lambda: open_adapter(setup.task, comm.topology, config.seed, peak, config, cuts, config.stall_timeout, workers),
        "hvdtrain.start.adapter",
    )


def open_adapter(
    task: Task,  # the user's task
    topology: Topology,  # this process among the others
    seed: int,  # of initial weights and of all random numbers in the model (dropout)
    lr: float,  # the schedule's peak, with which the task's optimizer is built
    options: TrainingOptions,  # how weights are updated
    cuts: Sequence[int] = (),  # the first link of each stage but the first one, of a model in stages
    waiting: float = 300.0,  # seconds that one stage waits for another at most
    workers: VirtualWorkers | None = None,  # the virtual workers of this one, where `options` ask for some
) -> TunableAdapter:
    """Build the task's model and optimizer on this rank's device, by its framework, which is imported only now."""
    if task.framework == "torch":
        from hvdtrain.adapters.torch.adapter import TorchAdapter

        return TorchAdapter(task, topology, seed, lr, options, cuts, waiting, workers)
    from hvdtrain.adapters.keras.adapter import KerasAdapter

    return KerasAdapter(task, topology, seed, lr, options, workers)


def _cuts(setup: RunSetup, comm: Communicator) -> list[int]:
    """Where the model is cut into stages: rank 0 measures, and tells the others. Collective."""
    if setup.config.parallel.stages == 1:
        return []
    is_root = comm.topology.is_root
    found = agree(comm, lambda: _measured_cuts(setup, comm.topology) if is_root else ([], []), "hvdtrain.start.cuts")
    cuts, told = broadcast_json(comm, found, "hvdtrain.start.cuts.told")
    if is_root:
        print("\n".join(f"hvdtrain: {line}" for line in told), flush=True)
    return [int(cut) for cut in cuts]


def _measured_cuts(setup: RunSetup, topology: Topology) -> tuple[list[int], list[str]]:
    """With records of the size of one micro batch. Stages on `--parallel.devices` share one worker's memory."""
    train = setup.train
    assert isinstance(train, CatalogSource)  # see `prepare`
    count = int(setup.config.parallel.micro_batches)  # see `prepare`
    records = np.arange(min(len(train.catalog), max(1, train.global_batch // (train.topology.size * count))))
    from hvdtrain.adapters.torch.pipeline.cuts import chosen_cuts  # imports torch

    features, parallel = train.decoded_again(0, records), setup.config.parallel
    memory = host_memory_left(topology) / (parallel.stages if parallel.devices else 1)
    return chosen_cuts(setup.task, setup.config, features, count, memory)


def restore_and_broadcast(
    setup: RunSetup, adapter: Adapter, checkpoint: Checkpoint | None, comm: Communicator
) -> Position:
    """Give every rank rank 0's state, restored or fresh, and prove that they are equal."""
    position = checkpoint.position if checkpoint is not None else Position()
    position = Position.from_json(broadcast_json(comm, position.to_json(), "hvdtrain.start.position"))
    if adapter.stage is not None:
        adapter.gather_state(comm, comm.topology.is_root and checkpoint is None)
    start = agree(comm, lambda: _own_start(setup, adapter, checkpoint, comm), "hvdtrain.start.own")
    state = broadcast_state(comm, start)
    del start  # a checkpoint's arrays, or views of the adapter's
    agree(comm, partial(adapter.load_state, state), "hvdtrain.start.load")
    del state
    weights_in_common(comm, adapter, "Before training")
    return position


def begin_run(setup: RunSetup, folder: RunFolder, named: Checkpoint | None, comm: Communicator) -> None:
    """As `begin_in`, on rank 0, while others wait. Collective. Raises UsageError: on all ranks; the folder cannot be
    written."""

    def problem() -> OSError | None:
        try:
            begin_in(folder.path, folder.checkpoints, setup.config.resume, named)
        except OSError as error:
            return error
        return None

    is_root = comm.topology.is_root
    found = do_while_others_wait(comm, lambda: problem() if is_root else None, "hvdtrain.start.begin", SAVE_SECONDS)
    agree(comm, lambda: _require_written(folder, found), "hvdtrain.start.begun")


def _require_written(folder: RunFolder, problem: OSError | None) -> None:
    if problem is not None:
        raise unwritable(folder.path, problem) from problem


def _own_start(setup: RunSetup, adapter: Adapter, checkpoint: Checkpoint | None, comm: Communicator) -> State | None:
    """On rank 0 the state to begin with: the checkpoint's, or a fresh one, with given weights if there are any."""
    path = setup.config.init_weights
    if not comm.topology.is_root:
        return None
    if checkpoint is not None:
        if path is not None:
            print(f"hvdtrain: --init-weights {path} is not read: training continues from a checkpoint", flush=True)
        return checkpoint.state
    fresh = adapter.view_state() if adapter.stage is None else adapter.state()
    if path is None:
        return fresh
    exclude = setup.config.init_weights_exclude
    model = adapter.model if adapter.stage is None else None
    state = initial_state(fresh, Path(path), setup.task, exclude, model)
    print(f"hvdtrain: the first weights are those in {path}{f', except for {exclude}' if exclude else ''}", flush=True)
    return state
