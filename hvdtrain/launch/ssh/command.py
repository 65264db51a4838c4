"""The command that reaches a host and starts its agent, and what `hvdtrain launch ssh` would run, for --dry-run.

The command shows no variables and no secret: those follow by stdin.
"""

import functools
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hvdtrain.launch.hosts.host import Host, assign_ranks
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.rendering import Note, comment, resource_notes, wrap_command
from hvdtrain.launch.ssh.line import Line, ProgramLine
from hvdtrain.launch.worker_environment import THREADS, host_variables, stated_variables, worker_environment
from hvdtrain.topology.launcher_variables import JOB_NAME_VARIABLE
from hvdtrain.topology.topology import RankAssignment

_FOUND = {
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "<this machine's address and a token>",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "<free port>",
}
_INTERFACE = "<interface towards this machine>"


@dataclass(frozen=True, slots=True)
class SshOptions:
    """How hosts are reached, and which agent they run."""

    python: str  # interpreter on the hosts
    port: int | None = None  # None: what ssh's configuration says
    link_seconds: float = 15.0  # of silence, after which a host counts as lost, and a connection as refused
    checks_host_keys: bool = True  # False: whoever answers is believed to be the host
    agent: str = "hvdtrain.launch.ssh.agent"  # the module that runs on the hosts
    folder: str | None = None  # where the agent starts if that exists there; None: in the user's home
    python_path: str = ""  # the agent's PYTHONPATH, with `folder`


def agent_argv(options: SshOptions) -> tuple[str, ...]:
    """What runs on the host. `-P`: a folder called `launch` in somebody's home must not be imported."""
    isolated = ("-P",) if options.folder is None else ()
    return (options.python, *isolated, "-m", options.agent, f"{options.link_seconds:g}")


def ssh_argv(options: SshOptions, host: str) -> tuple[str, ...]:
    """The ssh command for one host: it never asks, forwards nothing, and notices a dead link by itself."""
    settings = {
        "BatchMode": "yes",
        "ConnectTimeout": max(3, int(options.link_seconds)),
        # It gives up after interval × (count + 1), a little before the launcher would.
        "ServerAliveInterval": max(1, int(options.link_seconds / 5)),
        "ServerAliveCountMax": 3,
        "ForwardX11": "no",
        "ForwardAgent": "no",
        "ClearAllForwardings": "yes",
        # A connection that other sessions share would outlive this one, with its own settings.
        "ControlMaster": "no",
        "ControlPath": "none",
        "PermitLocalCommand": "no",
        "RemoteCommand": "none",
    }
    if not options.checks_host_keys:
        settings |= {"StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null", "LogLevel": "ERROR"}
    words = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    port = ["-p", str(options.port)] if options.port is not None else []
    # ssh joins what follows the host by spaces and hands it to the user's shell there, so it is quoted as one word.
    return ("ssh", "-T", *words, *port, "--", host, f"exec {_on_host(options)}")


class SshReach:
    """Hosts are reached by ssh; those that are this machine (`is_here`, asked once for each) without it."""

    def __init__(self, options: SshOptions, is_here: Callable[[str], bool]) -> None:
        self._options = options
        self._is_here = functools.cache(is_here)

    @property
    def link_seconds(self) -> float:
        return self._options.link_seconds

    def line_to(self, host: str) -> Line:
        options = self._options
        return ProgramLine(agent_argv(options) if self._is_here(host) else ssh_argv(options, host))


def _on_host(options: SshOptions) -> str:
    command = shlex.join(agent_argv(options))
    if options.folder is None:
        return command
    added = f"env {shlex.quote(f'PYTHONPATH={options.python_path}')} " if options.python_path else ""
    # sh -c: the login shell may be one that knows no 2>.
    return f"sh -c {shlex.quote(f'cd {shlex.quote(options.folder)} 2>/dev/null; exec {added}{command}')}"


def preview(
    job: JobSpec, options: SshOptions, is_here: Callable[[str], bool], environ: Mapping[str, str], folder: str
) -> str:
    """What would run, word for word, in `folder` unless the job says so; the values of variables are not shown."""
    places = assign_ranks(job.hosts, job.np)
    title = f"hvdtrain launch ssh: {job.np} workers on {job.describe_hosts()}"
    parts = [comment(title, _notes(job, options))]
    for host in job.used_hosts:
        ranks = [place for place in places if place.host == host.name]
        shown = dict.fromkeys(host_variables(job, host, environ), "<its value here>") | stated_variables(job, host)
        parts.append(_agent_command(host, ranks, options, is_here(host.name)))
        parts.append("\n".join(_order(job, ranks, shown, job.working_dir or folder)))
    return "\n\n".join(parts) + "\n"


def _notes(job: JobSpec, options: SshOptions) -> tuple[Note, ...]:
    nic = (
        f"the first of {', '.join(job.nics)} that a host has, as --nic says"
        if job.nics
        else "of each host, the one from which packets to this machine leave; --nic chooses others"
    )
    served = "its address on the interface of --nic" if job.nics else "the address from which the hosts see ssh come"
    notes = [
        *_shares(job),
        ("network interface", nic),
        ("meeting", f"this machine serves the workers' addresses on one port of {served}; nothing listens elsewhere"),
        ("secrets", "the token of the meeting and variables' values go to agents' standard input, never to a command"),
        ("end", f"agents kill their workers when ssh ends, or after {options.link_seconds:g} s of silence"),
        ("restarts", _restarts(job)),
    ]
    if job.host_discovery_script is not None:
        notes.append(("hosts", f"{job.host_discovery_script} names them, now and every second; the table is of now"))
    if not options.checks_host_keys:
        notes.append(("ssh", "HOST KEYS ARE NOT CHECKED: whoever answers gets the job's variables"))
    return tuple(notes)


def _shares(job: JobSpec) -> list[Note]:
    """As of every launcher, but that each host's workers may have GPUs of their own numbers."""
    plain = replace(job, hosts=tuple(replace(host, devices=()) for host in job.hosts))
    gpus = "local rank 0, 1, ... uses the devices that the rank table names for its host"
    named = any(host.devices for host in job.hosts)
    return [(what, gpus if named and what == "GPUs" else why) for what, why in resource_notes(plain)]


def _restarts(job: JobSpec) -> str:
    if not job.max_restarts:
        return "none; --max-restarts starts all workers again from the last checkpoint"
    few, many = job.min_workers or job.np, job.max_workers or job.np
    number = f"{job.np} workers" if few == many else f"{few} to {many} workers, as hosts are there"
    return f"{job.max_restarts}, with {number}, from the last checkpoint"


def _agent_command(host: Host, places: list[RankAssignment], options: SshOptions, here: bool) -> str:
    argv = agent_argv(options) if here else ssh_argv(options, host.name)
    how = "is this machine, so no ssh is needed; its agent" if here else "is reached by ssh; its agent"
    ranks = f"rank {places[0].rank}" if len(places) == 1 else f"ranks {places[0].rank} to {places[-1].rank}"
    return f"# {host.name} {how} starts {ranks}:\n{wrap_command(argv)}"


def _order(job: JobSpec, places: list[RankAssignment], shown: Mapping[str, str], folder: str) -> list[str]:
    made = worker_environment({}, places[0], _FOUND, _INTERFACE, "<of this job and host>", 0)
    threads = dict.fromkeys(THREADS, f"<cores of the host, shared by {len(places)}>")
    own_names = places[0].variables
    common = {**made, **threads, JOB_NAME_VARIABLE: "<of this job>", **shown}
    lines = [f"#   in {shlex.quote(folder)}:", f"#   {shlex.join(job.argv)}", "#   all of its ranks get:"]
    lines += [f"#     {name}={value}" for name, value in sorted(common.items()) if name not in own_names]
    for place in places:
        variables = " ".join(f"{name}={value}" for name, value in place.variables.items())
        lines.append(f"#   rank {place.rank}: {variables}")
    return lines
