"""This process's control group, and how many cores it may use: Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst
of the kernel."""

from pathlib import Path


def group_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control group and its parents, for one controller; in a container, what it sees."""
    folders = []
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / controllers  # version 2 has no controllers here, version 1 a mount for them
        inner = base / path.lstrip("/")
        folders += [inner, *(parent for parent in inner.parents if parent.is_relative_to(base))]
    return folders


def read_text(path: Path) -> str | None:
    """Of a file of /proc or /sys, stripped; None where there is none, or it may not be read, as in containers."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def core_quota(root: Path = Path("/")) -> float | None:
    """Cores that this process's control group may use; None for no limit.

    The smallest of the group and its parents that can be seen. cgroup v2: cpu.max, v1: cpu.cfs_quota_us, in
    Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst of the kernel.
    """
    quotas = []
    for folder in group_folders(root, "cpu"):
        words = (read_text(folder / "cpu.max") or f"{read_text(folder / 'cpu.cfs_quota_us') or 'max'}").split()
        period = words[1] if len(words) == 2 else read_text(folder / "cpu.cfs_period_us") or "100000"
        if words and words[0] not in ("max", "-1"):
            quotas.append(int(words[0]) / int(period))
    return min(quotas, default=None)


def usable_cores(cores: int, root: Path = Path("/")) -> int:
    """Of `cores`, how many this process's control group may use at once, at least 1; a limit of 2.5 gives 2."""
    return max(1, min(cores, int(core_quota(root) or cores)))
