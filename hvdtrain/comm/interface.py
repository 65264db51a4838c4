"""What the loop may ask of the other ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

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

        Of one name, one may be under way at a time.
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
        """Leave in order: waits for the others first, so that nobody's last operation is cut off."""
        ...
