"""`hvdtrain launch`: start a job on this machine or through a cluster's launcher.

hvdtrain launch {local|horovodrun|mpirun|slurm|kubernetes} [-np N] [-H a:4,b:4] [--dry-run] ... -- train ...
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace

from hvdtrain.cli.launch_arguments import job_from, parse_launch
from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.topology import detect_topology
from launch import horovodrun, kubernetes, mpirun, slurm
from launch.execute import execute
from launch.job import JobSpec
from launch.launchers import LAUNCHERS, require_launcher
from launch.plan import LaunchPlan, comment
from launch.programs import find_program, mpi_flavor, path_with
from launch.share import share_notes


def run(argv: Sequence[str]) -> int:
    """Start what `argv` says; returns the exit code, or becomes the launcher and does not return.

    Raises:
        UsageError: a launcher, flag, host or job that cannot be, or a launcher's program that is not there.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        return _print_help()
    launcher = argv[0]
    require_launcher(launcher)
    options, command = parse_launch(launcher, argv[1:])
    _require_command(command)
    job = job_from(launcher, options, command)
    if launcher == "local":
        return _print_local(job) if options.dry_run else _run_local(job)
    plan = _PLANS[launcher](job, options)
    if options.dry_run:
        sys.stdout.write(plan.describe())
        return 0
    _require_outside_job()
    _require_user(job, plan)
    return execute(plan, getattr(options, "overwrite", False))


def _print_help() -> int:
    print("usage: hvdtrain launch LAUNCHER [FLAGS] [-- train ...]\n")
    for name, line in LAUNCHERS.items():
        print(f"  {name:11} {line}")
    print("\n`hvdtrain launch LAUNCHER --help` explains each; `--dry-run` prints what would run.")
    return 0


def _run_local(job: JobSpec) -> int:
    from launch import local

    _require_outside_job()
    return local.run(job)


def _print_local(job: JobSpec) -> int:
    notes = (
        *share_notes(job),
        ("start", "each is told its rank and where the others are by variables; no ssh, no MPI"),
    )
    print(comment(f"hvdtrain launch local: {job.np} processes, each of them:", notes))
    print(shlex.join(job.argv))
    return 0


def _horovodrun(job: JobSpec, options: argparse.Namespace) -> LaunchPlan:
    program = find_program("horovodrun") or "horovodrun"
    plan = horovodrun.render(job, options.controller, program)
    if options.controller == "mpi":  # horovodrun calls mpirun by its bare name
        return replace(plan, env={**plan.env, "PATH": path_with(find_program("mpirun") or program, os.environ)})
    return plan


def _mpirun(job: JobSpec, options: argparse.Namespace) -> LaunchPlan:
    program = find_program("mpirun")
    return mpirun.render(job, options.mpi or mpi_flavor(program), program or "mpirun")


def _slurm(job: JobSpec, options: argparse.Namespace) -> LaunchPlan:
    own = slurm.SlurmOptions(inner=options.start, partition=options.partition, account=options.account)
    if options.start == "mpirun":
        program = find_program("mpirun")
        own = replace(own, mpirun=program or "mpirun", flavor=options.mpi or mpi_flavor(program))
    return slurm.render(job, own)


def _kubernetes(job: JobSpec, options: argparse.Namespace) -> LaunchPlan:
    own = kubernetes.KubernetesOptions(
        flavor=options.mpi or "openmpi5",
        namespace=options.namespace,
        memory=options.memory,
        shared_memory=options.shm_size,
        claim=options.claim,
        run_as_user=options.run_as_user,
    )
    return kubernetes.render(job, own)


_PLANS = {"horovodrun": _horovodrun, "mpirun": _mpirun, "slurm": _slurm, "kubernetes": _kubernetes}


def _require_command(command: tuple[str, ...]) -> None:
    from hvdtrain.cli.main import COMMANDS

    valid = [name for name in COMMANDS if name != "launch"]
    if not command[0].startswith("-") and command[0] not in valid:
        raise UsageError(
            f"What is to be launched is {command[0]!r}.",
            "That is no command of hvdtrain that runs in workers.",
            did_you_mean(command[0], valid),
        )


def _require_outside_job() -> None:
    """Else each worker of a job would start a job of its own."""
    topology = detect_topology(os.environ)
    if topology.is_distributed:
        raise UsageError(
            f"This is itself rank {topology.rank} of {topology.size}, started by {topology.launcher}.",
            "Every rank would launch a job of its own.",
            "call `hvdtrain launch` once, outside of srun, mpirun and the like.",
        )


def _require_user(job: JobSpec, plan: LaunchPlan) -> None:
    if plan.launcher.startswith("mpirun (Open MPI") and os.geteuid() == 0 and not job.allow_root:
        raise UsageError(
            "This is root.",
            "Open MPI refuses to run as root unless it is asked to.",
            "use an ordinary user, or add --allow-root.",
        )
