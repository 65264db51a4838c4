"""What to start, where, and how: the one description that every launcher's plan is made from.

Asking is not being: which rank a process has, `hvdtrain.topology.Topology` says.
"""

from dataclasses import dataclass

from hvdtrain.launch import job_checks
from hvdtrain.launch.hosts.host import Host, total_slots

_LEAST = {
    **dict.fromkeys(["np", "slots_per_host", "cores_per_host", "ssh_port"], 1),
    **dict.fromkeys(["time_limit", "min_workers", "max_workers"], 1),
    **dict.fromkeys(["gpus_per_host", "max_restarts", "backoff", "start_timeout", "grace"], 0),
}
"""The smallest value of each number."""


def option_of(field: str) -> str:
    return "-np" if field == "np" else "--" + field.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One training job. Raises UsageError: anything that cannot be started as described.

    Args:
        command: argv of hvdtrain, such as ("train", "--max-steps", "3").
        np: workers in all.
        hosts: where they run, in rank order; empty where the launcher finds machines itself (Slurm, Kubernetes).
        slots_per_host: workers of each machine that the launcher finds; ignored with `hosts`. None: as many as GPUs, or
            all workers on one machine.
        python: the interpreter on the hosts.
        name: of the job: letters, digits, `.`, `_`, `-`.
        env: names of variables that workers get with the values they have where the launcher starts. Values never stand
            in a command line or a file.
        nics: network interfaces to use, in order of preference; empty: the launcher's own choice.
        gpus_per_host: GPUs of each host; 0: computes on CPUs.
        cores_per_host: physical cores of each host; None: not known.
        binding: "core": each worker is bound to cores of its own; "none": the system schedules; "auto": "core" where
            `cores_per_host` is known.
        ssh_port: None: what ssh's own configuration says.
        working_dir: absolute; None: where the launcher was called.
        image: container image, for Kubernetes.
        time_limit: seconds until the whole job is ended; None: no limit.
        min_workers, max_workers: how many the job may go on with; None: exactly `np`.
        host_discovery_script: a program that prints which hosts there are now, as Horovod's.
        max_restarts: how often a failed job is started again, from its last checkpoint.
        backoff: seconds before the first restart; each further one waits twice as long.
        start_timeout: seconds until all workers must have started.
        grace: seconds that workers have to save and leave after a first signal, before they are killed.
        allow_root: let workers run as root, where the launcher asks.
    """

    command: tuple[str, ...]
    np: int
    hosts: tuple[Host, ...] = ()
    slots_per_host: int | None = None
    python: str = "python"
    name: str = "hvdtrain"
    env: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()
    gpus_per_host: int = 0
    cores_per_host: int | None = None
    binding: str = "auto"
    ssh_port: int | None = None
    working_dir: str | None = None
    image: str | None = None
    time_limit: int | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    host_discovery_script: str | None = None
    max_restarts: int = 0
    backoff: float = 1.0
    start_timeout: float = 60.0
    grace: float = 30.0
    allow_root: bool = False

    def __post_init__(self) -> None:
        job_checks.require_command(self.command, self.python, self.working_dir)
        job_checks.require_numbers({option_of(name): (getattr(self, name), least) for name, least in _LEAST.items()})
        job_checks.require_room(self.np, self.min_workers, self.max_workers, self.hosts)
        job_checks.require_names(self.name, self.env, self.nics, self.image)
        job_checks.require_gpus_and_cores(self.slots, self.gpus_per_host, self.cores_per_host, self.binding)

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
        return (self.python, "-m", "hvdtrain", *self.command)

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
