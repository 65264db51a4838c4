"""One process: every collective is the identity. Needs neither Horovod nor a framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from hvdtrain.comm.interface import Array, Reduction
from hvdtrain.topology import Topology


@final
class SerialCommunicator:
    """A `Communicator` for a world of one."""

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
