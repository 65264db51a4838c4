"""`hvdtrain launch mpirun`."""

from __future__ import annotations

import argparse
import os

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.launch import flags
from hvdtrain.cli.launch.jobs import hosts_from, job_from
from hvdtrain.cli.launch.rendered import print_or_execute
from hvdtrain.errors import UsageError
from hvdtrain.launch import mpirun
from hvdtrain.launch.programs import find_program, mpi_flavor
from hvdtrain.launch.ssh.check import require_usable_hosts
from hvdtrain.launch.worker_environment import needed_names


def add_flags(parser: CommandParser) -> None:
    """What an mpirun can be told."""
    flags.add_job_flags(parser)
    flags.add_cluster_flags(parser)
    flags.add_host_flags(parser)
    flags.add_refused_restarts(parser)
    flags.add_time_limit(parser)
    flags.add_mpi(parser)
    flags.add_binding(parser)
    flags.add_allow_root(parser)


def start(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Become mpirun, or print how."""
    job = job_from(options, command, hosts_from(options), env=needed_names(os.environ))
    program = find_program("mpirun")
    flavor = options.mpi or mpi_flavor(program)
    plan = mpirun.render(job, flavor, program or "mpirun")
    if not options.dry_run and flavor.startswith("openmpi"):
        _require_user(options.allow_root)
    if not options.dry_run:
        _require_same_mpi(options.mpi, program)
        require_usable_hosts(job, "mpirun", os.environ)
    return print_or_execute(plan, options.dry_run)


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
            "Each MPI has flags of its own.",
            f"leave --mpi out, or put the mpirun of {said} on PATH.",
        )


def _require_user(allow_root: bool) -> None:
    if os.geteuid() == 0 and not allow_root:
        raise UsageError(
            "This is root.",
            "Open MPI refuses to run as root unless it is asked to.",
            "use an ordinary user, or add --allow-root.",
        )
