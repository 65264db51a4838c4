"""`hvdtrain launch ray`: workers in a placement group of a Ray cluster, watched and restarted as those of ssh."""

import importlib.util
import os
import re
import shlex
import socket
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack

from hvdtrain.errors import UsageError
from hvdtrain.launch import launcher_api
from hvdtrain.launch import option_groups as groups
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.job_spec import JobSpec, require_choice
from hvdtrain.launch.ray.cluster import RayCluster
from hvdtrain.launch.ray.request import Request
from hvdtrain.launch.ray.seat_agent import PYTHON
from hvdtrain.launch.rendering import comment
from hvdtrain.launch.ssh.host_agents import HostAgents
from hvdtrain.launch.ssh.launcher import Attempt, require_runnable
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.restarts import run_with_restarts
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.launch.worker_environment import THREADS, host_variables

_PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_ADDRESS = re.compile(r"(?:ray://)?\[?([^\[\]/]+?)\]?:(\d{1,5})")
_CONNECT_SECONDS = 5.0


def start(options: Namespace, command: tuple[str, ...]) -> int:
    """Run the job that options describe, or print what would run; returns the exit code."""
    job = launcher_api.job_from(options, command, python=PYTHON)
    request = _request(options, job)
    _require_address(request.address)
    require_runnable(job, os.environ, "hvdtrain launch ray", ("hosts",))
    if options.dry_run:
        sys.stdout.write(_preview(job, request))
        return 0
    launcher_api.require_outside_job()
    _require_ray()
    _require_cluster(request.address)
    return run(job, request)


LAUNCHER = launcher_api.Launcher(
    "workers in a placement group of a Ray cluster; restarts them: -np 8 --gpus-per-worker 1",
    (
        groups.option(
            "--address",
            metavar="ADDRESS",
            help="auto, HOST:PORT or ray://HOST:PORT (default: RAY_ADDRESS, "
            "the cluster of this machine, or one that is started for the job)",
        ),
        *(*groups.JOB, *groups.NETWORK),
        groups.option("--python", metavar="PATH", help="interpreter of the workers (default: Ray's on each node)"),
        groups.option(
            "--cpus-per-worker", type=float, default=1.0, metavar="N", help="also its number of threads (default: 1)"
        ),
        groups.number("--gpus-per-worker", default=0),
        groups.repeated("--resource", "NAME=AMOUNT", help="another resource that each worker takes, as Ray calls it"),
        groups.option(
            "--placement", choices=_PLACEMENTS, default="PACK", help="Ray's strategy for the workers (default: PACK)"
        ),
        groups.seconds("--wait", 0.0, "seconds to wait until the cluster has room (default: {})"),
        *(*groups.RESTARTS, groups.BACKOFF, *groups.BOUNDS, groups.start_timeout(300.0)),
        groups.LINK_TIMEOUT,
    ),
    start,
)


def run(job: JobSpec, request: Request) -> int:
    """Run `job` in its places; returns the exit code. Whatever ends this process ends all that it has started. Raises
    UsageError: no such places, or a command that cannot be started; HvdtrainError: as `hvdtrain launch ssh`."""
    with SignalInbox() as inbox, ExitStack() as outer:
        console = Console(inbox)
        cluster = outer.enter_context(RayCluster(request, inbox.wake))
        number = cluster.await_hosts(request.wait + job.start_timeout, inbox)
        if number is not None:
            console.say(f"hvdtrain launch: stopped by {number.name}.")
            return 128 + number

        def variables(job: JobSpec, host: Host, environ: Mapping[str, str]) -> dict[str, str]:
            return _variables(job, host, environ, request, cluster.gpus)

        agents = outer.enter_context(HostAgents(cluster.hosts, cluster, inbox, job.start_timeout))
        attempt = Attempt(job, agents, console, inbox, _unreachable, cluster, variables)
        return run_with_restarts(attempt.run, job.max_restarts, job.backoff, console, inbox)


def _variables(
    job: JobSpec, host: Host, environ: Mapping[str, str], request: Request, gpus: Mapping[str, list[str]]
) -> dict[str, str]:
    """Of the workers of a host. Which GPUs they see, Ray decides, and not where the launcher runs."""
    variables = dict.fromkeys(THREADS, _threads(request)) | host_variables(job, host, environ)
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    if "GPU" in request.resources:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus.get(host.name, []))
    return variables


def _threads(request: Request) -> str:
    return str(max(1, int(request.resources.get("CPU", 1))))


def _request(options: Namespace, job: JobSpec) -> Request:
    resources = {"CPU": options.cpus_per_worker, "GPU": float(options.gpus_per_worker)}
    for text in options.resource:
        name, _, amount = text.partition("=")
        if not name or not re.fullmatch(r"\d{1,9}(\.\d{1,4})?", amount) or name in resources:
            raise UsageError(
                f"--resource is {text!r}.",
                "It is the name and the amount of a resource besides CPU and GPU.",
                "write --resource TPU=4, for example.",
            )
        resources[name] = float(amount)
    if not all(0 <= amount < 1e6 for amount in resources.values()) or not any(resources.values()):
        raise UsageError(
            f"A worker takes {options.cpus_per_worker:g} CPUs and {options.gpus_per_worker} GPUs.",
            "Ray reserves something for each worker, and nothing negative.",
            "give --cpus-per-worker 1, for example.",
        )
    if not 0 <= options.wait < 1e9:
        raise UsageError(
            f"--wait is {options.wait:g}.", "It must be a number with an end, 0 or more.", "give seconds, such as 600."
        )
    require_choice(f"The placement is {options.placement!r}.", options.placement, _PLACEMENTS)
    least, most = job.world_sizes
    needs = {name: amount for name, amount in resources.items() if amount}
    return Request(options.address, job.np, least, most, needs, options.placement, options.wait, options.link_timeout)


def _require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            "Ray is not installed here.",
            "Places in its cluster are asked for by it.",
            "pip install 'hvdtrain[ray]', in the version that the cluster has.",
        )


def _require_address(address: str | None) -> None:
    if address not in (None, "auto") and not _ADDRESS.fullmatch(str(address)):
        raise UsageError(
            f"The address of the Ray cluster is {address!r}.",
            "It is auto, HOST:PORT or ray://HOST:PORT.",
            "see what `ray start --head` printed, for example node1:6379.",
        )


def _require_cluster(address: str | None) -> None:
    """Raise UsageError where nothing listens: Ray itself would try for minutes."""
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return
    try:
        socket.create_connection((match[1], int(match[2])), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"There is no Ray cluster at {address}: {getattr(error, 'strerror', None) or error}.",
            "The workers are to run there.",
            "see `ray status` on one of its machines, or leave --address out.",
        ) from error


def _unreachable(failures: Mapping[str, str]) -> UsageError:
    return UsageError(
        f"Nodes cannot be used: {'; '.join(f'{name}: {reason}' for name, reason in failures.items())}.",
        "Each of them is to run workers, and nothing was started.",
        "launch from a machine of the cluster, for example by `ray job submit -- hvdtrain launch ray ...`.",
    )


def _preview(job: JobSpec, request: Request) -> str:
    needs = ", ".join(f"{amount:g} {name}" for name, amount in request.resources.items())
    wait = f"for {request.wait:g} s" if request.wait else "not at all"
    notes = (
        ("cluster", request.address or "that of RAY_ADDRESS or of this machine; else one is started for the job"),
        ("placement group", f"{job.np} bundles of {needs}, {request.strategy}; it waits for room {wait}"),
        ("threads", f"{_threads(request)} for each worker, as --cpus-per-worker says"),
        ("GPUs", "workers of a node see all GPUs that Ray gives to them there; local rank 0, 1, ... uses one of these"),
        ("interpreter", "Ray's on each node" if job.python == PYTHON else job.python),
        ("start", "an actor on each node starts its workers, which meet at this machine; no ssh, no MPI"),
    )
    return comment(f"hvdtrain launch ray: {job.np} workers", notes) + "\n" + shlex.join(job.argv) + "\n"
