"""The flags of `hvdtrain launch LAUNCHER`, and the job that they describe."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.errors import UsageError
from launch.hosts import Host, hosts_around, parse_host_list, read_hostfile, read_rank_table, total_slots
from launch.job import JobSpec
from launch.job_checks import BINDINGS
from launch.launchers import LAUNCHERS
from launch.mpi_flavors import FLAVORS
from launch.slurm import INNER
from launch.variables import needed_names

_TIME = re.compile(r"(?:(\d{1,4}):)?(\d{1,5}):(\d{2})|(\d{1,9})")


class Parser(CommandParser):
    """Of `hvdtrain launch LAUNCHER`."""

    def __init__(self, launcher: str) -> None:
        super().__init__(
            f"hvdtrain launch {launcher}",
            "Nothing was started.",
            "flags of hvdtrain itself come after --: ... -- train --epochs 3.",
            usage=f"hvdtrain launch {launcher} [FLAGS] [-- train ...]",
            description=LAUNCHERS[launcher],
            epilog="What follows -- is hvdtrain's own command; left out: train.",
        )


def parse_launch(launcher: str, argv: Sequence[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """The flags before `--`, and hvdtrain's command after it.

    Raises:
        UsageError: flags that `launcher` does not have.
    """
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    options = _parser(launcher).parse(words[:at])
    return options, tuple(words[at + 1 :]) or ("train",)


def _parser(launcher: str) -> Parser:
    parser = Parser(launcher)
    add = parser.add_argument
    add("-np", "--np", type=int, metavar="N", help="workers in all; left out: all slots of the hosts")
    add("--dry-run", action="store_true", help="print exactly what would run, as a script, and run nothing")
    add("--working-dir", metavar="DIR", help="where workers start")
    if launcher != "local":
        _add_cluster_flags(parser)
    _add_own_flags(parser, launcher)
    return parser


def _add_cluster_flags(parser: Parser) -> None:
    add = parser.add_argument
    add("--name", default="hvdtrain", help="of the job and its files (default: hvdtrain)")
    add("--python", metavar="PATH", help="interpreter on the hosts; left out: the path of this one")
    add("--pass-env", action="append", default=[], metavar="NAME", help="a variable that workers get, by its name")
    add("--nic", default="", metavar="NAME[,NAME]", help="network interfaces to use")
    add("--gpus-per-host", type=int, default=0, metavar="N")
    add("--cores-per-host", type=int, metavar="N", help="physical cores: sets threads, and binds workers to cores")


def _add_own_flags(parser: Parser, launcher: str) -> None:
    if launcher in ("horovodrun", "mpirun"):
        _add_host_flags(parser)
    if launcher in ("slurm", "kubernetes"):
        _add_machine_flags(parser)
    add = parser.add_argument
    if launcher in ("local", "slurm", "kubernetes"):
        add("--max-restarts", type=int, default=0, metavar="N", help="after a failure, from the last checkpoint")
        add("--grace", type=float, default=30.0, metavar="S", help="seconds to save in before the end (30)")
    if launcher in ("local", "horovodrun"):
        add("--start-timeout", type=float, default=60.0, metavar="S", help="seconds until all must have started (60)")
    if launcher in ("mpirun", "slurm", "kubernetes"):
        add("--time-limit", type=_seconds, metavar="[H:]M:S", help="or seconds")
        add("--mpi", choices=list(FLAVORS), help="whose mpirun it is; left out: what `mpirun --version` says")
    if launcher in ("mpirun", "slurm"):
        add("--binding", choices=BINDINGS, default="auto", help="of workers to cores; auto: with --cores-per-host")
    _ONLY[launcher](parser)


def _add_host_flags(parser: Parser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", metavar="A:4,B:4", help="hosts and slots")
    where.add_argument("--hostfile", type=Path, metavar="FILE", help="hosts, one a line: `a slots=4` or `a:4`")
    where.add_argument("--rank-table", type=Path, metavar="FILE", help="JSON: servers, devices, rank ids")
    parser.add_argument("--ssh-port", type=int, metavar="PORT")


def _add_machine_flags(parser: Parser) -> None:
    add = parser.add_argument
    add("--slots-per-host", type=int, metavar="N", help="workers of each; left out: its GPUs, or all on one host")
    add("--overwrite", action="store_true", help="replace the file of an earlier launch")


def _add_local_only(parser: Parser) -> None:
    parser.add_argument("--backoff", type=float, default=1.0, metavar="S", help="seconds before the first restart (1)")


def _add_horovodrun_only(parser: Parser) -> None:
    parser.add_argument("--controller", choices=("gloo", "mpi"), default="gloo")


def _add_mpirun_only(parser: Parser) -> None:
    parser.add_argument("--allow-root", action="store_true", help="let workers run as root")


def _add_slurm_only(parser: Parser) -> None:
    add = parser.add_argument
    add("--start", choices=INNER, default="srun", help="what starts the workers inside the job (srun)")
    add("--allow-root", action="store_true", help="let an mpirun inside the job run as root")
    add("--partition")
    add("--account")


def _add_kubernetes_only(parser: Parser) -> None:
    add = parser.add_argument
    add("--image", help="container image with hvdtrain and mpirun")
    add("--namespace")
    add("--memory", metavar="16Gi", help="of each worker pod")
    add("--shm-size", default="8Gi", metavar="8Gi", help="of /dev/shm")
    add("--claim", metavar="NAME", help="PersistentVolumeClaim to mount at /data")
    add("--run-as-user", type=int, default=1000, metavar="UID")


_ONLY = {
    "local": _add_local_only,
    "horovodrun": _add_horovodrun_only,
    "mpirun": _add_mpirun_only,
    "slurm": _add_slurm_only,
    "kubernetes": _add_kubernetes_only,
}


def job_from(launcher: str, options: argparse.Namespace, command: tuple[str, ...]) -> JobSpec:
    """The job that the flags describe.

    Raises:
        UsageError: a job that cannot be started, or hosts that cannot be understood.
    """
    hosts = _hosts(launcher, options)
    np = options.np if options.np is not None else total_slots(hosts)
    if np == 0 and options.np is None:
        raise UsageError(
            "The number of workers is not known.", "Nothing says how many slots there are.", "give it with -np."
        )
    if not hosts and launcher in ("local", "horovodrun", "mpirun") and np >= 1:
        hosts = (Host("localhost", np),)
    given = vars(options)
    fields = JobSpec.__dataclass_fields__.keys() & given.keys() - {"np", "hosts", "python"}
    return JobSpec(
        command=command,
        np=np,
        hosts=hosts,
        python=given.get("python") or ("python" if launcher == "kubernetes" else sys.executable),
        env=_names(launcher, given),
        nics=tuple(nic for nic in given.get("nic", "").split(",") if nic),
        **{name: given[name] for name in fields},
    )


def _hosts(launcher: str, options: argparse.Namespace) -> tuple[Host, ...]:
    if launcher not in ("horovodrun", "mpirun"):
        return ()
    if options.hosts is not None:
        return parse_host_list(options.hosts)
    if options.hostfile is not None:
        return read_hostfile(options.hostfile)
    if options.rank_table is not None:
        return read_rank_table(options.rank_table)
    found = hosts_around(os.environ)
    if found is None:
        return ()
    sys.stderr.write(f"hvdtrain launch: hosts from {found.source}\n")
    return found.hosts


def _names(launcher: str, given: dict[str, object]) -> tuple[str, ...]:
    asked = given.get("pass_env", [])
    names = [str(name) for name in asked] if isinstance(asked, list) else []
    needed = needed_names(os.environ) if launcher == "mpirun" or given.get("start") == "mpirun" else ()
    return tuple(dict.fromkeys((*needed, *names)))


def _seconds(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 12:00:00, 30:00 or 1800")
    hours, minutes, seconds, alone = (int(part or 0) for part in match.groups())
    return alone or hours * 3600 + minutes * 60 + seconds
