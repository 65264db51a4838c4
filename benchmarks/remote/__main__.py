"""Read an epoch from a slow store in each way, in turns: `python -m benchmarks.remote --help`."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import machine, saved
from benchmarks.commands import REPOSITORY
from benchmarks.remote import data
from benchmarks.remote.arms import ARMS, BATCH, Arm

_DEADLINE_S: Final = 600.0


@contextlib.contextmanager
def serving(folder: Path, latency_ms: float, mbit: float) -> Iterator[str]:
    """The URL of a slow store over a folder."""
    command = [sys.executable, "-m", "benchmarks.remote.slow_server", str(folder), str(latency_ms), str(mbit)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.terminate()


def measure(name: str, url: str, python: str, limit_s: float, more: Sequence[str] = ()) -> dict[str, Any]:
    """One epoch in a process of its own, with an empty cache; what the store counted comes with it."""
    _counted(url)
    with tempfile.TemporaryDirectory() as cache:
        command = [python, "-m", "benchmarks.remote.worker", name, url, f"{cache}/cache", str(limit_s), *more]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result | _counted(url)


def _counted(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/-/count") as answer:
        counted: dict[str, int] = json.load(answer)
    return counted


def _is_there(arm: Arm, peers: Path | None, earlier: Path | None) -> bool:
    if arm.is_earlier:
        return earlier is not None
    return arm.is_ours or peers is not None


def main() -> None:
    """Measure, then write remote-<date>.json, .md and .svg."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description=__doc__)
    parser.add_argument("--peers-venv", type=Path, help="with mosaicml-streaming and webdataset; without it, no peers")
    parser.add_argument("--data", type=Path, default=Path("/tmp/remote-benchmark"), help="folder for the data (0.4 GB)")
    parser.add_argument("--out", type=Path, default=saved.RESULTS, help="folder for the result")
    parser.add_argument("--blocks", type=int, default=3, help="epochs of each arm, in turns")
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--mbit", type=float, nargs="*", default=[100.0, 1000.0], help="bandwidths in Mbit/s")
    parser.add_argument("--seconds", type=float, default=30.0, help="the longest that an epoch is read")
    parser.add_argument("--earlier", type=Path, help="a checkout of an earlier version, which is measured beside ours")
    options = parser.parse_args()
    peers = None if options.peers_venv is None else (options.peers_venv / "bin" / "python").absolute()
    data.write_all(options.data, peers)
    arms = [name for name, arm in ARMS.items() if _is_there(arm, peers, options.earlier)]
    result = {
        **saved.begun({}),
        "earlier": options.earlier and machine.commit_of(options.earlier),
        "options": {"latency_ms": options.latency_ms, "seconds": options.seconds, "batch": BATCH},
        "data": {"records": data.RECORDS, "shards": data.SHARDS, "bytes": data.BYTES, "classes": data.CLASSES},
        "networks": {f"{mbit:g}": [] for mbit in options.mbit},
    }
    for mbit in options.mbit:
        with serving(options.data, options.latency_ms, mbit) as url:
            for block in range(options.blocks):
                order = arms if block % 2 == 0 else arms[::-1]
                measured = {}
                for name in order:
                    python = sys.executable if ARMS[name].is_ours else str(peers)
                    more = [str(options.earlier.absolute())] if ARMS[name].is_earlier else []
                    measured[name] = measure(name, url, python, options.seconds, more)
                    rate = measured[name]["records"] / measured[name]["seconds"]
                    print(f"{mbit:g} Mbit/s, block {block}, {name}: {rate:,.0f} records/s", flush=True)
                    result["versions"] |= measured[name].pop("versions")
                result["networks"][f"{mbit:g}"].append({name: measured[name] for name in arms})
    saved.save(result, "remote", options.out)


if __name__ == "__main__":
    main()
