"""What each worker gets of its host (cores, threads, GPU, network interface), and why."""

from __future__ import annotations

from hvdtrain.errors import UsageError
from hvdtrain.launch.job import JobSpec

Note = tuple[str, str]


def worker_variables(job: JobSpec) -> dict[str, str]:
    """Variables that every worker must see, the same on all hosts.

    Raises:
        UsageError: hosts whose workers use different sets of GPUs.
    """
    variables = {}
    if job.cores_per_worker is not None:
        variables["OMP_NUM_THREADS"] = str(job.cores_per_worker)
    if job.nics:
        variables["HOROVOD_GLOO_IFACE"] = job.nics[0]
        variables["NCCL_SOCKET_IFNAME"] = "=" + ",".join(job.nics)  # "=": these exactly, not all that begin so
    devices = visible_devices(job)
    if devices is not None:
        variables["CUDA_VISIBLE_DEVICES"] = devices
    return variables


def visible_devices(job: JobSpec) -> str | None:
    """Value for CUDA_VISIBLE_DEVICES; None where every host's workers use its GPUs 0, 1, … anyway.

    Raises:
        UsageError: hosts whose workers use different sets of GPUs, which one variable cannot say.
    """
    wanted = {host.devices for host in job.used_hosts if host.devices != tuple(range(len(host.devices)))}
    if not wanted:
        return None
    if len(wanted) > 1 or any(host.devices not in wanted for host in job.used_hosts):
        raise UsageError(
            "Hosts are to use different sets of GPUs.",
            "Launchers give the workers of all hosts the same variables.",
            "number the devices of every host alike in the rank table, or use devices 0, 1, ... on each.",
        )
    return ",".join(str(device) for device in wanted.pop())


def resource_notes(job: JobSpec) -> tuple[Note, ...]:
    """Notes on workers, threads, binding and GPUs, the same for every launcher."""
    return (("workers", f"{job.np} on {job.describe_hosts()}"), ("threads", _threads(job)), ("GPUs", _gpus(job)))


def _threads(job: JobSpec) -> str:
    if job.cores_per_worker is None:
        return "each worker takes its share of the cores that it finds on its host when it starts"
    return (
        f"{job.cores_per_worker} for each worker, so that no two compute on one core: "
        f"{job.cores_per_host} cores, {job.slots} workers a host"
    )


def _gpus(job: JobSpec) -> str:
    devices = visible_devices(job)
    if devices is not None:
        return f"local rank 0, 1, ... uses device {devices} of its host, as the rank table says"
    if job.gpus_per_host:
        return (
            f"a worker uses the GPU of its local rank and sees all {job.gpus_per_host} of its host, so that NCCL finds "
            "the links between them"
        )
    return "a worker uses the GPU of its local rank, if its host has any"


def nic_note(job: JobSpec, otherwise: str) -> Note:
    """Which interfaces are used; `otherwise` says what the launcher does when none were named."""
    if job.nics:
        return "network interface", f"{', '.join(job.nics)}, as --nic says"
    if job.is_local:
        return "network interface", "all workers are on this machine"
    return "network interface", f"{otherwise}; --nic chooses"
