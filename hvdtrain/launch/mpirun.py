"""mpirun of Open MPI 4 and 5, MPICH and Intel MPI, and how each of them spells its options.

Sources: mpirun(1) of Open MPI 4.1 and 5.0 with `prterun --help`; MPICH's "Using the Hydra Process Manager"; Intel's
"MPI Library Developer Reference", chapters on mpiexec.hydra and its environment variables.
"""

import os
import re
import subprocess
from argparse import Namespace
from dataclasses import dataclass, field

from hvdtrain.errors import UsageError
from hvdtrain.launch import launcher_api
from hvdtrain.launch import option_groups as groups
from hvdtrain.launch.execute import find_program, run_program
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.option_groups import FLAVORS
from hvdtrain.launch.rendering import SUPERVISED, LaunchPlan, Note, require_supported, shared_notes, worker_variables
from hvdtrain.launch.ssh.check import require_usable_hosts
from hvdtrain.launch.worker_environment import needed_names

SSH = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
"""A question for a password, or a host that is off, would be waited for in silence."""

_VERSION_SECONDS = 30.0
_CONFLICT = "Its options depend on the MPI that it belongs to."
_HINT = f"say which it is with --mpi: {', '.join(FLAVORS)}."
DAEMONS = {
    "openmpi4": ("--mca", "oob_tcp_if_include", "plm_rsh_args"),
    "openmpi5": ("--prtemca", "prte_if_include", "plm_ssh_args"),
}
"""Open MPI's option for settings of its daemons, which version 5 starts with PRRTE; the names of two settings: network
interfaces, and options for ssh."""
_UNSUPPORTED = (*SUPERVISED, "image", "slots_per_host", "start_timeout")


def render(job: JobSpec, flavor: str, program: str = "mpirun") -> LaunchPlan:
    """The command of a job with hosts, for one of FLAVORS; UsageError: it cannot do what the job asks for."""
    require_supported(job, "mpirun", _UNSUPPORTED)
    arguments = mpirun_arguments(job, flavor)
    return LaunchPlan(
        launcher=f"mpirun ({FLAVORS[flavor]})",
        argv=(program, *arguments.options, *job.argv),
        env=arguments.env,
        files=arguments.files,
        notes=_notes(job, flavor),
    )


def _notes(job: JobSpec, flavor: str) -> tuple[Note, ...]:
    binding = ("binding", _binding(job, flavor))
    notes = shared_notes(job, "MPI tries all interfaces that are up but the loopback, docker0 too", binding)
    if job.env:
        notes.append(("variables", f"{', '.join(job.env)} by name: their values stand in no command line"))
    if flavor == "openmpi5" and _adds_per_host(job):
        notes.append(("sums", "on each host first, then between hosts by a ring: Open MPI's tree sends twice as much"))
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


@dataclass(slots=True)
class MpirunArguments:
    """Options before the command, variables for launcher and workers, files that the options name."""

    options: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def mpirun_arguments(job: JobSpec, flavor: str) -> MpirunArguments:
    """Everything between `mpirun` and the workers' command; `flavor` is one of FLAVORS."""
    arguments = MpirunArguments(env=worker_variables(job))
    passed = tuple(dict.fromkeys((*job.env, *sorted(arguments.env))))
    (_open_mpi if flavor.startswith("openmpi") else _hydra)(job, flavor, passed, arguments)
    return arguments


def _open_mpi(job: JobSpec, flavor: str, passed: tuple[str, ...], arguments: MpirunArguments) -> None:
    options = arguments.options
    options += ["-np", str(job.np)]
    if job.hosts:
        options += ["--host", ",".join(f"{host.name}:{host.slots}" for host in job.used_hosts)]
    binding, place = ("core", f"slot:PE={job.cores_per_worker}") if job.binds_to_cores else ("none", "slot")
    options += ["--bind-to", binding, "--map-by", place]
    for name in passed:
        options += ["-x", name]
    options += _open_mpi_network(job, flavor)
    if job.working_dir is not None:
        options += ["--wdir", job.working_dir]
    if job.time_limit is not None:
        options += ["--timeout", str(job.time_limit)]
    if job.allow_root:
        options += ["--allow-run-as-root"]


def _open_mpi_network(job: JobSpec, flavor: str) -> list[str]:
    options = ["--mca", "pml", "ob1", "--mca", "btl", "^openib"] if flavor == "openmpi4" else []
    for_daemons, interfaces, ssh = DAEMONS[flavor]
    nics = ",".join(job.nics)
    if nics:
        options += ["--mca", "btl_tcp_if_include", nics]
    if nics and not job.is_local:
        options += [for_daemons, interfaces, nics]
    if flavor == "openmpi5" and _adds_per_host(job):
        options += ["--mca", "coll_han_use_allreduce_algorithm", "simple"]
    if job.hosts and not job.is_local:
        options += [for_daemons, ssh, _ssh_arguments(job)]
    return options


def _adds_per_host(job: JobSpec) -> bool:
    """Whether Open MPI 5 shall add on each host first, and then between hosts by the ring of `comm/ring_rules.conf`.

    By itself it adds along a tree of hosts, which from three hosts on sends through some links twice as much. This must
    be the same for all ranks, none of which knows the number of hosts: only who starts them can set it.
    """
    return len(job.used_hosts) >= 3 and job.np > len(job.used_hosts)


def _ssh_arguments(job: JobSpec) -> str:
    port = ["-p", str(job.ssh_port)] if job.ssh_port is not None else []
    return " ".join([*port, *SSH])


def _hydra(job: JobSpec, flavor: str, passed: tuple[str, ...], arguments: MpirunArguments) -> None:
    arguments.options += ["-n", str(job.np)]
    _hydra_hosts(job, flavor, arguments)
    _hydra_binding(job, flavor, arguments)
    if passed:
        arguments.options += ["-genvlist", ",".join(passed)]
    if job.nics:
        arguments.options += ["-iface", job.nics[0]]
        arguments.env["FI_TCP_IFACE"] = job.nics[0]
    if job.hosts and not job.is_local:
        name = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS" if flavor == "intel" else "HYDRA_LAUNCHER_EXTRA_ARGS"
        arguments.env[name] = _ssh_arguments(job)
    if job.working_dir is not None:
        arguments.options += ["-wdir", job.working_dir]
    if job.time_limit is not None:
        arguments.env["I_MPI_JOB_TIMEOUT" if flavor == "intel" else "MPIEXEC_TIMEOUT"] = str(job.time_limit)


def _hydra_hosts(job: JobSpec, flavor: str, arguments: MpirunArguments) -> None:
    hosts = job.used_hosts
    if not hosts:
        return
    if flavor == "mpich":
        arguments.options += ["-hosts", ",".join(f"{host.name}:{host.slots}" for host in hosts)]
    elif len({host.slots for host in hosts}) == 1:
        arguments.options += ["-hosts", ",".join(host.name for host in hosts), "-ppn", str(hosts[0].slots)]
    else:  # Intel's -hosts has one number for all hosts
        name = f"{job.name}.hosts"
        arguments.files[name] = "".join(f"{host.name}:{host.slots}\n" for host in hosts)
        arguments.options += ["-machinefile", name]


def _hydra_binding(job: JobSpec, flavor: str, arguments: MpirunArguments) -> None:
    if flavor == "mpich":
        arguments.options += ["-bind-to", f"core:{job.cores_per_worker}" if job.binds_to_cores else "none"]
    elif job.binds_to_cores:
        arguments.env.update({"I_MPI_PIN": "1", "I_MPI_PIN_CELL": "core", "I_MPI_PIN_DOMAIN": "omp"})
    else:
        arguments.env["I_MPI_PIN"] = "0"


def _start(options: Namespace, command: tuple[str, ...]) -> int:
    hosts = launcher_api.hosts_from(options)
    job = launcher_api.job_from(options, command, hosts, env=needed_names(os.environ))
    program = find_program("mpirun")
    flavor = options.mpi or mpi_flavor(program)
    plan = render(job, flavor, program or "mpirun")
    if not options.dry_run:
        if flavor.startswith("openmpi") and os.geteuid() == 0 and not options.allow_root:
            raise UsageError(
                "This is root.",
                "Open MPI refuses to run as root unless it is asked to.",
                "use an ordinary user, or add --allow-root.",
            )
        require_same_mpi(options.mpi, program)
        require_usable_hosts(job, "mpirun", os.environ)
    return launcher_api.print_or_execute(plan, options.dry_run)


def flavor_of(version_text: str) -> str | None:
    """The flavor that `mpirun --version` shows; None for an unknown one."""
    open_mpi = re.search(r"\(Open ?(?:MPI|RTE)\)\s+(\d+)\.", version_text)
    if open_mpi:
        return {4: "openmpi4", 5: "openmpi5"}.get(int(open_mpi[1]))
    if "Intel(R) MPI" in version_text:
        return "intel"
    return "mpich" if "HYDRA" in version_text or "MPICH" in version_text else None


def mpi_flavor(program: str | None) -> str:
    """The flavor of the mpirun at `program`; UsageError where there is none, or its `--version` does not tell."""
    if program is None:
        raise UsageError("There is no mpirun here.", _CONFLICT, _HINT)
    try:
        done = run_program([program, "--version"], _VERSION_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{program} does not tell its version: {error}.", _CONFLICT, _HINT) from error
    version = done.stdout + done.stderr
    flavor = flavor_of(version)
    if flavor is None:
        first = (version.strip().splitlines() or [f"exit code {done.returncode}"])[0][:120]
        raise UsageError(f"{program} is of an MPI not known here: {first!r}.", _CONFLICT, _HINT)
    return flavor


def require_same_mpi(flavor: str | None, program: str | None) -> None:
    """Raise UsageError where --mpi contradicts the mpirun that is here; it may speak for one that does not tell."""
    if flavor is None or program is None:
        return
    try:
        actual = mpi_flavor(program)
    except UsageError:
        return
    if actual != flavor:
        raise UsageError(
            f"--mpi is {flavor}, and {program} is of {actual}.",
            "Each MPI has options of its own.",
            f"leave --mpi out, or put the mpirun of {flavor} on PATH.",
        )


LAUNCHER = launcher_api.Launcher(
    "Open MPI 4 and 5, MPICH, Intel MPI",
    (
        *(*groups.JOB, *groups.CLUSTER, groups.SSH_PORT, groups.NO_RESTARTS),
        *(groups.TIME_LIMIT, groups.MPI, groups.BINDING, groups.ALLOW_ROOT),
    ),
    _start,
    takes_hosts=True,
)
