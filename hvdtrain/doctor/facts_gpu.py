"""GPUs as the driver's own tool sees them."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

_SECONDS = 20.0
_QUESTION = "index,name,driver_version,memory.total,memory.used"


def gpu_facts() -> dict[str, Any]:
    """Keys: `tool` (path of nvidia-smi or None), `error` (a text or None), `devices`: each with `index`, `name`,
    `driver`, `memory` and `used` in MiB.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {"tool": None, "error": None, "devices": []}
    command = [tool, f"--query-gpu={_QUESTION}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"tool": tool, "error": str(error), "devices": []}
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"tool": tool, "error": said[0], "devices": []}
    return {"tool": tool, "error": None, "devices": parse_devices(done.stdout)}


def parse_devices(text: str) -> list[dict[str, Any]]:
    """The lines of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; what it does not know becomes 0."""
    devices = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 5:
            index, name, driver, memory, used = words
            devices.append(
                {
                    "index": index,
                    "name": name,
                    "driver": driver,
                    "memory": int(memory) if memory.isdigit() else 0,
                    "used": int(used) if used.isdigit() else 0,
                }
            )
    return devices
