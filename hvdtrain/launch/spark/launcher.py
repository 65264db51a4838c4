"""`hvdtrain launch spark`: workers in a barrier stage of a Spark cluster, watched and restarted as those of ssh."""

import argparse
import importlib.util
import os
import re
import shlex
import shutil
import sys
from argparse import Namespace
from dataclasses import asdict

from hvdtrain.errors import UsageError
from hvdtrain.launch import launcher_api
from hvdtrain.launch import option_groups as groups
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.placed.cluster import System
from hvdtrain.launch.placed.launcher import Placement, require_wait, run, threads_for, why_silent
from hvdtrain.launch.rendering import comment
from hvdtrain.launch.spark.request import Request
from hvdtrain.launch.spark.settings import settings_for
from hvdtrain.launch.ssh.launcher import UNSUPPORTED, require_runnable

_STANDALONE = re.compile(r"spark://([^\[\]/,\s]+?):(\d{1,5})")
_MASTER = re.compile(r"spark://[^/\s]+|yarn|k8s://\S+")
_UNSUPPORTED = ("hosts", *(field for field in UNSUPPORTED if field != "slots_per_host"))
_HINT = "see the page of Spark's master; --master names another cluster."


def start(options: Namespace, command: tuple[str, ...]) -> int:
    """Run the job that options describe, or print what would run; returns the exit code."""
    _require_fixed(options)
    job = launcher_api.job_from(options, command, python=os.environ.get("PYSPARK_PYTHON") or sys.executable)
    request = _request(options, job)
    _require_master(request.master)
    require_runnable(job, os.environ, "hvdtrain launch spark", _UNSUPPORTED)
    if options.dry_run:
        sys.stdout.write(_preview(job, request))
        return 0
    launcher_api.require_outside_job()
    _require_spark()
    _require_java()
    _require_cluster(request.master)
    return run(job, _placement(request, options))


LAUNCHER = launcher_api.Launcher(
    "workers in a barrier stage of a Spark cluster; restarts them: -np 8 --master spark://node1:7077",
    (
        groups.option(
            "--master",
            metavar="URL",
            help="spark://HOST:PORT, yarn or k8s://... (default: what spark-defaults.conf or MASTER says)",
        ),
        *(*groups.JOB, *groups.NETWORK),
        groups.option("--name", default="hvdtrain", help="name of the application (default: hvdtrain)"),
        groups.option(
            "--python",
            metavar="PATH",
            help="interpreter on the executors (default: PYSPARK_PYTHON, or the path of this one)",
        ),
        groups.number("--cpus-per-worker", default=1, help="also its number of threads (default: 1)"),
        groups.number("--gpus-per-worker", default=0),
        groups.number("--slots-per-host", help="workers of each executor (default: 1)"),
        groups.repeated("--conf", "NAME=VALUE", help="a setting of Spark, such as spark.executor.memory=4g"),
        groups.seconds("--wait", 60.0, "seconds to wait until Spark has room for all workers (default: {})"),
        *(*groups.RESTARTS, groups.BACKOFF, groups.start_timeout(300.0)),
        groups.LINK_TIMEOUT,
        *(groups.option(name, type=int, help=argparse.SUPPRESS) for name in ("--min-workers", "--max-workers")),
    ),
    start,
)


def _placement(request: Request, options: Namespace) -> Placement:
    return Placement(
        system=System("Spark", "hvdtrain.launch.spark.broker", _HINT, request.master or ""),
        request=asdict(request),
        wait=request.wait,
        link_seconds=request.link_seconds,
        threads=threads_for(options.cpus_per_worker),
        sees_gpus=bool(options.gpus_per_worker),
        hint="launch from a machine that the executors can call, and that can call them.",
        is_lost_as_whole=True,
    )


def _request(options: Namespace, job: JobSpec) -> Request:
    require_wait(options.wait)
    settings = settings_for(job, options.cpus_per_worker, options.gpus_per_worker, options.conf)
    return Request(options.master, job.np, settings, job.python, options.wait, groups.link_timeout(options))


def _require_fixed(options: Namespace) -> None:
    """Raise UsageError for a job that is to go on with fewer workers: `--min-workers` is there for this refusal."""
    for name in ("min_workers", "max_workers"):
        if vars(options)[name] is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} is given.",
                "When Spark loses a task of a barrier stage, it ends all of them, so no worker can go on.",
                "use --max-restarts alone, which starts all again from the last checkpoint; `hvdtrain launch ray` and "
                "`ssh` can go on with fewer.",
            )


def _require_master(master: str | None) -> None:
    if master is None or _MASTER.fullmatch(master):
        return
    fact = f"The master of the Spark cluster is {master!r}."
    if master.startswith("local"):
        raise UsageError(fact, "That is this machine alone.", "use `hvdtrain launch local`.")
    conflict = "It is spark://HOST:PORT, yarn or k8s://URL."
    raise UsageError(fact, conflict, "see the page of Spark's master, for example spark://node1:7077.")


def _require_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise UsageError(
            "PySpark is not installed here.",
            "Places in a Spark cluster are asked for by it.",
            "pip install 'hvdtrain[spark]', in the version that the cluster has.",
        )


def _require_java() -> None:
    """Raise UsageError where Spark's own script would find no Java."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(os.path.join(home, "bin", "java")) if home else shutil.which("java")
    if found is None:
        raise UsageError(
            f"There is no program java {f'in {home}/bin, where JAVA_HOME points' if home else 'on the path'}.",
            "Spark talks to its cluster by a Java process.",
            "install it (Debian: apt-get install default-jre-headless), or let JAVA_HOME name its folder.",
        )


def _require_cluster(master: str | None) -> None:
    """Raise UsageError where nothing listens: Spark itself would try for a minute."""
    if master is None or (match := _STANDALONE.fullmatch(master)) is None:
        return
    why = why_silent(match[1], int(match[2]))
    if why:
        raise UsageError(
            f"There is no Spark cluster at {master}: {why}.",
            "The workers are to run there.",
            "its master's page shows the URL; `sbin/start-master.sh` of Spark starts one.",
        )


def _preview(job: JobSpec, request: Request) -> str:
    settings = request.settings
    notes = (
        ("cluster", request.master or "the one that spark-defaults.conf or MASTER names"),
        ("barrier stage", f"{job.np} tasks, which begin together; it waits for room for {request.wait:g} s"),
        ("threads", f"{settings['spark.task.cpus']} for each worker, as --cpus-per-worker says"),
        ("interpreter", job.python),
        ("start", "a task on each executor starts its workers, which meet at this machine; no ssh, no MPI"),
        *(("setting", f"{name}={value}") for name, value in settings.items()),
    )
    return comment(f"hvdtrain launch spark: {job.np} workers", notes) + "\n" + shlex.join(job.argv) + "\n"
