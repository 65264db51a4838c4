"""A torch Dataset with random transforms as data: killed with two workers, resumed with three, it trains as one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import ledger_of, result_of

pytestmark = pytest.mark.timeout(400)

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLED = """
import os, signal
from hvdtrain.engine.events import StepEnded
from torch_dataset import OnDataset

class Killed(OnDataset):
    def callbacks(self):
        return [self.end]

    def end(self, event):
        if isinstance(event, StepEnded) and event.step == 40 and os.environ.get("OMPI_COMM_WORLD_SIZE") == "2":
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_items_are_the_same_with_any_number_of_workers_and_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    path = os.pathsep.join((str(EXAMPLES), str(tmp_path), os.environ.get("PYTHONPATH", "")))
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}

    def train(np: int, out: str) -> int:
        flags = ["--task", "killed:Killed", "--epochs", "2", "--checkpoint-interval", "20", "--resume", "auto"]
        command = ["python", "-m", "hvdtrain", *flags, "--output-dir", str(tmp_path / out)]
        finished = run_ranks(command, np, "mpirun", 150, environment)
        return finished.returncode

    assert train(1, "one") == 0
    assert train(2, "more") != 0
    assert train(3, "more") == 0
    one, more = result_of(tmp_path / "one"), result_of(tmp_path / "more")
    assert more["metrics"] == pytest.approx(one["metrics"], rel=1e-5)
    assert {line["world_size"] for line in ledger_of(tmp_path / "more") if "world_size" in line} >= {2, 3}
    verified = run_command(["python", "-m", "hvdtrain", "shard", "verify", str(tmp_path / "more")], 60, environment)
    assert "used every one of 1,437 records once" in verified.stdout, verified.tail()
