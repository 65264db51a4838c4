"""Cores, memory, disks and limits of this host, as the job's processes will see them."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path
from typing import Any

_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "core": resource.RLIMIT_CORE,
    "nproc": resource.RLIMIT_NPROC,
}
_UNLIMITED_MEMORY = 2**60  # cgroup v1 has no "max", it says 2**63 rounded down to a page


def machine_facts(output_dir: str) -> dict[str, Any]:
    """Keys: `architecture`; `cores` {`machine`, `allowed`, `quota`: of the control group, or None}; `memory` {`total`,
    `available`, `limit`: of the control group, or None}, bytes; `limits` {name: [soft, hard]}, -1 unlimited; `output`
    {`path`, `folder`: nearest that exists, `obstacle`: what is no folder on the way to `path`, or None, `writable`,
    `free`}; `shm` {`total`, `free`} or None, bytes; `infiniband`: names of its devices; `boot`: which start of which
    kernel this is, None where that is not told (Documentation/admin-guide/sysctl/kernel.rst, random/boot_id).
    """
    return {
        "architecture": platform.machine(),
        "cores": {
            "machine": os.cpu_count() or 1,
            "allowed": len(os.sched_getaffinity(0)),
            "quota": core_quota(),
        },
        "memory": {**_memory(), "limit": memory_limit()},
        "limits": {name: list(resource.getrlimit(number)) for name, number in _LIMITS.items()},
        "output": output_facts(output_dir),
        "shm": space("/dev/shm") if os.path.isdir("/dev/shm") else None,
        "infiniband": _folder_names(Path("/sys/class/infiniband")),
        "boot": _read(Path("/proc/sys/kernel/random/boot_id")),
    }


def output_facts(output_dir: str) -> dict[str, Any]:
    """Where `output_dir` is or would be made, and the space there."""
    path = Path(output_dir).absolute()
    way = [str(path), *map(str, path.parents)]  # os.path: a parent that may not be searched is no error here
    folder = next(place for place in way if os.path.isdir(place))
    obstacle = next((place for place in way[: way.index(folder)] if os.path.lexists(place)), None)
    writable = os.access(folder, os.W_OK | os.X_OK)
    return {"path": str(path), "folder": folder, "obstacle": obstacle, "writable": writable, **space(folder)}


def space(folder: str) -> dict[str, int]:
    """Bytes of the file system that `folder` is on: all, and those that an ordinary user may still use."""
    found = os.statvfs(folder)
    return {"total": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}


def core_quota(root: Path = Path("/")) -> float | None:
    """Cores that this process's control group may use; None for no limit.

    The smallest of the group and its parents that can be seen. cgroup v2: cpu.max, v1: cpu.cfs_quota_us, in
    Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst of the kernel.
    """
    quotas = []
    for folder in _group_folders(root, "cpu"):
        words = (_read(folder / "cpu.max") or f"{_read(folder / 'cpu.cfs_quota_us') or 'max'}").split()
        period = words[1] if len(words) == 2 else _read(folder / "cpu.cfs_period_us") or "100000"
        if words and words[0] not in ("max", "-1"):
            quotas.append(int(words[0]) / int(period))
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that this process's control group may use; None for no limit. Sources as `core_quota`."""
    limits = []
    for folder in _group_folders(root, "memory"):
        text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        if text and text != "max" and int(text) < _UNLIMITED_MEMORY:
            limits.append(int(text))
    return min(limits, default=None)


def _group_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control group and its parents, for one controller; in a container, what it sees."""
    folders = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / controllers  # version 2 has no controllers here, version 1 a mount for them
        inner = base / path.lstrip("/")
        folders += [inner, *(parent for parent in inner.parents if parent.is_relative_to(base))]
    return folders


def _memory() -> dict[str, int]:
    sizes = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return {
        "total": int(sizes["MemTotal"].split()[0]) * 1024,
        "available": int(sizes["MemAvailable"].split()[0]) * 1024,
    }


def _folder_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _read(path: Path) -> str | None:
    """None where there is no such file, or it may not be read: containers show parts of these trees."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
