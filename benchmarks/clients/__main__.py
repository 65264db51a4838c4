"""What N clients cost who serves or supervises them, for growing N: `python -m benchmarks.clients --help`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.clients.crowd import Crowd
from benchmarks.clients.supervised import supervised
from benchmarks.commands import REPOSITORY
from benchmarks.scale.for_sizes import measure_and_save

SIZES: Final = (8, 64, 256, 1024, 4096, 10_000)
MESHES: Final = (8, 32, 64, 96)
"""Of all requests of Gloo, whose number grows as N²."""

_STEPS: Final = {"store": Crowd.arrive, "mesh": Crowd.mesh, "meeting": Crowd.meet}


def measure(code: Path, size: int, folder: Path) -> dict[str, Any]:
    """What `size` clients cost the code in the checkout `code`; `folder` is made and removed."""
    shutil.rmtree(folder, ignore_errors=True)
    packages = folder / "packages"
    packages.mkdir(parents=True)
    for name, checkout in (("hvdtrain", code), ("data_sharding", code), ("benchmarks", REPOSITORY)):
        (packages / name).symlink_to(checkout / name)
    environ = {**os.environ, "PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}
    try:
        found: dict[str, Any] = {}
        for what in _STEPS:
            is_asked = size in (MESHES if what == "mesh" else SIZES)
            if is_asked and (figures := _served(what, size, environ, folder)):
                found[what] = figures
        if size in SIZES:
            found["ssh"] = supervised(size, folder, environ)
        return found
    finally:
        shutil.rmtree(folder)


def _served(what: str, size: int, environ: dict[str, str], folder: Path) -> dict[str, float]:
    """Nothing where the server has not served all of them."""
    argv = [sys.executable, "-m", "benchmarks.clients.served", what, str(size)]
    server = subprocess.Popen(argv, cwd=folder, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    crowd = Crowd(size, json.loads(server.stdout.readline()))
    begin = time.monotonic()
    try:
        asyncio.run(_STEPS[what](crowd))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"{what} {size}: {error}", flush=True)
        server.communicate(timeout=60)
        return {}
    took = time.monotonic() - begin
    found: dict[str, float] = json.loads(server.communicate(timeout=60)[0])
    return {**found, "took": took, "bytes": crowd.received, "received": crowd.received / size}


if __name__ == "__main__":
    measure_and_save("clients", __doc__, sorted({*SIZES, *MESHES}), measure)
