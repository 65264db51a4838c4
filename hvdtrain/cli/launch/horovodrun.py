"""`hvdtrain launch horovodrun`."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.launch import flags
from hvdtrain.cli.launch.jobs import hosts_from, job_from
from hvdtrain.cli.launch.rendered import print_or_execute
from hvdtrain.launch import horovodrun
from hvdtrain.launch.programs import find_program, path_with
from hvdtrain.launch.ssh.check import require_usable_hosts


def add_flags(parser: CommandParser) -> None:
    """What horovodrun can be told."""
    flags.add_job_flags(parser)
    flags.add_cluster_flags(parser)
    flags.add_host_flags(parser)
    flags.add_refused_restarts(parser)
    flags.add_start_timeout(parser)
    parser.add_argument("--controller", choices=("gloo", "mpi"), default="gloo")


def start(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Become horovodrun, or print how."""
    job = job_from(options, command, hosts_from(options))
    program = find_program("horovodrun") or "horovodrun"
    plan = horovodrun.render(job, options.controller, program)
    if options.controller == "mpi":  # horovodrun calls mpirun by its bare name
        plan = replace(plan, env={**plan.env, "PATH": path_with(find_program("mpirun") or program, os.environ)})
    if not options.dry_run:
        require_usable_hosts(job, "horovodrun", os.environ)
    return print_or_execute(plan, options.dry_run)
