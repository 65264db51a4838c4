"""What `--data.mode pipe` refuses before it opens a pipe, in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import data_sharding as ds
from data_sharding.pipe.plan import PipeFile, make_plan
from data_sharding.pipe.plan_file import save_plan
from hvdtrain.comm.serial import SerialCommunicator
from hvdtrain.config import DataConfig
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.pipe_source import AgreedPipeSource, PipeSource, open_pipe_source
from hvdtrain.topology import Topology

COMM = SerialCommunicator(Topology.single())


def opened(config: DataConfig) -> PipeSource | AgreedPipeSource:
    task: Any = SimpleNamespace(decode=len)  # nothing is decoded
    return open_pipe_source(config, task, COMM, 4, 0)


def config_for(folder: Path, records: int | None, **job: Any) -> DataConfig:
    files = [PipeFile(f"part-{number}", 10, records) for number in range(4)]
    plan = save_plan(make_plan(files, **{"workers_per_host": 1, **job}), folder)[0]
    return DataConfig(mode="pipe", pipe_dir=str(folder), pipe_plan=str(plan), timeout=1)


def test_steps_of_an_epoch(tmp_path: Path) -> None:
    known = opened(config_for(tmp_path, 5))
    assert (known.plan(0).steps, known.plan(3).num_records, known.plan(0).global_batch) == (5, 20, 4)
    agreed = opened(replace(config_for(tmp_path, None), pipe_steps=7))
    assert (agreed.plan(0).steps, agreed.plan(0).num_records) == (7, 28)
    assert known.fingerprint != agreed.fingerprint


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pipe_dir": None}, "without --data.pipe-dir and --data.pipe-plan"),
        ({"pipe_plan": None}, "without --data.pipe-dir and --data.pipe-plan"),
        ({"pipe_steps": 3}, "the plan knows how many records"),
        ({"on_corrupt": "mask"}, "--data.on-corrupt is mask"),
        ({"processes": 2}, "--data.processes is 2"),
        ({"shuffle": "block"}, "--data.shuffle is block"),
    ],
)
def test_flags(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        opened(replace(config_for(tmp_path, 5), **change))


def test_plans(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="HINT: give --data.pipe-steps STEPS"):
        opened(config_for(tmp_path, None))
    with pytest.raises(UsageError, match="for 1 hosts of 2 workers, and this job has 1 workers"):
        opened(config_for(tmp_path, 5, workers_per_host=2))
    with pytest.raises(ds.MissingDataError, match="cannot be opened"):
        opened(replace(config_for(tmp_path, 5), pipe_plan=str(tmp_path / "other")))


def test_a_pipe_that_never_appears(tmp_path: Path) -> None:
    """An error of all ranks, since the others would wait for this one."""
    with pytest.raises(
        HvdtrainError, match=r"train-0_0 \(channel train-0, epoch 0, of rank 0\) did not appear"
    ) as caught:
        opened(config_for(tmp_path, 5)).loader(0, 0)
    assert caught.value.joint
