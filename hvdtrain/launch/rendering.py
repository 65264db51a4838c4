"""What the renderers share: the plan and its text, each worker's share of its host, and what they refuse."""

import re
import shlex
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from hvdtrain.errors import UsageError
from hvdtrain.launch.job_spec import JobSpec, option_of
from hvdtrain.topology.launcher_variables import matches

Note = tuple[str, str]  # a choice that a reader may wonder about, and why it was made
END = "END-OF-FILE"  # what closes a file's text in the script; the renderers put no such line into a file
ELASTIC = ("backoff", "min_workers", "max_workers", "host_discovery_script")
SUPERVISED = ("max_restarts", *ELASTIC)
"""Fields of JobSpec that only our own supervisor can fulfil; of the first ones, no scheduler knows anything."""

_OWN_LAUNCHER = "`hvdtrain launch ssh`, which watches over workers on any hosts and starts them again"
_OTHERS = "another launcher: `hvdtrain launch --help` tells what each can do"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What one launcher would run, exactly; nothing in it was run or looked up."""

    launcher: str  # for people, such as "mpirun (Open MPI 5)"
    argv: tuple[str, ...]  # the program first
    env: Mapping[str, str] = field(default_factory=dict)  # to set for it; no values of the user's own variables
    files: Mapping[str, str] = field(default_factory=dict)  # name → text, written before the command starts
    keep: tuple[str, ...] | None = None  # patterns of the names of variables that it inherits; None: all
    working_dir: str | None = None  # where it starts; None: where the caller is
    stdin: str | None = None  # which of `files` it reads as its standard input; None: the caller's
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        if any(text.encode(errors="ignore").decode() != text for text in self.files.values()):
            fact = "The job's command or folder has bytes in it that are not UTF-8."
            raise UsageError(fact, f"{self.launcher} reads it from a file of text.", "give such a file another name.")

    def describe(self) -> str:
        """The whole plan as a bash script that does what `hvdtrain.launch.execute` does."""
        parts = ["#!/usr/bin/env bash", comment(self.launcher, self.notes), "set -eu"]
        if self.keep is not None:
            parts += ["for name in $(compgen -e); do", "    case $name in", f"        {'|'.join(self.keep)}) ;;"]
            parts += ['        *) unset "$name" ;;', "    esac", "done"]
        parts.extend(f"export {name}={shlex.quote(value)}" for name, value in sorted(self.env.items()))
        parts.extend(f"cat > {shlex.quote(name)} <<'{END}'\n{text}{END}" for name, text in self.files.items())
        if self.working_dir is not None:
            parts.append(f"cd {shlex.quote(self.working_dir)}")
        reads = f" < {shlex.quote(self.stdin)}" if self.stdin is not None else ""
        return "\n".join([*parts, "", "exec " + wrap_command(self.argv) + reads]) + "\n"

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The variables that the command gets, where the caller's are `inherited`."""
        kept = {name: text for name, text in inherited.items() if self.keep is None or matches(name, self.keep)}
        return {**kept, **self.env}


def comment(title: str, notes: tuple[Note, ...]) -> str:
    lines = [f"# {title}", "#"]
    wrapper = textwrap.TextWrapper(110, initial_indent="# ", subsequent_indent="#   ")
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    for what, why in notes:
        lines.extend(wrapper.wrap(f"{what}: {why}"))
    return "\n".join(lines)


def wrap_command(argv: tuple[str, ...]) -> str:
    """The command quoted for a shell, each option on a line of its own, and so the interpreter of the workers."""
    interpreter = next((i for i in range(1, len(argv)) if re.fullmatch(r"python[\d.]*", PurePath(argv[i]).name)), 0)
    text = shlex.quote(argv[0])
    for i, word in enumerate(argv[1:], start=1):
        is_module = i == interpreter + 1 if interpreter else (i, word) == (1, "-m")
        is_option = word.startswith("-") and " " not in word and not is_module
        text += (" \\\n    " if is_option or i == interpreter else " ") + shlex.quote(word)
    return text


def worker_variables(job: JobSpec) -> dict[str, str]:
    """What every worker must see, the same on all hosts; UsageError where they are to use different GPUs."""
    variables = {}
    if job.cores_per_worker is not None:
        variables["OMP_NUM_THREADS"] = str(job.cores_per_worker)
    if job.nics:
        variables["HOROVOD_GLOO_IFACE"] = job.nics[0]
        variables["NCCL_SOCKET_IFNAME"] = "=" + ",".join(job.nics)  # "=": these exactly, not all that begin so
    devices = visible_devices(job)
    if devices is not None:
        variables["CUDA_VISIBLE_DEVICES"] = devices
    return variables


def visible_devices(job: JobSpec) -> str | None:
    """Value for CUDA_VISIBLE_DEVICES; None where every host's workers use its GPUs 0, 1, … anyway. Raises UsageError:
    hosts whose workers use different sets of GPUs, which one variable cannot say."""
    wanted = {host.visible_devices for host in job.used_hosts}
    if len(wanted) > 1:
        raise UsageError(
            "Hosts are to use different sets of GPUs.",
            "Launchers give the workers of all hosts the same variables.",
            "number the devices of every host alike in the rank table, or use devices 0, 1, ... on each.",
        )
    return wanted.pop() if wanted else None


def resource_notes(job: JobSpec) -> tuple[Note, ...]:
    """Notes on workers, threads, binding and GPUs, the same for every launcher."""
    return (("workers", f"{job.np} on {job.describe_hosts()}"), ("threads", _threads(job)), ("GPUs", _gpus(job)))


def _threads(job: JobSpec) -> str:
    if job.cores_per_worker is None:
        return "each worker takes its share of the cores that it finds on its host when it starts"
    return (
        f"{job.cores_per_worker} for each worker, so that no two compute on one core: "
        f"{job.cores_per_host} cores, {job.slots} workers a host"
    )


def _gpus(job: JobSpec) -> str:
    devices = visible_devices(job)
    if devices is not None:
        return f"local rank 0, 1, ... uses device {devices} of its host, as the rank table says"
    if job.gpus_per_host:
        return (
            f"a worker uses the GPU of its local rank and sees all {job.gpus_per_host} of its host, so that NCCL finds "
            "the links between them"
        )
    return "a worker uses the GPU of its local rank, if its host has any"


def shared_notes(job: JobSpec, otherwise: str, *between: Note) -> list[Note]:
    """`resource_notes`, `between`, and the network interface: `otherwise` says what happens when none was named."""
    if job.nics:
        nic = f"{', '.join(job.nics)}, as --nic says"
    else:
        nic = "all workers are on this machine" if job.is_local else f"{otherwise}; --nic chooses"
    return [*resource_notes(job), *between, ("network interface", nic)]


def require_supported(job: JobSpec, launcher: str, wishes: Collection[str]) -> None:
    """Raise UsageError if the job asks for one of `wishes`, fields that this launcher has nothing for, or has no usable
    hosts; with "hosts" among them, it finds them itself."""
    address = next((host.name for host in job.used_hosts if host.is_ipv6), None)
    if "hosts" not in wishes and not job.hosts:
        raise UsageError(
            "The job names no hosts.", f"{launcher} does not find any itself.", "name them, e.g. -H node1:4,node2:4."
        )
    if "hosts" not in wishes and address is not None:
        own = launcher.startswith("hvdtrain launch")
        raise UsageError(
            f"Host {address} is an IPv6 address.",
            "Workers find each other over IPv4."
            if own
            else f"{launcher} separates hosts and slots by colons and cannot take it.",
            f"give the host a name{' that has an IPv4 address' * own}, in DNS or in /etc/hosts on all hosts.",
        )
    for wish in wishes:
        default = JobSpec.__dataclass_fields__[wish].default
        if getattr(job, wish) != default:
            option = option_of(wish)
            raise UsageError(
                f"The job has {option}.",
                f"{launcher} has nothing for that.",
                f"leave {option} out, or use {_OWN_LAUNCHER if wish in SUPERVISED else _OTHERS}.",
            )
