"""The commands that are compared."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_BIN = Path(sys.executable).parent
_HVDTRAIN = ("-m", "hvdtrain", "train", "--task", "benchmarks.startup.digits_task:TimedDigits", "--max-steps", "2")
_ROOT = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
_MPIRUN = (str(_BIN / "mpirun"), *_ROOT, "--oversubscribe", "--bind-to", "none")


@dataclass(frozen=True)
class Arm:
    """One command line.

    Args:
        label: for people.
        runs: what the workers run, for people.
        argv: without the number of workers, which follows `np_flag` after the first `head` words.
    """

    label: str
    runs: str
    head: tuple[str, ...]
    np_flag: str
    tail: tuple[str, ...]

    def argv(self, np: int, out: Path) -> list[str]:
        """The command for `np` workers; hvdtrain's run folder is `out`."""
        own = ("--output-dir", str(out)) if "hvdtrain" in self.tail else ()
        return [*self.head, self.np_flag, str(np), *self.tail, *own]


_PYTHON = sys.executable
_DDP = ("-m", "benchmarks.startup.ddp_script")
_HOROVOD = (_PYTHON, "-m", "benchmarks.startup.horovod_script")
_WORKER = (_PYTHON, *_HVDTRAIN)
_TORCHRUN = (str(_BIN / "torchrun"),)
_HOROVODRUN = (str(_BIN / "horovodrun"),)

ARMS: Mapping[str, Arm] = {
    "local": Arm(
        "hvdtrain launch local",
        "hvdtrain",
        (_PYTHON, "-m", "hvdtrain", "launch", "local"),
        "-np",
        ("--", *_HVDTRAIN[2:]),
    ),
    "mpirun": Arm("mpirun (Open MPI 5)", "hvdtrain", _MPIRUN, "-np", _WORKER),
    "horovodrun_gloo": Arm("horovodrun --gloo", "hvdtrain", (*_HOROVODRUN, "--gloo"), "-np", _WORKER),
    "horovodrun_mpi": Arm("horovodrun --mpi", "hvdtrain", (*_HOROVODRUN, "--mpi"), "-np", _WORKER),
    "torchrun": Arm("torchrun", "hvdtrain", _TORCHRUN, "--nproc-per-node", _HVDTRAIN),
    "torchrun_ddp": Arm("torchrun", "DDP by hand", _TORCHRUN, "--nproc-per-node", _DDP),
    "horovodrun_hand": Arm("horovodrun --gloo", "Horovod by hand", (*_HOROVODRUN, "--gloo"), "-np", _HOROVOD),
    "mpirun_hand": Arm("mpirun (Open MPI 5)", "Horovod by hand", _MPIRUN, "-np", _HOROVOD),
}
OURS = "local"
AGAIN = "local_again"
"""The same as OURS, measured a second time in each block: what chance does."""


def environment(folder: str, variable: str) -> dict[str, str]:
    """What all arms run with: the same threads, and quiet frameworks."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = f"{_BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, **threads, "PATH": path, variable: folder}
