"""Validation is the only work in `evaluating`, and metrics that a task does not have are refused before training."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.numpy_training import Data, NumpyAdapter, NumpyTask, Setting, train
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.algorithms.early_stopping import EarlyStopping
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.config.train_config import DataConfig
from hvdtrain.data.catalog_source import CatalogSource
from hvdtrain.engine.events import Evaluated
from hvdtrain.engine.limits import RunLimits
from hvdtrain.engine.validator import require_measured
from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import NO_STATE, State
from hvdtrain.set_names import UNNAMED
from hvdtrain.topology import Topology


@pytest.mark.parametrize("size", [1, 2])
def test_an_unknown_metric_is_refused_before_training(data: Data, size: int) -> None:
    """By one batch of validation, which leaves no trace in the adapter."""

    def work(comm: ThreadCommunicator) -> NumpyAdapter:
        adapter = NumpyAdapter(NumpyTask(), comm, 3)
        source = CatalogSource(data.validation, NumpyTask(), comm.topology, DataConfig(), 8, 3, False)
        require_measured(adapter, comm, {UNNAMED: source}, "accuracy")
        require_measured(adapter, comm, {"old": source, "new": source}, "new/accuracy")
        assert adapter.read_sums().values == {}
        require_measured(adapter, comm, {UNNAMED: source}, "accurcy")
        return adapter

    for error in run_on_ranks(size, work):
        assert isinstance(error, UsageError)
        assert error.joint
        assert error.hint == "did you mean 'accuracy'? Valid: accuracy, loss."


def test_validation_is_within_evaluating_and_nothing_else_is(data: Data, tmp_path: Path) -> None:
    inside: list[tuple[str, bool]] = []

    class Averaging(NumpyAdapter):
        within = False

        def evaluating(self) -> Any:
            @contextmanager
            def swapped() -> Any:
                self.within = True
                yield
                self.within = False

            return swapped()

        def train_step(self, batch: Any, step: int, lr: float) -> None:
            inside.append(("train", self.within))
            super().train_step(batch, step, lr)

        def eval_step(self, batch: Any) -> None:
            inside.append(("eval", self.within))
            super().eval_step(batch)

        def state(self, earlier: Mapping[str, Any] = NO_STATE) -> State:
            inside.append(("state", self.within))
            return super().state(earlier)

    alone = SerialCommunicator(Topology.single())
    train(Setting(data, tmp_path, open_adapter=Averaging), alone, RunLimits(2), None, None)
    assert set(inside) == {("train", False), ("eval", True), ("state", False)}


@pytest.mark.parametrize("size", [1, 3])
def test_each_set_is_measured_as_if_it_were_the_only_one(data: Data, tmp_path: Path, size: int) -> None:
    """The second one decides here; the smaller loss of the first one does not."""

    def measured(folder: str, *sets: str, metric: str) -> Any:
        setting = Setting(data, tmp_path / folder, sets=sets, early_stopping=EarlyStopping(metric))
        return all_well(run_on_ranks(size, lambda comm: train(setting, comm, RunLimits(2), None, None)))[0]

    alone = measured("alone", UNNAMED, metric="loss").events.of(Evaluated)
    run = measured("both", "old", "new", metric="new/loss")
    for one, both in zip(alone, run.events.of(Evaluated), strict=True):
        assert dict(both.sets) == {"old": one.samples, "new": one.samples}
        assert both.samples == 2 * one.samples
        assert both.values == {f"{name}/{key}": value for name in both.sets for key, value in one.values.items()}
        assert len(both.rank_seconds) == size
    assert run.outcome.best == replace(alone[-1].best, metric="new/loss")
    assert run.outcome.metrics == run.events.of(Evaluated)[-1].values
