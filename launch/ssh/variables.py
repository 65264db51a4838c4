"""What workers of one host get from the launcher's own variables."""

from __future__ import annotations

from collections.abc import Mapping

from hvdtrain.launch.hosts import Host
from hvdtrain.launch.job import JobSpec
from hvdtrain.launch.variables import needed_names
from hvdtrain.launch.worker_environment import THREADS


def host_variables(job: JobSpec, host: Host, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that workers of `host` get from here, with their values: they travel by the agent's standard input."""
    names = (*needed_names(environ), *job.env)
    variables = {name: environ[name] for name in names if name in environ}
    if job.cores_per_worker is not None:
        variables.update(dict.fromkeys(THREADS, str(job.cores_per_worker)))
    if job.nics:
        variables["NCCL_SOCKET_IFNAME"] = "=" + ",".join(job.nics)
    if host.devices != tuple(range(len(host.devices))):
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, host.devices))
    return variables
