"""Which ranks a container runs, and the variables by which they find the ranks of other containers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.container.contract import JOB_VARIABLE, Container

PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
"""The toolkit's name for it, taken over where there is no toolkit."""

_MPI = {
    "rank": "OMPI_COMM_WORLD_RANK",
    "size": "OMPI_COMM_WORLD_SIZE",
    "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
    "local_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
_FIRST_PORT, _PORTS = 20_000, 10_000  # below Linux's range for outgoing connections, 32768 and up


@dataclass(frozen=True, slots=True)
class Place:
    """Where one worker stands in its job, as torchrun counts: `node_rank` is the place of its host."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    num_nodes: int


def places(container: Container, environ: Mapping[str, str]) -> tuple[Place, ...]:
    """The workers that this process is to start: one under the toolkit's mpirun, else all of this host.

    Raises:
        UsageError: their number is none.
    """
    num_nodes = len(container.hosts)
    if _MPI["rank"] in environ:
        try:
            told = {name: int(environ[variable]) for name, variable in _MPI.items()}
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"mpirun's variables lack one, or one is no number: {error}.",
                f"A rank of the toolkit's mpirun has all of {', '.join(_MPI.values())}.",
                "use Open MPI 4, as sagemaker-training asks for.",
            ) from error
        return (Place(**told, node_rank=container.host_index, num_nodes=num_nodes),)
    count = _processes_per_host(container)
    index = container.host_index
    return tuple(Place(index * count + n, num_nodes * count, n, count, index, num_nodes) for n in range(count))


def meeting_variables(container: Container, place: Place, environ: Mapping[str, str]) -> dict[str, str]:
    """What a worker of `place` needs to find the others by hvdtrain's own rendezvous: no ssh, no MPI.

    They meet at the first host, on a port that follows from the job's name, since all of them know that.
    """
    digest = hashlib.sha256(environ.get(JOB_VARIABLE, "").encode()).digest()
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.node_rank),
        "GROUP_WORLD_SIZE": str(place.num_nodes),
        "MASTER_ADDR": environ.get("MASTER_ADDR") or container.hosts[0],
        "MASTER_PORT": environ.get("MASTER_PORT") or str(_FIRST_PORT + int.from_bytes(digest[:4], "big") % _PORTS),
    }


def _processes_per_host(container: Container) -> int:
    value = container.hyperparameters.get(PROCESSES_PER_HOST, 1)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
        raise UsageError(
            f"The hyperparameter {PROCESSES_PER_HOST} is {value!r}.",
            "It is the number of workers of each host.",
            "give a whole number from 1 to 1024; usual is one for each GPU.",
        )
    return value
