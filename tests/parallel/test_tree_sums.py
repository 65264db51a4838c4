"""What workers exchange with `--virtual-workers`: an allreduce where it has the bits of the tree, else slices."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.jobs import python_path
from support.ranks import Launcher, run_ranks

WORKER = Path(__file__).parent / "workers" / "tree_sums.py"
DEADLINE_S = 200
OF_TWO = "2:allreduce 3:slices 4:allreduce 8:allreduce"
IN_ORDER = "3:allreduce 4:allreduce 6:allreduce 5:slices 8:slices"
ANY_ORDER = "3:slices 4:slices"


@pytest.mark.parametrize(
    ("framework", "launcher", "size", "memory", "cases"),
    [
        ("torch", "horovodrun-gloo", 2, "1", OF_TWO),
        ("torch", "mpirun", 2, "1", OF_TWO),
        ("torch", "horovodrun-gloo", 3, "1", IN_ORDER),
        ("torch", "horovodrun-gloo", 3, "0", ANY_ORDER),
        ("torch", "mpirun", 3, "1", ANY_ORDER),
        ("tensorflow", "horovodrun-gloo", 2, "1", OF_TWO),
        ("tensorflow", "horovodrun-gloo", 3, "1", ANY_ORDER),
    ],
)
def test_workers_add_as_one_process_does(
    framework: str, launcher: Launcher, size: int, memory: str, cases: str
) -> None:
    env = {**python_path(WORKER.parent), "HOROVOD_GLOO_SHARED_MEMORY": memory}
    finished = run_ranks(["python", str(WORKER), framework, *cases.split()], size, launcher, DEADLINE_S, env)
    assert finished.returncode == 0, finished.tail()
    assert finished.stdout.count("as one process") == size, finished.tail()
