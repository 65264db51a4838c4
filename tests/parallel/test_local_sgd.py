"""Local SGD and process sets under real launchers: the numbers are those of the algorithm, and ranks end equal."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import result_of

pytestmark = pytest.mark.timeout(300)

WORKERS = Path(__file__).parent / "workers"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def require_checked(finished: Any, np: int) -> None:
    assert finished.returncode == 0, finished.tail()
    assert sorted(re.findall(r"CHECKED rank (\d)", finished.stdout)) == [str(rank) for rank in range(np)]


@pytest.mark.parametrize(
    ("np", "launcher", "sets"), [(4, "mpirun", "0+2,1+3"), (3, "horovodrun-gloo", "0,1-2")], ids=["mpi", "gloo"]
)
def test_torch(np: int, launcher: str, sets: str) -> None:
    command = ["python", "-W", "error", str(WORKERS / "local_sgd_torch.py"), sets]
    require_checked(run_ranks(command, np, launcher, 120, ONE_THREAD), np)


def test_keras() -> None:
    command = ["python", str(WORKERS / "local_sgd_keras.py"), "0,1-2"]
    require_checked(run_ranks(command, 3, "mpirun", 240, ONE_THREAD), 3)


ODD = """
import torch
from torch import nn
from hvdtrain import events
from hvdtrain.tasks.torch import TorchDigits


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, pictures):
        features = torch.flatten(pictures, 1)
        self.mean.mul_(0.9).add_(0.1 * features.detach().mean(0))  # in evaluation, too
        return self.last(torch.relu(self.first(features)))


class Task(TorchDigits):
    def build_model(self):
        self.model = Odd()
        return self.model

    def callbacks(self):
        return [self.freeze]

    def freeze(self, event):
        if isinstance(event, events.StepEnded):
            self.model.first.requires_grad_(event.step < 5)
"""


def test_a_whole_job_by_our_own_launcher(tmp_path: Path) -> None:
    """Stopped between two averages, since when user code has frozen a layer; validation changes a buffer; Gloo's ranks
    meet again for each set. Its model is evaluated by another number of workers."""
    (tmp_path / "odd.py").write_text(ODD)
    flags = [
        "--sync-every",
        "4",
        "--process-sets",
        "0,1-2",
        "--ema-decay",
        "0.9",
        "--max-steps",
        "6",
        "--task",
        "odd:Task",
    ]
    flags += ["--optimizer", "sgd", "--checkpoint-interval", "3", "--data.subset", "0.1", "--output-dir", "out"]
    argv = [sys.executable, "-m", "hvdtrain", "launch", "local", "-np", "3", "--", "train", *flags]
    finished = run_command(argv, 120, ONE_THREAD, tmp_path)
    assert finished.returncode == 0, finished.tail()
    result = result_of(tmp_path / "out")
    assert result["steps"] == 6
    assert result["world_size"] == 3
    finished = run_command([sys.executable, "-m", "hvdtrain", "evaluate", "out"], 120, ONE_THREAD, tmp_path)
    assert finished.returncode == 0, finished.tail()


def test_sets_of_another_job_are_refused(tmp_path: Path) -> None:
    flags = ["--sync-every", "4", "--process-sets", "0-3,4-7", "--output-dir", str(tmp_path / "out")]
    finished = run_ranks(["python", "-m", "hvdtrain", *flags], 2, "mpirun", 60, ONE_THREAD)
    assert finished.returncode == 2, finished.tail()
    assert "names rank 3. There are 2 workers" in finished.stderr
    assert not (tmp_path / "out").exists()
