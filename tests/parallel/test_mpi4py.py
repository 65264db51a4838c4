"""A task may use mpi4py beside Horovod."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ranks import run_ranks

WORKER = Path(__file__).parent / "workers" / "mpi4py_beside_horovod.py"


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_mpi4py_and_horovod_share_one_mpi(launcher: str) -> None:
    finished = run_ranks(["python", str(WORKER)], 3, launcher, 120, interpreter="fresh")
    assert finished.returncode == 0, finished.tail()
    assert "RESULT 3 3 6 6 1" in finished.stdout, finished.tail()
