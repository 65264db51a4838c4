"""`hvdtrain bench parameter-server`: the average is right for any number of servers, and is told beside the ring."""

from __future__ import annotations

from pathlib import Path

from support.ranks import run_ranks
from support.runs import read_json

WORKER = """
import numpy as np
from mpi4py import MPI
from hvdtrain.experiments.update_averages import ServerAverage

world = MPI.COMM_WORLD
for servers in (1, 2):
    for numbers in (1, 2, 1001):
        average = ServerAverage(world, servers, numbers)
        average.values[:] = np.arange(numbers) + 10 * world.Get_rank()
        for _ in range(2):
            average.run()
        mean = np.mean([10 * rank for rank in range(servers, world.Get_size())])
        assert average.serves or np.allclose(average.values, np.arange(numbers) + mean), average.values
print("averaged", world.Get_rank())
"""


def test_all_workers_get_the_mean(tmp_path: Path) -> None:
    (tmp_path / "averages.py").write_text(WORKER)
    finished = run_ranks(["python", str(tmp_path / "averages.py")], 4, "mpirun", 120, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert finished.stdout.count("averaged ") == 4, finished.tail()


def test_servers_are_told_beside_the_ring(tmp_path: Path) -> None:
    own = ["--servers", "1,2", "--sizes", "16KiB,256KiB", "--repeats", "2", "--out", "out"]
    command = ["python", "-m", "hvdtrain", "bench", "parameter-server", *own]
    finished = run_ranks(command, 3, "mpirun", 120, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    found = read_json(tmp_path / "out" / "parameter-server.json")
    assert [(one["servers"], one["nbytes"]) for one in found["links"][""]] == [
        (servers, nbytes) for servers in (0, 1, 2) for nbytes in (16384, 262144)
    ]
    assert (tmp_path / "out" / "parameter-server.svg").read_text().startswith("<?xml")


def test_without_a_worker_it_is_refused(tmp_path: Path) -> None:
    command = ["python", "-m", "hvdtrain", "bench", "parameter-server", "--servers", "2"]
    finished = run_ranks(command, 2, "mpirun", 120, cwd=tmp_path)
    assert finished.returncode == 2, finished.tail()
    assert "There are 2 machines, and --servers is 2." in finished.stderr, finished.tail()
