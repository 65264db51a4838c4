"""Collectives of the training loop: the protocol, for one process, and by Horovod through a framework's binding."""

from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hvdtrain.comm.peer_failure import waits_for_peers
from hvdtrain.topology import Topology

Reduction = Literal["sum", "min", "max"]
Array = NDArray[Any]


class Communicator(Protocol):
    """Collectives. Every rank calls each of them, in any order, with the same name, dtype and shape.

    Names identify an operation across ranks: where a rank runs another one, a stall names both, and no rank's numbers
    are added to something else. Arrays are of dtype uint8, int32, int64, float32 or float64. All methods raise
    `PeerError` when another rank has ended.
    """

    topology: Topology

    def allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Array:
        """The elementwise reduction over ranks; same shape and dtype."""

    def start_allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Callable[[], Array]:
        """As `allreduce`, without waiting: what it returns waits for the result; call that once. Only one of a name may
        be pending."""

    def allgather(self, array: Array, name: str) -> Array:
        """All ranks' arrays joined along axis 0 in the order of ranks; axis 0 may differ in length."""

    def broadcast(self, array: Array, name: str, root: int = 0) -> Array:
        """The root's array; the others give one of the same shape and dtype, whose values do not matter."""

    def barrier(self, name: str) -> None:
        """Returns when every rank has called it."""

    def close(self) -> None:
        """Wait for all ranks to close, so that no rank's last operation is interrupted."""


class SerialCommunicator:
    """A `Communicator` of one process: every collective is the identity. It needs neither Horovod nor a framework."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    def allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Array:  # noqa: ARG002
        return array.copy()

    def start_allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Callable[[], Array]:  # noqa: ARG002
        return array.copy

    def allgather(self, array: Array, name: str) -> Array:  # noqa: ARG002
        return array.copy()

    def broadcast(self, array: Array, name: str, root: int = 0) -> Array:  # noqa: ARG002
        return array.copy()

    def barrier(self, name: str) -> None:
        pass

    def close(self) -> None:
        pass


class Binding(Protocol):
    """Horovod's module for one framework, and its collectives on flat numpy arrays."""

    hvd: Any

    def allreduce(self, flat: Array, name: str, op: Reduction) -> Array: ...

    def start_allreduce(self, flat: Array, name: str, op: Reduction) -> Callable[[], Array]: ...

    def allgather(self, flat: Array, name: str) -> Array: ...

    def broadcast(self, flat: Array, name: str, root: int) -> Array: ...


class HorovodCommunicator:
    """A `Communicator` on an initialized Horovod. Arrays are sent flat: Horovod gathers no scalars."""

    def __init__(self, binding: Binding, topology: Topology) -> None:
        self.topology = topology
        self._binding = binding

    def allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Array:
        with waits_for_peers(name=name):
            return self._binding.allreduce(_flat(array), name, op).reshape(array.shape)

    def start_allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Callable[[], Array]:
        with waits_for_peers(name=name):
            wait = self._binding.start_allreduce(_flat(array), name, op)

        def result() -> Array:
            with waits_for_peers(name=name):
                return wait().reshape(array.shape)

        return result

    def allgather(self, array: Array, name: str) -> Array:
        with waits_for_peers(name=name):
            return self._binding.allgather(_flat(array), name).reshape(-1, *array.shape[1:])

    def broadcast(self, array: Array, name: str, root: int = 0) -> Array:
        with waits_for_peers(name=name):
            return self._binding.broadcast(_flat(array), name, root).reshape(array.shape)

    def barrier(self, name: str) -> None:
        # Horovod's own barrier takes no name, and an unnamed collective desynchronizes all later unnamed ones.
        self.allreduce(np.zeros(1, np.int32), name)

    def close(self) -> None:
        self.barrier("hvdtrain.close")
        self._binding.hvd.shutdown()


def _flat(array: Array) -> Array:
    return np.array(array).reshape(-1)  # a copy: the caller's may be read-only, and torch works in place


def transport(hvd: Any, on_gpu: bool) -> str:
    """What carries an allreduce of tensors: "nccl", "mpi" or "gloo"."""
    return "nccl" if on_gpu and hvd.nccl_built() else "mpi" if hvd.mpi_enabled() else "gloo"
