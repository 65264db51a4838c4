"""NaN and infinity: where they came from is said, on all ranks alike, and no checkpoint holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.numpy_training import WIDTH, Data, NumpyAdapter, NumpyTask, Run, Setting, train, write_data
from support.ranks import ThreadCommunicator, run_on_ranks

from data_sharding import Catalog, LoadedBatch, write_shards
from data_sharding.errors import MissingDataError
from hvdtrain.checkpoints.format import Position, infinite_from_the_start, weights_not_finite
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.checkpoints.writer import CheckpointWriter
from hvdtrain.config.train_config import DataConfig
from hvdtrain.data.catalog_source import CatalogSource
from hvdtrain.engine.limits import RunLimits
from hvdtrain.engine.loss_guard import rows_not_finite
from hvdtrain.errors import HvdtrainError
from hvdtrain.named_arrays import State
from hvdtrain.topology import Topology

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in :RuntimeWarning")  # of numpy, which is right

LIMITS = RunLimits(2, log_interval=3, checkpoint_interval=1)


def with_bad_records(folder: Path, values: Mapping[int, float], split: str = "train") -> Data:
    """22 records to train on and 9 to validate on; of `split`, the second number of some records is that value."""
    data = write_data(folder / "sound", train=22, validation=9)
    count = len(getattr(data, split))
    rows = np.random.default_rng(1).normal(size=(count, WIDTH + 1)).astype(np.float32)
    rows[:, WIDTH] = 0
    for record, value in values.items():
        rows[record, 1] = value
    write_shards(folder / "bad", split, [row.tobytes() for row in rows], 1)
    return replace(data, **{split: Catalog.index(folder / "bad" / f"{split}-*.tfrecord")})


def refusals(setting: Setting, size: int, limits: RunLimits = LIMITS) -> list[HvdtrainError]:
    """The errors that all ranks end with, which are one."""
    errors: list[Any] = run_on_ranks(size, lambda comm: train(setting, comm, limits, None, None))
    for error in errors:
        assert isinstance(error, HvdtrainError), error
        assert (error.joint, error.exit_code) == (True, 1)
        assert str(error) == str(errors[0])
    return errors


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_record_with_bad_values_is_named(tmp_path: Path, size: int, value: float) -> None:
    data = with_bad_records(tmp_path, {17: value})
    error = refusals(Setting(data, tmp_path / "run"), size)[0]
    assert error.fact.startswith("The training loss is nan at step ")
    assert f"record 17 ({data.train.describe(17)}) in 'x' on rank " in error.conflict
    assert error.conflict.count(" in 'x' on rank ") == 1
    assert "repair these records" in error.hint


def test_the_rank_is_the_one_that_read_it(tmp_path: Path) -> None:
    """All ranks' losses are NaN by the time one looks, after the first and the third step: the weights carried it."""
    config, alone = DataConfig(), Topology.single()
    sound = write_data(tmp_path / "sound", train=22, validation=9)
    second_step = CatalogSource(sound.train, NumpyTask(), alone, config, 8, 3, True).plan(0).shard(0, 1, 1)
    bad = int(second_step.ids[0])
    data = with_bad_records(tmp_path, {bad: np.nan})
    setting = Setting(data, tmp_path / "run")
    ranks: set[int] = set()

    class Watching(NumpyAdapter):
        def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
            if bad in batch.ids[batch.weights > 0]:
                ranks.add(self._comm.topology.rank)
            super().train_step(batch, step, lr)

    error = refusals(replace(setting, open_adapter=Watching), 3, RunLimits(1))[0]
    assert error.fact.startswith("The training loss is nan at step 3, ")
    assert len(ranks) == 1
    assert error.fact.endswith(f", on rank {next(iter(ranks))}.")
    assert error.conflict.endswith(f"on rank {next(iter(ranks))}.")


def test_only_what_was_measured_since_the_last_reading_is_read_again(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, again = CatalogSource.decoded_again, []

    def counting(self: CatalogSource, epoch: int, ids: Any) -> Any:
        again.append(sorted(ids.tolist()))
        return whole(self, epoch, ids)

    monkeypatch.setattr(CatalogSource, "decoded_again", counting)
    seen: list[list[int]] = []

    class Late(LateNan):
        def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
            seen.append(sorted(set(batch.ids.tolist())))
            super().train_step(batch, step, lr)

    refusals(Setting(data, tmp_path, open_adapter=Late), 1, RunLimits(1, log_interval=1))
    assert again == seen[-1:]


def test_five_records_are_named_at_most(tmp_path: Path) -> None:
    data = with_bad_records(tmp_path, dict.fromkeys(range(22), np.nan))
    for size in (1, 2):
        error = refusals(Setting(data, tmp_path / str(size)), size)[0]
        assert error.conflict.count(" in 'x' on rank ") == 5


@pytest.mark.parametrize("size", [1, 2])
def test_a_record_of_the_validation_data_is_named(tmp_path: Path, size: int) -> None:
    data = with_bad_records(tmp_path, {5: np.nan}, "validation")
    error = refusals(Setting(data, tmp_path / "run"), size)[0]
    assert error.fact.startswith("The validation loss is nan at step 3")
    assert f"record 5 ({data.validation.describe(5)}) in 'x' on rank " in error.conflict


class Exploding(NumpyAdapter):
    """Its loss is not finite on one rank, at some step, whatever the data."""

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        super().train_step(batch, step, lr)
        if step == 4 and self._comm.topology.rank == 1:
            self._sums["loss"] = float("inf")


def test_data_that_are_finite_are_cleared(data: Data, tmp_path: Path) -> None:
    error = refusals(Setting(data, tmp_path, open_adapter=Exploding), 3)[0]
    assert error.fact == "The training loss is inf at step 5, on rank 1."
    assert error.conflict.startswith("The data since the last reading are finite")
    assert error.hint.startswith("lower --lr")


@pytest.mark.parametrize("how", ["never", "gone"])
def test_data_that_cannot_be_read_again_are_not_cleared(
    data: Data, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one rank of three, as a pipe is, or a disk that went away."""

    def again(self: CatalogSource, epoch: int, ids: Any) -> Any:
        if self.topology.rank != 2:
            return whole(self, epoch, ids)
        if how == "gone":
            raise MissingDataError("The file is gone.", "It cannot be read.", "restore it.")
        return None

    whole = CatalogSource.decoded_again
    monkeypatch.setattr(CatalogSource, "decoded_again", again)
    error = refusals(Setting(data, tmp_path, open_adapter=Exploding), 3)[0]
    assert error.fact == "The training loss is inf at step 5, on rank 1."
    assert error.conflict.startswith("Further steps would only spread it")
    assert error.hint.endswith("or look for bad values in the data.")


class NoFloats(NumpyTask):
    """Decodes to whole numbers only."""

    decoded = 0

    def decode(self, records: Any) -> Any:
        NoFloats.decoded += 1
        features = super().decode(records)
        return {**features, "x": (10 * features["x"]).astype(np.int64)}


def test_whole_numbers_are_not_read_through(data: Data, tmp_path: Path) -> None:
    """One batch suffices to know that none can be bad."""
    before = NoFloats.decoded
    setting = Setting(data, tmp_path, task=NoFloats(), open_adapter=LateNan, sets=())
    refusals(setting, 1, RunLimits(1))
    assert NoFloats.decoded - before == 3 + 1  # steps of the epoch, and one batch again


class LateNan(NumpyAdapter):
    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        super().train_step(batch, step, lr)
        if step == 2:
            self._sums["loss"] = float("nan")


class LastUpdate(NumpyAdapter):
    """An update spoils the weights; the loss before it was finite."""

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        super().train_step(batch, step, lr)
        if step == 3:
            self.model["bias"] = self.model["bias"] + self.spoils

    spoils = np.array([np.nan, 0, 0])


class LastUpdateInfinite(LastUpdate):
    spoils = np.array([0, -np.inf, 0])


@pytest.mark.parametrize("adapter", [LastUpdate, LastUpdateInfinite])
@pytest.mark.parametrize("size", [1, 3])
def test_no_checkpoint_holds_weights_that_are_not_finite(
    data: Data, tmp_path: Path, adapter: type[NumpyAdapter], size: int
) -> None:
    setting = Setting(data, tmp_path, open_adapter=adapter, keep=1)
    error = refusals(setting, size)[0]
    assert error.fact == "After step 4 weights are NaN or infinite: bias."
    newest = setting.store().newest()
    assert newest is not None
    assert newest.position.step == 3
    assert weights_not_finite(newest.state) == []


def test_infinity_on_purpose_is_no_damage(tmp_path: Path) -> None:
    """As in a mask of attention that is a buffer of the model."""
    mask = {
        "model/mask": np.triu(np.full((3, 3), -np.inf)),
        "model/ids": np.arange(3),
        "optimizer/m": np.full(2, np.nan),
    }
    infinite = infinite_from_the_start(mask)
    assert infinite == {"model/mask"}
    assert weights_not_finite(mask) == ["mask"]
    assert weights_not_finite(mask, infinite) == []
    assert weights_not_finite({"model/mask": mask["model/mask"] * np.nan}, infinite) == ["mask"]

    def save(comm: ThreadCommunicator, state: State = mask) -> str:
        writer = CheckpointWriter(comm, CheckpointStore(tmp_path, 3), {}, infinite)
        writer.begin(lambda _: state, Position(4, 8))
        return writer.collect().path

    assert run_on_ranks(2, save) == [str(tmp_path / "step_00000004")] * 2


def test_rows_of_arrays_of_any_shape() -> None:
    features = {
        "picture": np.zeros((4, 2, 2), np.float32),
        "half": np.zeros(4, np.float16),
        "bytes": np.zeros((4, 3), np.uint8),
        "none": np.zeros((4, 0), np.float64),
    }
    features["picture"][1, 0, 1] = np.nan
    features["half"][[1, 3]] = np.inf
    assert list(rows_not_finite(features)) == [(1, ["'picture'", "'half'"]), (3, ["'half'"])]


def test_a_sound_run_reads_nothing_again(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(CatalogSource, "decoded_again", never)

    def work(comm: ThreadCommunicator) -> tuple[Run, list[str]]:
        return train(Setting(data, tmp_path), comm, LIMITS, None, None), comm.names

    for run, names in run_on_ranks(2, work):  # type: ignore[misc]
        assert run.outcome.finished
        assert not any("not_finite" in name for name in names)
