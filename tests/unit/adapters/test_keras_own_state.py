"""Keras models that count, draw and add by themselves, and optimizers with settings of fit(), in a subprocess."""

from __future__ import annotations

from typing import Any

import pytest
from support.commands import Forker


@pytest.fixture(scope="module")
def facts(keras_forker: Forker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script found, by name."""
    return keras_forker.facts_of("keras_own_state.py", tmp_path_factory.mktemp("own_state"))


def test_to_learn_the_measures_changes_no_state(facts: dict[str, Any]) -> None:
    """A resumed run learns them once more than one that was not interrupted."""
    assert facts["calls"] == 3.0


def test_tensorflows_own_numbers_begin_with_the_step(facts: dict[str, Any]) -> None:
    first, again, later = facts["drawn"]
    assert first == again
    assert len(first) == 3
    assert all(numbers not in first for numbers in later)


def test_settings_of_an_optimizer_that_only_fit_obeys_are_refused(facts: dict[str, Any]) -> None:
    scaled, averaged, plain = facts["refused"]
    assert "loss_scale_factor 1024" in scaled
    assert "use_ema" in averaged
    assert plain == facts["refused_overwriting"] == ""


def test_what_is_not_kept_is_told(facts: dict[str, Any]) -> None:
    (line,) = facts["metrics"]
    assert "metrics inside the model are neither saved nor added up" in line
    (line,) = facts["half"]
    assert "computes in float16 without a loss scale" in line
    assert facts["half_scaled"] == facts["compiled"] == []


def test_penalties_of_several_dtypes_are_added(facts: dict[str, Any]) -> None:
    assert facts["penalties"] == [True, True]


def test_gradients_of_several_dtypes_have_one_norm(facts: dict[str, Any]) -> None:
    """Whose squares float16 could not hold."""
    assert facts["two_dtypes"] == [True, True]
    assert facts["scaled_dtypes"]
    assert facts["norms"] == [500.0, 500.0, 1000.0]
