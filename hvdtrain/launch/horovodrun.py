"""Horovod's own launcher. It starts workers by ssh (Gloo) or by the mpirun that it finds (MPI).

What it does beyond its manual was read in horovod/runner of version 0.28.1: gloo_run.py puts all variables into command
lines, util/remote.py switches ssh's check of host keys off, mpi_run.py gives Open MPI single-dash options.
"""

import math
import os
import re
from argparse import Namespace
from dataclasses import replace

from hvdtrain.errors import UsageError
from hvdtrain.launch import launcher_api
from hvdtrain.launch import option_groups as groups
from hvdtrain.launch.execute import find_program, path_with
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.rendering import SUPERVISED, LaunchPlan, Note, require_supported, shared_notes, worker_variables
from hvdtrain.launch.ssh.check import require_usable_hosts

CONTROLLERS = ("gloo", "mpi")

KEPT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TERM", "TMPDIR", "SSH_AUTH_SOCK", "VIRTUAL_ENV"),
    *("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUNBUFFERED", "XDG_CACHE_HOME", "CUDA_HOME", "CUDA_VISIBLE_DEVICES"),
    *("KERAS_BACKEND", "OMP_*", "HOROVOD_*", "HVDTRAIN_*", "NCCL_*", "TF_*", "UCX_*", "OMPI_MCA_*", "PRTE_MCA_*"),
)
"""Variables that horovodrun may see: it shows their values to everybody who may list processes."""

_SECRET = re.compile(r"SECRET|PASSW|TOKEN(?!IZ)|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY|_KEY$", re.IGNORECASE)
_UNSUPPORTED = (*SUPERVISED, "time_limit", "image", "slots_per_host")


def render(job: JobSpec, controller: str = "gloo", program: str = "horovodrun") -> LaunchPlan:
    """The command of a job with hosts, with one of CONTROLLERS; UsageError: it cannot do what the job asks for."""
    require_supported(job, "horovodrun", _UNSUPPORTED)
    _require_fit(job)
    return LaunchPlan(
        launcher=f"horovodrun ({'MPI' if controller == 'mpi' else 'Gloo'})",
        argv=(program, *_options(job, controller), *job.argv),
        env=_variables(job),
        keep=(*KEPT, *job.env),
        working_dir=job.working_dir,
        notes=_notes(job, controller),
    )


def _options(job: JobSpec, controller: str) -> list[str]:
    hosts = ",".join(f"{host.name}:{host.slots}" for host in job.used_hosts)
    options = [f"--{controller}", "-np", str(job.np), "-H", hosts, "--start-timeout", _seconds(job.start_timeout)]
    if job.nics:
        options += ["--network-interfaces", ",".join(job.nics)]
    if job.ssh_port is not None:
        options += ["--ssh-port", str(job.ssh_port)]
    if controller == "mpi":
        # One argument: argparse would take a separate value that begins with dashes for an option.
        options += ["--binding-args=--bind-to none --map-by slot"]
    return options


def _seconds(time: float) -> str:
    return str(max(1, math.ceil(time)))


def _variables(job: JobSpec) -> dict[str, str]:
    # horovodrun's own limit ends when it has looked at the hosts; workers then wait for each other.
    variables = {**worker_variables(job), "HVDTRAIN_START_TIMEOUT": _seconds(job.start_timeout)}
    if "CUDA_VISIBLE_DEVICES" in variables and not job.is_local:
        raise UsageError(
            f"Workers are to use GPUs {variables['CUDA_VISIBLE_DEVICES']}.",
            "horovodrun never passes CUDA_VISIBLE_DEVICES on to other hosts.",
            "use mpirun, or devices 0, 1, ... on each host.",
        )
    return variables


def _require_fit(job: JobSpec) -> None:
    if job.binding == "core":
        raise UsageError(
            "Workers are to be bound to cores.",
            "horovodrun starts them by ssh, which binds nothing.",
            "use mpirun or slurm, or leave --binding out: the number of threads is still set.",
        )
    secret = next((name for name in job.env if _SECRET.search(name)), None)
    if secret is not None:
        raise UsageError(
            f"{secret} is to be passed on and looks like a secret.",
            "horovodrun writes values into command lines, where every user of the hosts can read them.",
            "use mpirun, slurm or kubernetes, or a file that the workers read.",
        )


def _notes(job: JobSpec, controller: str) -> tuple[Note, ...]:
    shown = ", ".join(job.env) if job.env else "none beyond the usual"
    notes = [
        *shared_notes(job, "horovodrun asks each host which interfaces reach the others, which takes a while"),
        ("variables", f"{shown}; all others are left behind, as horovodrun writes values into command lines"),
    ]
    if controller == "mpi":
        notes.append(("binding", "two dashes, since Open MPI 5 refuses the -bind-to that horovodrun gives by itself"))
    if not job.is_local:
        notes.append(("ssh", "`hvdtrain launch` logs in to all hosts first and wants known keys; horovodrun takes any"))
    return tuple(notes)


def _start(options: Namespace, command: tuple[str, ...]) -> int:
    job = launcher_api.job_from(options, command, launcher_api.hosts_from(options))
    program = find_program("horovodrun") or "horovodrun"
    plan = render(job, options.controller, program)
    if options.controller == "mpi":  # horovodrun calls mpirun by its bare name
        plan = replace(plan, env={**plan.env, "PATH": path_with(find_program("mpirun") or program, os.environ)})
    if not options.dry_run:
        require_usable_hosts(job, "horovodrun", os.environ)
    return launcher_api.print_or_execute(plan, options.dry_run)


LAUNCHER = launcher_api.Launcher(
    "Horovod's own launcher, over ssh: -H node1:4,node2:4",
    (
        *(*groups.JOB, *groups.CLUSTER, groups.SSH_PORT, groups.NO_RESTARTS, groups.start_timeout(60.0)),
        groups.option("--controller", choices=CONTROLLERS, default="gloo"),
    ),
    _start,
    takes_hosts=True,
)
