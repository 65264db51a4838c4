"""What the Keras adapter makes of the options, in a subprocess, since a torch test process has no Keras."""

from __future__ import annotations

from typing import Any

import pytest
from support.commands import Forker


@pytest.fixture(scope="module")
def facts(keras_forker: Forker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script found, by name."""
    return keras_forker.facts_of("keras_options.py", tmp_path_factory.mktemp("options"))


@pytest.mark.parametrize(
    "options", ["accumulate", "compile", "sync_batch_norm", "activation_checkpointing", "deterministic"]
)
def test_the_weights_are_those_of_the_plain_model(options: str, facts: dict[str, Any]) -> None:
    assert facts[options] < 1e-5
    assert facts["moved"] > 1e-3


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_in_low_precision_weights_stay_float32_and_go_nearly_the_same_way(
    precision: str, facts: dict[str, Any]
) -> None:
    assert facts[f"{precision}_dtypes"] == ["float32"]
    assert 0 < facts[precision] < 0.02


def test_an_overflow_is_skipped_and_counted_and_a_bad_loss_is_told(facts: dict[str, Any]) -> None:
    assert facts["skipped"] == 1
    assert facts["skipped_loss_is_finite"]
    assert facts["skipped_moved"] == 0
    assert facts["scale_after"] == 2.0**15
    assert facts["bad_loss_is_told"]


def test_the_norm_is_that_before_clipping_where_somebody_needs_it(facts: dict[str, Any]) -> None:
    plain, clipped, scaled, *logged = facts["norms"]
    assert plain == [None, None]
    assert min(clipped) > 1e-2
    assert scaled == pytest.approx(clipped, rel=1e-2)
    assert logged == [pytest.approx(clipped, rel=1e-6)] * 2


def test_the_memory_of_a_gpu_is_told_where_there_is_one(facts: dict[str, Any]) -> None:
    assert facts["gpu_memory"] == [None, 2**30]


def test_a_task_may_ask_a_tensor_in_pythons_if(facts: dict[str, Any]) -> None:
    assert facts["signs"] == [-1, 1]
    assert facts["decides"] == [True] * 12


def test_measures_of_each_graph_are_one_value_a_sample(facts: dict[str, Any]) -> None:
    """Not only those of the first call, which is no graph's."""
    for error in facts["means"]:
        assert "'loss' of shape () for 12 samples" in error
    training, evaluation = facts["unknown"]  # known when it runs; in training another operation may meet it first
    assert "InvalidArgumentError" in training
    assert "[1] is not compatible with expected shape [12]" in evaluation


def test_a_measure_that_some_batches_lack_knows_the_samples_that_have_it(facts: dict[str, Any]) -> None:
    assert facts["extended"] == [[0 + 1 + 2 + 3 + 4 + 5, 6, 18]] * 2


def test_parts_of_a_model_know_whether_they_train(facts: dict[str, Any]) -> None:
    assert 0.2 < facts["zeros_first"] < 0.8
    assert facts["zeros_eval"] == 0


def test_random_numbers_are_functions_of_the_step(facts: dict[str, Any]) -> None:
    assert facts["drawn_again"] == facts["drawn_second"] != facts["drawn_first"]
    assert facts["zeros_again"] == facts["zeros_second"]


@pytest.mark.parametrize("count", [3, 8])
def test_several_steps_in_a_call_are_the_same_steps(count: int, facts: dict[str, Any]) -> None:
    assert facts[f"same_in_calls_of_{count}"]


def test_a_variable_that_the_loss_does_not_need_is_left_alone_as_in_torch(facts: dict[str, Any]) -> None:
    assert facts["unused_weight"] == 1.0


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("data_parallel", "--data-parallel is given with TensorFlow"),
        ("tf32", "tf32 is asked for on a device without TF32"),
        ("compile_sync", "--compile is given with --sync-batch-norm"),
        ("compile_checkpointing", "--compile is given with --activation-checkpointing"),
    ],
)
def test_what_tensorflow_cannot_do_is_refused(name: str, fact: str, facts: dict[str, Any]) -> None:
    assert fact in facts["refused"][name]


def test_variables_of_an_optimizer_that_have_one_path_are_told_apart(facts: dict[str, Any]) -> None:
    """Adafactor keeps rows, columns, squares and a mean of each weight, all by the weight's name."""
    names = facts["adafactor"]
    assert len(names) == len(set(names)) > 3
    assert {name.partition("#")[2] for name in names} == {"", "2", "3", "4"}
