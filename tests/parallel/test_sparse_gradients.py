"""Sparse gradients under real launchers: many ranks train as one process does, sparse as dense."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.ranks import run_ranks

pytestmark = pytest.mark.timeout(300)

WORKERS = Path(__file__).parent / "workers"


@pytest.mark.parametrize(
    ("worker", "np", "launcher", "options"),
    [("sparse_torch.py", 3, "horovodrun-gloo", ["-W", "error"]), ("sparse_keras.py", 2, "mpirun", [])],
    ids=["torch", "keras"],
)
def test_many_ranks_train_as_one(worker: str, np: int, launcher: str, options: list[str]) -> None:
    finished = run_ranks(["python", *options, str(WORKERS / worker)], np, launcher, 240, {"OMP_NUM_THREADS": "1"})
    assert finished.returncode == 0, finished.tail()
    assert sorted(re.findall(r"CHECKED rank (\d)", finished.stdout)) == [str(rank) for rank in range(np)]
