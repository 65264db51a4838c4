"""What the workers of a job leave for people beside training: heartbeats, logs, and reports on a stall."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.scale.stand_in import RANKS_PER_HOST
from hvdtrain.history import heartbeats
from hvdtrain.history.heartbeats import Heartbeat, heartbeat_file
from hvdtrain.history.rank_logs import LogFormatter, RunLogs

LOG_LINES: Final = 20
_DEADLINE_S: Final = 600.0


def costs_of_files(hosts: Sequence[str], folder: Path, step: int, by_host: bool) -> dict[str, Any]:
    """Write them for all workers. `hosts`: of each; `by_host`: whether workers are summarized."""
    for name in ("heartbeats", "logs"):
        (folder / name).mkdir(exist_ok=True)
    _write_logs(hosts, folder, by_host and hasattr(RunLogs, "has_hosts"))
    _write_heartbeats(hosts, folder, step, by_host and hasattr(heartbeats, "host_file"))
    found: dict[str, Any] = {"heartbeats": _bytes(folder / "heartbeats"), "logs_of_ranks": _bytes(folder / "logs")}
    return found | ({"stall": _stall(hosts, folder)} if by_host else {})


def _write_logs(hosts: Sequence[str], folder: Path, by_host: bool) -> None:
    record = logging.LogRecord(
        "hvdtrain.run", logging.INFO, "", 0, "epoch 1, step 10: loss 0.5, accuracy 0.75", (), None
    )
    line = LogFormatter().format(record) + "\n"
    for rank, host in enumerate(hosts):
        if by_host:
            with (folder / "logs" / f"host_{host}.log").open("a") as file:
                file.write(line.replace("hvdtrain.run:", f"rank {rank} hvdtrain.run:", 1) * LOG_LINES)
        else:
            (folder / "logs" / f"rank_{rank}.log").write_text(line * LOG_LINES)


def _write_heartbeats(hosts: Sequence[str], folder: Path, step: int, by_host: bool) -> None:
    now = time.time()
    facts: dict[str, Any] = {"size": len(hosts), "start": "x", "time": now, "end": "ended", "step": step}
    beats = [Heartbeat(rank=rank, host=host, pid=rank, memory=2**30, **facts) for rank, host in enumerate(hosts)]
    for rank, beat in enumerate(beats):
        if not by_host:
            heartbeat_file(folder, rank).write_text(json.dumps(vars(beat)))
        elif rank % RANKS_PER_HOST == 0:
            of_host = beats[rank : rank + RANKS_PER_HOST]
            content = heartbeats.host_content(heartbeats.Heard(each, 0.0) for each in of_host)
            heartbeats.host_file(folder, rank).write_bytes(content)


def _stall(hosts: Sequence[str], folder: Path) -> dict[str, Any]:
    """All workers wait in one collective: what a host writes, and what worker 0 needs to say so."""
    from hvdtrain.run.watch.host_stalls import HostStalls
    from hvdtrain.run.watch.local_folder import LocalFolder
    from hvdtrain.run.watch.stall_reports import Report

    stalls, size = folder.parent / "stalls" / "1", len(hosts)
    stalls.mkdir(parents=True)
    reports = [Report(rank, host, "step", 12, 61.5, "hvdtrain.gradients.0") for rank, host in enumerate(hosts)]
    for rank in range(RANKS_PER_HOST, size, RANKS_PER_HOST):  # the other hosts, as `HostStalls` writes them
        content = json.dumps([asdict(report) for report in reports[rank : rank + RANKS_PER_HOST]])
        (stalls / f"host_of_rank_{rank}.json").write_text(content)
    here = HostStalls(stalls, size, LocalFolder(folder, hosts[0], folder.parent))
    for report in reports[:RANKS_PER_HOST]:
        here.write(report)
    begin = time.process_time()
    finding = here.find(0, _DEADLINE_S, lambda _: False)
    seconds = time.process_time() - begin
    if "All ranks wait in the same collective" not in finding.explanation:
        raise RuntimeError(finding.explanation)
    of_host = sum(path.stat().st_size for path in stalls.glob("host_of_rank_0.*"))
    return {"seconds": seconds, "bytes": of_host}


def _bytes(folder: Path) -> dict[str, int]:
    """Of the longest file: what a host writes; and of all."""
    sizes = [path.stat().st_size for path in folder.iterdir()]
    return {"bytes": max(sizes), "all_bytes": sum(sizes)}
