"""Helper processes of ranks that have started Horovod and MPI are no ranks themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ranks import run_ranks

import data_sharding as ds

WORKER = Path(__file__).parent / "workers" / "decode_processes_beside_horovod.py"


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_ranks_decode_in_processes(launcher: str, tmp_path: Path) -> None:
    ds.write_shards(tmp_path, "numbers", [bytes([number]) for number in range(20)], 2)
    interpreter = "fresh" if launcher == "mpirun" else "warm"  # MPI is what a helper must not inherit a place in
    finished = run_ranks(["python", str(WORKER), str(tmp_path)], 2, launcher, 120, interpreter=interpreter)
    assert finished.returncode == 0, finished.tail()
    world = 2 if launcher == "mpirun" else 1
    for rank in range(2):
        assert f"RESULT {rank} {world} {2 * sum(range(20))}" in finished.stdout, finished.tail()
