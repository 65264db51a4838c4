"""Torch Datasets with random transforms as data: killed with two workers, resumed with three, they train as one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import ledger_of, result_of

pytestmark = pytest.mark.timeout(400)

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLED = """
import os, signal, zlib
from data_sharding import Catalog
from hvdtrain import Splits
from hvdtrain.engine.events import StepEnded
from torch_dataset import OnDataset

class Killed(OnDataset):
    def decode(self, records):
        arrays = records.collate(records.payloads)
        with open(f"{os.environ['PICTURES']}-{os.getpid()}", "a") as seen:
            for number, picture in zip(records.ids, arrays["image"]):
                print(number, zlib.crc32(picture.tobytes()), file=seen)
        return arrays

    def callbacks(self):
        return [self.end]

    def end(self, event):
        if isinstance(event, StepEnded) and event.step == 40 and os.environ.get("OMPI_COMM_WORLD_SIZE") == "2":
            os.kill(os.getpid(), signal.SIGKILL)

class Mixed(Killed):
    def open_data(self, data):
        splits = super().open_data(data)
        zeros, others = splits.train.where(labels=0), splits.train.where(labels=range(1, 10))
        return Splits(Catalog.mix({zeros: 0.3, others: 0.7}, epoch=1000), splits.validation)
"""
PROVED = {
    "Killed": "used every one of 1,437 records once",
    "Mixed": "used every one of 1,437 records as often as planned",
}


@pytest.mark.parametrize("task", PROVED)
def test_items_are_the_same_with_any_number_of_workers_and_after_a_kill(task: str, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    path = os.pathsep.join((str(EXAMPLES), str(tmp_path), os.environ.get("PYTHONPATH", "")))
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}

    def train(np: int, out: str) -> int:
        flags = ["--task", f"killed:{task}", "--epochs", "2", "--checkpoint-interval", "20", "--resume", "auto"]
        command = ["python", "-m", "hvdtrain", *flags, "--output-dir", str(tmp_path / out)]
        finished = run_ranks(command, np, "mpirun", 150, environment | {"PICTURES": str(tmp_path / f"pictures-{out}")})
        return finished.returncode

    assert train(1, "one") == 0
    assert train(2, "more") != 0
    assert train(3, "more") == 0
    one, more = result_of(tmp_path / "one"), result_of(tmp_path / "more")
    assert more["metrics"] == pytest.approx(one["metrics"], rel=1e-5)
    assert {line["world_size"] for line in ledger_of(tmp_path / "more") if "world_size" in line} >= {2, 3}
    verified = run_command(["python", "-m", "hvdtrain", "shard", "verify", str(tmp_path / "more")], 60, environment)
    assert PROVED[task] in verified.stdout, verified.tail()
    assert pictures(tmp_path, "more") == pictures(
        tmp_path, "one"
    )  # bit for bit, those of steps that were made twice too


def pictures(folder: Path, run: str) -> set[str]:
    """What a run's processes have decoded: lines of the numbers of records and the sums of their pictures."""
    return {line for file in folder.glob(f"pictures-{run}-*") for line in file.read_text().splitlines()}
