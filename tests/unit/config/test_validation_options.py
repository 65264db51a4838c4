"""What the options of validation refuse, before anything is opened or trained."""

from __future__ import annotations

from typing import Any

import pytest
from support.numpy_training import Data, NumpyTask
from support.ranks import run_on_ranks

from hvdtrain.algorithms.early_stopping import EarlyStopping
from hvdtrain.config.train_config import DataConfig, TrainConfig
from hvdtrain.config.validation_options import early_stopping_of
from hvdtrain.errors import UsageError
from hvdtrain.run.prepare import prepare
from hvdtrain.set_names import UNNAMED
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits


@pytest.mark.parametrize(
    ("flags", "judge"),
    [
        ({}, EarlyStopping("loss", "min")),
        ({"best_metric": "accuracy"}, EarlyStopping("accuracy", "max")),
        ({"best_metric": "error"}, EarlyStopping("error", "min")),
        ({"best_metric": "bleu", "best_mode": "min"}, EarlyStopping("bleu", "min")),
        ({"early_stopping_patience": 3, "early_stopping_min_delta": 0.5}, EarlyStopping("loss", "min", 3, 0.5)),
    ],
)
def test_what_they_ask_for(flags: dict[str, Any], judge: EarlyStopping) -> None:
    assert early_stopping_of(TrainConfig(**flags), [UNNAMED]) == judge


@pytest.mark.parametrize(
    ("asked", "judge"),
    [
        (None, EarlyStopping("errors/loss", "min")),
        ("accuracy", EarlyStopping("errors/accuracy", "max")),
        ("new/accuracy", EarlyStopping("new/accuracy", "max")),
        ("aux/loss", EarlyStopping("errors/aux/loss", "min")),  # a measure of the task's, of the first set
    ],
)
def test_which_set_decides(asked: str | None, judge: EarlyStopping) -> None:
    assert early_stopping_of(TrainConfig(best_metric=asked), ["errors", "new"]) == judge


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        ({"early_stopping_patience": 0}, "--early-stopping-patience is 0."),
        ({"early_stopping_patience": 2, "early_stopping_min_delta": -1.0}, "--early-stopping-min-delta is -1.0."),
        (
            {"early_stopping_patience": 2, "early_stopping_min_delta": float("nan")},
            "--early-stopping-min-delta is nan.",
        ),
        ({"early_stopping_min_delta": 0.1}, "--early-stopping-min-delta 0.1 is given without --early-stopping-pat"),
        ({"best_mode": "max"}, "--best-mode max is given without --best-metric."),
    ],
)
def test_what_they_refuse(flags: dict[str, Any], fact: str) -> None:
    with pytest.raises(UsageError) as caught:
        TrainConfig(**flags)
    assert caught.value.fact.startswith(fact)


class Unvalidated(NumpyTask):
    def open_data(self, data: DataAccess) -> Splits:
        return Splits(super().open_data(data).train)


@pytest.mark.parametrize("flags", [{"best_metric": "loss"}, {"early_stopping_patience": 2}])
def test_without_validation_data_nothing_is_the_best(data: Data, flags: dict[str, Any]) -> None:
    config = TrainConfig(data=DataConfig(dir=str(data.folder)), **flags)
    for error in run_on_ranks(2, lambda comm: prepare(config, Unvalidated, comm)):
        assert isinstance(error, UsageError)
        assert error.joint
        assert error.fact.endswith(" is given, and the task has no validation data.")
