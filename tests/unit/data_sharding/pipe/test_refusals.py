"""What `--data.mode pipe` refuses before it opens a pipe, in one process."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import data_sharding as ds
from data_sharding.pipe.pipe_plan import PipeFile, make_plan
from data_sharding.pipe.pipe_plan_file import save_plan
from data_sharding.pipe.pipe_reader import PipeReader
from hvdtrain.audit.ledger import PIPE_NOTE, NoLedger
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.config.train_config import DataConfig
from hvdtrain.data.pipe_source import AgreedPipeSource, PipeSource, open_pipe_source
from hvdtrain.errors import HvdtrainError, UsageError
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


def test_steps_follow_from_the_total_where_nobody_knows_what_reaches_each_worker(tmp_path: Path) -> None:
    """21 records in batches of 4: what one epoch leaves begins the next."""
    plan = make_plan(
        [PipeFile(f"part-{number}", 10, number) for number in range(1, 7)],
        workers_per_host=1,
        hosts=2,
        distribution="sharded-by-s3-key",
    )
    config = DataConfig(mode="pipe", pipe_dir=str(tmp_path), pipe_plan=str(save_plan(plan, tmp_path)[0]))
    comm: Any = SimpleNamespace(topology=SimpleNamespace(rank=0, size=2, local_rank=0, local_size=1, is_root=True))
    task: Any = SimpleNamespace(decode=len)
    assert (plan.rank_records(), plan.records) == (None, 21)
    assert open_pipe_source(config, task, comm, 4, 0).plan(0).steps == 6
    assert open_pipe_source(replace(config, pipe_steps=9), task, comm, 4, 0).plan(0).steps == 9


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


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    """At once, not after waiting for a FIFO in it."""
    with pytest.raises(UsageError, match=r"There is no folder .*/none\. It was given as --data.pipe-dir"):
        opened(replace(config_for(tmp_path, 5), pipe_dir=str(tmp_path / "none")))


@pytest.mark.parametrize("records", [5, None])
def test_a_channel_that_another_job_reads(tmp_path: Path, records: int | None) -> None:
    """Which has left epoch 0 behind, so that there is no FIFO to wait for."""
    config = replace(config_for(tmp_path, records), timeout=200, pipe_steps=None if records else 3)
    begin = time.monotonic()
    with PipeReader(tmp_path, "train-0", rank=7), pytest.raises(HvdtrainError) as caught:
        next(opened(config).loader(0, 0))
    assert time.monotonic() - begin < 100
    assert "Channel train-0 is already being read by rank 7" in str(caught.value)
    assert caught.value.joint


def test_no_account_is_said_to_be_none(tmp_path: Path) -> None:
    ledger = NoLedger(COMM, tmp_path / "run" / "audit")
    ledger.start(0)
    ledger.start(3)
    assert "trained from pipes" in (tmp_path / "run" / "audit" / PIPE_NOTE).read_text()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="HINT: "):
        NoLedger(COMM, tmp_path / "file" / "audit").start(0)


def test_a_pipe_that_never_appears(tmp_path: Path) -> None:
    """An error of all ranks, since the others would wait for this one."""
    with pytest.raises(
        HvdtrainError, match=r"train-0_0 \(channel train-0, epoch 0, of rank 0\) did not appear"
    ) as caught:
        opened(config_for(tmp_path, 5)).loader(0, 0)
    assert caught.value.joint
