"""The variables that make a process worker N of a job on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from launch.process_guard import MARK_VARIABLE, marked

if TYPE_CHECKING:
    from launch.local import LocalJob

RESTART_VARIABLE = "HVDTRAIN_RESTART"
"""How often the job was started again; 0 at first."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_OUTER_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "MV2_", "TORCHELASTIC_")
_OUTER_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


def worker_environment(
    job: LocalJob, rank: int, rendezvous: Mapping[str, str], mark: str, restarts: int
) -> dict[str, str]:
    """All variables of worker `rank`.

    What the user set stays, but for another launcher's ranks: an inherited MPI rank would contradict ours.
    """
    inherited = {name: value for name, value in job.environment.items() if not _tells_a_place(name)}
    threads = str(max(1, len(os.sched_getaffinity(0)) // job.np))
    place = dict(zip(_PLACE, (rank, job.np, rank, job.np, 0, 1), strict=True))
    return {
        **dict.fromkeys(_THREADS, threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # a thread that waits must not take the core of another worker's
        "PYTHONUNBUFFERED": "1",  # else the last lines of a killed worker are lost
        **inherited,
        **{f"HOROVOD_{name}": str(value) for name, value in place.items()},
        "HOROVOD_HOSTNAME": socket.gethostname(),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        **rendezvous,
        MARK_VARIABLE: marked(job.environment, mark),
        RESTART_VARIABLE: str(restarts),
    }


def _tells_a_place(name: str) -> bool:
    return name in _OUTER_NAMES or name.startswith(_OUTER_PREFIXES) or name == "HOROVOD_ELASTIC"
