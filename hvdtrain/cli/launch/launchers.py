"""The options of each launcher of `hvdtrain launch`, and how it starts a job; `sagemaker` has SageMaker's options."""

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from hvdtrain.cli.launch import jobs
from hvdtrain.cli.launch import option_groups as groups
from hvdtrain.cli.launch.option_groups import Option, number, option
from hvdtrain.errors import UsageError
from hvdtrain.launch import horovodrun, local, mpirun, slurm
from hvdtrain.launch.execute import find_program, mpi_flavor, path_with
from hvdtrain.launch.rendering import comment, resource_notes
from hvdtrain.launch.ssh import launcher as ssh_launcher
from hvdtrain.launch.ssh.check import require_usable_hosts
from hvdtrain.launch.ssh.command import SshOptions, preview
from hvdtrain.launch.ssh.host_addresses import is_this_machine
from hvdtrain.launch.worker_environment import needed_names


@dataclass(frozen=True, slots=True)
class Launcher:
    """One launcher.

    Attributes:
        line: of help.
        options: what it can be told, besides its hosts.
        start: starts the job of parsed options and a command, or prints it; returns the exit code.
        takes_hosts: whether -H, --hostfile and --rank-table say where workers run.
    """

    line: str
    options: tuple[Option, ...]
    start: Callable[[Namespace, tuple[str, ...]], int]
    takes_hosts: bool = False


def _start_local(options: Namespace, command: tuple[str, ...]) -> int:
    job = jobs.job_from(options, command, jobs.this_host(options.np))
    if not options.dry_run:
        jobs.require_outside_job()
        return local.run(job)
    start = ("start", "each is told its rank and where the others are by variables; no ssh, no MPI")
    print(comment(f"hvdtrain launch local: {job.np} processes, each of them:", (*resource_notes(job), start)))
    print(shlex.join(job.argv))
    return 0


def _start_ssh(options: Namespace, command: tuple[str, ...]) -> int:
    job = jobs.job_from(options, command, jobs.hosts_now(options))
    reach = SshOptions(job.python, job.ssh_port, options.link_timeout, checks_host_keys=not options.no_host_key_check)
    if not options.dry_run:
        jobs.require_outside_job()
        return ssh_launcher.run(job, reach)
    ssh_launcher.require_runnable(job, os.environ)
    sys.stdout.write(preview(job, reach, is_this_machine, os.environ, os.getcwd()))
    return 0


def _start_horovodrun(options: Namespace, command: tuple[str, ...]) -> int:
    job = jobs.job_from(options, command, jobs.hosts_from(options))
    program = find_program("horovodrun") or "horovodrun"
    plan = horovodrun.render(job, options.controller, program)
    if options.controller == "mpi":  # horovodrun calls mpirun by its bare name
        plan = replace(plan, env={**plan.env, "PATH": path_with(find_program("mpirun") or program, os.environ)})
    if not options.dry_run:
        require_usable_hosts(job, "horovodrun", os.environ)
    return jobs.print_or_execute(plan, options.dry_run)


def _start_mpirun(options: Namespace, command: tuple[str, ...]) -> int:
    job = jobs.job_from(options, command, jobs.hosts_from(options), env=needed_names(os.environ))
    program = find_program("mpirun")
    flavor = options.mpi or mpi_flavor(program)
    plan = mpirun.render(job, flavor, program or "mpirun")
    if not options.dry_run:
        _require_user(flavor, options.allow_root)
        _require_same_mpi(options.mpi, program)
        require_usable_hosts(job, "mpirun", os.environ)
    return jobs.print_or_execute(plan, options.dry_run)


def _require_same_mpi(said: str | None, program: str | None) -> None:
    """--mpi is for an mpirun that does not tell; for --dry-run also for one that is elsewhere."""
    if said is None or program is None:
        return
    try:
        found = mpi_flavor(program)
    except UsageError:
        return  # it does not tell
    if found != said:
        raise UsageError(
            f"--mpi is {said}, and {program} is of {found}.",
            "Each MPI has options of its own.",
            f"leave --mpi out, or put the mpirun of {said} on PATH.",
        )


def _require_user(flavor: str, allow_root: bool) -> None:
    if flavor.startswith("openmpi") and os.geteuid() == 0 and not allow_root:
        raise UsageError(
            "This is root.",
            "Open MPI refuses to run as root unless it is asked to.",
            "use an ordinary user, or add --allow-root.",
        )


def _start_slurm(options: Namespace, command: tuple[str, ...]) -> int:
    by_mpirun = options.start == "mpirun"
    job = jobs.job_from(options, command, env=needed_names(os.environ) if by_mpirun else ())
    own = slurm.SlurmOptions(inner=options.start, partition=options.partition, account=options.account)
    if by_mpirun:
        program = find_program("mpirun")
        own = replace(own, mpirun=program or "mpirun", flavor=options.mpi or mpi_flavor(program))
    return jobs.print_or_execute(slurm.render(job, own), options.dry_run, options.overwrite)


def _start_kubernetes(options: Namespace, command: tuple[str, ...]) -> int:
    from hvdtrain.launch import kubernetes  # and with it yaml

    job = jobs.job_from(options, command, python="python")
    own = kubernetes.KubernetesOptions(
        flavor=options.mpi or "openmpi5",
        namespace=options.namespace,
        memory=options.memory,
        shared_memory=options.shm_size,
        claim=options.claim,
        run_as_user=options.run_as_user,
    )
    return jobs.print_or_execute(kubernetes.render(job, own), options.dry_run, options.overwrite)


def _start_sagemaker(options: Namespace, command: tuple[str, ...]) -> int:
    from hvdtrain.cli.launch import sagemaker

    return sagemaker.start(options, command)


LAUNCHERS: Final[Mapping[str, Launcher]] = {
    "local": Launcher(
        "workers on this machine, without ssh and MPI; restarts them",
        (*groups.JOB, *groups.RESTARTS, groups.BACKOFF, *groups.ELASTIC, groups.start_timeout(300.0)),
        _start_local,
    ),
    "ssh": Launcher(
        "workers on your hosts, over ssh, without MPI; restarts them: -H node1:4,node2:4",
        (
            *(*groups.JOB, *groups.CLUSTER, groups.SSH_PORT),
            *(*groups.RESTARTS, groups.BACKOFF, *groups.ELASTIC, groups.start_timeout(300.0)),
            groups.seconds(
                "--link-timeout", 15.0, "seconds without an answer after which a host counts as lost (default: {})"
            ),
            option("--no-host-key-check", action="store_true", help="don't check host keys; unsafe"),
        ),
        _start_ssh,
        takes_hosts=True,
    ),
    "horovodrun": Launcher(
        "Horovod's own launcher, over ssh: -H node1:4,node2:4",
        (
            *(*groups.JOB, *groups.CLUSTER, groups.SSH_PORT, groups.NO_RESTARTS, groups.start_timeout(60.0)),
            option("--controller", choices=horovodrun.CONTROLLERS, default="gloo"),
        ),
        _start_horovodrun,
        takes_hosts=True,
    ),
    "mpirun": Launcher(
        "Open MPI 4 and 5, MPICH, Intel MPI",
        (
            *(*groups.JOB, *groups.CLUSTER, groups.SSH_PORT, groups.NO_RESTARTS),
            *(groups.TIME_LIMIT, groups.MPI, groups.BINDING, groups.ALLOW_ROOT),
        ),
        _start_mpirun,
        takes_hosts=True,
    ),
    "slurm": Launcher(
        "an sbatch script with srun, or with MPI",
        (
            *(*groups.JOB, *groups.CLUSTER, *groups.MACHINES, *groups.RESTARTS),
            *(groups.TIME_LIMIT, groups.MPI, groups.BINDING, groups.ALLOW_ROOT),
            option("--start", choices=slurm.INNER, default="srun", help="what starts the workers (default: srun)"),
            option("--partition"),
            option("--account"),
        ),
        _start_slurm,
    ),
    "sagemaker": Launcher("a training job of Amazon SageMaker", (), _start_sagemaker),
    "kubernetes": Launcher(
        "an MPIJob for the MPI Operator",
        (
            *(*groups.JOB, *groups.CLUSTER, *groups.MACHINES, *groups.RESTARTS, groups.TIME_LIMIT, groups.MPI),
            option("--image", help="container image with hvdtrain and mpirun"),
            option("--namespace"),
            option("--memory", metavar="16Gi", help="memory of each worker pod"),
            option("--shm-size", default="8Gi", metavar="8Gi", help="size of /dev/shm"),
            option("--claim", metavar="NAME", help="PersistentVolumeClaim to mount at /data"),
            number("--run-as-user", metavar="UID", default=1000),
        ),
        _start_kubernetes,
    ),
}
