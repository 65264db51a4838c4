"""An average by central servers, over mpi4py: what rings of allreduce replaced, to be compared with them.

The first K ranks serve a part of the numbers each: they receive it from all workers, add it up, and send the mean back
(Li et al. 2014). Nothing is compressed or asynchronous.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class ServerAverage:
    """One rank's part. All ranks call `run` equally often.

    Args:
        world: MPI's communicator of all ranks.
        servers: how many of its ranks serve; the others work.
        numbers: float32 values of each worker.

    Raises:
        ValueError: there is no server, or no worker.
    """

    def __init__(self, world: Any, servers: int, numbers: int) -> None:
        self._world, self._servers, self._rank = world, servers, world.Get_rank()
        self._workers = world.Get_size() - servers
        if servers < 1 or self._workers < 1:
            raise ValueError(f"{servers} servers of {world.Get_size()} ranks")
        self._parts = np.array_split(np.arange(numbers), servers)
        self.values: NDArray[np.float32] = np.zeros(numbers, np.float32)
        """A worker's numbers, which `run` replaces by their mean over workers."""
        length = len(self._parts[self._rank]) if self.serves else 0
        self._received = np.zeros((self._workers, length), np.float32)

    @property
    def serves(self) -> bool:
        """Whether this rank is a server."""
        return bool(self._rank < self._servers)

    def run(self) -> None:
        """One average; returns when this rank's part is done."""
        self._serve() if self.serves else self._work()

    def _serve(self) -> None:
        from mpi4py import MPI

        sources = range(self._servers, self._servers + self._workers)
        MPI.Request.Waitall(
            [self._world.Irecv(row, source=source) for row, source in zip(self._received, sources, strict=True)]
        )
        mean = self._received.mean(axis=0, dtype=np.float32)
        MPI.Request.Waitall([self._world.Isend(mean, dest=source) for source in sources])

    def _work(self) -> None:
        from mpi4py import MPI

        views = [self.values[part[0] : part[-1] + 1] if len(part) else self.values[:0] for part in self._parts]
        MPI.Request.Waitall([self._world.Isend(view, dest=server) for server, view in enumerate(views)])
        MPI.Request.Waitall([self._world.Irecv(view, source=server) for server, view in enumerate(views)])
