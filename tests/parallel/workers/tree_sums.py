"""Sums along the tree beside those of one process: `tree_sums.py FRAMEWORK COUNT:WAY ...`, WAY "allreduce" or "slices".

For COUNT virtual workers each. Writes "as one process" on each rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.comm.open import open_communicator
from hvdtrain.run.virtual_worker_checks import with_order_of_sums
from hvdtrain.topology import detect_topology
from hvdtrain.topology.virtual_workers import VirtualWorkers

Terms = Sequence[NDArray[np.float32]]
"""The numbers of each virtual worker."""
Found = tuple[NDArray[np.float32], str]
"""The sum of all, and the way that it took."""

LENGTHS = (1, 2, 200_003)
"""Some workers have an empty slice; and more than Gloo adds in one part, or sends directly between ranks."""


def drawn(count: int, length: int) -> Terms:
    """Normal numbers of many sizes. Some sums of the smallest ones are less than normal."""
    generator = np.random.default_rng(count)
    shape = count, length
    sizes = 10.0 ** generator.choice([-37.9, -37, -36, -3, 0, 3], shape)
    values = (generator.choice([-1, 1], shape) * generator.uniform(1, 3, shape) * sizes).astype(np.float32)
    return list(values)


class Noting:
    """Horovod's module. Attributes: `used`: names of those of its functions that were used."""

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd
        self.used: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.used.append(name)
        return getattr(self._hvd, name)


def way_of(used: Sequence[str]) -> str:
    return "slices" if any("alltoall" in name.lower() for name in used) else "allreduce"


def sum_in_torch(workers: VirtualWorkers, terms: Terms) -> Found:
    import horovod.torch
    import torch

    from hvdtrain.adapters.torch.comm_hooks import GradBucket
    from hvdtrain.adapters.torch.virtual_sync import TreeReduction

    hvd = Noting(horovod.torch)
    hook = TreeReduction(hvd if workers.size > 1 else None, workers, None)
    bucket = GradBucket(f"{workers.count}.{len(terms[0])}", torch.empty(len(terms[0])), [])
    begin = hook.open(bucket)
    for worker in workers.own:
        bucket.flat.copy_(torch.from_numpy(terms[worker]))
        if worker + 1 < workers.own.stop:
            hook.add(bucket)
    reduction = begin()
    result: Any = None
    try:
        while True:
            handle = reduction.send(result)
            result = None if workers.size == 1 else horovod.torch.synchronize(handle)
    except StopIteration:
        return bucket.flat.numpy(), way_of(hvd.used)


def sum_in_keras(workers: VirtualWorkers, terms: Terms) -> Found:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from hvdtrain.adapters.keras.comm_hooks import GradBucket, Gradient
    from hvdtrain.adapters.keras.compiled import graph, keep_order_of_sums, keep_passes_equal
    from hvdtrain.adapters.keras.virtual_sync import TreeReduction
    from hvdtrain.algorithms.summation_tree import TreeSum

    keep_order_of_sums()
    keep_passes_equal()
    own = [tf.Variable(terms[worker]) for worker in workers.own]

    def reduced() -> Any:
        hook = TreeReduction(hvd if workers.size > 1 else None, workers, "plain")
        tree: TreeSum[Any] = TreeSum(workers.count, lambda left, right: [left[0] + right[0]])
        for worker, variable in zip(workers.own, own, strict=True):
            tree.push(range(worker, worker + 1), [variable.value()])
        hook.parts = tree.parts
        gradient = Gradient(0, own[0].value(), own[0].shape)
        return hook.reduce(GradBucket(f"{workers.count}_{len(terms[0])}", tf.float32, [gradient]))[0]

    traced = graph(reduced)
    total = traced().numpy()
    return total, way_of([each.type for each in traced.get_concrete_function().graph.get_operations()])


def check(found: Found, alone: Found, way: str) -> None:
    assert found[1] == way, found[1]
    assert (found[0].view(np.int32) == alone[0].view(np.int32)).all()


def main(framework: str, cases: Sequence[str]) -> None:
    comm = open_communicator(framework, detect_topology(os.environ))
    place = comm.topology
    total: Callable[[VirtualWorkers, Terms], Found] = sum_in_torch if framework == "torch" else sum_in_keras
    for case in cases:
        count, way = int(case.split(":")[0]), case.split(":")[1]
        workers = with_order_of_sums(VirtualWorkers(count, place.rank, place.size, count), comm)
        for length in LENGTHS:
            terms = drawn(count, length)
            check(total(workers, terms), total(VirtualWorkers(count, 0, 1, count), terms), way)
    comm.close()
    print("as one process")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
