"""The adapter of a framework, imported only when that framework is used."""

from __future__ import annotations

from hvdtrain.adapters.interface import Adapter
from hvdtrain.knobs import Knobs
from hvdtrain.task import Task
from hvdtrain.topology import Topology


def take_own_share(framework: str, topology: Topology) -> None:
    """Import the framework and give this worker its threads and GPU, before anything else uses them.

    Raises:
        UsageError: this machine has fewer GPUs than workers.
    """
    if framework == "torch":
        from hvdtrain.adapters.torch import device as torch_device

        torch_device.take_own_share(topology.local_rank, topology.local_size)
    else:
        from hvdtrain.adapters.keras import device as keras_device

        keras_device.take_own_share(topology.local_rank, topology.local_size)


def open_adapter(task: Task, topology: Topology, seed: int, lr: float, knobs: Knobs = Knobs()) -> Adapter:  # noqa: B008  frozen
    """Build the task's model and optimizer on this rank's device; see `TorchAdapter` for the arguments."""
    if task.framework == "torch":
        from hvdtrain.adapters.torch.adapter import TorchAdapter

        return TorchAdapter(task, topology, seed, lr, knobs)
    from hvdtrain.adapters.keras.adapter import KerasAdapter

    return KerasAdapter(task, topology, seed, lr, knobs)
