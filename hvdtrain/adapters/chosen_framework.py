"""What both frameworks' adapters offer besides training; a framework is imported only when it is used."""

from importlib import import_module

from hvdtrain.adapters.profile import Profiler
from hvdtrain.topology import Topology


def bind_device_and_threads(framework: str, topology: Topology) -> None:
    """Import the framework and give this worker its threads and GPU, before anything else uses them.

    Raises `UsageError`: this machine has fewer GPUs than workers.
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
    """Import what `run.start.open_adapter` will need. May be done in a thread while something else waits."""
    import_module(f"hvdtrain.adapters.{'torch' if framework == 'torch' else 'keras'}.adapter")
