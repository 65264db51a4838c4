"""Collectives over Horovod, through whichever framework's binding the job has loaded anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, final

import numpy as np

from hvdtrain.comm.failure import waits_for_peers
from hvdtrain.comm.interface import Array, Reduction
from hvdtrain.topology import Topology


class Binding(Protocol):
    """Horovod's module for one framework, and its collectives on flat numpy arrays."""

    hvd: Any

    def allreduce(self, flat: Array, name: str, op: Reduction) -> Array: ...

    def start_allreduce(self, flat: Array, name: str, op: Reduction) -> Callable[[], Array]: ...

    def allgather(self, flat: Array, name: str) -> Array: ...

    def broadcast(self, flat: Array, name: str, root: int) -> Array: ...


@final
class HorovodCommunicator:
    """A `Communicator` on an initialized Horovod. Arrays travel flat: Horovod gathers no scalars."""

    def __init__(self, binding: Binding, topology: Topology) -> None:
        self.topology = topology
        self._binding = binding

    def allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Array:
        with waits_for_peers():
            return self._binding.allreduce(_flat(array), name, op).reshape(array.shape)

    def start_allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Callable[[], Array]:
        with waits_for_peers():
            wait = self._binding.start_allreduce(_flat(array), name, op)

        def result() -> Array:
            with waits_for_peers():
                return wait().reshape(array.shape)

        return result

    def allgather(self, array: Array, name: str) -> Array:
        with waits_for_peers():
            return self._binding.allgather(_flat(array), name).reshape(-1, *array.shape[1:])

    def broadcast(self, array: Array, name: str, root: int = 0) -> Array:
        with waits_for_peers():
            return self._binding.broadcast(_flat(array), name, root).reshape(array.shape)

    def barrier(self, name: str) -> None:
        # Horovod's own barrier takes no name, and an unnamed collective desynchronizes all later unnamed ones.
        self.allreduce(np.zeros(1, np.int32), name)

    def close(self) -> None:
        self.barrier("hvdtrain.close")
        self._binding.hvd.shutdown()


def _flat(array: Array) -> Array:
    return np.array(array).reshape(-1)  # a copy: the caller's may be read-only, and torch works in place
