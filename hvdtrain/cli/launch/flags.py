"""The flags that several launchers share, in groups; a launcher takes the groups that it can fulfil."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.launch.job_checks import BINDINGS
from hvdtrain.launch.mpi_flavors import FLAVORS

_TIME = re.compile(r"(?:(\d{1,4}):)?(\d{1,5}):(\d{2})|(\d{1,9})")
_DAYS = re.compile(r"(\d{1,4})-(\d{1,2})(?::(\d{1,2}))?(?::(\d{1,2}))?")  # as sbatch(1), --time


def add_job_flags(parser: CommandParser) -> None:
    """How many workers, and where they start."""
    add = parser.add_argument
    add("-np", "--np", type=int, metavar="N", help="total number of workers (default: all slots of the hosts)")
    add("--working-dir", metavar="DIR", help="working directory of the workers")
    add_dry_run(parser)


def add_dry_run(parser: CommandParser) -> None:
    """--dry-run."""
    parser.add_argument("--dry-run", action="store_true", help="print exactly what would run, and run nothing")


def add_cluster_flags(parser: CommandParser) -> None:
    """What workers on other machines need to be told."""
    add = parser.add_argument
    add("--name", default="hvdtrain", help="name of the job and its files (default: hvdtrain)")
    add("--python", metavar="PATH", help="interpreter on the hosts (default: the path of this one)")
    add("--pass-env", action="append", default=[], metavar="NAME", help="environment variable to pass to the workers")
    add("--nic", default="", metavar="NAME[,NAME]", help="network interfaces to use")
    add("--gpus-per-host", type=int, default=0, metavar="N")
    add(
        "--cores-per-host",
        type=int,
        metavar="N",
        help="physical cores per host: sets the number of threads and binds workers to cores",
    )


def add_host_flags(parser: CommandParser) -> None:
    """Which hosts."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", metavar="A:4,B:4", help="hosts and slots")
    where.add_argument(
        "--hostfile", type=Path, metavar="FILE", help="file with one host per line: `a slots=4` or `a:4`"
    )
    where.add_argument("--rank-table", type=Path, metavar="FILE", help="JSON file with servers, devices and rank ids")
    parser.add_argument("--ssh-port", type=int, metavar="PORT")


def add_machine_flags(parser: CommandParser) -> None:
    """For launchers that find machines themselves."""
    add = parser.add_argument
    add("--slots-per-host", type=int, metavar="N", help="workers per host (default: one per GPU, or all on one host)")
    add("--overwrite", action="store_true", help="replace the file of an earlier launch")


def add_restart_flags(parser: CommandParser) -> None:
    """What happens after a failure or a signal."""
    add = parser.add_argument
    add("--max-restarts", type=int, default=0, metavar="N", help="restarts after a failure, from the last checkpoint")
    add(
        "--grace",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds that workers have to save a checkpoint (default: 30)",
    )


def add_refused_restarts(parser: CommandParser) -> None:
    """--max-restarts of launchers that cannot: it is understood, so that the refusal can name one that can."""
    parser.add_argument("--max-restarts", type=int, default=0, help=argparse.SUPPRESS)


def add_backoff(parser: CommandParser) -> None:
    """--backoff."""
    parser.add_argument(
        "--backoff", type=float, default=1.0, metavar="S", help="seconds before the first restart (default: 1)"
    )


def add_start_timeout(parser: CommandParser, seconds: float = 60.0) -> None:
    """--start-timeout."""
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=seconds,
        metavar="S",
        help=f"seconds until all must have started ({seconds:g})",
    )


def add_time_limit(parser: CommandParser) -> None:
    """--time-limit."""
    parser.add_argument("--time-limit", type=_seconds, metavar="[[D-]H:]M:S", help="or seconds")


def add_mpi(parser: CommandParser) -> None:
    """Whose mpirun."""
    parser.add_argument(
        "--mpi", choices=list(FLAVORS), help="the MPI that mpirun belongs to (default: what `mpirun --version` says)"
    )


def add_allow_root(parser: CommandParser) -> None:
    """--allow-root."""
    parser.add_argument("--allow-root", action="store_true", help="let workers run as root under mpirun")


def add_binding(parser: CommandParser) -> None:
    """--binding."""
    parser.add_argument(
        "--binding", choices=BINDINGS, default="auto", help="bind workers to cores; auto: if --cores-per-host is given"
    )


def _seconds(text: str) -> int:
    if days := _DAYS.fullmatch(text):
        number, hours, minutes, seconds = (int(part or 0) for part in days.groups())
        return ((number * 24 + hours) * 60 + minutes) * 60 + seconds
    match = _TIME.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2-00:00:00, 12:00:00, 30:00 or 1800")
    hours, minutes, seconds, alone = (int(part or 0) for part in match.groups())
    return alone or hours * 3600 + minutes * 60 + seconds
