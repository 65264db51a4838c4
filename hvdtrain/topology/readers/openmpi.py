"""Open MPI's mpirun, versions 4 and 5 (and what is built on it: `horovodrun --mpi`, SageMaker's MPI, MPI Operator).

OMPI_COMM_WORLD_NODE_RANK is no fact of ours: it is the place of the process among those of its node, over all jobs.
Nothing tells the place of the node; it is derived when there is one node and assumed otherwise.
"""

from __future__ import annotations

from hvdtrain.topology.assume import assume_place
from hvdtrain.topology.facts import Env, Facts
from hvdtrain.topology.reader import Reader


def _place(facts: Facts, _env: Env) -> Facts:
    return assume_place(facts)


def _hosts(facts: Facts, env: Env) -> tuple[str, ...]:
    return (env["PMIX_HOSTNAME"],) if facts["num_nodes"].value == 1 and env.get("PMIX_HOSTNAME") else ()


READER = Reader(
    platform="Open MPI",
    launcher="mpirun",
    table={
        "rank": ("OMPI_COMM_WORLD_RANK",),
        "size": ("OMPI_COMM_WORLD_SIZE",),
        "local_rank": ("OMPI_COMM_WORLD_LOCAL_RANK",),
        "local_size": ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    },
    place=_place,
    hosts=_hosts,
    context=("OMPI_COMM_WORLD_NODE_RANK", "OMPI_VERSION", "PMIX_HOSTNAME"),
)
