"""The parts of a `TorchAdapter` as the options ask for them: the model, what calls it, and the gradient sync."""

from typing import Any

import torch
from torch import nn

from hvdtrain.adapters.choose_sync import choose_sync
from hvdtrain.adapters.torch.activation_checkpointing import checkpoint_activations
from hvdtrain.adapters.torch.gradient_sync import GradientSync, HorovodGradients, NoSync, summed_gradients, trainable_of
from hvdtrain.adapters.torch.local_sgd import LocalSgd
from hvdtrain.adapters.torch.sharded_sync import ShardedSync
from hvdtrain.adapters.torch.sparse import SparseGradients
from hvdtrain.adapters.torch.state_checks import require_common_statistics, require_numbers
from hvdtrain.adapters.torch.virtual_sync import WorkersGradients
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology
from hvdtrain.topology.virtual_workers import VirtualWorkers


def build_model(task: Task, options: TrainingOptions, device: torch.device, is_distributed: bool = False) -> nn.Module:
    """The task's model on `device`, with the names of its weights unchanged."""
    model: nn.Module = task.build_model()
    require_numbers(model)
    if options.sync_batch_norm:  # imported here, since it imports the compiler, which takes a second
        from hvdtrain.adapters.torch.sync_batch_norm import convert_sync_batch_norm, horovod_sum

        model = convert_sync_batch_norm(model, horovod_sum if is_distributed else None)
    if is_distributed:
        require_common_statistics(
            model, "give --sync-batch-norm, or build the model with torch.nn.BatchNorm1d, 2d or 3d."
        )
    if options.activation_checkpointing:
        checkpoint_activations(model, options.compile)
    model.to(device)
    if options.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def callable_for(model: nn.Module, options: TrainingOptions, topology: Topology) -> Any:
    """What the task's measure() calls: the model itself, compiled, or copies of it on all GPUs.

    Raises `UsageError`: DataParallel in a job of several workers.
    """
    if options.compile:
        model.compile()  # in place: names of weights stay  # type: ignore[no-untyped-call]
    if not options.data_parallel:
        return model
    if topology.is_distributed:
        raise UsageError(
            f"--data-parallel is given to {topology.size} workers.",
            "torch.nn.DataParallel is one process on all GPUs of a machine.",
            "start one process, or leave --data-parallel out.",
        )
    return nn.DataParallel(model)


def require_supported(options: TrainingOptions) -> None:
    """Raise `UsageError` for what only TensorFlow has."""
    if options.steps_per_call > 1:
        raise UsageError(
            f"--steps-per-call {options.steps_per_call} is given with torch.",
            "A torch model is called from Python at each step.",
            "leave it out; --compile makes what is called faster.",
        )


def open_gradient_sync(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    topology: Topology,
    options: TrainingOptions,
    workers: VirtualWorkers | None = None,
) -> GradientSync:
    """The gradient sync that `options` ask for. Args: `workers`: as of `TorchAdapter`."""
    chosen, trainable = choose_sync(options, topology), trainable_of(model)
    match chosen.kind:
        case "none":
            return NoSync(trainable)
        case "virtual":
            assert workers is not None  # see `prepare`
            return WorkersGradients(trainable, chosen, workers)
        case "sparse":
            return SparseGradients(model, optimizer, chosen)
        case "local":
            return LocalSgd(model, optimizer, chosen)
        case "sharded":
            return ShardedSync(model, optimizer, options, chosen)
        case "each":
            return HorovodGradients(trainable, options.accumulate_steps, chosen.loss_multiplier)
        case "buckets":
            return summed_gradients(trainable, chosen)
