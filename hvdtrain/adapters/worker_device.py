"""One worker's share of its machine: how many threads, and which GPU."""

import os
from collections.abc import Mapping

from hvdtrain.errors import UsageError
from hvdtrain.topology.control_group import usable_cores


def threads_per_worker(local_size: int, environ: Mapping[str, str]) -> int:
    """Threads for one of `local_size` workers on this machine, at least 1.

    The user's OMP_NUM_THREADS wins. A worker that its launcher bound to some cores uses those. Otherwise the machine's
    cores, or those that a container may use, are divided among its workers, because each framework would use all of the
    machine's for every worker.
    """
    chosen = environ.get("OMP_NUM_THREADS", "")
    if chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    allowed = len(os.sched_getaffinity(0))
    bound_by_launcher = allowed < (os.cpu_count() or 1)
    return max(1, allowed if bound_by_launcher else usable_cores(allowed) // local_size)


def gpu_of_worker(gpus: int, local_rank: int, local_size: int) -> int | None:
    """Which of the `gpus` that this worker sees is its own; None: there are none.

    One visible GPU may be the launcher's choice for this worker (CUDA_VISIBLE_DEVICES): then it is number 0.

    Raises `UsageError`: fewer GPUs than workers.
    """
    if 1 < gpus < local_size:
        raise UsageError(
            f"{local_size} workers share this machine, which shows {gpus} GPUs.",
            "Two workers on one GPU run out of memory or wait for each other.",
            "start one worker per GPU.",
        )
    return local_rank % gpus if gpus else None


def no_tf32(device: str) -> UsageError:
    """The error for --precision tf32 on `device`, a GPU's name or "the CPU"."""
    return UsageError(
        "--precision tf32 is asked for on a device without TF32.",
        f"This worker computes on {device}; TF32 is the arithmetic of NVIDIA's GPUs since Ampere.",
        "use --precision fp32, or bf16.",
    )
