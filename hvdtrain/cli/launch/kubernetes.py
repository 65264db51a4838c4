"""`hvdtrain launch kubernetes`."""

from __future__ import annotations

import argparse

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.launch import flags
from hvdtrain.cli.launch.jobs import job_from
from hvdtrain.cli.launch.rendered import print_or_execute
from hvdtrain.launch import kubernetes


def add_flags(parser: CommandParser) -> None:
    """What an MPIJob can be told."""
    flags.add_job_flags(parser)
    flags.add_cluster_flags(parser)
    flags.add_machine_flags(parser)
    flags.add_restart_flags(parser)
    flags.add_time_limit(parser)
    flags.add_mpi(parser)
    add = parser.add_argument
    add("--image", help="container image with hvdtrain and mpirun")
    add("--namespace")
    add("--memory", metavar="16Gi", help="memory of each worker pod")
    add("--shm-size", default="8Gi", metavar="8Gi", help="size of /dev/shm")
    add("--claim", metavar="NAME", help="PersistentVolumeClaim to mount at /data")
    add("--run-as-user", type=int, default=1000, metavar="UID")


def start(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Become `kubectl apply`, or print the MPIJob."""
    job = job_from(options, command, python="python")
    own = kubernetes.KubernetesOptions(
        flavor=options.mpi or "openmpi5",
        namespace=options.namespace,
        memory=options.memory,
        shared_memory=options.shm_size,
        claim=options.claim,
        run_as_user=options.run_as_user,
    )
    return print_or_execute(kubernetes.render(job, own), options.dry_run, options.overwrite)
