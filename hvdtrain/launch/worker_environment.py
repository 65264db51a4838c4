"""The variables of workers: those that make a process worker N of a job, and those that are sent to other hosts."""

import os
from collections.abc import Mapping

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.processes.orphan_reaper import JOB_TOKEN_VARIABLE, with_job_token
from hvdtrain.topology.launcher_variables import (
    ASKED_SIZE_VARIABLE,
    JOB_NAME_VARIABLE,
    LAUNCHER_VARIABLE,
    MOST_SIZE_VARIABLE,
    RANK_VARIABLES,
    RESTART_CAUSE_VARIABLE,
    RESTART_CAUSES_VARIABLE,
    RESTART_VARIABLE,
    job_name,
    matches,
    without_launcher,
)
from hvdtrain.topology.topology import RankAssignment

LAUNCHER = "hvdtrain launch"

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that say how many threads compute for one worker."""

_NEEDED = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "KERAS_BACKEND"),
    *("OMP_NUM_THREADS", "HOROVOD_*", "HVDTRAIN_*", "NCCL_*", "TF_*", "UCX_*", "FI_*"),
)
"""Patterns of what workers on other hosts need. Without PATH another Python may start than the one that was tried."""

_KEPT_HERE = (
    *(*RANK_VARIABLES, "HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"),
    *("HOROVOD_GLOO_IFACE", "HOROVOD_GLOO_RENDEZVOUS_*", "*_SECRET_KEY"),
)
"""Patterns of what another job was told about its places and network, and of its secrets."""


def worker_environment(
    inherited: Mapping[str, str],
    place: RankAssignment,
    rendezvous: Mapping[str, str],
    interface: str,
    token: str,
    restarts: int,
    causes: str = "",
) -> dict[str, str]:
    """All variables of one worker, made on the host where it will run. What the user set stays, but for another
    launcher's ranks: an inherited MPI rank would contradict ours.

    `inherited` are the variables of whoever starts it, `rendezvous` leads Horovod to the server; several tokens of the
    job's processes are separated by commas, `causes` of the restarts by line breaks.
    """
    return {
        **share_of_host(place.local_size),
        **without_launcher(inherited),
        **place.variables,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        **rendezvous,
        LAUNCHER_VARIABLE: LAUNCHER,
        JOB_TOKEN_VARIABLE: with_job_token(inherited, token),
        JOB_NAME_VARIABLE: job_name(token),
        RESTART_VARIABLE: str(restarts),
        **({RESTART_CAUSE_VARIABLE: causes.splitlines()[-1], RESTART_CAUSES_VARIABLE: causes} if causes else {}),
    }


def share_of_host(local_size: int) -> dict[str, str]:
    """What the user may set otherwise: each of `local_size` workers computes with its share of this host's cores."""
    return {
        **dict.fromkeys(THREADS, str(max(1, len(os.sched_getaffinity(0)) // local_size))),
        "OMP_WAIT_POLICY": "PASSIVE",  # a thread that waits must not take the core of another worker's
        "PYTHONUNBUFFERED": "1",  # else the last lines of a killed worker are lost
    }


def needed_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables in `environ` that workers on other hosts need, in a fixed order."""
    return tuple(name for name in sorted(environ) if matches(name, _NEEDED) and not matches(name, _KEPT_HERE))


def host_variables(job: JobSpec, host: Host, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that workers of `host` get from here, with their values: they travel by the agent's standard input."""
    names = (*needed_names(environ), *job.env)
    return {name: environ[name] for name in names if name in environ} | stated_variables(job, host)


def require_known_devices(job: JobSpec, environ: Mapping[str, str]) -> None:
    """Raise UsageError in a job of PBS or LSF that has some GPUs of its first host: those of others are unknown."""
    jobs = [name for name in ("PBS_JOBID", "LSB_JOBID") if environ.get(name)]
    given = environ.get("CUDA_VISIBLE_DEVICES", "")
    first_ones = ",".join(map(str, range(len(given.split(",")))))
    others = [host for host in job.used_hosts[1:] if host.visible_devices is None]
    if jobs and others and given not in ("", "-1", "NoDevFiles", first_ones) and "CUDA_VISIBLE_DEVICES" not in job.env:
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES is {given!r} in this job ({jobs[0]}), and {others[0].name} is another host.",
            "It names GPUs of the first host; which ones the job has on others is not known here.",
            "ask for whole hosts (PBS: -l place=scatter:excl, LSF: -x) and put `unset CUDA_VISIBLE_DEVICES` into the "
            "script, or give --pass-env CUDA_VISIBLE_DEVICES if the same numbers are right on all hosts.",
        )


def size_variables(job: JobSpec) -> dict[str, str]:
    """What `hvdtrain.topology.launcher_variables` reads."""
    return {ASKED_SIZE_VARIABLE: str(job.np), MOST_SIZE_VARIABLE: str(job.max_workers or job.np)}


def stated_variables(job: JobSpec, host: Host) -> dict[str, str]:
    """Those of `host_variables` that options and the rank table decide, and so are not secret."""
    variables = size_variables(job)
    if job.cores_per_worker is not None:
        variables.update(dict.fromkeys(THREADS, str(job.cores_per_worker)))
    if job.nics:
        variables["NCCL_SOCKET_IFNAME"] = "=" + ",".join(job.nics)
    if host.visible_devices is not None:
        variables["CUDA_VISIBLE_DEVICES"] = host.visible_devices
    return variables
