"""What is decided, and what is refused, before a model exists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.numpy_training import Data, NumpyTask, write_data
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.config.train_config import DataConfig, TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.run.prepare import RunSetup, prepare, with_defaults
from hvdtrain.run.start import with_common_resume
from hvdtrain.run.virtual_worker_checks import require_same_threads
from hvdtrain.set_names import UNNAMED
from hvdtrain.task.task import TaskDefaults
from hvdtrain.topology.launcher_variables import ASKED_SIZE_VARIABLE, LAUNCHER_VARIABLE, MOST_SIZE_VARIABLE

DEFAULTS = TaskDefaults(epochs=5, global_batch_size=48, lr=0.002, warmup_epochs=1.5)


class Decided(NumpyTask):
    defaults = DEFAULTS


def setup(config: TrainConfig, data: Data, size: int = 1) -> list[RunSetup]:
    own = replace(config, data=replace(config.data, dir=str(data.folder)))
    return all_well(run_on_ranks(size, lambda comm: prepare(own, Decided, comm)))


def refused(config: TrainConfig, folders: list[Path]) -> list[UsageError]:
    def work(comm: ThreadCommunicator) -> RunSetup:
        own = replace(config, data=DataConfig(dir=str(folders[comm.topology.rank])))
        return prepare(own, Decided, comm)

    errors = run_on_ranks(len(folders), work)
    for error in errors:
        assert isinstance(error, UsageError)
        assert error.joint
        assert str(error) == str(errors[0])
    return errors  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("given", "size", "expected"),
    [
        ({}, 4, {"global_batch_size": 48, "epochs": 5, "lr": 0.002, "warmup_epochs": 1.5}),
        ({"batch_size": 8}, 4, {"global_batch_size": 32, "batch_size": None}),
        ({"global_batch_size": 10}, 4, {"global_batch_size": 10}),
        ({"epochs": 1, "lr": 0.5, "warmup_epochs": 0.0}, 1, {"epochs": 1, "lr": 0.5, "warmup_epochs": 0.0}),
        ({"epochs": 1}, 1, {"epochs": 1, "warmup_epochs": 0.5}),
    ],
)
def test_what_is_left_open_comes_from_the_task(given: dict[str, Any], size: int, expected: dict[str, Any]) -> None:
    config = with_defaults(TrainConfig(**given), DEFAULTS, size)
    assert {name: getattr(config, name) for name in expected} == expected
    assert with_defaults(config, DEFAULTS, size) == config


def test_fewer_workers_than_were_asked_for_cut_their_parts(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    def counts(size: int, **options: Any) -> list[int]:
        return [one.config.accumulate_steps for one in setup(TrainConfig(global_batch_size=24, **options), data, size)]

    assert counts(3) == [1] * 3
    monkeypatch.setenv(ASKED_SIZE_VARIABLE, "4")
    assert counts(3) == [1] * 3, "no launcher has said so"
    monkeypatch.setenv(LAUNCHER_VARIABLE, "hvdtrain launch")
    assert counts(4) == [1] * 4
    assert counts(3) == [2] * 3
    assert counts(1, accumulate_steps=2) == [8]
    assert counts(2, steps_per_call=2) == [1] * 2, "these would not go together"
    monkeypatch.setenv(ASKED_SIZE_VARIABLE, "96")
    assert counts(2) == [12] * 2, "of one record each"
    monkeypatch.setenv(ASKED_SIZE_VARIABLE, "many")
    assert counts(2) == [1] * 2


def test_a_batch_that_is_too_small_for_the_workers_that_may_come_is_refused_at_the_start(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LAUNCHER_VARIABLE, "hvdtrain launch")
    monkeypatch.setenv(MOST_SIZE_VARIABLE, "4")
    assert len(setup(TrainConfig(global_batch_size=4), data, 2)) == 2
    (error, _) = refused(TrainConfig(global_batch_size=3), [data.folder] * 2)
    assert error.fact == "The global batch holds 3 records, and the job may grow to 4 workers."
    assert error.hint == "give --global-batch-size 4 or more, or --max-workers 3."


def test_rank_0_decides_for_all_from_where_training_goes_on(data: Data) -> None:
    """Each rank has looked for itself whether a checkpoint is there, one of them too early."""
    (one,) = setup(TrainConfig(), data)

    def seen(comm: ThreadCommunicator) -> str:
        resume = "auto" if comm.topology.is_root else "elsewhere/step_00000010"
        return with_common_resume(replace(one, config=replace(one.config, resume=resume)), comm).config.resume

    assert all_well(run_on_ranks(2, seen)) == ["auto", "auto"]


@pytest.mark.parametrize("size", [1, 3])
def test_the_schedule_follows_from_batch_and_data(data: Data, size: int) -> None:
    config = TrainConfig(global_batch_size=8, lr=0.1, lr_scaling="linear", reference_batch_size=4, warmup_epochs=0.5)
    for one in setup(config, data, size):
        assert (one.schedule.peak, one.schedule.total_steps, one.schedule.warmup_steps) == (0.2, 15, 2)
        assert (one.train.plan(0).steps, one.epochs) == (3, 5)
        assert one.about["world_size"] == size


def test_orders(data: Data) -> None:
    """Training order is drawn again each epoch; validation keeps the catalog's."""
    (one,) = setup(TrainConfig(global_batch_size=22), data)
    first, second = (one.train.plan(epoch).batch(0).ids.tolist() for epoch in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second) == list(range(22))
    assert one.validation[UNNAMED].plan(0).batch(0).ids.tolist()[:9] == list(range(9))


def test_the_world_size_changes_nothing_but_itself(data: Data) -> None:
    descriptions = [setup(TrainConfig(), data, size)[0].about for size in (1, 2)]
    assert [{**about, "world_size": None} for about in descriptions] == [{**descriptions[0], "world_size": None}] * 2


def test_a_batch_smaller_than_the_world(data: Data) -> None:
    (error, *_) = refused(TrainConfig(global_batch_size=2), [data.folder] * 3)
    assert error.fact == "The global batch holds 2 records for 3 workers."
    assert "--global-batch-size 3" in error.hint


@pytest.mark.parametrize(
    ("count", "batch", "size", "fact"),
    [
        (2, 48, 3, "--virtual-workers 2 is given to 3 workers"),
        (1, 48, 3, "--virtual-workers 3 or more, or start 1 worker."),
        (8, 7, 3, "The global batch holds 7 records for 8 virtual workers"),
    ],
)
def test_virtual_workers_without_work(count: int, batch: int, size: int, fact: str, data: Data) -> None:
    config = TrainConfig(virtual_workers=count, global_batch_size=batch)
    assert fact in str(refused(config, [data.folder] * size)[0])


def test_workers_that_may_come_need_virtual_ones(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAUNCHER_VARIABLE, "hvdtrain launch")
    monkeypatch.setenv(MOST_SIZE_VARIABLE, "6")
    config = TrainConfig(virtual_workers=4, global_batch_size=48)
    assert "a job that may have 6 workers" in str(refused(config, [data.folder] * 2)[0])


def test_hosts_with_other_numbers_of_cores_need_a_number_of_threads() -> None:
    errors = run_on_ranks(3, lambda comm: require_same_threads(comm, 4 if comm.topology.rank == 1 else 2))
    assert {str(error) for error in errors} == {str(errors[0])}
    assert "2 threads, and others with 4" in str(errors[0])
    assert "--compute-threads 2" in str(errors[0])
    all_well(run_on_ranks(3, lambda comm: require_same_threads(comm, 2)))


def test_virtual_workers_read_the_same_slices_on_any_number_of_workers(data: Data) -> None:
    """And a part that a worker has lost changes no micro batch."""
    config = TrainConfig(virtual_workers=4, global_batch_size=22)

    def slots(size: int) -> list[list[int]]:
        parts = []
        for of_rank in setup(config, data, size):
            assert (of_rank.config.accumulate_steps, of_rank.about["virtual_workers"]) == (1, 4)
            assert of_rank.workers is not None
            with of_rank.train.loader(0, 0) as loader:
                ids = next(iter(loader)).ids
            parts += [ids[part].tolist() for part in of_rank.workers.slots]
        return parts

    assert [len(part) for part in slots(1)] == [5, 6, 5, 6]
    assert slots(1) == slots(2) == slots(3) == slots(4)


def test_data_that_one_rank_lacks(data: Data, tmp_path: Path) -> None:
    (error, *_) = refused(TrainConfig(), [data.folder, tmp_path / "none", data.folder])
    assert error.fact.startswith("On rank 1: ")


@pytest.mark.parametrize("records", [22, 21])
def test_ranks_that_see_other_data(data: Data, tmp_path: Path, records: int) -> None:
    other = write_data(tmp_path, train=records, validation=8)
    (error, *_) = refused(TrainConfig(), [data.folder, data.folder, other.folder])
    assert error.fact.startswith("Rank 2 sees other data than rank 0: ")
    assert f"{records} records" in error.fact
