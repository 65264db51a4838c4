"""What to start, where, and how: the one description that every launcher's plan is made from.

Asking is not being: which rank a process has, `hvdtrain.topology.Topology` says.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.launch.hosts.host import Host, total_slots

BINDINGS = ("auto", "none", "core")
MEETING = ("-m", "hvdtrain.comm.script_start")
"""Of Python, in front of a script whose Horovod would find nobody: workers that are only numbered meet first."""

_MOST = {"np": 1_000_000, "ssh_port": 65_535}
_LEAST = {
    **dict.fromkeys(["np", "slots_per_host", "cores_per_host", "ssh_port"], 1),
    **dict.fromkeys(["time_limit", "min_workers", "max_workers"], 1),
    **dict.fromkeys(["gpus_per_host", "max_restarts", "backoff", "start_timeout", "grace"], 0),
}
"""The smallest value of each number."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NIC = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]{0,254}")


def option_of(field: str) -> str:
    return "-np" if field == "np" else "--" + field.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One training job. Raises UsageError: anything that cannot be started as described."""

    # argv of hvdtrain, such as ("train", "--max-steps", "3"), or a script: see `is_script`
    command: tuple[str, ...]
    np: int  # workers in all
    hosts: tuple[Host, ...] = ()  # where they run, in rank order; empty where the launcher finds machines itself
    slots_per_host: int | None = None  # of such machines; None: as many as GPUs, or all workers on one machine
    python: str = "python"  # the interpreter on the hosts
    name: str = "hvdtrain"  # letters, digits, `.`, `_`, `-`
    # names of variables that workers get with the values they have where the launcher starts: values never stand in a
    # command line or a file
    env: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()  # network interfaces, in order of preference; empty: the launcher's own choice
    gpus_per_host: int = 0  # 0: computes on CPUs
    cores_per_host: int | None = None  # physical cores; None: not known
    # "core": each worker is bound to cores of its own; "none": the system schedules; "auto": "core" where
    # `cores_per_host` is known
    binding: str = "auto"
    ssh_port: int | None = None  # None: what ssh's own configuration says
    working_dir: str | None = None  # absolute; None: where the launcher was called
    image: str | None = None  # container image, for Kubernetes
    time_limit: int | None = None  # seconds until the whole job is ended; None: no limit
    min_workers: int | None = None  # the fewest that the job may go on with; None: exactly `np`
    max_workers: int | None = None  # the most; None: exactly `np`
    host_discovery_script: str | None = None  # a program that prints which hosts there are now, as Horovod's
    max_restarts: int = 0  # how often a failed job is started again, from its last checkpoint
    backoff: float = 1.0  # seconds before the first restart; each further one waits twice as long
    start_timeout: float = 60.0  # seconds until all workers must have started
    grace: float = 30.0  # seconds that workers have to save and leave after a first signal, before they are killed
    allow_root: bool = False  # let workers run as root, where the launcher asks

    def __post_init__(self) -> None:
        _require_command(self)
        _require_numbers(self)
        _require_room(self)
        _require_names(self)
        _require_gpus_and_cores(self)

    @property
    def is_elastic(self) -> bool:
        """Whether its workers may go on after the loss of one, without being started again."""
        is_bounded = self.min_workers is not None or self.max_workers is not None
        return self.max_restarts > 0 and (is_bounded or self.host_discovery_script is not None)

    @property
    def world_sizes(self) -> tuple[int, int]:
        return self.min_workers or self.np, self.max_workers or self.np

    @property
    def argv(self) -> tuple[str, ...]:
        if is_script(self.command):
            return (self.python, *self.command[self.command[0] == "python" :])
        return (self.python, "-m", "hvdtrain", *self.command)

    @property
    def meeting_argv(self) -> tuple[str, ...]:
        """The same where the launcher only numbers the workers: they meet before a script begins."""
        meeting = (self.python, "-P", *MEETING) if is_script(self.command) else ()
        return (*meeting, *self.argv)

    @property
    def slots(self) -> int:
        """Workers of the host that has most of them."""
        if self.hosts:
            return min(self.np, max(host.slots for host in self.hosts))
        return min(self.np, self.slots_per_host or self.gpus_per_host or self.np)

    @property
    def num_hosts(self) -> int:
        return len(self.used_hosts) if self.hosts else -(-self.np // self.slots)

    @property
    def used_hosts(self) -> tuple[Host, ...]:
        used: list[Host] = []
        for host in self.hosts:
            if total_slots(used) < self.np:
                used.append(host)
        return tuple(used)

    @property
    def is_local(self) -> bool:
        """Whether all workers run on this machine, so that nothing needs ssh."""
        return bool(self.hosts) and all(host.is_local for host in self.hosts)

    @property
    def cores_per_worker(self) -> int | None:
        """Physical cores for each worker of the fullest host; None where `cores_per_host` is not known."""
        return None if self.cores_per_host is None else max(1, self.cores_per_host // self.slots)

    @property
    def binds_to_cores(self) -> bool:
        """What `binding` comes to: never two workers on one core."""
        fits = self.cores_per_host is not None and self.cores_per_host >= self.slots
        return fits and self.binding in ("auto", "core")

    def describe_hosts(self) -> str:
        """For people: "a:4, b:4" or "2 hosts, 4 workers each"."""
        if self.hosts:
            return ", ".join(str(host) for host in self.used_hosts)
        machines = "1 host" if self.num_hosts == 1 else f"{self.num_hosts} hosts"
        return f"{machines}, up to {self.slots} workers each"


def is_script(command: Sequence[str]) -> bool:
    """Whether workers run a Python program of the user's: `SCRIPT.py ...`, or `python ...`."""
    return bool(command) and (command[0] == "python" or command[0].endswith(".py"))


def _require_command(job: JobSpec) -> None:
    """Refuse a command that no launcher can pass on, and a folder that hosts could not share."""
    if not job.command:
        raise UsageError("The job has no command.", "There is nothing to start.", "end with `-- train ...`.")
    if any("\0" in word or "\n" in word for word in (*job.argv, job.working_dir or "")):
        fact = "The job's command has a line break or a zero byte in it."
        raise UsageError(fact, "Launchers pass commands on by lines.", "put such a value into a file for --config.")
    if not job.python or job.python.startswith("-"):
        raise UsageError(f"The interpreter is {job.python!r}.", "This is not a program.", "give a path to python.")
    if job.working_dir is not None and not job.working_dir.startswith("/"):
        raise UsageError(
            f"The working directory is {job.working_dir!r}.",
            "Hosts have no common place that it could be relative to.",
            "give a path that begins with /.",
        )


def _require_numbers(job: JobSpec) -> None:
    """Refuse numbers below their minimum, above what is possible, and without an end."""
    for field, least in _LEAST.items():
        name, value, most = option_of(field), getattr(job, field), _MOST.get(field, 2**31 - 1)
        if value is None or least <= value <= most:  # false for nan, too
            continue
        is_finite = isinstance(value, int) or math.isfinite(value)
        if is_finite and value > most:
            raise UsageError(f"{name} is {value}.", f"It must be {most} or less.", "give a smaller number.")
        conflict = f"It must be {least} or more." if is_finite else "It must be a number with an end."
        raise UsageError(f"{name} is {value}.", conflict, f"give a number from {least} up.")


def _require_room(job: JobSpec) -> None:
    """Refuse a number of workers outside of its own bounds, or for which the hosts have too few slots."""
    np, hosts, (low, high) = job.np, job.hosts, job.world_sizes
    if job.min_workers and job.max_workers and low > high:
        raise UsageError(
            f"--min-workers is {low} and --max-workers {high}.", "No number of workers is both.", "swap them."
        )
    if not low <= np <= high:
        wrong, bound = ("--min-workers", low) if low > np else ("--max-workers", high)
        fact = f"The job starts {np} workers, and {wrong} is {bound}."
        raise UsageError(fact, "It would start outside of its own bounds.", f"use -np {bound}, or {wrong} {np}.")
    slots = total_slots(hosts)
    if hosts and np > slots:
        shown = ", ".join(str(host) for host in hosts[:8]) + (", ..." if len(hosts) > 8 else "")
        conflict = f"Its hosts have {slots} slots: {shown}."
        raise UsageError(f"The job has {np} workers.", conflict, f"use -np {slots}, or add hosts or slots.")


def _require_names(job: JobSpec) -> None:
    """Refuse names that end up in command lines and are not valid."""
    if not _NAME.fullmatch(job.name):
        raise UsageError(
            f"The job's name is {job.name[:80]!r}.",
            "It has letters, digits, `.`, `_` and `-`, at most 63, and begins with a letter or digit.",
            "choose another --name.",
        )
    for variable in job.env:
        if not _VARIABLE.fullmatch(variable):
            shown = variable.partition("=")[0]  # what follows may be a secret
            raise UsageError(
                f"{shown!r} is to be passed on with a value or is not a variable's name.",
                "Values would stand in command lines that everybody can read.",
                "export the variable, and pass on its name alone.",
            )
    for nic in job.nics:
        require_nic(nic, "`ip -brief address` lists them; separate several by commas.")
    if job.image is not None and not _IMAGE.fullmatch(job.image):
        raise UsageError(
            f"The image is called {job.image[:80]!r}.",
            "This is not the name of a container image.",
            "write it as registry/name:tag.",
        )


def _require_gpus_and_cores(job: JobSpec) -> None:
    """Refuse hosts with fewer GPUs than workers, and a binding that cannot be."""
    slots, gpus, cores = job.slots, job.gpus_per_host, job.cores_per_host
    if gpus and slots > gpus:
        fact = f"A host runs {slots} workers and has {gpus} GPUs."
        raise UsageError(fact, "Each worker needs a GPU of its own.", f"use at most {gpus} slots a host.")
    require_choice(f"The binding is {job.binding!r}.", job.binding, BINDINGS)
    if job.binding != "core":
        return
    if cores is None:
        raise UsageError(
            "Workers are to be bound to cores.",
            "How many cores a host has is not known.",
            "say it with --cores-per-host, or use --binding none.",
        )
    if cores < slots:
        fact = f"A host runs {slots} workers and has {cores} cores."
        raise UsageError(fact, "Two workers would be bound to one core.", "use fewer slots, or --binding none.")


def require_choice(
    fact: str, value: object, choices: Collection[str], conflict: str = "There is none of that name."
) -> None:
    """Raise UsageError with this fact and conflict unless the value is one of the choices."""
    if value not in choices:
        raise UsageError(fact, conflict, did_you_mean(str(value), choices))


def require_nic(nic: str, hint: str) -> None:
    """Raise UsageError with this hint for a network interface that there cannot be."""
    if not _NIC.fullmatch(nic):
        conflict = "Interfaces have names such as eth0 or ib0."
        raise UsageError(f"The network interface is called {nic[:80]!r}.", conflict, hint)
