"""One worker of an arm: `python -m benchmarks.allreduce.arm NAME`; rank 0 prints seconds for each size.

Every arm sums float32 in place, one tensor at a time, in one thread, and checks the sum of the first call.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

SIZES = tuple(4 * 4**power for power in range(14))
"""Bytes: 4 B to 256 MiB."""

Sum = Callable[[Any], None]


def repetitions(size: int) -> int:
    """The same on all ranks: many of what is quick."""
    return max(5, min(400, 2**27 // max(size, 2**18)))


def hvdtrain_arm() -> tuple[int, int, Callable[[int], Any], Sum]:
    """Horovod as hvdtrain opens it: `hvdtrain.comm`'s settings, and its patches, which the arm "horovod" has too."""
    from hvdtrain.comm.horovod_world import set_defaults

    set_defaults(os.environ, stall_timeout=600)
    return horovod_arm()


def horovod_arm() -> tuple[int, int, Callable[[int], Any], Sum]:
    """horovod.torch with its defaults."""
    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    hvd.init()

    def total(tensor: Any) -> None:
        hvd.allreduce_(tensor, op=hvd.Sum, name=f"sum.{tensor.numel()}")

    return hvd.rank(), hvd.size(), torch.ones, total


def torch_gloo_arm() -> tuple[int, int, Callable[[int], Any], Sum]:
    """torch.distributed with Gloo, under torchrun."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    return distributed.get_rank(), distributed.get_world_size(), torch.ones, lambda t: distributed.all_reduce(t)


def mpi4py_arm() -> tuple[int, int, Callable[[int], Any], Sum]:
    """MPI itself."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD

    def ones(count: int) -> Any:
        return np.ones(count, np.float32)

    return comm.Get_rank(), comm.Get_size(), ones, lambda array: comm.Allreduce(MPI.IN_PLACE, array)


_ARMS: Mapping[str, Callable[[], tuple[int, int, Callable[[int], Any], Sum]]] = {
    "hvdtrain": hvdtrain_arm,
    "horovod": horovod_arm,
    "torch_gloo": torch_gloo_arm,
    "mpi4py": mpi4py_arm,
}


def seconds_of(size: int, ones: Callable[[int], Any], total: Sum, workers: int) -> float:
    """The median of one call. Raises `RuntimeError` if the first sum is wrong."""
    tensor = ones(size // 4)
    total(tensor)
    if not bool((tensor == workers).all()):
        raise RuntimeError(f"the sum of ones over {workers} workers is {tensor[:4]}")
    tensor[:] = 0  # sums of sums would overflow
    times = []
    for _ in range(repetitions(size)):
        begin = time.perf_counter()
        total(tensor)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    """Measure all sizes."""
    rank, workers, ones, total = _ARMS[sys.argv[1]]()
    found = {size: seconds_of(size, ones, total, workers) for size in SIZES}
    if rank == 0:
        print(json.dumps({"allreduce_seconds": found}), flush=True)
    if sys.argv[1] == "torch_gloo":
        from torch import distributed

        distributed.barrier()  # a rank that is left too early ends the other one with an error
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
