"""Horovod's collectives through torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import horovod.torch
import torch

from hvdtrain.comm.interface import Array, Reduction


@final
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
