"""The commands that are compared: each trains until it is ended."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Arm:
    """One command line.

    Args:
        label: for people.
        argv: for a number of workers and a folder of its own.
    """

    label: str
    argv: Callable[[int, Path], list[str]]


def _hvdtrain(*flags: str, keeps_all: bool = False) -> Callable[[int, Path], list[str]]:
    def argv(np: int, folder: Path) -> list[str]:
        start = [sys.executable, "-m", "hvdtrain", "launch", "local", "-np", str(np), "--max-restarts", "3"]
        task = ["--task", "benchmarks.recovery.digits_task:TimedDigits", "--epochs", "2000", "--progress", "none"]
        least = ["--min-workers", str(np)] if keeps_all else []
        saved = ["--checkpoint-interval", "10", "--output-dir", str(folder / "run")]
        return [*start, *least, *flags, "--", "train", *task, *saved]

    return argv


def _torchrun(np: int, folder: Path) -> list[str]:
    """With a store of its own for each start: in torch 2.13 a shared one keeps the addresses of workers that ended."""
    own_store = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"]
    flags = ["--standalone", "--nproc-per-node", str(np), "--max-restarts", "3", "--monitor-interval", "0.1"]
    return [*own_store, str(_BIN / "torchrun"), *flags, "-m", "benchmarks.recovery.ddp_script", str(folder)]


def _horovodrun(np: int, folder: Path) -> list[str]:
    """Each worker has a host of its own, by name: Horovod never uses a host again of which a worker has failed."""
    script = folder / "discover"
    names = ["localhost", "127.0.0.1", socket.gethostname(), *(f"127.0.0.{n}" for n in range(2, 250))]
    script.write_text("#!/bin/sh\n" + "".join(f"echo {name}:1\n" for name in names[:np]))
    script.chmod(0o755)
    flags = ["--gloo", "-np", str(np), "--min-np", "1", "--max-np", str(np), "--network-interfaces", "lo"]
    found = ["--host-discovery-script", str(script)]
    run = [sys.executable, "-m", "benchmarks.recovery.horovod_script", str(folder)]
    return [str(_BIN / "horovodrun"), *flags, *found, *run]


ARMS: Mapping[str, Arm] = {
    "elastic": Arm("hvdtrain launch local --min-workers 1", _hvdtrain("--min-workers", "1")),
    "waits": Arm("the same, which waits for the new worker", _hvdtrain(keeps_all=True)),
    "restart": Arm("hvdtrain launch local, which starts all again", _hvdtrain("--backoff", "0")),
    "horovodrun": Arm("horovodrun, elastic, Horovod by hand", _horovodrun),
    "torchrun": Arm("torchrun --max-restarts, DDP by hand, which starts all again", _torchrun),
}

OURS = "elastic"
AGAIN = "elastic_again"
"""The same as OURS, measured a second time in each block: what chance does."""
