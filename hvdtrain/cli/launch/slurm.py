"""`hvdtrain launch slurm`."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.launch import flags
from hvdtrain.cli.launch.jobs import job_from
from hvdtrain.cli.launch.rendered import print_or_execute
from hvdtrain.launch import slurm
from hvdtrain.launch.programs import find_program, mpi_flavor
from hvdtrain.launch.worker_environment import needed_names


def add_flags(parser: CommandParser) -> None:
    """What a batch job can be told."""
    flags.add_job_flags(parser)
    flags.add_cluster_flags(parser)
    flags.add_machine_flags(parser)
    flags.add_restart_flags(parser)
    flags.add_time_limit(parser)
    flags.add_mpi(parser)
    flags.add_binding(parser)
    flags.add_allow_root(parser)
    add = parser.add_argument
    add("--start", choices=slurm.INNER, default="srun", help="what starts the workers inside the job (srun)")
    add("--partition")
    add("--account")


def start(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Become sbatch, or print the script."""
    by_mpirun = options.start == "mpirun"
    job = job_from(options, command, env=needed_names(os.environ) if by_mpirun else ())
    own = slurm.SlurmOptions(inner=options.start, partition=options.partition, account=options.account)
    if by_mpirun:
        program = find_program("mpirun")
        own = replace(own, mpirun=program or "mpirun", flavor=options.mpi or mpi_flavor(program))
    return print_or_execute(slurm.render(job, own), options.dry_run, options.overwrite)
