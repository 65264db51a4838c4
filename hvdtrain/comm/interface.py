"""Collectives of the training loop: the protocol, and its implementation for one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, final

from numpy.typing import NDArray

from hvdtrain.topology import Topology

Reduction = Literal["sum", "min", "max"]
Array = NDArray[Any]


class Communicator(Protocol):
    """Collectives. Every rank calls each of them, in any order, with the same name, dtype and shape.

    Names identify an operation across ranks: a rank that runs another one leads to a stall that names
    both, instead of one rank's numbers being added to something else.
    Arrays are of dtype uint8, int32, int64, float32 or float64. All raise `PeerError` when another rank has ended.
    """

    topology: Topology

    def allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Array:
        """The elementwise reduction over ranks; same shape and dtype."""
        ...

    def start_allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Callable[[], Array]:
        """As `allreduce`, without waiting: what it returns waits for the reduction and returns it. Call that once.

        Only one of each name may be pending.
        """
        ...

    def allgather(self, array: Array, name: str) -> Array:
        """All ranks' arrays joined along axis 0 in the order of ranks; axis 0 may differ in length."""
        ...

    def broadcast(self, array: Array, name: str, root: int = 0) -> Array:
        """The root's array; the others give one of the same shape and dtype, whose values do not matter."""
        ...

    def barrier(self, name: str) -> None:
        """Returns when every rank has called it."""
        ...

    def close(self) -> None:
        """Wait for all ranks to close, so that no rank's last operation is interrupted."""
        ...


@final
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
