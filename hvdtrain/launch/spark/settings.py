"""Spark's settings for a job: those that its options say, and those without which a barrier stage would not do."""

import re
from collections.abc import Sequence

from hvdtrain.errors import UsageError
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.ssh.host_addresses import interface_address

_NAME = re.compile(r"spark(\.\w[\w-]*)+")
_ALWAYS = {
    "spark.dynamicAllocation.enabled": "false",  # it would take executors away
    "spark.speculation": "false",
    "spark.stage.maxConsecutiveAttempts": "1",  # the launcher decides on restarts
    "spark.python.worker.reuse": "false",  # what was an agent does nothing else afterwards
}
_BY_OPTIONS = {
    "spark.master": "--master",
    "spark.app.name": "--name",
    "spark.task.cpus": "--cpus-per-worker",
    "spark.task.resource.gpu.amount": "--gpus-per-worker",
    "spark.pyspark.python": "--python",
}


def settings_for(job: JobSpec, cpus: int, gpus: int, given: Sequence[str]) -> dict[str, str]:
    """Spark's settings, by their names; `given` are those of --conf, as NAME=VALUE. Raises UsageError: a worker that
    takes nothing, or a setting that the job has to decide itself."""
    if not 1 <= cpus < 10**6 or not 0 <= gpus < 10**6:
        raise UsageError(
            f"A worker takes {cpus} CPUs and {gpus} GPUs.",
            "A task of Spark has at least one CPU, and whole numbers of both.",
            "give --cpus-per-worker 1, for example.",
        )
    own = _by_options(job, cpus, gpus)
    asked = _parsed(given)
    for name in asked:
        if name in own | _ALWAYS or name in _BY_OPTIONS:
            raise UsageError(
                f"--conf sets {name}.",
                "The launcher decides it, for the workers of a barrier stage.",
                f"use {_BY_OPTIONS[name]} instead." if name in _BY_OPTIONS else "leave it out.",
            )
    return {**_defaults(job, cpus, gpus), **asked, **own, **_ALWAYS}


def _by_options(job: JobSpec, cpus: int, gpus: int) -> dict[str, str]:
    own = {"spark.app.name": job.name, "spark.task.cpus": str(cpus)}
    if gpus:
        own["spark.task.resource.gpu.amount"] = str(gpus)
    return own | (_executor(job.slots_per_host, cpus, gpus) if job.slots_per_host is not None else {})


def _executor(workers: int, cpus: int, gpus: int) -> dict[str, str]:
    """With room for so many workers."""
    cores = {"spark.executor.cores": str(workers * cpus)}
    return cores | ({"spark.executor.resource.gpu.amount": str(workers * gpus)} if gpus else {})


def _defaults(job: JobSpec, cpus: int, gpus: int) -> dict[str, str]:
    """What --conf may say otherwise. Without a bound, a standalone cluster gives all of its cores to one job, and parts
    of executors in which no worker has room."""
    slots = job.slots_per_host or 1
    defaults = {
        "spark.cores.max": str(-(-job.np // slots) * slots * cpus),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_executor(1, cpus, gpus),
    }
    address = next(filter(None, map(interface_address, job.nics)), None)
    return defaults | ({"spark.driver.host": address} if address is not None else {})


def _parsed(given: Sequence[str]) -> dict[str, str]:
    asked = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise UsageError(
                f"--conf is {name!r}.",
                "It is the name and the value of a setting of Spark.",
                "write --conf spark.executor.memory=4g, for example.",
            )
        asked[name] = value
    return asked
