"""Horovod: the communicator over whichever framework's binding the job has loaded, and the settings of its world."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Protocol, final

import numpy as np

from hvdtrain.comm.failure import waits_for_peers
from hvdtrain.comm.interface import Array, Reduction
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology

_STARTERS = "`hvdtrain launch`, horovodrun, or the mpirun of the MPI that Horovod was built with"


class Binding(Protocol):
    """Horovod's module for one framework, and its collectives on flat numpy arrays."""

    hvd: Any

    def allreduce(self, flat: Array, name: str, op: Reduction) -> Array: ...

    def start_allreduce(self, flat: Array, name: str, op: Reduction) -> Callable[[], Array]: ...

    def allgather(self, flat: Array, name: str) -> Array: ...

    def broadcast(self, flat: Array, name: str, root: int) -> Array: ...


@final
class HorovodCommunicator:
    """A `Communicator` on an initialized Horovod. Arrays are sent flat: Horovod gathers no scalars."""

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


def transport(hvd: Any, on_gpu: bool) -> str:
    """What carries an allreduce of tensors: "nccl", "mpi" or "gloo"."""
    return "nccl" if on_gpu and hvd.nccl_built() else "mpi" if hvd.mpi_enabled() else "gloo"


def starts_processes_only(topology: Topology, environ: Mapping[str, str]) -> bool:
    """Whether the launcher does not connect the processes; then `comm.rendezvous.connect` does it."""
    return topology.launcher in ("torchrun", "slurm") and environ.get("HOROVOD_CONTROLLER", "gloo") == "gloo"


def confirmed(topology: Topology, hvd: Any) -> Topology:
    """`topology`, confirmed by Horovod, which has been initialized.

    Raises:
        UsageError: Horovod sees another world than the launcher's variables say.
    """
    if hvd.size() == 1 and topology.is_distributed:
        raise UsageError(
            f"{topology.launcher} started {topology.size} processes ({topology.source['size']}), but Horovod sees one.",
            "Each process would train alone on all of the data.",
            f"start it with {_STARTERS}: another MPI's mpirun does not connect them.",
        )
    disagreement = topology.disagreement(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
    if disagreement:
        raise UsageError(
            f"The launcher's variables and Horovod disagree: {disagreement}.",
            "Data would be split for another world than the one that trains.",
            "run `hvdtrain env --explain` under the same launcher to see which variable decided what.",
        )
    return topology.completed(hvd.local_rank(), hvd.local_size())


def bound_stalls(environ: MutableMapping[str, str], stall_timeout: float) -> None:
    """Let Horovod end the job when a collective stalls for `stall_timeout` seconds; by default it only warns."""
    environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, int(min(60, stall_timeout / 2)))))
    environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(max(2, int(stall_timeout))))


def yield_when_idle(environ: MutableMapping[str, str]) -> None:
    """Let Open MPI's waiting threads give way to ranks that compute; by default they spin. Read by MPI_Init.

    Eight ranks on two cores train the digits at 120 samples/s when they spin, and at 1,700 when they yield.
    """
    environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")


def sum_in_order(environ: MutableMapping[str, str]) -> None:
    """Keep Horovod from fusing what happens to be ready into one message: where a ring cuts it decides in which order
    three or more ranks' values are added, and so their last bits.
    """
    environ["HOROVOD_FUSION_THRESHOLD"] = "0"
