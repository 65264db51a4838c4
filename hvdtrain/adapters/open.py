"""The adapter of a framework, imported only when that framework is used."""

from __future__ import annotations

from hvdtrain.adapters.interface import Adapter
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.task.interface import Task
from hvdtrain.topology import Topology


def bind_device_and_threads(framework: str, topology: Topology) -> None:
    """Import the framework and give this worker its threads and GPU, before anything else uses them.

    Raises:
        UsageError: this machine has fewer GPUs than workers.
    """
    if framework == "torch":
        from hvdtrain.adapters.torch import device as torch_device

        torch_device.bind_device_and_threads(topology.local_rank, topology.local_size)
    else:
        from hvdtrain.adapters.keras import device as keras_device

        keras_device.bind_device_and_threads(topology.local_rank, topology.local_size)


def open_adapter(
    task: Task,
    topology: Topology,
    seed: int,
    lr: float,
    options: TrainingOptions = TrainingOptions(),  # noqa: B008  frozen
) -> Adapter:
    """Build the task's model and optimizer on this rank's device; see `TorchAdapter` for the arguments."""
    if task.framework == "torch":
        from hvdtrain.adapters.torch.adapter import TorchAdapter

        return TorchAdapter(task, topology, seed, lr, options)
    from hvdtrain.adapters.keras.adapter import KerasAdapter

    return KerasAdapter(task, topology, seed, lr, options)
