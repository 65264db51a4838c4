"""Whatever a torch state may hold is the same on all ranks at each checkpoint (the table in docs/state.md)."""

from __future__ import annotations

import re
from pathlib import Path

from support.numpy_training import write_data
from support.ranks import run_ranks
from support.state_rows import ROWS_OF_RANKS
from support.torch_training import open_torch

from hvdtrain.checkpoints.format import read_checkpoint
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.topology import Topology

WORKER = Path(__file__).parent / "workers" / "state_rows_torch.py"


def test_two_ranks_agree_on_all_of_it_and_one_goes_on(tmp_path: Path) -> None:
    write_data(tmp_path / "data", 20, 4)
    command = ["python", str(WORKER), str(tmp_path / "data"), str(tmp_path / "out")]
    finished = run_ranks(command, 2, "mpirun", 200, {"OMP_NUM_THREADS": "1"})
    assert finished.returncode == 0, finished.tail()
    assert sorted(re.findall(r"CHECKED rank (\d)", finished.stdout)) == ["0", "1"]
    for row, build in ROWS_OF_RANKS.items():
        saved = read_checkpoint(CheckpointStore(tmp_path / "out" / row / "checkpoints", 1).paths()[2]).state
        adapter = open_torch(build(0), SerialCommunicator(Topology.single()), 2)
        adapter.load_state(saved)
        loaded = adapter.state()
        assert loaded.keys() == saved.keys()
        different = [name for name, array in saved.items() if loaded[name].tobytes() != array.tobytes()]
        assert different == [], row
