"""How often the kernel has killed a process for lack of memory, as far as this process can see."""

from __future__ import annotations

import re
from pathlib import Path

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def out_of_memory_kills(root: Path = Path("/")) -> int:
    """The larger of the counts of this process's control group and of the whole machine; 0 where neither can be read.

    cgroup v2: memory.events, v1: memory.oom_control, both in Documentation/admin-guide of the kernel; the machine's:
    /proc/vmstat.

    Args:
        root: another root folder, for tests.
    """
    return max((_count(path) for path in (root / "proc/vmstat", *_group_files(root))), default=0)


def _group_files(root: Path) -> list[Path]:
    """The counters of this process's control group, and of the mounted root: in a container that is the group."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files += [root / f"sys/fs/cgroup{folder}/memory.events" for folder in (path.rstrip("/"), "")]
        elif "memory" in controllers.split(","):
            base = "sys/fs/cgroup/memory"
            files += [root / f"{base}{folder}/memory.oom_control" for folder in (path.rstrip("/"), "")]
    return files


def _count(path: Path) -> int:
    try:
        match = _COUNT.search(path.read_text())
    except OSError:
        return 0
    return int(match[1]) if match else 0
