"""The commands that are compared."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Arm:
    """One command line.

    Args:
        label: for people.
        words: what follows the interpreter.
        is_peer: whether it needs the peers' environment.
    """

    label: str
    words: Sequence[str]
    is_peer: bool = False

    def argv(self, peers: Path | None, out: Path) -> list[str]:
        """The command; hvdtrain's run folder is `out`."""
        python = str(peers / "bin" / "python") if self.is_peer else sys.executable
        own = ["--output-dir", str(out)] if "train" in self.words else []
        return [python, *self.words, *own]


_TASK = ("train", "--task", "benchmarks.overhead.hvdtrain_task:Overhead", "--warmup-epochs", "0")
_TRAIN = ("-m", "hvdtrain", *_TASK)
_UNMEASURED = ("-m", "benchmarks.overhead.unmeasured", *_TASK)
_BARE = ("-m", "benchmarks.overhead.bare")
_PEERS = ("-m", "benchmarks.overhead.peers")

BARE, OURS, AGAIN, UNMEASURED = "bare", "hvdtrain", "hvdtrain_again", "hvdtrain_unmeasured"
"""AGAIN: the same as OURS, measured a second time in each block: what chance does. UNMEASURED: without the times of a
step's parts."""

ARMS: Mapping[str, Arm] = {
    BARE: Arm("bare loop over tensors", (*_BARE, "tensors")),
    "bare_loader": Arm("bare loop over torch's DataLoader", (*_BARE, "loader")),
    "bare_records": Arm("bare loop over shuffled records of a file", (*_BARE, "records")),
    OURS: Arm("hvdtrain train", _TRAIN),
    UNMEASURED: Arm("hvdtrain train, a step's parts not timed", _UNMEASURED),
    "fabric": Arm("Lightning Fabric, DataLoader", (*_PEERS, "fabric"), is_peer=True),
    "accelerate": Arm("Accelerate, DataLoader", (*_PEERS, "accelerate"), is_peer=True),
    "lightning": Arm("Lightning Trainer, DataLoader", (*_PEERS, "lightning"), is_peer=True),
}


def environment(cache: str) -> dict[str, str]:
    """What all arms run with: one thread for computation. `cache`: a folder for what hvdtrain keeps.

    Lightning asks mpi4py, which is in our environment, whether MPI has started it; in the peers' environment mpi4py
    does not find a library that lies beside it.
    """
    library = Path(sys.prefix, "lib", "libmpi.so.40")
    own = {"MPI4PY_LIBMPI": str(library)} if library.exists() else {}
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**os.environ, **threads, **own, "HVDTRAIN_CACHE_DIR": cache}
