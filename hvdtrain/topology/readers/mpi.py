"""Launchers of MPI programs: Open MPI's mpirun, IBM's jsrun, and those that set PMI's variables.

PMI is spoken by MPICH's and Intel's Hydra, MVAPICH's mpirun_rsh, Cray, and `srun --mpi=pmi2|pmix`. Open MPI, versions 4
and 5, is also what `horovodrun --mpi`, SageMaker's MPI and the MPI Operator start. Nothing tells the place of the node;
it is derived when there is one node and assumed otherwise. OMPI_COMM_WORLD_NODE_RANK is not a fact of ours: it is the
place of the process among those of its node, over all jobs. jsrun's own variables decide where the MPI under it sets
none; Spectrum MPI sets Open MPI's, which come first. PMIx tells a process its rank and nothing else by variable, and
Slurm's PMI2 no local facts: when the process is a Slurm task of the same rank (and size), Slurm's variables tell the
rest.
"""

from hvdtrain.topology.facts import Table
from hvdtrain.topology.reader import Reader, four_facts, host_by
from hvdtrain.topology.readers.slurm import fill_from_step, hosts_of_step

OPEN_MPI = Reader(
    platform="Open MPI",
    launcher="mpirun",
    table=four_facts(
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    hosts=host_by("PMIX_HOSTNAME"),
    context=("OMPI_COMM_WORLD_NODE_RANK", "OMPI_VERSION", "PMIX_HOSTNAME"),
)
JSRUN = Reader(
    platform="jsrun",
    launcher="jsrun",
    table=four_facts(
        "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"
    ),
)


def _pmi(platform: str, table: Table, context: tuple[str, ...] = ()) -> Reader:
    return Reader(platform, "pmi", table, fill=fill_from_step, hosts=hosts_of_step, context=context)


MVAPICH = _pmi(
    "MVAPICH",
    four_facts("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
)
PMI = _pmi(
    "PMI",
    {
        "rank": ("PMI_RANK",),
        "size": ("PMI_SIZE",),
        "local_rank": ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),  # Hydra's name, Cray's name
        "local_size": ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    },
)
PMIX = _pmi("PMIx", {"rank": ("PMIX_RANK",), "size": ("PMIX_SIZE",)}, ("PMIX_NAMESPACE", "PMIX_HOSTNAME"))
