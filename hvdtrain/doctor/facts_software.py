"""Installed versions, the mpirun that would start, and what importing the frameworks in child processes tells."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hvdtrain.launch.execute import find_program
from hvdtrain.version import PACKAGES, versions

FRAMEWORKS = ("torch", "tensorflow")
_VERSION_SECONDS = 10.0
_TAIL = 300


def software_facts() -> dict[str, Any]:
    """Keys: `versions` {name: version or None}, `python` (path), `kernel`, `mpirun` {`path`, `version`} or None."""
    mpirun = shutil.which("mpirun") or find_program("mpirun")
    return {
        "versions": {**dict.fromkeys(PACKAGES), **versions()},
        "python": sys.executable,
        "kernel": platform.release(),
        "mpirun": None if mpirun is None else {"path": mpirun, "version": _first_line([mpirun, "--version"])},
    }


def framework_facts(wanted: Sequence[str], seconds: float) -> dict[str, Any]:
    """Framework → what `hvdtrain.doctor.framework_probe` prints, or {`error`: a text}, each in a child of its own.

    Args:
        wanted: those to import; empty: those that are installed.
        seconds: deadline of each.
    """
    there = versions()
    names = list(wanted) or [name for name in FRAMEWORKS if name in there]
    if not names:
        return {}
    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(lambda name: _probe(name, seconds), names), strict=True))


def _probe(framework: str, seconds: float) -> dict[str, Any]:
    if framework not in versions():
        return {"error": "not installed"}
    command = [sys.executable, "-m", "hvdtrain.doctor.framework_probe", framework]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"the import took more than {seconds:g} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        said = done.stderr.strip().splitlines()[-1:] or [""]
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return {"error": f"the import ended with {ended}: {said[0][:_TAIL]}".rstrip(": ")}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _first_line(command: list[str]) -> str:
    """What a program says first; "" where it says nothing in time, which is a fact as well."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next(iter((done.stdout + done.stderr).strip().splitlines()), "")
