"""What N clients cost who serves or supervises them, for growing N: `python -m benchmarks.clients --help`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import machine, saved
from benchmarks.clients.crowd import Crowd
from benchmarks.clients.supervised import supervised
from benchmarks.commands import REPOSITORY

SIZES: Final = (8, 64, 256, 1024, 4096)
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


def main() -> None:
    """Measure, then write clients-<date>.json, .md and .svg."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version, which is measured beside ours")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/clients-benchmark"), help="where files are made")
    parser.add_argument("--sizes", type=int, nargs="+", default=sorted({*SIZES, *MESHES}), help="numbers of clients")
    parser.add_argument("--out", type=Path, default=saved.RESULTS, help="folder for the result")
    options = parser.parse_args()
    codes = {"now": REPOSITORY, **({"before": options.before.resolve()} if options.before else {})}
    before = options.before and machine.commit_of(options.before)
    result = {**saved.begun(saved.installed(["numpy"])), "before": before, "costs": {}}
    for name, code in codes.items():
        result["costs"][name] = {}
        for size in options.sizes:
            result["costs"][name][str(size)] = measure(code, size, options.folder)
            print(name, size, result["costs"][name][str(size)], flush=True)
    saved.save(result, "clients", options.out)


if __name__ == "__main__":
    main()
