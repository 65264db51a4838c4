"""Cores, memory, disks, limits and GPUs: what each host has, and whether its workers need more."""

import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain.doctor.findings import Facts, Finding, HostFacts, each_value, on_each_host
from hvdtrain.doctor.software import last_line
from hvdtrain.launch.execute import run_program
from hvdtrain.topology.control_group import core_quota, group_folders, read_text
from hvdtrain.units import in_bytes

_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "core": resource.RLIMIT_CORE,
    "nproc": resource.RLIMIT_NPROC,
}
_MEMORY = {"total": "MemTotal", "available": "MemAvailable"}
_UNLIMITED_MEMORY = 2**60  # cgroup v1 has no "max", it says 2**63 rounded down to a page


def machine_facts(output_dir: str) -> dict[str, Any]:
    """Keys: `architecture`; `cores` {`machine`, `allowed`, `quota`: of the control group, or None}; `memory` {`total`,
    `available`, `limit`: of the control group, or None}, bytes; `limits` {name: [soft, hard]}, -1 unlimited; `output`
    {`path`, `folder`: nearest that exists, `obstacle`: what is not a folder on the way to `path`, or None, `writable`,
    `free`}; `shm` {`total`, `free`} or None, bytes; `infiniband`: names of its devices; `boot`: which start of which
    kernel this is, None where that is unknown (Documentation/admin-guide/sysctl/kernel.rst, random/boot_id).
    """
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    memory = {key: int(meminfo[name].split()[0]) * 1024 for key, name in _MEMORY.items()}
    return {
        "architecture": platform.machine(),
        "cores": {"machine": os.cpu_count() or 1, "allowed": len(os.sched_getaffinity(0)), "quota": core_quota()},
        "memory": {**memory, "limit": memory_limit()},
        "limits": {name: list(resource.getrlimit(number)) for name, number in _LIMITS.items()},
        "output": output_facts(output_dir),
        "shm": space("/dev/shm") if os.path.isdir("/dev/shm") else None,
        "infiniband": sorted(path.name for path in Path("/sys/class").glob("infiniband/*")),
        "boot": read_text(Path("/proc/sys/kernel/random/boot_id")),
    }


def output_facts(output_dir: str) -> dict[str, Any]:
    """Where `output_dir` is or would be made, and the space there."""
    path = Path(output_dir).absolute()
    way = [str(path), *map(str, path.parents)]  # os.path: a parent that may not be searched is not an error here
    folder = next(place for place in way if os.path.isdir(place))
    obstacle = next((place for place in way[: way.index(folder)] if os.path.lexists(place)), None)
    writable = os.access(folder, os.W_OK | os.X_OK)
    return {"path": str(path), "folder": folder, "obstacle": obstacle, "writable": writable, **space(folder)}


def space(folder: str) -> dict[str, int]:
    """Bytes of the file system that `folder` is on: all, and those that an ordinary user may still use."""
    disk = os.statvfs(folder)
    return {"total": disk.f_blocks * disk.f_frsize, "free": disk.f_bavail * disk.f_frsize}


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that this process's control group may use; None for no limit. Sources as `core_quota`."""
    limits = []
    for folder in group_folders(root, "memory"):
        text = read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes")
        if text and text != "max" and int(text) < _UNLIMITED_MEMORY:
            limits.append(int(text))
    return min(limits, default=None)


DOCKER_SHM = 64 * 2**20  # Size of /dev/shm in a container where nothing else was asked for: docker run(1), --shm-size

_FILES_BASE, _FILES_A_WORKER = 512, 64
_PROCESSES_A_WORKER = 100
_MEMORY_A_WORKER = 2**30  # a framework alone takes 0.3 to 0.6 GiB
_DISK_LEAST, _DISK_LITTLE = 100 * 2**20, 5 * 2**30


def machine_on_host(facts: Facts, slots: int, workers: int) -> Iterator[Finding]:
    """Cores, memory, shared memory, disk and limits; `slots` are the host's workers, `workers` those of the job."""
    machine = facts["machine"]
    yield _cores(machine["cores"], slots, bool(facts["gpu"]["devices"]))
    yield _memory(machine["memory"], slots)
    yield _shared_memory(machine["shm"])
    yield from _limits(machine, workers, slots)
    yield from _disk(machine["output"])


def _cores(cores: Facts, slots: int, on_gpus: bool) -> Finding:
    usable = min(cores["allowed"], cores["quota"] or cores["allowed"])
    if cores["quota"] is not None and cores["quota"] < cores["allowed"]:
        threads = max(1, int(cores["quota"] / slots))
        fact = f"the control group allows {cores['quota']:g} of {cores['allowed']} cores"
        hint = f"set OMP_NUM_THREADS={threads}: frameworks count all cores, and their threads wait for each other."
        return Finding("cores", "warn", fact, hint)
    if slots > usable:
        hint = f"use {usable} slots there, or expect each worker to wait for the others."
        return Finding("cores", "warn", f"{slots} workers share {usable} cores", hint)
    bound = f" of {cores['machine']}" if cores["allowed"] < cores["machine"] else ""
    kind = "beside the GPUs" if on_gpus else f"for {slots} worker{'s' * (slots > 1)}"
    return Finding("cores", "ok", f"{usable}{bound} {kind}")


def _memory(memory: Facts, slots: int) -> Finding:
    usable = min(memory["available"], memory["limit"] or memory["available"])
    limited = f", {in_bytes(memory['limit'])} for this control group" if memory["limit"] else ""
    fact = f"{in_bytes(memory['available'])} of {in_bytes(memory['total'])} free{limited}"
    if usable >= slots * _MEMORY_A_WORKER:
        return Finding("memory", "ok", fact)
    hint = f"{slots} workers with a framework each take more than that: use fewer slots, or end what runs there."
    return Finding("memory", "warn", fact, hint)


def _shared_memory(shm: Facts | None) -> Finding:
    if shm is None:
        return Finding("/dev/shm", "warn", "is not there", "mount a tmpfs on it: NCCL and MPI exchange data there.")
    if shm["total"] > DOCKER_SHM and shm["free"] >= DOCKER_SHM // 2:
        return Finding("/dev/shm", "ok", f"{in_bytes(shm['free'])} free")
    fact = f"{in_bytes(shm['free'])} of {in_bytes(shm['total'])} free"
    hint = "start the container with --shm-size=8g or --ipc=host; on Kubernetes mount an emptyDir of medium Memory."
    return Finding("/dev/shm", "warn", fact, hint)


def _limits(machine: Facts, workers: int, slots: int) -> Iterator[Finding]:
    limits = {name: soft for name, (soft, _) in machine["limits"].items()}
    needed = {
        "nofile": ("-n", _FILES_BASE + _FILES_A_WORKER * workers),
        "nproc": ("-u", _PROCESSES_A_WORKER * (slots + 1)),
    }
    low = {name: (flag, least) for name, (flag, least) in needed.items() if 0 <= limits[name] < least}
    for name, (flag, least) in low.items():
        hint = f"raise it: ulimit {flag} {least}, or for everybody in /etc/security/limits.conf."
        yield Finding("ulimit", "warn", f"{name} is {limits[name]}, this job needs about {least}", hint)
    pinned = not machine["infiniband"] or limits["memlock"] == -1
    if not pinned:
        fact = f"memlock is {in_bytes(limits['memlock'])}, and there is InfiniBand: {', '.join(machine['infiniband'])}"
        hint = "set `memlock unlimited` in /etc/security/limits.conf: RDMA pins its buffers."
        yield Finding("ulimit", "warn", fact, hint)
    if pinned and not low:
        shown = [f"{name} {'unlimited' if limits[name] == -1 else limits[name]}" for name in needed]
        yield Finding("ulimit", "ok", f"{', '.join(shown)}, {'core files' if limits['core'] else 'no core files'}")


def _disk(output: Facts) -> Iterator[Finding]:
    if output["total"] == 0:
        return  # no disk is behind it, such as /proc: that nobody writes there is said elsewhere
    fact = f"{in_bytes(output['free'])} free in {output['folder']}"
    if output["free"] < _DISK_LEAST:
        yield Finding("disk", "fail", fact, "free some space: not even logs can be kept.")
    elif output["free"] < _DISK_LITTLE:
        yield Finding("disk", "warn", fact, "free some space, or keep fewer checkpoints.")
    else:
        yield Finding("disk", "ok", fact)


_GPU_SECONDS = 20.0
_QUESTION = "index,name,driver_version,memory.total,memory.used"


def gpu_facts() -> dict[str, Any]:
    """Keys: `tool` (path of nvidia-smi or None), `error` (a text or None), `devices`: each with `index`, `name`,
    `driver`, `memory` and `used` in MiB.
    """
    tool = shutil.which("nvidia-smi")
    facts: dict[str, Any] = {"tool": tool, "error": None, "devices": []}
    if tool is None:
        return facts
    try:
        done = run_program([tool, f"--query-gpu={_QUESTION}", "--format=csv,noheader,nounits"], _GPU_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {**facts, "error": str(error)}
    if done.returncode != 0:
        return {**facts, "error": last_line(done.stdout + done.stderr) or f"exit code {done.returncode}"}
    return {**facts, "devices": parse_devices(done.stdout)}


def parse_devices(text: str) -> list[dict[str, Any]]:
    """The lines of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; what it does not know becomes 0."""
    lines = [[word.strip() for word in line.split(",")] for line in text.splitlines()]
    return [
        {"index": index, "name": name, "driver": driver}
        | {key: int(mib) if mib.isdigit() else 0 for key, mib in (("memory", memory), ("used", used))}
        for index, name, driver, memory, used in (words for words in lines if len(words) == 5)
    ]


def gpu_findings(hosts: HostFacts) -> list[Finding]:
    """What driver and frameworks see; whether all hosts have the same number; memory that others use."""
    findings = on_each_host(hosts, _gpus_on_host)
    counts = {host: len(facts["gpu"]["devices"]) for host, facts in hosts.items()}
    if len(set(counts.values())) > 1:
        hint = "give each host as many slots as it has GPUs."
        findings.append(Finding("gpu", "warn", f"GPUs: {each_value(counts)}", hint))
    drivers = {device["driver"] for facts in hosts.values() for device in facts["gpu"]["devices"]}
    if len(drivers) > 1:
        hint = "install one driver on every host: NCCL may not connect different ones."
        findings.append(Finding("gpu", "warn", f"drivers: {', '.join(sorted(drivers))}", hint))
    return findings


def _gpus_on_host(facts: Facts) -> Iterator[Finding]:
    gpu = facts["gpu"]
    if gpu["error"]:
        hint = "run nvidia-smi there; a driver that was updated needs its modules reloaded, or a reboot."
        yield Finding("gpu", "fail", f"nvidia-smi: {gpu['error']}", hint)
        return
    if not gpu["devices"]:
        yield Finding("gpu", "ok", "none: workers compute on the CPU")
        return
    names = ", ".join(sorted({device["name"] for device in gpu["devices"]}))
    yield Finding("gpu", "ok", f"{len(gpu['devices'])} × {names}, driver {gpu['devices'][0]['driver']}")
    yield from _unseen(facts)
    busy = [f"{device['index']}: {device['used']} MiB" for device in gpu["devices"] if device["used"] > 1024]
    if busy:
        hint = "see with nvidia-smi whose processes these are; a job on them runs out of memory or slows down."
        yield Finding("gpu", "warn", f"memory is in use already, GPU {', '.join(busy)}", hint)


def _unseen(facts: Facts) -> Iterator[Finding]:
    for name, seen in facts["frameworks"].items():
        if "error" in seen or seen["gpus"] == len(facts["gpu"]["devices"]):
            continue
        built = "is a build for CPUs" if not seen["cuda"] else f"sees {seen['gpus']}, CUDA {seen['cuda']}"
        hint = f"install a CUDA build of {name} that the driver supports, and look at CUDA_VISIBLE_DEVICES."
        yield Finding("gpu", "warn", f"{name} {built}, the driver {len(facts['gpu']['devices'])}", hint)
