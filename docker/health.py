#!/opt/hvdtrain/bin/python -I
"""Health of a container: what it was started for works. Exit code 0: yes; 1: no, and one line says why.

A worker that waits for an mpirun elsewhere is healthy if its sshd answers. Any other container is healthy if its run
folders can be written and have space; while it trains, the newest metrics in them must not be older than
HVDTRAIN_HEALTH_SECONDS (default 3600): hvdtrain's own timeouts end a job that hangs long before that, and this is
the second line, for what they cannot see. Runs with an --output-dir elsewhere are not looked at.
"""

import os
import shutil
import socket
import sys
import time
from pathlib import Path

PORT = 2222
RUNS = Path("/runs")
LEAST_FREE_BYTES = 64 * 2**20


def programs(proc: Path = Path("/proc")) -> list[list[str]]:
    """argv of every process in the container."""
    found = []
    for entry in proc.glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:  # ended meanwhile
            continue
        if words:
            found.append(words)
    return found


def trouble_of_sshd(port: int) -> str | None:
    """What is wrong with the sshd at `port`, or None."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=3) as connection:
            greeting = connection.recv(64)
    except OSError as error:
        return f"sshd does not answer at port {port}: {error}"
    return None if greeting.startswith(b"SSH-2.0-") else f"port {port} is not sshd's: it says {greeting!r}"


def trouble_of_runs(runs: Path) -> str | None:
    """Why nothing can be written to `runs`, or None."""
    if not os.access(runs, os.W_OK):
        return f"{runs} cannot be written"
    free = shutil.disk_usage(runs).free
    return f"{runs} has {free} bytes left, too few for a checkpoint" if free < LEAST_FREE_BYTES else None


def trouble_of_training(runs: Path, started: float, patience: float, now: float) -> str | None:
    """What is wrong with the training that writes to `runs`, or None.

    Args:
        runs: its folder has run folders with a metrics.jsonl each; older ones are of other containers.
        started: when this container started, in seconds since the epoch, as `now`.
        patience: seconds that may pass between two lines of metrics.
    """
    times = [file.stat().st_mtime for file in runs.glob("*/metrics.jsonl")]
    newest = max((time for time in times if time >= started), default=now)
    if now - newest > patience:
        return f"the newest metrics in {runs} are {now - newest:.0f} s old, more than HVDTRAIN_HEALTH_SECONDS"
    return None


def start_of(pid: int, proc: Path = Path("/proc")) -> float:
    """When a process started, in seconds since the epoch: field 22 of its stat, proc(5)."""
    ticks = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    booted = next(line for line in (proc / "stat").read_text().splitlines() if line.startswith("btime "))
    return int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


def trouble() -> str | None:
    """What is wrong with this container, or None."""
    running = programs()
    if any(words[0].startswith("sshd:") or Path(words[0]).name == "sshd" for words in running):
        return trouble_of_sshd(PORT)
    found = trouble_of_runs(RUNS)
    if found is None and any(Path(word).name == "hvdtrain" for words in running for word in words):
        patience = float(os.environ.get("HVDTRAIN_HEALTH_SECONDS", "3600"))
        found = trouble_of_training(RUNS, start_of(1), patience, time.time())
    return found


if __name__ == "__main__":
    reason = trouble()
    if reason:
        sys.exit(reason)
