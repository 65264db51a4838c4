"""Ask the readers, innermost launcher first; the first one with evidence decides, and partial evidence is an error.

`READERS` is the order in which they are asked: the innermost launcher must win.

An `mpirun` inside an `sbatch` is MPI, not Slurm. A torchrun agent started by `srun` or `mpirun`, one per node, is
torchrun: the PMI or Open MPI variables that its workers inherit describe the agent. The other way round, an `mpirun`
inside a torchrun worker, does not happen. So an agent's variables (TORCHELASTIC_RUN_ID is there) come before MPI's, and
a bare RANK and WORLD_SIZE, which somebody exported, after them. Variables that tell of other processes and of no place
among them are asked last: whoever tells a place decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hvdtrain.errors import UsageError
from hvdtrain.topology.facts import Env
from hvdtrain.topology.reader import Reader
from hvdtrain.topology.readers import horovod, mpi, slurm, torchrun, unjoined
from hvdtrain.topology.readers.unjoined import Unjoined
from hvdtrain.topology.topology import Topology

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

HINTS = {
    "PBS": ("PBS_JOBID", "PBS_NODEFILE"),
    "LSF": ("LSB_JOBID", "LSB_MCPU_HOSTS"),
    "SageMaker": ("SM_HOSTS", "SM_CURRENT_HOST", "SM_NUM_GPUS"),
    "Kubernetes": ("KUBERNETES_SERVICE_HOST", "OMPI_MCA_orte_default_hostfile"),
}
"""Platforms whose variables describe hosts, not ranks: they help to start a job, never to find one's place in it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One platform's variables that are set, whether they decided, and why or why not."""

    platform: str
    variables: Mapping[str, str]
    used: bool
    why: str


def detect_topology(env: Env) -> Topology:
    """The topology that the variables in `env` (the caller passes `os.environ`) describe. Raises UsageError: evidence
    of a launcher that lacks rank or size, is not a number, or contradicts itself, or of other processes that cannot be
    joined. Never does an incomplete set of variables become "rank 0 of 1"."""
    reader = _deciding(env)
    return reader.read(env) if reader else Topology.single()


def explain(env: Env) -> list[Evidence]:
    """What was seen, innermost launcher first, hosts-only platforms last. Shows topology variables and no others.

    Raises nothing: where `detect_topology` would raise, the evidence that stops it says so.
    """
    deciding = _deciding(env)
    evidence = [_judge(reader, deciding, env) for reader in _readers_for(env) if reader.seen(env)]
    for platform, names in HINTS.items():
        seen = {name: env[name] for name in names if name in env}
        if seen:
            evidence.append(Evidence(platform, seen, False, "describes hosts, not ranks"))
    if deciding is None:
        why = "no launcher's variables describe this process, so it is the only one"
        evidence.append(Evidence("single process", {}, True, why))
    return evidence


def _readers_for(env: Env) -> tuple[Reader | Unjoined, ...]:
    """All readers, innermost launcher first."""
    if torchrun.AGENT not in env:
        return (*READERS, *UNJOINED)
    others = [reader for reader in READERS if reader not in (horovod.READER, torchrun.READER)]
    return (horovod.READER, torchrun.READER, *others, *UNJOINED)


def _deciding(env: Env) -> Reader | Unjoined | None:
    return next((reader for reader in _readers_for(env) if reader.applies(env)), None)


def _judge(reader: Reader | Unjoined, deciding: Reader | Unjoined | None, env: Env) -> Evidence:
    used = False
    if deciding is reader:
        try:
            topology = reader.read(env)
            used, why = True, f"innermost launcher: rank {topology.rank} of {topology.size}"
        except UsageError as error:
            why = f"stops here: {error.fact} {error.conflict}"
    elif deciding is None or not reader.applies(env):
        why = reader.outside(env) or "neither rank nor size is among them"
    else:
        why = f"{deciding.platform} comes first: it is inside, or says the same"
    return Evidence(reader.platform, reader.seen(env), used, why)
