"""`hvdtrain launch ray`: workers in a placement group of a Ray cluster, watched and restarted as those of ssh."""

import importlib.util
import os
import re
import shlex
import sys
from argparse import Namespace
from dataclasses import asdict

from hvdtrain.errors import UsageError
from hvdtrain.launch import launcher_api
from hvdtrain.launch import option_groups as groups
from hvdtrain.launch.job_spec import JobSpec, require_choice
from hvdtrain.launch.placed.cluster import System
from hvdtrain.launch.placed.launcher import Placement, require_wait, run, threads_for, why_silent
from hvdtrain.launch.placed.seat_agent import PYTHON
from hvdtrain.launch.ray.grpc_answer import why_not_grpc
from hvdtrain.launch.ray.request import Request
from hvdtrain.launch.rendering import comment
from hvdtrain.launch.ssh.launcher import UNSUPPORTED, require_runnable

_PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_ADDRESS = re.compile(r"(?:ray://)?\[?([^\[\]/]+?)\]?:(\d{1,5})")
_HINT = "see `ray status` on a machine of the cluster; --address names another one."


def start(options: Namespace, command: tuple[str, ...]) -> int:
    """Run the job that options describe, or print what would run; returns the exit code."""
    job = launcher_api.job_from(options, command, python=PYTHON)
    request = _request(options, job)
    _require_address(request.address, options.address)
    require_runnable(job, os.environ, "hvdtrain launch ray", (*UNSUPPORTED, "hosts"))
    if options.dry_run:
        sys.stdout.write(_preview(job, request))
        return 0
    launcher_api.require_outside_job()
    _require_ray()
    _require_cluster(request.address)
    return run(job, _placement(request))


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


def _placement(request: Request) -> Placement:
    return Placement(
        system=System("Ray", "hvdtrain.launch.ray.broker", _HINT, request.address or ""),
        request=asdict(request),
        wait=request.wait,
        link_seconds=request.link_seconds,
        threads=_threads(request),
        sees_gpus="GPU" in request.resources,
        hint="launch from a machine of the cluster, for example by `ray job submit -- hvdtrain launch ray ...`.",
    )


def _threads(request: Request) -> int:
    return threads_for(request.resources.get("CPU", 1))


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
    require_wait(options.wait)
    require_choice(f"The placement is {options.placement!r}.", options.placement, _PLACEMENTS)
    least, most = job.world_sizes
    needs = {name: amount for name, amount in resources.items() if amount}
    python = None if job.python == PYTHON else job.python
    address = options.address
    if address in (None, "auto"):  # for Ray, too, its variable comes first then
        address = os.environ.get("RAY_ADDRESS") or address
    places = address, job.np, least, most, needs, options.placement
    return Request(*places, wait=options.wait, python=python, link_seconds=groups.link_timeout(options))


def _require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            "Ray is not installed here.",
            "Places in its cluster are asked for by it.",
            "pip install 'hvdtrain[ray]', in the version that the cluster has.",
        )


def _require_address(address: str | None, option: str | None) -> None:
    """Raise UsageError for an address that Ray cannot have; `option` is what --address says of it."""
    if address not in (None, "auto", "local") and not _ADDRESS.fullmatch(str(address)):
        source = "" if address == option else ", by the variable RAY_ADDRESS"
        raise UsageError(
            f"The address of the Ray cluster is {address!r}{source}.",
            "It is auto, local, HOST:PORT or ray://HOST:PORT.",
            "give --address as `ray start --head` printed it, for example node1:6379; only `ray job submit` takes "
            "http://HOST:PORT.",
        )


def _require_cluster(address: str | None) -> None:
    """Raise UsageError where nothing of Ray listens: Ray itself would try for minutes."""
    match = _ADDRESS.fullmatch(address or "auto")
    where = (match[1], int(match[2])) if match is not None else None
    why = (why_silent(*where) or why_not_grpc(*where)) if where is not None else ""
    if why:
        raise UsageError(
            f"There is no Ray cluster at {address}: {why}.",
            "The workers are to run there.",
            "see `ray status` on one of its machines, or leave --address out.",
        )


def _preview(job: JobSpec, request: Request) -> str:
    needs = ", ".join(f"{amount:g} {name}" for name, amount in request.resources.items())
    wait = f"for {request.wait:g} s" if request.wait else "not at all"
    notes = (
        ("cluster", request.address or "that of this machine; else one is started for the job"),
        ("placement group", f"{job.np} bundles of {needs}, {request.strategy}; it waits for room {wait}"),
        ("threads", f"{_threads(request)} for each worker, as --cpus-per-worker says"),
        ("GPUs", "workers of a node see all GPUs that Ray gives to them there; local rank 0, 1, ... uses one of these"),
        ("interpreter", "Ray's on each node" if job.python == PYTHON else job.python),
        ("start", "an actor on each node starts its workers, which meet at this machine; no ssh, no MPI"),
    )
    return comment(f"hvdtrain launch ray: {job.np} workers", notes) + "\n" + shlex.join(job.argv) + "\n"
