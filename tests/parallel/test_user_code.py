"""What user code may do to a model in training, where there are several ranks: docs/user-code.md, row by row.

One start for each framework checks all rows, with `workers/user_code_FRAMEWORK.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ranks import run_ranks

WORKERS = Path(__file__).parent / "workers"
RANKS = 2


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_ranks_remain_one_training(framework: str, tmp_path: Path) -> None:
    command = ["python", str(WORKERS / f"user_code_{framework}.py")]
    finished = run_ranks(command, RANKS, "mpirun", 240, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert all(f"CHECKED rank {rank}" in finished.stdout for rank in range(RANKS)), finished.tail()
