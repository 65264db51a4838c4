"""Run a job in places of a cluster, watched and restarted as those of ssh, and what such launchers ask first."""

import select
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.placed.cluster import PlacedCluster, System
from hvdtrain.launch.ssh.host_agents import HostAgents
from hvdtrain.launch.ssh.launcher import Attempt
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.diagnosis import JobOutcome
from hvdtrain.launch.supervisor.restarts import run_with_restarts
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.launch.worker_environment import THREADS, host_variables

_CONNECT_SECONDS = 5.0
_LOSS_SECONDS = 30.0  # for the broker to notice that a place is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a job runs, and as what.

    `request` is for the broker of `system`. Seconds: `wait` that there may be too little room, and `link_seconds` as of
    `Reach`. `threads` of each worker; `sees_gpus`: whether the cluster says which GPUs workers see. With
    `is_lost_as_whole`, the cluster takes all places back when one is lost, and gives others for a restart.
    """

    system: System
    request: Mapping[str, object]
    wait: float
    link_seconds: float
    threads: int
    sees_gpus: bool
    hint: str  # where nodes cannot be reached
    is_lost_as_whole: bool = False


def run(job: JobSpec, placement: Placement) -> int:
    """Run `job` in its places; returns the exit code. Whatever ends this process ends all that it has started. Raises
    UsageError: no such places, or a command that cannot be started; HvdtrainError: as `hvdtrain launch ssh`."""
    with SignalInbox() as inbox, ExitStack() as outer:
        console = Console(inbox)
        opened = PlacedCluster(placement.system, placement.request, placement.link_seconds, inbox.wake, console.say)
        cluster = outer.enter_context(opened)
        number = cluster.await_hosts(placement.wait + job.start_timeout, inbox)
        if number is not None:
            console.say(f"hvdtrain launch: stopped by {number.name}.")
            return 128 + number

        def variables(job: JobSpec, host: Host, environ: Mapping[str, str]) -> dict[str, str]:
            return _variables(job, host, environ, placement, cluster.gpus)

        def refusal(failures: Mapping[str, str]) -> UsageError:
            return _unreachable(failures, placement.hint)

        agents = outer.enter_context(HostAgents(cluster.hosts, cluster, inbox, job.start_timeout))
        attempt = Attempt(job, agents, console, inbox, refusal, cluster, variables)

        def run_once(restarts: int, cause: str) -> JobOutcome:
            ended = None
            if restarts and placement.is_lost_as_whole and _has_lost(agents, cluster):
                ended = _await_other_places(placement.wait + job.start_timeout, cluster, agents, inbox)
            if ended is not None:
                console.say(ended.message)
                return ended
            return attempt.run(restarts, cause)

        return run_with_restarts(run_once, job, console, inbox)


def _has_lost(agents: HostAgents, cluster: PlacedCluster) -> bool:
    """Whether places were lost, as the cluster says or as their agents show."""
    there = [host.name for host in agents.hosts if host.name in agents.links and not agents.links[host.name].lost]
    return cluster.hosts is not agents.hosts or len(there) < len(agents.hosts)


def _await_other_places(
    seconds: float, cluster: PlacedCluster, agents: HostAgents, inbox: SignalInbox
) -> JobOutcome | None:
    """Wait until the cluster has taken all places back and given others; the outcome where it does not, within
    `seconds`."""
    before, deadline = agents.hosts, time.monotonic() + _LOSS_SECONDS
    number = None
    while number is None and cluster.hosts is before and not cluster.gone and time.monotonic() < deadline:
        select.select([inbox], [], [], max(0.0, deadline - time.monotonic()))
        number = next(iter(inbox.take()), None)
    if number is None and cluster.hosts is before and not cluster.gone:
        return None  # only connections to it were lost
    for name, link in agents.links.items():
        if not link.lost and link not in agents.dismissed:
            agents.dismiss(name)
    try:
        number = number or cluster.await_hosts(seconds, inbox)
    except UsageError as error:
        text = f"hvdtrain launch: {error.fact}\nHINT: {error.hint}"
        return JobOutcome(1, message=text, may_restart=not cluster.gone)
    return None if number is None else JobOutcome(128 + number, message=f"hvdtrain launch: stopped by {number.name}.")


def threads_for(cpus: float) -> int:
    """How many threads a worker with so many CPUs computes with."""
    return max(1, int(cpus))


def require_wait(seconds: float) -> None:
    """Raise UsageError for a --wait that is not a time."""
    if not 0 <= seconds < 1e9:
        raise UsageError(
            f"--wait is {seconds:g}.", "It must be a number with an end, 0 or more.", "give seconds, such as 600."
        )


def why_silent(host: str, port: int) -> str:
    """Why nobody listens there; empty where somebody does. Libraries of clusters would try for minutes."""
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def _variables(
    job: JobSpec, host: Host, environ: Mapping[str, str], placement: Placement, gpus: Mapping[str, list[str]]
) -> dict[str, str]:
    """Of the workers of a host. Which GPUs they see, the cluster decides, and not where the launcher runs."""
    variables = dict.fromkeys(THREADS, str(placement.threads)) | host_variables(job, host, environ)
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    if placement.sees_gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus.get(host.name, []))
    return variables


def _unreachable(failures: Mapping[str, str], hint: str) -> UsageError:
    return UsageError(
        f"Nodes cannot be used: {'; '.join(f'{name}: {reason}' for name, reason in failures.items())}.",
        "Each of them is to run workers, and nothing was started.",
        hint,
    )
