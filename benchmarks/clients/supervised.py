"""`hvdtrain launch ssh` before N light workers, 8 on a host: a small program stands for ssh and the agent behind it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.clients.crowd import RANKS_PER_HOST
from benchmarks.clients.served import most_memory
from hvdtrain.launch.supervisor.supervisor import LAST_WORDS_SECONDS

_DEADLINE: Final = 600.0
_LOOK: Final = 0.05


def supervised(size: int, folder: Path, environ: dict[str, str]) -> dict[str, float]:
    """Of the launcher: seconds on a processor and the most memory; seconds until all hosts were told to start, and
    from the end of one worker until all were told to kill theirs, without those that others have for last words."""
    notes = folder / "notes"
    notes.mkdir()
    per_host = min(size, RANKS_PER_HOST)
    hosts = [f"10.9.{number // 250}.{number % 250 + 1}" for number in range(size // per_host)]
    stand_in = Path(__file__).parent
    environ = {
        **environ,
        "PATH": f"{stand_in}{os.pathsep}{environ['PATH']}",
        "SCALE_FOLDER": str(notes),
        "SCALE_FAILING": hosts[len(hosts) // 2],
    }
    given = ["-H", ",".join(f"{host}:{per_host}" for host in hosts), "--", "train", "--output-dir", str(folder / "out")]
    begin = time.monotonic()
    with (folder / "said").open("wb") as said:
        argv = [sys.executable, "-m", "hvdtrain", "launch", "ssh", *given]
        launcher = subprocess.Popen(argv, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        started = _times(notes / "started", len(hosts), launcher, folder)
        (notes / "fail").touch()
        told = _times(notes / "told", len(hosts), launcher, folder)
        memory = most_memory(str(launcher.pid))
        seconds = _own_seconds(launcher)
        launcher.wait()
    failed = float((notes / "failed").read_text())
    return {
        "seconds": seconds,
        "memory": memory,
        "started": max(started) - begin,
        "told": max(told) - failed - LAST_WORDS_SECONDS,
    }


def _own_seconds(launcher: subprocess.Popen[bytes]) -> float:
    """On a processor, without those of the programs that it has started, once it has ended."""
    os.waitid(os.P_PID, launcher.pid, os.WEXITED | os.WNOWAIT)
    fields = Path(f"/proc/{launcher.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # proc(5): utime, stime


def _times(path: Path, count: int, launcher: subprocess.Popen[bytes], folder: Path) -> list[float]:
    """What so many hosts have noted. Raises RuntimeError: the launcher ended before that, or it takes too long."""
    deadline = time.monotonic() + _DEADLINE
    times: list[float] = []
    while len(times) < count:
        if launcher.poll() is not None or time.monotonic() > deadline:
            launcher.kill()
            raise RuntimeError(f"{len(times)} of {count} hosts: {path.name}\n{(folder / 'said').read_text()[-2000:]}")
        time.sleep(_LOOK)
        times = [float(line) for line in path.read_text().split()] if path.exists() else []
    return times
