"""The adapter of a framework, imported only when that framework is used."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from numpy.typing import NDArray

from hvdtrain.adapters.adapter_protocol import TunableAdapter
from hvdtrain.adapters.profile import Profiler
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.task.task import Task
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


def device_memory(framework: str) -> float | None:
    """Bytes of this worker's GPU; None on a CPU, or where the framework does not tell."""
    if framework == "torch":
        from hvdtrain.adapters.torch.device import device_memory as memory

        return memory()
    return None


def open_profiler(framework: str) -> Profiler:
    """The framework's own, imported now: a training that records no trace does without it."""
    if framework == "torch":
        from hvdtrain.adapters.torch.profiler import TorchProfiler

        return TorchProfiler()
    from hvdtrain.adapters.keras.profiler import TensorFlowProfiler

    return TensorFlowProfiler()


def import_adapter(framework: str) -> None:
    """Import what `open_adapter` will need. May be done in a thread while something else waits."""
    import_module(f"hvdtrain.adapters.{'torch' if framework == 'torch' else 'keras'}.adapter")


def open_adapter(
    task: Task,
    topology: Topology,
    seed: int,
    lr: float,
    options: TrainingOptions,
    cuts: Sequence[int] = (),
    waiting: float = 300.0,
) -> TunableAdapter:
    """Build the task's model and optimizer on this rank's device.

    Args:
        task: the user's task.
        topology: this process among the others.
        seed: of initial weights and of all random numbers in the model (dropout).
        lr: the schedule's peak, with which the task's optimizer is built.
        options: how weights are updated.
        cuts: of a model in stages, as `cut_model` returns them.
        waiting: seconds that one stage waits for another at most.
    """
    if task.framework == "torch":
        from hvdtrain.adapters.torch.adapter import TorchAdapter

        return TorchAdapter(task, topology, seed, lr, options, cuts, waiting)
    from hvdtrain.adapters.keras.adapter import KerasAdapter

    return KerasAdapter(task, topology, seed, lr, options)


def cut_model(
    task: Task, options: TrainingOptions, features: dict[str, NDArray[Any]], micro_batches: int
) -> tuple[list[int], list[str]]:
    """Where the model is cut into `options.parallel.stages`, and a line about each stage, for people.

    Args:
        task: a torch task.
        options: how the model is divided.
        features: of one micro batch, as `decode` makes them: what times are measured with.
        micro_batches: of each update.

    Raises:
        UsageError: the model cannot be cut so.
    """
    from hvdtrain.adapters.torch.pipeline.cuts import chosen_cuts

    found = chosen_cuts(task, options, features, micro_batches)
    return found.starts, found.told


def time_layers(task: Task, options: TrainingOptions, features: dict[str, NDArray[Any]]) -> list[list[float]]:
    """Of each link of a torch model's chain: seconds forward and backward, bytes of weights, kept and passed on.

    One row of ones for a model that cannot be cut.

    Args:
        features: as `decode` makes them.
    """
    if task.framework != "torch":
        return [[1.0, 1.0, 0.0, 0.0, 0.0]]
    from hvdtrain.adapters.torch.pipeline.cuts import times_of_chain

    return times_of_chain(task, options, features)


def time_update(task: Task, options: TrainingOptions, lr: float) -> tuple[float, float]:
    """For each byte of weights: seconds of an update, and bytes of the optimizer's state. Of a torch model.

    Only some of the weights are updated, and they keep their values, so that little memory is needed.

    Args:
        lr: the schedule's peak.
    """
    from hvdtrain.adapters.torch.pipeline.update_times import update_times

    return update_times(task, options, lr)


def time_message(topology: Topology, options: TrainingOptions, sizes: Sequence[int]) -> list[float]:
    """Seconds in which a message of each size gets from a rank to its neighbour, as between stages. Collective.

    Args:
        topology: of an even number of torch workers, whose process sets have been formed.
        sizes: bytes, multiples of 4.
    """
    from hvdtrain.adapters.torch.pipeline.staged_parts import times_of_messages

    return times_of_messages(topology, options.parallel, sizes)
