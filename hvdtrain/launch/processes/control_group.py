"""This process's control group: Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst of the kernel."""

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
