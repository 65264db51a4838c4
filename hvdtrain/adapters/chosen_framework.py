"""What both frameworks' adapters offer besides training; a framework is imported only when it is used."""

from importlib import import_module
from types import ModuleType

from hvdtrain.adapters.profile import Profiler, TensorFlowProfiler, TorchProfiler
from hvdtrain.topology import Topology


def bind_device_and_threads(framework: str, topology: Topology) -> None:
    """Import the framework and give this worker its threads and GPU, before anything else uses them.

    Raises `UsageError`: this machine has fewer GPUs than workers.
    """
    _module(framework, "device").bind_device_and_threads(topology.local_rank, topology.local_size)


def device_kind(framework: str) -> str:
    """ "GPU" or "CPU", for people: what a worker in "torch" or "tensorflow" uses after `bind_device_and_threads`."""
    return str(_module(framework, "device").device_kind())


def device_memory(framework: str) -> float | None:
    """Bytes of this worker's GPU; None on a CPU, or where the framework does not tell."""
    return _module(framework, "device").device_memory() if framework == "torch" else None


def open_profiler(framework: str) -> Profiler:
    """The framework's own."""
    return TorchProfiler() if framework == "torch" else TensorFlowProfiler()


def _module(framework: str, name: str) -> ModuleType:
    return import_module(f"hvdtrain.adapters.{'torch' if framework == 'torch' else 'keras'}.{name}")
