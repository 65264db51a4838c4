"""Pipe mode is setup from validation files alone, and continues only what was trained from the same pipe plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.numpy_training import Data, NumpyTask, write_data
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from data_sharding import Catalog
from data_sharding.pipe.pipe_plan import PipeFile, make_plan
from data_sharding.pipe.pipe_plan_file import save_plan
from data_sharding.plan.block_shape import BLOCK_ORDER
from hvdtrain.checkpoints.format import Checkpoint, Position
from hvdtrain.checkpoints.resume import require_same_training
from hvdtrain.config.train_config import DataConfig, TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.run.prepare import RunSetup, prepare
from hvdtrain.set_names import UNNAMED
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.task import Task


class OpensValidation(NumpyTask):
    needs_data_dir = True

    def open_validation(self, data: DataAccess) -> Catalog | None:
        return data.catalog("validation-*.tfrecord")


class HasNone(NumpyTask):
    def open_validation(self, data: DataAccess) -> Catalog | None:  # noqa: ARG002
        return None


@pytest.fixture
def validation_only(tmp_path: Path) -> Data:
    data = write_data(tmp_path / "data", train=22, validation=8)
    for file in data.train.files:
        Path(file.path).unlink()
    return data


def pipe_config(folder: Path, data: Path, records: int = 5) -> TrainConfig:
    files = [PipeFile(f"part-{number}", 10 + number, records) for number in range(2)]
    plan = save_plan(make_plan(files, workers_per_host=2), folder)[0]
    pipes = DataConfig(dir=str(data), mode="pipe", pipe_dir=str(folder), pipe_plan=str(plan))
    return TrainConfig(global_batch_size=4, data=pipes)


def on_two(config: Callable[[int], TrainConfig], kind: type[Task]) -> list[Any]:
    def work(comm: ThreadCommunicator) -> RunSetup:
        return prepare(config(comm.topology.rank), kind, comm)

    return run_on_ranks(2, work)


def test_no_training_file_is_needed(tmp_path: Path, validation_only: Data) -> None:
    config = pipe_config(tmp_path / "pipes", validation_only.folder)
    for one in all_well(on_two(lambda _: config, OpensValidation)):
        assert one.train.plan(0).num_records == 10
        assert one.validation[UNNAMED].catalog.fingerprint == validation_only.validation.fingerprint
        assert one.about["validation"] == validation_only.validation.fingerprint
        assert one.about["data"] == one.train.fingerprint
    for one in all_well(on_two(lambda _: config, HasNone)):
        assert (one.validation, one.about["validation"]) == ({}, None)
    named = replace(config, data=replace(config.data, validation=["a=validation-*", "b=validation-*"]))
    for one in all_well(on_two(lambda _: named, NumpyTask)):  # whose open_data would miss the training files
        assert one.about["validation"] == dict.fromkeys("ab", validation_only.validation.fingerprint)


def test_damaged_training_files_are_not_looked_at(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", train=22, validation=8)
    for file in data.train.files:
        Path(file.path).write_bytes(b"no record")
    all_well(on_two(lambda _: pipe_config(tmp_path / "pipes", data.folder), OpensValidation))


def test_a_task_that_does_not_say_how_to_open_validation(tmp_path: Path, data: Data, validation_only: Data) -> None:
    """It opens everything: that works where everything is there, and else says what is missing."""
    whole = pipe_config(tmp_path / "pipes", data.folder)
    for one in all_well(on_two(lambda _: whole, NumpyTask)):
        assert one.about["validation"] == data.validation.fingerprint
    part = pipe_config(tmp_path / "pipes", validation_only.folder)
    for error in on_two(lambda _: part, NumpyTask):
        assert isinstance(error, UsageError)
        assert "No file matches" in error.fact
        assert "NumpyTask has no open_validation()" in error.hint


def test_no_data_folder(tmp_path: Path) -> None:
    config = pipe_config(tmp_path / "pipes", tmp_path)
    for error in on_two(lambda _: replace(config, data=replace(config.data, dir=None)), OpensValidation):
        assert isinstance(error, UsageError)
        assert error.conflict == "There is nothing to validate on."


def test_hosts_with_different_plans(tmp_path: Path, validation_only: Data) -> None:
    """Their ranks would make different numbers of steps, and wait for each other for ever."""
    configs = [pipe_config(tmp_path / f"pipes{n}", validation_only.folder, records=5 + n) for n in range(2)]
    for error in on_two(lambda rank: configs[rank], OpensValidation):
        assert isinstance(error, UsageError)
        assert error.joint
        assert error.fact.startswith("Rank 1 sees other data than rank 0: 12 records")


def refusal(before: dict[str, Any], now: dict[str, Any]) -> UsageError:
    with pytest.raises(UsageError) as caught:
        require_same_training(Checkpoint({}, Position(), before), now)
    return caught.value


def test_what_a_resumed_run_must_have_in_common(tmp_path: Path, validation_only: Data, data: Data) -> None:
    first, second = (
        all_well(
            on_two(lambda _, n=records: pipe_config(tmp_path / f"p{n}", validation_only.folder, n), OpensValidation)
        )[0].about
        for records in (5, 6)
    )
    require_same_training(Checkpoint({}, Position(), first), first)
    error = refusal(first, second)
    assert "is from the data set with fingerprint" in error.fact
    assert "--data.pipe-plan" in error.hint
    assert "--data.dir" not in error.hint
    files = TrainConfig(global_batch_size=4, data=DataConfig(dir=str(data.folder)))
    from_files = all_well(on_two(lambda _: files, OpensValidation))[0].about
    without_mode = {key: value for key, value in from_files.items() if key != "mode"}  # written before pipe mode was
    require_same_training(Checkpoint({}, Position(), without_mode), from_files)
    assert "--data.dir" in refusal({**from_files, "data": "other"}, from_files).hint
    for before in (from_files, without_mode):
        assert "a run with --data.mode 'file', not 'pipe'" in refusal(before, first).fact
    blocks = {**from_files, "shuffle": "block", "block_order": BLOCK_ORDER}
    require_same_training(Checkpoint({}, Position(), blocks), blocks)
    first_order = {key: value for key, value in blocks.items() if key != "block_order"}  # from before it was named
    assert "the order of --data.shuffle block 1, not 2" in refusal(first_order, blocks).fact
    require_same_training(Checkpoint({}, Position(), {**from_files, "block_order": None}), from_files)
