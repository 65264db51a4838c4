"""A communicator that stands for many ranks in one process, at the boundary where bytes come from the network.

What other ranks would send is made up from what this rank sends: the same, except where the caller says how theirs
differ. What a rank receives is counted: all ranks' arrays of an allgather, and for an allreduce twice the array, as a
ring sends it (each half of a ring's allreduce brings a rank (N − 1) / N of the array).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.topology import Topology

RANKS_PER_HOST: Final = 8

Array = NDArray[Any]
Others = Callable[[Array, int, str], Array]
"""An array, how many ranks there are, and the operation's name → what all of them send together, along axis 0; or the
sum of what they send."""


def same_of_all(array: Array, size: int, _name: str) -> Array:
    return np.tile(array, (size, *[1] * (array.ndim - 1)))


def sum_of_same(array: Array, size: int, _name: str) -> Array:
    summed: Array = array * array.dtype.type(size)
    return summed


@dataclass
class StandIn:
    """Rank 0 of `topology.size` ranks. `received`: bytes so far, by the name of the operation."""

    topology: Topology
    others: Others = same_of_all
    sums: Others = sum_of_same
    received: dict[str, int] = field(default_factory=dict)

    def allreduce(self, array: Array, name: str, op: str = "sum") -> Array:
        self._count(name, 2 * array.nbytes)
        return self.sums(array, self.topology.size, name) if op == "sum" else array.copy()

    def start_allreduce(self, array: Array, name: str, op: str = "sum") -> Callable[[], Array]:
        result = self.allreduce(array, name, op)
        return lambda: result

    def allgather(self, array: Array, name: str) -> Array:
        gathered = self.others(array, self.topology.size, name)
        self._count(name, gathered.nbytes)
        return gathered

    def broadcast(self, array: Array, name: str, root: int = 0) -> Array:  # noqa: ARG002
        self._count(name, array.nbytes)
        return array.copy()

    def barrier(self, name: str) -> None:
        self._count(name, 8)

    def close(self) -> None:
        pass

    def take_received(self) -> int:
        """Bytes since the last call."""
        total, self.received = sum(self.received.values()), {}
        return total

    def _count(self, name: str, count: int) -> None:
        self.received[name] = self.received.get(name, 0) + count


def topology_of(size: int) -> Topology:
    """Of rank 0 on the first of many hosts."""
    local = min(size, RANKS_PER_HOST)
    return Topology(0, size, 0, local, 0, size // local, launcher="slurm")
