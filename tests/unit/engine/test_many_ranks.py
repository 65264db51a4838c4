"""The law of hvdtrain: the same training at every number of ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.numpy_training import Data, NumpyAdapter, Run, Setting, train, write_data
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.engine import events
from hvdtrain.engine.limits import RunLimits, RunResult
from hvdtrain.errors import HvdtrainError, PeerError
from hvdtrain.topology import Topology

LIMITS = RunLimits(2, log_interval=2)


def on(size: int, setting: Setting, limits: RunLimits = LIMITS) -> list[Run]:
    return all_well(run_on_ranks(size, lambda comm: train(setting, comm, limits, None, None)))


def counts(run: Run) -> list[tuple[str, int, int]]:
    return [
        (type(event).__name__, event.step, event.samples)
        for event in run.events.events
        if isinstance(event, events.Logged | events.Evaluated)
    ]


@given(
    train_count=st.integers(3, 40),
    validation_count=st.integers(3, 20),
    global_batch=st.integers(4, 17),
    seed=st.integers(0, 99),
)
@settings(max_examples=20)
def test_one_to_four_ranks_train_the_same_model(
    tmp_path_factory: pytest.TempPathFactory, train_count: int, validation_count: int, global_batch: int, seed: int
) -> None:
    """Ragged tails, uneven slices and whole ranks of masked slots included."""
    folder = tmp_path_factory.mktemp("law")
    setting = Setting(write_data(folder, train_count, validation_count), folder, global_batch, seed)
    reference = on(1, replace(setting, folder=folder / "1"))[0]
    assert reference.outcome.samples_seen == 2 * train_count
    for size in (2, 3, 4):
        for run in on(size, replace(setting, folder=folder / str(size))):
            assert counts(run) == counts(reference)
            assert without_sums(run.outcome) == without_sums(reference.outcome)
            assert run.outcome.best.value == pytest.approx(reference.outcome.best.value, rel=1e-5)
            assert run.outcome.metrics == pytest.approx(reference.outcome.metrics, rel=1e-5)
            for name in ("weights", "bias"):
                # Shares of samples are float32, hence no closer.
                np.testing.assert_allclose(run.adapter.model[name], reference.adapter.model[name], rtol=1e-5, atol=1e-7)


def without_sums(outcome: RunResult) -> RunResult:
    """Without what is added up in another order at another number of ranks."""
    assert outcome.best is not None
    return replace(outcome, metrics={}, weights_hash="", best=replace(outcome.best, value=0.0))


def test_a_world_of_one_is_the_serial_communicator(data: Data, tmp_path: Path) -> None:
    threaded = on(1, Setting(data, tmp_path / "a"))[0]
    serial = train(Setting(data, tmp_path / "b"), SerialCommunicator(Topology.single()), LIMITS, None, None)
    assert threaded.outcome == serial.outcome


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_see_the_same_events_and_end_bit_equal(data: Data, tmp_path: Path, size: int) -> None:
    runs = on(size, Setting(data, tmp_path), RunLimits(2, log_interval=2, checkpoint_interval=2))
    for run in runs:
        assert run.outcome == runs[0].outcome
        assert without_times(run) == without_times(runs[0])


def without_times(run: Run) -> list[Any]:
    seen: list[Any] = list(run.events.events)
    return [replace(event, seconds=0.0) if hasattr(event, "seconds") else event for event in seen]


class Exploding(NumpyAdapter):
    """Its loss is not finite on one rank, from some step on."""

    def train_step(self, batch: Any, step: int, lr: float) -> None:
        super().train_step(batch, step, lr)
        if step == 4 and self._comm.topology.rank == 1:
            self._sums["loss"] = float("nan")


def test_a_loss_that_is_not_finite_on_one_rank_ends_all_of_them_before_a_checkpoint(data: Data, tmp_path: Path) -> None:
    def work(comm: ThreadCommunicator) -> Run:
        setting = Setting(data, tmp_path, open_adapter=Exploding)
        return train(setting, comm, RunLimits(2, checkpoint_interval=1), None, None)

    for error in run_on_ranks(3, work):
        assert isinstance(error, HvdtrainError)
        assert error.joint
        assert error.fact == "The training loss is nan at step 5, on rank 1."
    newest = Setting(data, tmp_path).store().newest()
    assert newest is not None
    assert newest.position.step == 4


class Lagging(NumpyAdapter):
    """One rank changes its weights by itself."""

    def train_step(self, batch: Any, step: int, lr: float) -> None:
        super().train_step(batch, step, lr)
        if self._comm.topology.rank == 2:
            self.model["weights"] = self.model["weights"] + 1e-9


def test_ranks_that_drift_apart_do_not_end_well(data: Data, tmp_path: Path) -> None:
    def work(comm: ThreadCommunicator) -> Run:
        setting = Setting(data, tmp_path, open_adapter=Lagging)
        return train(setting, comm, LIMITS, None, None)

    for error in run_on_ranks(3, work):
        assert "the weights of rank 2 differ from rank 0's" in str(error)


class Dying(NumpyAdapter):
    def train_step(self, batch: Any, step: int, lr: float) -> None:
        if step == 3 and self._comm.topology.rank == 1:
            raise MemoryError("out of memory")
        super().train_step(batch, step, lr)


def test_a_rank_that_dies_ends_the_others(data: Data, tmp_path: Path) -> None:
    setting = Setting(data, tmp_path, open_adapter=Dying)
    results = run_on_ranks(3, lambda comm: train(setting, comm, LIMITS, None, None))
    assert [type(result) for result in results] == [PeerError, MemoryError, PeerError]


def test_summaries_of_ranks_change_nothing_of_the_training(data: Data, tmp_path: Path) -> None:
    listed = on(3, Setting(data, tmp_path / "a"))
    for one, other in zip(listed, on(3, Setting(data, tmp_path / "b", summarizes_ranks=True)), strict=True):
        assert other.outcome == one.outcome
        assert counts(other) == counts(one)
        assert other.outcome.step_summaries["step"]["max"].count == 3
        for event in other.events.events:
            if isinstance(event, events.Logged):
                assert event.rank_seconds == ()
                assert event.summary is not None
                assert event.summary.step.count == 3
            if isinstance(event, events.Evaluated):
                assert event.summary is not None
                assert event.own_seconds is not None
                assert event.summary.min <= event.own_seconds <= event.summary.max


def test_the_rank_whose_loss_is_not_finite_is_named_where_ranks_are_summarized(data: Data, tmp_path: Path) -> None:
    setting = Setting(data, tmp_path, open_adapter=Exploding, summarizes_ranks=True)
    results = run_on_ranks(3, lambda comm: train(setting, comm, RunLimits(2, checkpoint_interval=1), None, None))
    for error in results:
        assert isinstance(error, HvdtrainError)
        assert error.fact == "The training loss is nan at step 5, on rank 1."
