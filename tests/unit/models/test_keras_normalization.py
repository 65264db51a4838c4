"""Weights that are written into a model with a `Normalization` layer are those that it computes with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf

from hvdtrain.adapters.keras.state import load_state, read_state
from hvdtrain.tensorflow.elastic import TensorFlowKerasState
from hvdtrain.weights.keras_models import give_weights, weights_of, write_model
from hvdtrain.weights.named_weights import NamedWeights

ROWS = np.random.default_rng(1).normal(3.0, 7.0, (40, 4)).astype(np.float32)


def made(adapts: bool) -> Any:
    keras.utils.set_random_seed(2)
    layer = keras.layers.Normalization(name="normalization")
    nested = keras.Sequential([keras.Input((4,)), layer], name="nested")  # layers of layers count, too
    if adapts:
        layer.adapt(ROWS)
    model = keras.Sequential([keras.Input((4,)), nested, keras.layers.Dense(3, name="dense")], name="model")
    model.compile(keras.optimizers.SGD(name="sgd"), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def by_state(source: Any, target: Any) -> None:
    load_state(target, target.optimizer, read_state(source, source.optimizer))


def by_weights(source: Any, target: Any) -> None:
    weights = {path: variable.value.numpy() for path, variable in weights_of(source).items()}
    give_weights(target, NamedWeights(weights, "tensorflow", "the other model"))


@pytest.mark.parametrize("give", [by_state, by_weights])
def test_a_model_computes_with_what_it_is_given(give: Callable[[Any, Any], None]) -> None:
    source, target = made(adapts=True), made(adapts=False)
    assert np.abs(source(ROWS) - target(ROWS)).max() > 0.5
    give(source, target)
    np.testing.assert_array_equal(source(ROWS), target(ROWS))


def test_an_elastic_state_goes_back_to_what_was_adapted() -> None:
    model = made(adapts=True)
    state = TensorFlowKerasState(model)
    before = np.array(model(ROWS))
    model.get_layer("nested").get_layer("normalization").adapt(ROWS * 2)
    assert np.abs(before - model(ROWS)).max() > 0.1
    state.restore()
    np.testing.assert_array_equal(model(ROWS), before)


@pytest.mark.parametrize("format_name", ["onnx", "savedmodel"])
def test_an_export_takes_what_it_says_and_gives_what_the_model_gives(format_name: str, tmp_path: Path) -> None:
    source, target = made(adapts=True), made(adapts=False)
    by_state(source, target)
    path = tmp_path / "exported"
    write_model(target, format_name, path)
    if format_name == "onnx":
        session = onnxruntime.InferenceSession(path)
        (taken,) = session.get_inputs()
        (given,) = session.run(None, {taken.name: ROWS})
    else:
        loaded = tf.saved_model.load(path)
        given = loaded.serve(ROWS).numpy()
    np.testing.assert_allclose(given, source(ROWS), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(source(ROWS), target(ROWS))
