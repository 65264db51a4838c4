"""This worker's device in torch: its threads, its GPU, and which arithmetic kernels use."""

import os
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib.util import find_spec

import torch

from hvdtrain.adapters.torch.compiler_import import use_deterministic_algorithms
from hvdtrain.adapters.worker_device import gpu_of_worker, no_tf32, threads_per_worker
from hvdtrain.config.training_options import Precision
from hvdtrain.errors import UsageError

_LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def bind_device_and_threads(local_rank: int, local_size: int) -> None:
    """Compute with 1/`local_size` of the cores unless the user chose otherwise, and on the GPU of `local_rank`.

    Raises `UsageError`: fewer GPUs than workers.
    """
    bind_threads(local_size)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpu = gpu_of_worker(gpus, local_rank, local_size)
    if gpu is not None:
        torch.cuda.set_device(gpu)


def bind_threads(local_size: int) -> None:
    """Compute with 1/`local_size` of the cores unless the user chose otherwise."""
    torch.set_num_threads(threads_per_worker(local_size, os.environ))


def require_threads() -> None:
    """Raise `UsageError` where torch does not compute with the threads that OMP_NUM_THREADS says."""
    wanted, chosen = os.environ.get("OMP_NUM_THREADS", ""), torch.get_num_threads()
    if wanted.isdigit() and chosen != int(wanted):
        raise UsageError(
            f"torch computes with {chosen} threads, and --virtual-workers needs {wanted} of them.",
            "Their number changes the last bits, and the task or a library has called torch.set_num_threads().",
            "leave that out, and give --compute-threads.",
        )


def device_kind() -> str:
    """ "GPU" or "CPU"."""
    return "GPU" if torch.cuda.is_available() else "CPU"


def own_device() -> torch.device:
    """The device of this worker's model, after `bind_device_and_threads`."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def device_named(name: str) -> torch.device:
    """Raises `UsageError` where torch has no such device here."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["cpu", *(f"cuda:{number}" for number in range(gpus))]
    if name not in known:
        raise UsageError(
            f"--parallel.devices names {name!r}.",
            f"This machine has {', '.join(known)}.",
            "name one of them for each stage; one may be named several times.",
        )
    return torch.device(name)


def device_memory() -> float | None:
    """Bytes of this worker's GPU; None on a CPU."""
    device = own_device()
    return float(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else None


def apply_settings(precision: Precision, deterministic: bool, device: torch.device) -> None:
    """Choose kernels for this process.

    float32 means float32 unless tf32 is asked for: torch lets convolutions use TF32 by default.

    Raises `UsageError`: the device cannot compute in `precision`.
    """
    _require_supported(precision, device)
    kind = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = kind
    torch.backends.cudnn.conv.fp32_precision = kind  # type: ignore[attr-defined]  # its types do not know it
    torch.backends.cudnn.benchmark = not deterministic  # pictures of a task have one size
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
    if deterministic != torch.are_deterministic_algorithms_enabled():
        use_deterministic_algorithms(deterministic)


def low_precision(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The forward pass's arithmetic: autocast for bf16 and fp16."""
    if precision not in _LOW:
        return nullcontext()
    return torch.autocast(device.type, dtype=_LOW[precision])


def memory_peak(device: torch.device) -> int | None:
    """Bytes that tensors on a GPU took at most since the start of the process; None on the CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def gpu_use(device: torch.device) -> float | None:
    """Share of the last moments in which the GPU was busy, 0 to 1; None on the CPU, or where NVML cannot be asked."""
    if device.type != "cuda" or find_spec("pynvml") is None:
        return None
    with suppress(Exception):  # NVML has its own kinds of errors: no permission, a part of a GPU (MIG), no driver
        return torch.cuda.utilization(device) / 100
    return None


def _require_supported(precision: Precision, device: torch.device) -> None:
    on_gpu = device.type == "cuda"
    if precision == "tf32" and not (on_gpu and torch.cuda.get_device_capability(device) >= (8, 0)):
        raise no_tf32(_name(device))
    if precision == "bf16" and on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError(
            "--precision bf16 is asked for on a device without it.",
            f"This worker computes on {_name(device)}, which would emulate it slowly.",
            "use --precision fp16, or fp32.",
        )


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
