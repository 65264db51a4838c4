"""`READERS` is the order in which they are asked: the innermost launcher must win.

An `mpirun` inside an `sbatch` is MPI, not Slurm. A torchrun agent started by `srun` or `mpirun`, one per node, is
torchrun: the PMI or Open MPI variables that its workers inherit describe the agent. The other way round, an `mpirun`
inside a torchrun worker, does not happen. So an agent's variables (TORCHELASTIC_RUN_ID is there) come before MPI's, and
a bare RANK and WORLD_SIZE, which somebody exported, after them. Variables that tell of other processes and of no place
among them are asked last: whoever tells a place decides.
"""

from hvdtrain.topology.facts import Env
from hvdtrain.topology.reader import Reader
from hvdtrain.topology.readers import horovod, mpi, slurm, torchrun, unjoined
from hvdtrain.topology.readers.unjoined import Unjoined

READERS: tuple[Reader, ...] = (
    horovod.READER,
    mpi.OPEN_MPI,
    mpi.MVAPICH,
    mpi.PMI,
    mpi.JSRUN,
    mpi.PMIX,
    torchrun.READER,
    slurm.READER,
)
UNJOINED = (unjoined.PALS, unjoined.ALPS, torchrun.SETTINGS, unjoined.TF_CONFIG)


def readers_for(env: Env) -> tuple[Reader | Unjoined, ...]:
    """All readers, innermost launcher first."""
    if torchrun.AGENT not in env:
        return (*READERS, *UNJOINED)
    others = [reader for reader in READERS if reader not in (horovod.READER, torchrun.READER)]
    return (horovod.READER, torchrun.READER, *others, *UNJOINED)
