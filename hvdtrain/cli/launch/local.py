"""`hvdtrain launch local`."""

from __future__ import annotations

import argparse
import shlex

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.launch import flags
from hvdtrain.cli.launch.jobs import job_from, this_host
from hvdtrain.cli.launch.rendered import require_outside_job
from hvdtrain.launch.job import JobSpec
from hvdtrain.launch.local import run as run_job
from hvdtrain.launch.plan import comment
from hvdtrain.launch.resources import resource_notes


def add_flags(parser: CommandParser) -> None:
    """Workers on this machine need few."""
    flags.add_job_flags(parser)
    flags.add_restart_flags(parser)
    flags.add_backoff(parser)
    flags.add_start_timeout(parser, 300.0)


def start(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Run the workers until they have ended. Errors as `hvdtrain.launch.local.run`."""
    job = job_from(options, command, this_host(options.np))
    if options.dry_run:
        return _print(job)
    require_outside_job()
    return run_job(job)


def _print(job: JobSpec) -> int:
    notes = (
        *resource_notes(job),
        ("start", "each is told its rank and where the others are by variables; no ssh, no MPI"),
    )
    print(comment(f"hvdtrain launch local: {job.np} processes, each of them:", notes))
    print(shlex.join(job.argv))
    return 0
