"""Horovod's collectives through torch: on flat numpy arrays, and an allreduce of tensors for measurements."""

from collections.abc import Callable, Sequence
from typing import Any

import horovod.torch
import torch

from hvdtrain.comm.communicator import Array, Reduction, transport
from hvdtrain.comm.process_sets import form_sets, process_set_of


class TorchBinding:
    """Implements `Binding`."""

    def __init__(self) -> None:
        self.hvd: Any = horovod.torch
        self._ops = {"sum": self.hvd.Sum, "min": self.hvd.Min, "max": self.hvd.Max}

    def allreduce(self, flat: Array, name: str, op: Reduction) -> Array:
        return _array(self.hvd.allreduce(torch.from_numpy(flat), name=name, op=self._ops[op]))

    def start_allreduce(self, flat: Array, name: str, op: Reduction) -> Callable[[], Array]:
        handle = self.hvd.allreduce_async_(torch.from_numpy(flat), name=name, op=self._ops[op])
        return lambda: _array(self.hvd.synchronize(handle))

    def allgather(self, flat: Array, name: str) -> Array:
        return _array(self.hvd.allgather(torch.from_numpy(flat), name=name))

    def broadcast(self, flat: Array, name: str, root: int) -> Array:
        return _array(self.hvd.broadcast(torch.from_numpy(flat), root, name=name))


def _array(tensor: torch.Tensor) -> Array:
    return tensor.numpy()


class TorchAllreduce:
    """Implements `hvdtrain.doctor.allreduce_times.Prepared`, in place, as gradients are reduced, on this worker's GPU
    if it has one.

    `ranks`: those whose tensors are added, this one among them; a set that was formed. None: all ranks.
    """

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        self._own = {} if ranks is None else {"process_set": process_set_of(ranks)}
        on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self.kind = transport(horovod.torch, on_gpu)

    def prepare(self, elements: int) -> Callable[[], None]:
        """A function that sums a float32 tensor of so many elements over the ranks, and returns when that is done."""
        tensor = torch.zeros(elements, dtype=torch.float32, device=self.device)
        name = f"hvdtrain.bench.{elements}"

        def run() -> None:
            horovod.torch.allreduce_(tensor, op=horovod.torch.Sum, name=name, **self._own)
            if tensor.is_cuda:
                torch.cuda.synchronize()

        return run

    def within(self, groups: Sequence[Sequence[int]], rank: int) -> "TorchAllreduce":
        """The same within each of the groups of ranks, at the same time. Collective, after `allow_process_sets`."""
        form_sets(horovod.torch, groups)
        return TorchAllreduce(next(group for group in groups if rank in group))

    def beside(self, elements: Sequence[int]) -> Callable[[], Callable[[], None]]:
        """A function that starts a sum of float32 tensors of so many elements each, and returns what waits for it."""
        tensors = [torch.zeros(count, dtype=torch.float32, device=self.device) for count in elements]

        def start() -> Callable[[], None]:
            handles = [
                horovod.torch.allreduce_async_(tensor, op=horovod.torch.Sum, name=f"hvdtrain.bench.beside.{number}")
                for number, tensor in enumerate(tensors)
            ]

            def wait() -> None:
                for handle in handles:
                    horovod.torch.synchronize(handle)

            return wait

        return start
