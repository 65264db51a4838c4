"""Commands that train across hosts, and what a finished run says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from support.runs import result_of, topology_of_run

HOSTS = "host1:1,host2:1"

START_SECONDS = 150
"""Until ranks train, at most: importing torch is slow on a loaded machine."""

# One thread a worker, so that sums come out the same wherever the workers are.
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}

ACROSS = {
    "horovodrun": ("hvdtrain", "launch", "horovodrun", "-H", HOSTS, "--", "train"),
    "mpirun": ("hvdtrain", "launch", "mpirun", "--allow-root", "-H", HOSTS, "--", "train"),
    "srun": ("srun", "--nodes=2", "--ntasks=2", "python", "-m", "hvdtrain", "train"),
}
"""Launcher → command, to which options of `train` may be added."""


@dataclass(frozen=True)
class Run:
    """What `result.json` and `env.json` say.

    Attributes:
        status: "finished" or "stopped".
        accuracy: of validation.
        weights: SHA-256 of the weights, which all ranks have in common.
        launcher: as its ranks were recognized.
        size, num_nodes: of the world.
    """

    status: str
    accuracy: float
    weights: str
    launcher: str
    size: int
    num_nodes: int


def read_run(folder: Path) -> Run:
    """The run in a finished run folder."""
    result = result_of(folder)
    topology = topology_of_run(folder)
    assert result["weights"]["equal_on_all_ranks"]
    return Run(
        status=result["status"],
        accuracy=result["metrics"]["accuracy"],
        weights=result["weights"]["sha256"],
        launcher=topology["launcher"],
        size=topology["size"],
        num_nodes=topology["num_nodes"],
    )


def has_trained(folder: Path) -> bool:
    """Whether a run that is going on has done an epoch."""
    metrics = folder / "metrics.jsonl"
    return metrics.exists() and '"split": "validation"' in metrics.read_text()
