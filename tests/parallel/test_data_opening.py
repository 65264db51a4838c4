"""A rank that waits for others to start opens its data meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ranks import run_ranks
from support.runs import read_json, result_of

TASK = """
import json, os, threading, time
import horovod.torch as hvd
from hvdtrain.tasks.torch import TorchDigits
from hvdtrain.topology import detect_topology

RANK = detect_topology(os.environ).rank
if RANK == 1:  # it is late by as much as rank 0 needs
    while not os.path.exists("opened_0.json"):
        time.sleep(0.05)


class Late(TorchDigits):
    opens_early = True

    def open_data(self, data):
        found = super().open_data(data)
        with open("opened.tmp" + str(RANK), "w") as file:
            json.dump({"initialized": bool(hvd.is_initialized())}, file)
        os.replace("opened.tmp" + str(RANK), f"opened_{RANK}.json")
        return found
"""


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_data_is_opened_while_others_are_waited_for(launcher: str, tmp_path: Path) -> None:
    (tmp_path / "late_task.py").write_text(TASK)
    train = ["python", "-m", "hvdtrain", "--task", "late_task:Late", "--epochs", "1", "--output-dir", "out"]
    finished = run_ranks(train, 2, launcher, 120, {"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert read_json(tmp_path / "opened_0.json") == {"initialized": False}
    assert result_of(tmp_path / "out")["status"] == "finished"
