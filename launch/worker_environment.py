"""The variables that make a process worker N of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hvdtrain.launch.hosts.rank_assignment import RankAssignment
from hvdtrain.launch.processes.orphan_reaper import JOB_TOKEN_VARIABLE, with_job_token
from hvdtrain.topology.readers.horovod import LAUNCHER_VARIABLE

RESTART_VARIABLE = "HVDTRAIN_RESTART"
"""How often the job was started again; 0 at first."""

LAUNCHER = "hvdtrain launch"

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that say how many threads compute for one worker."""

_OUTER_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "MV2_", "TORCHELASTIC_")
_OUTER_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


def worker_environment(
    inherited: Mapping[str, str],
    place: RankAssignment,
    rendezvous: Mapping[str, str],
    interface: str,
    token: str,
    restarts: int,
) -> dict[str, str]:
    """All variables of one worker, made on the host where it will run.

    What the user set stays, but for another launcher's ranks: an inherited MPI rank would contradict ours.

    Args:
        inherited: the variables of whoever starts it.
        place: its rank and so on.
        rendezvous: what leads Horovod to the server.
        interface: the network interface on which workers talk to each other.
        token: of the job's processes on this host; several are separated by commas.
        restarts: how often the job was started again.
    """
    kept = {name: value for name, value in inherited.items() if not _tells_a_place(name)}
    threads = str(max(1, len(os.sched_getaffinity(0)) // place.local_size))
    return {
        **dict.fromkeys(THREADS, threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # a thread that waits must not take the core of another worker's
        "PYTHONUNBUFFERED": "1",  # else the last lines of a killed worker are lost
        **kept,
        **place.variables,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        **rendezvous,
        LAUNCHER_VARIABLE: LAUNCHER,
        JOB_TOKEN_VARIABLE: with_job_token(inherited, token),
        RESTART_VARIABLE: str(restarts),
    }


def _tells_a_place(name: str) -> bool:
    return name in _OUTER_NAMES or name.startswith(_OUTER_PREFIXES) or name == "HOROVOD_ELASTIC"
