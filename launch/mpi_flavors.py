"""How the implementations of MPI spell the same wish.

Sources: mpirun(1) of Open MPI 4.1 and 5.0 with `prterun --help`; MPICH's "Using the Hydra Process Manager"; Intel's
"MPI Library Developer Reference", chapters on mpiexec.hydra and its environment variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.launch.job import JobSpec

FLAVORS = {"openmpi4": "Open MPI 4", "openmpi5": "Open MPI 5", "mpich": "MPICH", "intel": "Intel MPI"}
"""Name on the command line → name for people."""

SSH = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
"""A question for a password, or a host that is off, would be waited for in silence."""


@dataclass(slots=True)
class Spelling:
    """Flags before the command, variables for the launcher, files that the flags name."""

    flags: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def require_flavor(flavor: str) -> None:
    """Raise UsageError unless `flavor` is one of FLAVORS."""
    if flavor not in FLAVORS:
        raise UsageError(f"The MPI is {flavor!r}.", "There is none of that name here.", did_you_mean(flavor, FLAVORS))


def flavor_of(version_text: str) -> str | None:
    """The flavor that `mpirun --version` tells of; None for one that is not known here."""
    open_mpi = re.search(r"\(Open ?(?:MPI|RTE)\)\s+(\d+)\.", version_text)
    if open_mpi:
        return {4: "openmpi4", 5: "openmpi5"}.get(int(open_mpi[1]))
    if "Intel(R) MPI" in version_text:
        return "intel"
    return "mpich" if "HYDRA" in version_text or "MPICH" in version_text else None


def spell(job: JobSpec, flavor: str, variables: Mapping[str, str], names: tuple[str, ...]) -> Spelling:
    """Everything between `mpirun` and the workers' command.

    Args:
        job: the job.
        flavor: one of FLAVORS.
        variables: set for the workers by the plan.
        names: of the user's variables that workers get.
    """
    passed = tuple(dict.fromkeys((*names, *sorted(variables))))
    return _open_mpi(job, flavor, passed) if flavor.startswith("openmpi") else _hydra(job, flavor, passed)


def _open_mpi(job: JobSpec, flavor: str, passed: tuple[str, ...]) -> Spelling:
    flags = ["-np", str(job.np)]
    if job.hosts:
        flags += ["--host", ",".join(f"{host.name}:{host.slots}" for host in job.used_hosts)]
    flags += _open_mpi_binding(job)
    for name in passed:
        flags += ["-x", name]
    flags += _open_mpi_network(job, flavor)
    if job.working_dir is not None:
        flags += ["--wdir", job.working_dir]
    if job.time_limit is not None:
        flags += ["--timeout", str(job.time_limit)]
    if job.allow_root:
        flags += ["--allow-run-as-root"]
    return Spelling(flags)


def _open_mpi_binding(job: JobSpec) -> list[str]:
    if job.binds_to_cores:
        return ["--bind-to", "core", "--map-by", f"slot:PE={job.cores_per_worker}"]
    return ["--bind-to", "none", "--map-by", "slot"]


def _open_mpi_network(job: JobSpec, flavor: str) -> list[str]:
    flags = ["--mca", "pml", "ob1", "--mca", "btl", "^openib"] if flavor == "openmpi4" else []
    nics = ",".join(job.nics)
    if nics:
        flags += ["--mca", "btl_tcp_if_include", nics]
    if nics and not job.is_local:
        # Open MPI 5 starts its daemons with PRRTE, whose settings have a flag of their own.
        daemons = ["--mca", "oob_tcp_if_include"] if flavor == "openmpi4" else ["--prtemca", "prte_if_include"]
        flags += [*daemons, nics]
    if job.hosts and not job.is_local:
        daemons = ["--mca", "plm_rsh_args"] if flavor == "openmpi4" else ["--prtemca", "plm_ssh_args"]
        flags += [*daemons, _ssh_arguments(job)]
    return flags


def _ssh_arguments(job: JobSpec) -> str:
    port = ["-p", str(job.ssh_port)] if job.ssh_port is not None else []
    return " ".join([*port, *SSH])


def _hydra(job: JobSpec, flavor: str, passed: tuple[str, ...]) -> Spelling:
    spelling = Spelling(["-n", str(job.np)])
    _hydra_hosts(job, flavor, spelling)
    _hydra_binding(job, flavor, spelling)
    if passed:
        spelling.flags += ["-genvlist", ",".join(passed)]
    if job.nics:
        spelling.flags += ["-iface", job.nics[0]]
        spelling.env["FI_TCP_IFACE"] = job.nics[0]
    if job.hosts and not job.is_local:
        name = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS" if flavor == "intel" else "HYDRA_LAUNCHER_EXTRA_ARGS"
        spelling.env[name] = _ssh_arguments(job)
    if job.working_dir is not None:
        spelling.flags += ["-wdir", job.working_dir]
    if job.time_limit is not None:
        spelling.env["I_MPI_JOB_TIMEOUT" if flavor == "intel" else "MPIEXEC_TIMEOUT"] = str(job.time_limit)
    return spelling


def _hydra_hosts(job: JobSpec, flavor: str, spelling: Spelling) -> None:
    hosts = job.used_hosts
    if not hosts:
        return
    if flavor == "mpich":
        spelling.flags += ["-hosts", ",".join(f"{host.name}:{host.slots}" for host in hosts)]
    elif len({host.slots for host in hosts}) == 1:
        spelling.flags += ["-hosts", ",".join(host.name for host in hosts), "-ppn", str(hosts[0].slots)]
    else:  # Intel's -hosts has one number for all hosts
        name = f"{job.name}.hosts"
        spelling.files[name] = "".join(f"{host.name}:{host.slots}\n" for host in hosts)
        spelling.flags += ["-machinefile", name]


def _hydra_binding(job: JobSpec, flavor: str, spelling: Spelling) -> None:
    if flavor == "mpich":
        spelling.flags += ["-bind-to", f"core:{job.cores_per_worker}" if job.binds_to_cores else "none"]
    elif job.binds_to_cores:
        spelling.env.update({"I_MPI_PIN": "1", "I_MPI_PIN_CELL": "core", "I_MPI_PIN_DOMAIN": "omp"})
    else:
        spelling.env["I_MPI_PIN"] = "0"
