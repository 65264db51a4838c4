"""What `hvdtrain launch ssh` would run, word for word, for --dry-run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace

from hvdtrain.launch.hosts.host import Host, RankAssignment, assign_ranks
from hvdtrain.launch.job import JobSpec
from hvdtrain.launch.rendering import Note, comment, resource_notes, wrap_command
from hvdtrain.launch.ssh.command import SshOptions, agent_argv, ssh_argv
from hvdtrain.launch.worker_environment import THREADS, host_variables, worker_environment

_FOUND = {
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "<this machine's address and a token>",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "<free port>",
}
_INTERFACE = "<interface towards this machine>"


def preview(
    job: JobSpec, options: SshOptions, is_here: Callable[[str], bool], environ: Mapping[str, str], folder: str
) -> str:
    """The text.

    Args:
        job, options: what would run.
        is_here: whether a host is this machine.
        environ: where variables that are passed on are looked up; their values are not shown.
        folder: where workers start unless the job says so.
    """
    places = assign_ranks(job.hosts, job.np)
    title = f"hvdtrain launch ssh: {job.np} workers on {job.describe_hosts()}"
    parts = [comment(title, _notes(job, options))]
    for host in job.used_hosts:
        own = [place for place in places if place.host == host.name]
        passed = host_variables(job, host, environ)
        parts.append(_on_host(host, own, options, is_here(host.name)))
        parts.append("\n".join(_order(job, own, passed, job.working_dir or folder)))
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


def _on_host(host: Host, own: list[RankAssignment], options: SshOptions, here: bool) -> str:
    argv = agent_argv(options) if here else ssh_argv(options, host.name)
    how = "is this machine, so no ssh is needed; its agent" if here else "is reached by ssh; its agent"
    ranks = f"rank {own[0].rank}" if len(own) == 1 else f"ranks {own[0].rank} to {own[-1].rank}"
    return f"# {host.name} {how} starts {ranks}:\n{wrap_command(argv)}"


def _order(job: JobSpec, own: list[RankAssignment], passed: Mapping[str, str], folder: str) -> list[str]:
    shown = dict.fromkeys(passed, "<its value here>")
    made = worker_environment({}, own[0], _FOUND, _INTERFACE, "<of this job and host>", 0)
    threads = dict.fromkeys(THREADS, f"<cores of the host, shared by {len(own)}>")
    own_names = own[0].variables
    common = {**made, **threads, **shown, **_stated(job, passed)}
    lines = [f"#   in {shlex.quote(folder)}:", f"#   {shlex.join(job.argv)}", "#   all of its ranks get:"]
    lines += [f"#     {name}={value}" for name, value in sorted(common.items()) if name not in own_names]
    for place in own:
        variables = " ".join(f"{name}={value}" for name, value in place.variables.items())
        lines.append(f"#   rank {place.rank}: {variables}")
    return lines


def _stated(job: JobSpec, passed: Mapping[str, str]) -> dict[str, str]:
    """What flags decided, and so is no secret."""
    names = list(THREADS) if job.cores_per_worker is not None else []
    if job.nics:
        names.append("NCCL_SOCKET_IFNAME")
    if any(host.devices for host in job.hosts):
        names.append("CUDA_VISIBLE_DEVICES")
    return {name: passed[name] for name in names if name in passed}
