"""Has each host the cores, the memory, the limits that its workers need?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hvdtrain.doctor.findings import Facts, Finding, HostFacts
from hvdtrain.doctor.units import in_bytes

DOCKER_SHM = 64 * 2**20
"""Size of /dev/shm in a container where nothing else was asked for: docker run(1), --shm-size."""

_FILES_BASE, _FILES_A_WORKER = 512, 64
_PROCESSES_A_WORKER = 100
_MEMORY_A_WORKER = 2**30  # a framework alone takes 0.3 to 0.6 GiB
_DISK_LEAST, _DISK_LITTLE = 100 * 2**20, 5 * 2**30


def machine_findings(hosts: HostFacts, slots: Mapping[str, int]) -> list[Finding]:
    """Cores, memory, shared memory, disk and limits of every host; `slots` are its workers."""
    findings = []
    for host, facts in hosts.items():
        machine = facts["machine"]
        findings += [
            *_cores(host, machine, slots[host], bool(facts["gpu"]["devices"])),
            *_memory(host, machine, slots[host]),
            *_shared_memory(host, machine),
            *_limits(host, machine, sum(slots.values()), slots[host]),
            *_disk(host, machine["output"]),
        ]
    return findings


def _cores(host: str, machine: Facts, slots: int, on_gpus: bool) -> Iterator[Finding]:
    cores = machine["cores"]
    usable = min(cores["allowed"], cores["quota"] or cores["allowed"])
    if cores["quota"] is not None and cores["quota"] < cores["allowed"]:
        threads = max(1, int(cores["quota"] / slots))
        yield Finding(
            "cores",
            "warn",
            f"the control group allows {cores['quota']:g} of {cores['allowed']} cores",
            f"set OMP_NUM_THREADS={threads}: frameworks count all cores, and their threads wait for each other.",
            host,
        )
    elif slots > usable:
        hint = f"use {usable} slots there, or expect each worker to wait for the others."
        yield Finding("cores", "warn", f"{slots} workers share {usable} cores", hint, host)
    else:
        bound = f" of {cores['machine']}" if cores["allowed"] < cores["machine"] else ""
        kind = "beside the GPUs" if on_gpus else f"for {slots} worker{'s' * (slots > 1)}"
        yield Finding("cores", "ok", f"{usable}{bound} {kind}", "", host)


def _memory(host: str, machine: Facts, slots: int) -> Iterator[Finding]:
    memory = machine["memory"]
    usable = min(memory["available"], memory["limit"] or memory["available"])
    limited = f", {in_bytes(memory['limit'])} for this control group" if memory["limit"] else ""
    fact = f"{in_bytes(memory['available'])} of {in_bytes(memory['total'])} free{limited}"
    if usable < slots * _MEMORY_A_WORKER:
        hint = f"{slots} workers with a framework each take more than that: use fewer slots, or end what runs there."
        yield Finding("memory", "warn", fact, hint, host)
    else:
        yield Finding("memory", "ok", fact, "", host)


def _shared_memory(host: str, machine: Facts) -> Iterator[Finding]:
    shm = machine["shm"]
    if shm is None:
        yield Finding(
            "/dev/shm", "warn", "is not there", "mount a tmpfs on it: NCCL and MPI exchange data there.", host
        )
    elif shm["total"] <= DOCKER_SHM or shm["free"] < DOCKER_SHM // 2:
        fact = f"{in_bytes(shm['free'])} of {in_bytes(shm['total'])} free"
        hint = "start the container with --shm-size=8g or --ipc=host; on Kubernetes mount an emptyDir of medium Memory."
        yield Finding("/dev/shm", "warn", fact, hint, host)
    else:
        yield Finding("/dev/shm", "ok", f"{in_bytes(shm['free'])} free", "", host)


def _limits(host: str, machine: Facts, workers: int, slots: int) -> Iterator[Finding]:
    limits = machine["limits"]
    needed = {"nofile": _FILES_BASE + _FILES_A_WORKER * workers, "nproc": _PROCESSES_A_WORKER * (slots + 1)}
    low = {name: least for name, least in needed.items() if 0 <= limits[name][0] < least}
    for name, least in low.items():
        flag = {"nofile": "-n", "nproc": "-u"}[name]
        hint = f"raise it: ulimit {flag} {least}, or for everybody in /etc/security/limits.conf."
        yield Finding("ulimit", "warn", f"{name} is {limits[name][0]}, this job needs about {least}", hint, host)
    if machine["infiniband"] and limits["memlock"][0] != -1:
        low["memlock"] = 0
        fact = (
            f"memlock is {in_bytes(limits['memlock'][0])}, and there is InfiniBand: {', '.join(machine['infiniband'])}"
        )
        hint = "set `memlock unlimited` in /etc/security/limits.conf: RDMA pins its buffers."
        yield Finding("ulimit", "warn", fact, hint, host)
    if not low:
        shown = {name: "unlimited" if limits[name][0] == -1 else str(limits[name][0]) for name in ("nofile", "nproc")}
        core = "no core files" if limits["core"][0] == 0 else "core files"
        yield Finding("ulimit", "ok", f"nofile {shown['nofile']}, nproc {shown['nproc']}, {core}", "", host)


def _disk(host: str, output: Facts) -> Iterator[Finding]:
    if output["total"] == 0:
        return  # no disk is behind it, such as /proc: that nobody writes there is said elsewhere
    fact = f"{in_bytes(output['free'])} free in {output['folder']}"
    if output["free"] < _DISK_LEAST:
        yield Finding("disk", "fail", fact, "free some space: not even logs can be kept.", host)
    elif output["free"] < _DISK_LITTLE:
        yield Finding("disk", "warn", fact, "free some space, or keep fewer checkpoints.", host)
    else:
        yield Finding("disk", "ok", fact, "", host)
