"""What a launcher is, the job that its parsed options describe, and what all launchers do with it.

Packages outside add launchers by the entry point group `hvdtrain.launchers` (docs/extending.md).
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass

from hvdtrain.errors import UsageError
from hvdtrain.launch.execute import execute
from hvdtrain.launch.hosts.discovery import discovered
from hvdtrain.launch.hosts.host import Host, parse_host_list, total_slots
from hvdtrain.launch.hosts.host_files import read_hostfile, read_rank_table
from hvdtrain.launch.hosts.platform_hosts import platform_hosts
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.option_groups import Option
from hvdtrain.launch.rendering import LaunchPlan
from hvdtrain.topology import Topology, detect_topology
from hvdtrain.topology.readers.torchrun import PER_NODE


@dataclass(frozen=True, slots=True)
class Launcher:
    """One launcher of `hvdtrain launch`."""

    line: str  # of help
    options: tuple[Option, ...]  # of the command line, besides its hosts; one of them is --dry-run
    # starts the job of parsed options and a command, or prints it; returns the exit code
    start: Callable[[Namespace, tuple[str, ...]], int]
    takes_hosts: bool = False  # whether -H, --hostfile and --rank-table say where workers run
    checks_command: bool = False  # whether it checks the options of the workers' command itself


def job_from(
    options: Namespace,
    command: tuple[str, ...],
    hosts: tuple[Host, ...] = (),
    env: tuple[str, ...] = (),
    python: str = sys.executable,
) -> JobSpec:
    """The job; UsageError for one that cannot be started. Parsed options whose name is a field of JobSpec become that
    field; `env` names variables that this launcher has to pass on besides those of --pass-env; `python` is the
    interpreter where --python does not say."""
    values, np = vars(options), options.np
    if np is None and not hosts:
        hint = (
            "name hosts, e.g. -H a:4,b:4, or say -np 4 for this machine."
            if "hostfile" in values
            else "give it with -np."
        )
        raise UsageError("The number of workers is not known.", "Nothing says how many slots there are.", hint)
    fields = JobSpec.__dataclass_fields__.keys() & values.keys() - {"np", "hosts", "python"}
    return JobSpec(
        command=command,
        np=total_slots(hosts) if np is None else np,
        hosts=hosts,
        python=values.get("python") or python,
        env=tuple(dict.fromkeys((*env, *values.get("pass_env", [])))),
        nics=tuple(nic for nic in values.get("nic", "").split(",") if nic),
        **{name: values[name] for name in fields},
    )


def hosts_from(options: Namespace, command: str = "launch") -> tuple[Host, ...]:
    """Those of -H, --hostfile, --rank-table or the environment, or this host with -np slots. Raises UsageError."""
    if options.hosts is not None:
        return parse_host_list(options.hosts)
    if options.hostfile is not None:
        return read_hostfile(options.hostfile)
    if options.rank_table is not None:
        return read_rank_table(options.rank_table)
    platform = platform_hosts(os.environ)
    if platform is not None:
        sys.stderr.write(f"hvdtrain {command}: hosts from {platform[1]}\n")
        return platform[0]
    return this_host(options.np)


def hosts_now(options: Namespace) -> tuple[Host, ...]:
    """Those that the script of --host-discovery-script names; without one, as `hosts_from`. Raises UsageError."""
    script = options.host_discovery_script
    if script is None:
        return hosts_from(options)
    other = next((name for name in ("hosts", "hostfile", "rank_table") if vars(options)[name] is not None), None)
    if other is not None:
        raise UsageError(
            f"--host-discovery-script and --{other.replace('_', '-')} are both given.",
            "Each of them says which hosts the job may use.",
            "leave one of them out.",
        )
    hosts = discovered(script)
    if not hosts:
        raise UsageError(
            f"The script {script} of --host-discovery-script names no host.",
            "There is nowhere to start a worker.",
            "let it print a line HOST:SLOTS for each host.",
        )
    return hosts


def this_host(np: int | None) -> tuple[Host, ...]:
    """This machine with `np` slots; no host where that is not a number of workers, for the job to refuse."""
    return (Host("localhost", np),) if np is not None and np >= 1 else ()


def print_or_execute(plan: LaunchPlan, dry_run: bool, overwrite: bool = False) -> int:
    """Print the plan as a script, or become its command. Errors as `hvdtrain.launch.execute.execute`."""
    if dry_run:
        sys.stdout.write(plan.describe())
        return 0
    require_outside_job()
    return execute(plan, overwrite)


def require_outside_job() -> None:
    """Raise UsageError in a worker: else each worker of a job would start a job of its own."""
    # How many processes a node is to have does not show a job around this one: starting them is a launcher's work.
    topology = detect_topology({name: value for name, value in os.environ.items() if name not in PER_NODE})
    if topology.is_distributed:
        raise inside_job(topology, "launch", "launch a job of its own")


def inside_job(topology: Topology, command: str, deed: str) -> UsageError:
    """The refusal of a command that every worker of a job would run."""
    return UsageError(
        f"This is itself rank {topology.rank} of {topology.size}, started by {topology.launcher}.",
        f"Every rank would {deed}.",
        f"call `hvdtrain {command}` once, outside of srun, mpirun and the like.",
    )
