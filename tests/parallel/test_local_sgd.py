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


def test_a_whole_job_by_our_own_launcher(tmp_path: Path) -> None:
    """Stopped between two averages; Gloo's ranks meet again for each set."""
    flags = ["--sync-every", "4", "--process-sets", "0,1-2", "--ema-decay", "0.9", "--max-steps", "6"]
    flags += ["--optimizer", "sgd", "--checkpoint-interval", "3", "--output-dir", str(tmp_path / "out")]
    argv = [sys.executable, "-m", "hvdtrain", "launch", "local", "-np", "3", "--", "train", *flags]
    finished = run_command(argv, 120, ONE_THREAD)
    assert finished.returncode == 0, finished.tail()
    result = result_of(tmp_path / "out")
    assert result["steps"] == 6
    assert result["world_size"] == 3


def test_sets_of_another_job_are_refused(tmp_path: Path) -> None:
    flags = ["--sync-every", "4", "--process-sets", "0-3,4-7", "--output-dir", str(tmp_path / "out")]
    finished = run_ranks(["python", "-m", "hvdtrain", *flags], 2, "mpirun", 60, ONE_THREAD)
    assert finished.returncode == 2, finished.tail()
    assert "names rank 3. There are 2 workers" in finished.stderr
    assert not (tmp_path / "out").exists()
