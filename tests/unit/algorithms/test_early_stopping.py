"""The best validation is the best by any margin; waiting ends after `patience` validations without improvement."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.algorithms.early_stopping import Best, EarlyStopping, ValidationHistory, mode_of
from hvdtrain.checkpoints.format import Position
from hvdtrain.errors import UsageError

Mode = Literal["min", "max"]

finite = st.floats(-1e6, 1e6) | st.integers(-3, 3).map(float)
values = st.lists(finite | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=12)
early_stoppings = st.builds(
    EarlyStopping,
    metric=st.just("m"),
    mode=st.sampled_from(["min", "max"]),
    patience=st.none() | st.integers(1, 4),
    min_delta=st.sampled_from([0.0, 0.5, 1e3]),
)


def histories(early_stopping: EarlyStopping, series: list[float]) -> list[ValidationHistory]:
    """After each validation, of which one comes every 10 steps."""
    found = [ValidationHistory()]
    for epoch, value in enumerate(series):
        found.append(early_stopping.after(found[-1], epoch, 10 * (epoch + 1), {"m": value, "loss": 0.0}))
    return found


@given(early_stopping=early_stoppings, series=values)
def test_the_best_is_the_first_of_the_best_finite_values(early_stopping: EarlyStopping, series: list[float]) -> None:
    best = histories(early_stopping, series)[-1].best
    real = [value for value in series if math.isfinite(value)]
    if not real:
        assert best is None
        return
    extreme = min(real) if early_stopping.mode == "min" else max(real)
    epoch = series.index(extreme)
    assert best == Best("m", extreme, 10 * (epoch + 1), epoch)


def epochs_until_keras_stops(series: list[float], mode: Mode, patience: int, min_delta: float) -> int | None:
    """As keras.callbacks.EarlyStopping has it, of keras 3 (`_is_improvement`, `on_epoch_end`)."""
    best, wait = None, 0
    for epoch, value in enumerate(series):
        wait += 1
        if best is None or (value < best - min_delta if mode == "min" else value > best + min_delta):
            best, wait = value, 0
            continue
        if wait >= patience and epoch > 0:
            return epoch + 1
    return None


@given(
    series=st.lists(finite, max_size=12),
    mode=st.sampled_from(["min", "max"]),
    patience=st.integers(1, 4),
    min_delta=st.sampled_from([0.0, 0.5, 1e3]),
)
def test_it_gives_up_when_keras_does(series: list[float], mode: Mode, patience: int, min_delta: float) -> None:
    early_stopping = EarlyStopping("m", mode, patience, min_delta)
    given_up = [count for count, one in enumerate(histories(early_stopping, series)) if early_stopping.should_stop(one)]
    assert (given_up[0] if given_up else None) == epochs_until_keras_stops(series, mode, patience, min_delta)


@given(early_stopping=early_stoppings, series=values, at=st.integers(0, 12))
def test_an_interruption_changes_nothing(early_stopping: EarlyStopping, series: list[float], at: int) -> None:
    """Through the JSON of a manifest, and with the last validation done twice."""
    whole = histories(early_stopping, series)
    at = min(at, len(series))
    position = Position(10 * at, 80 * at, whole[at])
    read = Position.from_json(json.loads(json.dumps(position.to_json())))
    assert read == position
    history = early_stopping.resume_from(read.history)
    assert history == whole[at]
    if at:
        assert early_stopping.after(history, at - 1, 10 * at, {"m": series[at - 1]}) == history
    for epoch, value in enumerate(series[at:], start=at):
        history = early_stopping.after(history, epoch, 10 * (epoch + 1), {"m": value})
    assert history == whole[-1]


@given(early_stopping=early_stoppings, series=values)
@settings(max_examples=50)
def test_more_patience_never_gives_up_earlier(early_stopping: EarlyStopping, series: list[float]) -> None:
    patient = replace(early_stopping, patience=(early_stopping.patience or 1) + 1)
    for one, other in zip(histories(early_stopping, series), histories(patient, series), strict=True):
        assert early_stopping.should_stop(one) or early_stopping.patience is None or not patient.should_stop(other)


def test_without_patience_it_never_gives_up() -> None:
    assert not EarlyStopping().should_stop(ValidationHistory(waited=10**6))


@pytest.mark.parametrize("other", [{"metric": "other"}, {"mode": "max"}])
def test_what_was_compared_otherwise_is_compared_anew(other: dict[str, Any]) -> None:
    early_stopping = EarlyStopping("m", "min", patience=2)
    history = histories(early_stopping, [1.0, 2.0, 3.0])[-1]
    assert early_stopping.should_stop(history)
    assert replace(early_stopping, **other).resume_from(history) == ValidationHistory()
    assert replace(early_stopping, patience=5, min_delta=0.5).resume_from(history) == history


def test_an_unknown_metric_is_refused_with_all_names() -> None:
    with pytest.raises(UsageError) as caught:
        EarlyStopping("acuracy").after(ValidationHistory(), 0, 1, {"loss": 1.0, "accuracy": 0.5, "top5": 0.9})
    assert caught.value.joint
    assert caught.value.fact == "The task does not measure 'acuracy'."
    assert caught.value.hint == "did you mean 'accuracy'? Valid: accuracy, loss, top5."


def test_auto_is_the_smallest_for_what_one_wants_small() -> None:
    smallest = ["loss", "val_loss", "Error", "top1_error", "perplexity"]
    assert {mode_of(name, "auto") for name in smallest} == {"min"}
    assert {mode_of(name, "auto") for name in ["accuracy", "top5", "f1", "maestro", "kl_accuracy"]} == {"max"}
    assert {
        mode_of(name, "auto") for name in ["mae", "val/RMSE", "wer_clean", "ValMAE", "mAPE", "mae_f", "fid_score"]
    } == {"min"}
    assert (mode_of("loss", "max"), mode_of("accuracy", "min")) == ("max", "min")
