"""Launchers of MPI programs by PMI: MPICH's and Intel's Hydra, MVAPICH's mpirun_rsh, Cray, `srun --mpi=pmi2|pmix`.

PMIx tells a process its rank and nothing else by variable, and Slurm's PMI2 no local facts: when the process is a
Slurm task of the same rank (and size), Slurm's variables tell the rest.
"""

from __future__ import annotations

from hvdtrain.topology.assume import assume_place
from hvdtrain.topology.facts import Env, Facts, Table
from hvdtrain.topology.reader import Reader
from hvdtrain.topology.readers.slurm import fill_from_step, hosts_of_step


def _place(facts: Facts, _env: Env) -> Facts:
    return assume_place(facts)


def _reader(platform: str, table: Table, context: tuple[str, ...] = ()) -> Reader:
    return Reader(
        platform=platform,
        launcher="pmi",
        table=table,
        place=_place,
        hosts=hosts_of_step,
        fill=fill_from_step,
        context=context,
    )


MVAPICH = _reader(
    "MVAPICH",
    {
        "rank": ("MV2_COMM_WORLD_RANK",),
        "size": ("MV2_COMM_WORLD_SIZE",),
        "local_rank": ("MV2_COMM_WORLD_LOCAL_RANK",),
        "local_size": ("MV2_COMM_WORLD_LOCAL_SIZE",),
    },
)
PMI = _reader(
    "PMI",
    {
        "rank": ("PMI_RANK",),
        "size": ("PMI_SIZE",),
        "local_rank": ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),  # Hydra's name, Cray's name
        "local_size": ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    },
)
PMIX = _reader("PMIx", {"rank": ("PMIX_RANK",), "size": ("PMIX_SIZE",)}, ("PMIX_NAMESPACE", "PMIX_HOSTNAME"))
