"""mpirun of Open MPI 4 and 5, MPICH and Intel MPI."""

from __future__ import annotations

from hvdtrain.launch.job import JobSpec
from hvdtrain.launch.mpi_flavors import FLAVORS, require_flavor, spell
from hvdtrain.launch.plan import LaunchPlan
from hvdtrain.launch.resources import nic_note, resource_notes, worker_variables
from hvdtrain.launch.unsupported import reject_unsupported, require_hosts

_UNSUPPORTED = ("min_workers", "max_workers", "max_restarts", "image", "slots_per_host", "start_timeout", "backoff")


def render(job: JobSpec, flavor: str, program: str = "mpirun") -> LaunchPlan:
    """The mpirun command of a job.

    Args:
        job: with hosts.
        flavor: "openmpi4", "openmpi5", "mpich" or "intel".
        program: name or path of mpirun.

    Raises:
        UsageError: mpirun cannot do what the job asks for.
    """
    require_flavor(flavor)
    require_hosts(job, "mpirun")
    reject_unsupported(job, "mpirun", _UNSUPPORTED)
    variables = worker_variables(job)
    spelling = spell(job, flavor, variables, job.env)
    return LaunchPlan(
        launcher=f"mpirun ({FLAVORS[flavor]})",
        argv=(program, *spelling.flags, *job.argv),
        env={**variables, **spelling.env},
        files=spelling.files,
        notes=mpi_notes(job, flavor),
    )


def mpi_notes(job: JobSpec, flavor: str) -> tuple[tuple[str, str], ...]:
    """Why these flags."""
    notes = [*resource_notes(job), ("binding", _binding(job, flavor))]
    notes.append(nic_note(job, "MPI tries all interfaces that are up but the loopback, docker0 too"))
    if job.env:
        notes.append(("variables", f"{', '.join(job.env)} by name: their values stand in no command line"))
    if flavor == "openmpi4":
        notes.append(("openib", "off, as Horovod's documentation asks: it does not bear Horovod's threads"))
    if not job.is_local:
        notes.append(
            ("ssh", "asks for no password and waits 15 s for a host; `hvdtrain launch` logs in to all of them first")
        )
    if job.allow_root:
        notes.append(("root", "allowed because --allow-root was given"))
    return tuple(notes)


def _binding(job: JobSpec, flavor: str) -> str:
    if job.binds_to_cores:
        return f"each worker has {job.cores_per_worker} cores of its own"
    default = "by default Open MPI binds all threads of one of two workers to a single core"
    why = default if flavor.startswith("openmpi") else "the system moves threads to free cores"
    return f"none, as {why}; --cores-per-host gives each worker cores of its own"
