"""What the patches of Gloo's sums keep: each sum and mean, in memory that all ranks share, around the ring, or directly
from each rank to all others."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.jobs import python_path
from support.ranks import run_ranks

WORKER = Path(__file__).parent / "workers" / "gloo_sums.py"
DEADLINE_S = 200


@pytest.mark.parametrize("memory", ["1", "0"])
@pytest.mark.parametrize("size", [2, 3])
def test_sums_of_all_sizes_are_right_and_the_same_on_all_ranks(size: int, memory: str) -> None:
    env = {**python_path(WORKER.parent), "HOROVOD_GLOO_SHARED_MEMORY": memory}
    finished = run_ranks(["python", str(WORKER)], size, "horovodrun-gloo", DEADLINE_S, env)
    assert finished.returncode == 0, finished.tail()
    assert finished.stdout.count("as they must be") == size
