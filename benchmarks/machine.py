"""What a result must say about where and on what it was measured."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).resolve().parents[1]
_MEASURED = ("data_sharding", "hvdtrain", "benchmarks")


def describe() -> dict[str, Any]:
    """CPU, cores, GPUs, memory, kernel, Python, load at this moment, and the commit."""
    cpuinfo, meminfo = Path("/proc/cpuinfo").read_text(), Path("/proc/meminfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", cpuinfo, re.MULTILINE)
    total = re.search(r"^MemTotal:\s*(\d+)", meminfo, re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": os.cpu_count(),
        **({"gpus": names} if (names := gpus()) else {}),
        "memory_gib": round(int(total[1]) / 2**20, 1) if total else None,
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "load": os.getloadavg(),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", *_MEASURED)),
    }


def gpus() -> list[str]:
    """Names of this machine's GPUs, as nvidia-smi says."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def commit_of(checkout: Path) -> str | None:
    """Of another checkout that is measured; None where it is none."""
    return _git("rev-parse", "--short=8", "HEAD", within=checkout)


def _git(*arguments: str, within: Path = _REPOSITORY) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=within, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None  # measured from an unpacked archive
    return done.stdout.strip()
