"""Collectives over Horovod, through whichever framework's binding the job has loaded anyway.

`horovod.torch` and `horovod.tensorflow` offer the same functions on different tensors, so one class
serves both; a torch job never imports TensorFlow for it and vice versa.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, final

import numpy as np

from hvdtrain.comm.failure import peer_failures
from hvdtrain.comm.interface import Array, Reduction
from hvdtrain.topology import Topology


@dataclass(frozen=True)
class Binding:
    """Horovod's module for one framework, and how a numpy array enters and leaves it."""

    module: ModuleType
    to_tensor: Callable[[Array], Any]
    to_array: Callable[[Any], Array]


def load_binding(framework: str) -> Binding:
    """Import Horovod's module for `framework` ("torch" or "tensorflow") and with it that framework."""
    module = importlib.import_module(f"horovod.{framework}")
    if framework == "torch":
        torch = importlib.import_module("torch")
        return Binding(module, torch.from_numpy, lambda tensor: tensor.numpy())
    tf = importlib.import_module("tensorflow")

    def on_host(array: Array) -> Any:
        with tf.device("/cpu:0"):
            return tf.constant(array)

    return Binding(module, on_host, lambda tensor: tensor.numpy())


@final
class HorovodCommunicator:
    """A `Communicator` on an initialized Horovod. Arrays travel flat: Horovod gathers no scalars."""

    def __init__(self, binding: Binding, topology: Topology) -> None:
        self.topology = topology
        self._hvd = binding.module
        self._binding = binding

    def allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Array:
        operation = {"sum": self._hvd.Sum, "min": self._hvd.Min, "max": self._hvd.Max}[op]
        return self._run(array, lambda tensor: self._hvd.allreduce(tensor, name=name, op=operation)).reshape(
            array.shape
        )

    def allgather(self, array: Array, name: str) -> Array:
        gathered = self._run(array, lambda tensor: self._hvd.allgather(tensor, name=name))
        return gathered.reshape(-1, *array.shape[1:])

    def broadcast(self, array: Array, name: str, root: int = 0) -> Array:
        return self._run(array, lambda tensor: self._hvd.broadcast(tensor, root, name=name)).reshape(array.shape)

    def barrier(self, name: str) -> None:
        # Horovod's own barrier takes no name, and an unnamed collective desynchronizes all later unnamed ones.
        self.allreduce(np.zeros(1, np.int32), name)

    def close(self) -> None:
        self.barrier("hvdtrain.close")
        self._hvd.shutdown()

    def _run(self, array: Array, operation: Callable[[Any], Any]) -> Array:
        with peer_failures():
            return self._binding.to_array(
                operation(self._binding.to_tensor(np.ascontiguousarray(array).reshape(-1).copy()))
            )
