"""`hvdtrain launch ssh`."""

from __future__ import annotations

import argparse
import os
import sys

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.launch import flags
from hvdtrain.cli.launch.jobs import hosts_from, job_from
from hvdtrain.cli.launch.rendered import require_outside_job
from hvdtrain.launch.ssh import launcher
from hvdtrain.launch.ssh.command import SshOptions
from hvdtrain.launch.ssh.network import is_this_machine
from hvdtrain.launch.ssh.preview import preview


def add_flags(parser: CommandParser) -> None:
    """What `hvdtrain.launch.ssh.launcher` can be told."""
    flags.add_job_flags(parser)
    flags.add_cluster_flags(parser)
    flags.add_host_flags(parser)
    flags.add_restart_flags(parser)
    flags.add_backoff(parser)
    flags.add_start_timeout(parser, 300.0)
    add = parser.add_argument
    add(
        "--min-workers",
        type=int,
        metavar="N",
        help="smallest number of workers to continue with after the loss of a host (default: --np)",
    )
    add("--max-workers", type=int, metavar="N", help="largest number of workers at a restart (default: --np)")
    add(
        "--link-timeout",
        type=float,
        default=15.0,
        metavar="S",
        help="seconds without an answer after which a host counts as lost (default: 15)",
    )
    add("--no-host-key-check", action="store_true", help="don't check host keys; unsafe")


def start(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Run the workers until they have ended. Errors as `hvdtrain.launch.ssh.launcher.run`."""
    job = job_from(options, command, hosts_from(options))
    reach = SshOptions(
        python=job.python,
        port=job.ssh_port,
        link_seconds=options.link_timeout,
        checks_host_keys=not options.no_host_key_check,
    )
    if options.dry_run:
        launcher.require_runnable(job, os.environ)
        sys.stdout.write(preview(job, reach, is_this_machine, os.environ, os.getcwd()))
        return 0
    require_outside_job()
    return launcher.run(job, reach)
