"""All that a job may be refused for before anything is rendered."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from hvdtrain.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from hvdtrain.launch.job import JobSpec

BINDINGS = ("auto", "none", "core")
MAX_WORKERS = 1_000_000

_MOST = 2**31 - 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NIC = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]{0,254}")


def require_valid_job(job: JobSpec) -> None:
    """Raise UsageError for the first thing about a job that cannot be."""
    _require_command(job)
    _require_numbers(job)
    _require_room(job)
    _require_names(job)
    _require_gpus(job)
    _require_binding(job)


def _require_command(job: JobSpec) -> None:
    words = (*job.command, job.python, *([job.working_dir] if job.working_dir is not None else []))
    if not job.command:
        raise UsageError("The job has no command.", "There is nothing to start.", "end with `-- train ...`.")
    if any("\0" in word or "\n" in word for word in words):
        raise UsageError(
            "The job's command has a line break or a zero byte in it.",
            "Launchers pass commands on by lines.",
            "put such a value into a file for --config.",
        )
    if not job.python or job.python.startswith("-"):
        raise UsageError(f"The interpreter is {job.python!r}.", "That is no program.", "give a path to python.")
    if job.working_dir is not None and not job.working_dir.startswith("/"):
        raise UsageError(
            f"The working directory is {job.working_dir!r}.",
            "Hosts have no common place that it could be relative to.",
            "give a path that begins with /.",
        )


def _require_numbers(job: JobSpec) -> None:
    at_least = {
        "-np": (job.np, 1),
        "--slots-per-host": (job.slots_per_host, 1),
        "--gpus-per-host": (job.gpus_per_host, 0),
        "--cores-per-host": (job.cores_per_host, 1),
        "--ssh-port": (job.ssh_port, 1),
        "--time-limit": (job.time_limit, 1),
        "--min-workers": (job.min_workers, 1),
        "--max-workers": (job.max_workers, 1),
        "--max-restarts": (job.max_restarts, 0),
        "--backoff": (job.backoff, 0),
        "--start-timeout": (job.start_timeout, 0),
        "--grace": (job.grace, 0),
    }
    for name, (value, least) in at_least.items():
        # "not >=" and the upper bound also refuse nan and inf.
        if value is None or least <= value <= _MOST:
            continue
        if math.isfinite(value):
            _require_at_most(name, value, _MOST)
        conflict = f"It must be {least} or more." if math.isfinite(value) else "It must be a number with an end."
        raise UsageError(f"{name} is {value}.", conflict, f"give a number from {least} up.")
    _require_at_most("-np", job.np, MAX_WORKERS)
    _require_at_most("--ssh-port", job.ssh_port or 1, 65_535)


def _require_at_most(name: str, value: float, most: int) -> None:
    if value > most:
        raise UsageError(f"{name} is {value}.", f"It must be {most} or less.", "give a smaller number.")


def _require_room(job: JobSpec) -> None:
    low, high = job.min_workers or job.np, job.max_workers or job.np
    if job.min_workers and job.max_workers and low > high:
        raise UsageError(
            f"--min-workers is {low} and --max-workers {high}.", "No number of workers is both.", "swap them."
        )
    if not low <= job.np <= high:
        wrong, bound = ("--min-workers", low) if low > job.np else ("--max-workers", high)
        raise UsageError(
            f"The job starts {job.np} workers, and {wrong} is {bound}.",
            "It would start outside of its own bounds.",
            f"use -np {bound}, or {wrong} {job.np}.",
        )
    slots = sum(host.slots for host in job.hosts)
    if job.hosts and job.np > slots:
        hosts = ", ".join(str(host) for host in job.hosts[:8]) + (", ..." if len(job.hosts) > 8 else "")
        raise UsageError(
            f"The job has {job.np} workers.",
            f"Its hosts have {slots} slots: {hosts}.",
            f"use -np {slots}, or add hosts or slots.",
        )


def _require_names(job: JobSpec) -> None:
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
                f"{shown!r} is to be passed on with a value or is no variable's name.",
                "Values would stand in command lines that everybody can read.",
                "export the variable, and pass on its name alone.",
            )
    for nic in job.nics:
        if not _NIC.fullmatch(nic):
            raise UsageError(
                f"The network interface is called {nic[:80]!r}.",
                "Interfaces have names such as eth0 or ib0.",
                "`ip -brief address` lists them; separate several by commas.",
            )
    if job.image is not None and not _IMAGE.fullmatch(job.image):
        raise UsageError(
            f"The image is called {job.image[:80]!r}.",
            "That is no name of a container image.",
            "write it as registry/name:tag.",
        )


def _require_gpus(job: JobSpec) -> None:
    if job.gpus_per_host and job.slots > job.gpus_per_host:
        raise UsageError(
            f"A host runs {job.slots} workers and has {job.gpus_per_host} GPUs.",
            "Each worker needs a GPU of its own.",
            f"use at most {job.gpus_per_host} slots a host.",
        )


def _require_binding(job: JobSpec) -> None:
    if job.binding not in BINDINGS:
        raise UsageError(
            f"The binding is {job.binding!r}.", "There is none of that name.", did_you_mean(job.binding, BINDINGS)
        )
    if job.binding != "core":
        return
    if job.cores_per_host is None:
        raise UsageError(
            "Workers are to be bound to cores.",
            "How many cores a host has is not known.",
            "say it with --cores-per-host, or use --binding none.",
        )
    if job.cores_per_host < job.slots:
        raise UsageError(
            f"A host runs {job.slots} workers and has {job.cores_per_host} cores.",
            "Two workers would be bound to one core.",
            "use fewer slots, or --binding none.",
        )
