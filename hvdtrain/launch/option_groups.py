"""The options that several launchers share, in groups; a launcher has the groups that it supports."""

import argparse
import re
from pathlib import Path
from typing import Any, Final

from hvdtrain.errors import UsageError
from hvdtrain.launch.job_spec import BINDINGS

FLAVORS: Final = {"openmpi4": "Open MPI 4", "openmpi5": "Open MPI 5", "mpich": "MPICH", "intel": "Intel MPI"}
"""Name of an MPI on the command line → name for people."""

Option = tuple[tuple[str, ...], dict[str, Any]]  # names, and further arguments of `ArgumentParser.add_argument`
_TIME = re.compile(r"(?:\d{1,4}:)?\d{1,5}:\d{2}|\d{1,9}|\d{1,4}-\d{1,2}(?::\d{1,2}){0,2}")  # as sbatch(1), --time


def option(*names: str, **settings: Any) -> Option:
    """One option; arguments as `ArgumentParser.add_argument` has them."""
    return names, settings


def number(name: str, metavar: str = "N", help: str | None = None, **settings: Any) -> Option:
    return option(name, type=int, metavar=metavar, help=help, **settings)


def repeated(name: str, metavar: str, help: str | None = None, **settings: Any) -> Option:
    return option(name, action="append", default=[], metavar=metavar, help=help, **settings)


def seconds(name: str, default: float, help: str) -> Option:
    """An option with a number of seconds; `{}` in `help` is replaced by the default."""
    return option(name, type=float, default=default, metavar="S", help=help.format(f"{default:g}"))


def start_timeout(default: float) -> Option:
    return seconds("--start-timeout", default, "seconds until all must have started (default: {})")


def _time(text: str) -> int:
    """Seconds of "12:00:00", "2-00:00:00", "30:00" or "1800"."""
    if not _TIME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2-00:00:00, 12:00:00, 30:00 or 1800")
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    # After days come hours; otherwise the last part is seconds.
    hours, minutes, seconds = [*parts, 0, 0][:3] if dash else [0, 0, *parts][-3:]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


DRY_RUN: Final = option("--dry-run", action="store_true", help="print exactly what would run, and run nothing")

JOB: Final = (
    option("-np", "--np", type=int, metavar="N", help="total number of workers (default: all slots of the hosts)"),
    option("--working-dir", metavar="DIR", help="working directory of the workers"),
    DRY_RUN,
)
"""How many workers, and where they start."""

NETWORK: Final = (
    repeated("--pass-env", "NAME", "environment variable to pass to the workers"),
    option("--nic", default="", metavar="NAME[,NAME]", help="network interfaces to use"),
)
"""What workers on other machines need of this one."""

CLUSTER: Final = (
    option("--name", default="hvdtrain", help="name of the job and its files (default: hvdtrain)"),
    option("--python", metavar="PATH", help="interpreter on the hosts (default: the path of this one)"),
    *NETWORK,
    number("--gpus-per-host", default=0),
    number("--cores-per-host", help="physical cores per host: sets the number of threads and binds workers to cores"),
)
"""What workers on other machines need to be told."""

HOSTS: Final = (
    option("-H", "--hosts", metavar="A:4,B:4", help="hosts and slots"),
    option("--hostfile", type=Path, metavar="FILE", help="file with one host per line: `a slots=4` or `a:4`"),
    option("--rank-table", type=Path, metavar="FILE", help="JSON file with servers, devices and rank ids"),
)
"""Which hosts; one of them."""

SSH_PORT: Final = number("--ssh-port", metavar="PORT")

MACHINES: Final = (
    number("--slots-per-host", help="workers per host (default: one per GPU, or all on one host)"),
    option("--overwrite", action="store_true", help="replace the file of an earlier launch"),
)
"""For launchers that find machines themselves."""

RESTARTS: Final = (
    number("--max-restarts", help="restarts after a failure, from the last checkpoint", default=0),
    seconds("--grace", 30.0, "seconds that workers have to save a checkpoint (default: {})"),
)
"""What happens after a failure or a signal."""

NO_RESTARTS: Final = option("--max-restarts", type=int, default=0, help=argparse.SUPPRESS)
"""Of launchers that cannot: it is understood, so that the refusal can name one that can."""

BACKOFF: Final = seconds("--backoff", 1.0, "seconds before the first restart (default: {})")
BOUNDS: Final = (
    number("--min-workers", help="smallest number of workers to continue with after a loss (default: --np)"),
    number("--max-workers", help="largest number of workers to continue with (default: --np)"),
)
"""How many workers a job may go on with."""

ELASTIC: Final = (
    *BOUNDS,
    option(
        "--host-discovery-script",
        metavar="PROGRAM",
        help="program that prints HOST:SLOTS for each host that can be used now; workers come and go with them "
        "(ssh: instead of -H)",
    ),
)
"""The same, and what tells where."""

LINK_TIMEOUT: Final = seconds(
    "--link-timeout", 15.0, "seconds without an answer after which a host counts as lost (default: {})"
)


def link_timeout(options: argparse.Namespace) -> float:
    """The seconds of `LINK_TIMEOUT`. Raises UsageError: a connection would break at once, or never."""
    given = float(options.link_timeout)
    if not 1 <= given <= 86400:
        raise UsageError(
            f"--link-timeout is {given:g}.",
            "It must be from 1 to 86400 seconds.",
            "leave it out, or try --link-timeout 15.",
        )
    return given


TIME_LIMIT: Final = option(
    "--time-limit", type=_time, metavar="[[D-]H:]M:S", help="time limit of the job, or in seconds"
)
MPI: Final = option(
    "--mpi", choices=list(FLAVORS), help="the MPI that mpirun belongs to (default: what `mpirun --version` says)"
)
ALLOW_ROOT: Final = option("--allow-root", action="store_true", help="let workers run as root under mpirun")
BINDING: Final = option(
    "--binding", choices=BINDINGS, default="auto", help="bind workers to cores; auto: if --cores-per-host is given"
)
