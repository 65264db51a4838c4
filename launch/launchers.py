"""The launchers that there are."""

from __future__ import annotations

from hvdtrain.errors import UsageError, did_you_mean

LAUNCHERS = {
    "local": "workers on this machine, without ssh and MPI; restarts them",
    "ssh": "workers on hosts of yours, over ssh, without MPI; restarts them: -H node1:4,node2:4",
    "horovodrun": "Horovod's own launcher, over ssh: -H node1:4,node2:4",
    "mpirun": "Open MPI 4 and 5, MPICH, Intel MPI",
    "slurm": "an sbatch script with srun, or with MPI",
    "sagemaker": "a training job of Amazon SageMaker",
    "kubernetes": "an MPIJob for the MPI Operator",
}
"""Name → one line of help."""


def require_launcher(name: str) -> None:
    """Raise UsageError unless `name` is one of LAUNCHERS."""
    if name not in LAUNCHERS:
        raise UsageError(f"There is no launcher {name!r}.", "Nothing was started.", did_you_mean(name, LAUNCHERS))
