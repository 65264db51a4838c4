"""The adapter of a framework, imported only when that framework is used."""

from hvdtrain.adapters.interface import TunableAdapter
from hvdtrain.adapters.profile import Profiler
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.task.interface import Task
from hvdtrain.topology import Topology


def bind_device_and_threads(framework: str, topology: Topology) -> None:
    """Import the framework and give this worker its threads and GPU, before anything else uses them.

    Raises:
        UsageError: this machine has fewer GPUs than workers.
    """
    if framework == "torch":
        from hvdtrain.adapters.torch.device import bind_device_and_threads as bind
    else:
        from hvdtrain.adapters.keras.device import bind_device_and_threads as bind
    bind(topology.local_rank, topology.local_size)


def device_kind(framework: str) -> str:
    """ "GPU" or "CPU", for people: what a worker in "torch" or "tensorflow" uses after `bind_device_and_threads`."""
    if framework == "torch":
        from hvdtrain.adapters.torch.device import device_kind as kind
    else:
        from hvdtrain.adapters.keras.device import device_kind as kind
    return kind()


def open_profiler(framework: str) -> Profiler:
    """The framework's own, imported now: a training that records no trace does without it."""
    if framework == "torch":
        from hvdtrain.adapters.torch.profiler import TorchProfiler

        return TorchProfiler()
    from hvdtrain.adapters.keras.profiler import TensorFlowProfiler

    return TensorFlowProfiler()


def open_adapter(task: Task, topology: Topology, seed: int, lr: float, options: TrainingOptions) -> TunableAdapter:
    """Build the task's model and optimizer on this rank's device.

    Args:
        task: the user's task.
        topology: this process among the others.
        seed: of initial weights and of all random numbers in the model (dropout).
        lr: the schedule's peak, with which the task's optimizer is built.
        options: how weights are updated.
    """
    if task.framework == "torch":
        from hvdtrain.adapters.torch.adapter import TorchAdapter

        return TorchAdapter(task, topology, seed, lr, options)
    from hvdtrain.adapters.keras.adapter import KerasAdapter

    return KerasAdapter(task, topology, seed, lr, options)
