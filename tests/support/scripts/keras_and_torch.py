"""Keras trains as torch does. Run in a process of its own, since it loads both: see test_keras_optimizers.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.optimizer_reference import NAMES, OPTIONS, Array, drawn, train_by_rules, warm_up

from hvdtrain.adapters.keras import update as keras_update
from hvdtrain.adapters.keras.build import require_usable
from hvdtrain.adapters.keras.optimizers import build_optimizer
from hvdtrain.adapters.keras.state import load_state, read_state
from hvdtrain.adapters.keras.update import KerasWeightAverage
from hvdtrain.adapters.torch import optimizers as torch_optimizers
from hvdtrain.adapters.torch import update as torch_update
from hvdtrain.algorithms.clipping import Clipping
from hvdtrain.algorithms.loss_scale import LossScale
from hvdtrain.config.training_options import TrainingOptions, optimizer_settings
from hvdtrain.errors import UsageError
from hvdtrain.models.exchange import to_torch
from hvdtrain.models.keras import zoo as keras_zoo
from hvdtrain.models.torch import zoo as torch_zoo

SHAPES = {"kernel": (3, 4), "filters": (2, 2, 5), "bias": (6,)}


class Loose(keras.layers.Layer):  # type: ignore[misc]
    """Variables without a use."""

    def build(self, _: Any) -> None:
        for name, shape in SHAPES.items():
            self.add_weight(shape=shape, name=name, initializer="zeros")

    def call(self, inputs: Any) -> Any:
        return inputs


def loose_model() -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), Loose()])
    assert [tuple(v.shape) for v in model.trainable_variables] == list(SHAPES.values())
    return model


def optimizer_of(model: keras.Model, options: TrainingOptions) -> keras.optimizers.Optimizer:
    optimizer = build_optimizer(model, 0.1, options)
    require_usable(model, optimizer)
    optimizer.build(model.trainable_variables)
    return optimizer


def traced(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Callable[..., None]:
    @tf.function  # type: ignore[untyped-decorator]
    def step(gradients: list[Any], lr: Any) -> None:
        optimizer.learning_rate.assign(lr)
        optimizer.apply(gradients, model.trainable_variables)

    return step  # type: ignore[no-any-return]


def gradients_at(step: int, given_: list[tuple[Array, list[Array]]]) -> list[Array]:
    return [gradients[step].astype(np.float32) for _, gradients in given_]


@given(data=st.data(), seed=st.integers(0, 1000), still=st.sampled_from([0.0, 0.3]))
@settings(max_examples=4)
@pytest.mark.parametrize("name", NAMES)
def test_each_update_is_torch_s(name: str, data: st.DataObject, seed: int, still: float) -> None:
    """Two groups, zero weights and zero gradients now and then, a changing learning rate."""
    options = data.draw(OPTIONS[name])
    given_ = [drawn(seed + place, 12, shape, still) for place, shape in enumerate(SHAPES.values())]
    model = loose_model()
    torch_model = torch.nn.ParameterDict((name, torch.zeros(shape)) for name, shape in SHAPES.items())
    for variable, parameter, (weight, _) in zip(model.trainable_variables, torch_model.values(), given_, strict=True):
        variable.assign(weight)
        parameter.data.copy_(torch.from_numpy(weight))
    step_keras = traced(model, optimizer_of(model, options))
    optimizer = torch_optimizers.build_optimizer(torch_model, 0.1, options)
    for step in range(12):
        gradients = gradients_at(step, given_)
        step_keras([tf.constant(g) for g in gradients], tf.constant(warm_up(step)))
        for group in optimizer.param_groups:
            group["lr"] = warm_up(step)
        for parameter, gradient in zip(torch_model.values(), gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        for variable, parameter in zip(model.trainable_variables, torch_model.values(), strict=True):
            np.testing.assert_allclose(variable.numpy(), parameter.detach().numpy(), rtol=1e-4, atol=2e-6)


def test_settings_are_kept_for_a_thousand_updates() -> None:
    """The corrections of the moments are exact where float32 would not be."""
    model = loose_model()
    given_ = [drawn(place + 1, 1000, shape) for place, shape in enumerate(SHAPES.values())]
    for variable, (weight, _) in zip(model.trainable_variables, given_, strict=True):
        variable.assign(weight)
    options = TrainingOptions(optimizer="adamw", beta1=0.99, beta2=0.9999, weight_decay=0.1)
    step_keras = traced(model, optimizer_of(model, options))
    for step in range(1000):
        step_keras([tf.constant(g) for g in gradients_at(step, given_)], tf.constant(warm_up(step)))
    chosen = optimizer_settings(options)
    for variable, (weight, gradients) in zip(model.trainable_variables, given_, strict=True):
        of_it = chosen.for_exempt() if len(variable.shape) == 1 else chosen
        expected = train_by_rules(of_it, warm_up, weight, gradients)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-3, atol=1e-4)


def test_lamb_is_keras_s_own_but_for_decay() -> None:
    given_ = [drawn(place + 1, 8, shape) for place, shape in enumerate(SHAPES.values())]
    models = loose_model(), loose_model()
    options = TrainingOptions(optimizer="lamb", weight_decay=0.0, decay_norm_and_bias=True)
    both = optimizer_of(models[0], options), keras.optimizers.Lamb(0.1, epsilon=1e-6)
    for model, optimizer in zip(models, both, strict=True):
        for variable, (weight, _) in zip(model.trainable_variables, given_, strict=True):
            variable.assign(weight)
        for step in range(8):
            optimizer.apply([tf.constant(g) for g in gradients_at(step, given_)], model.trainable_variables)
    for ours, theirs in zip(models[0].trainable_variables, models[1].trainable_variables, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet18", "cnn"])
@pytest.mark.parametrize("everything", [False, True])
def test_both_frameworks_decay_the_same_weights(name: str, everything: bool) -> None:
    """With gradients of zero and no momentum, SGD moves just what it decays, by its share."""
    options = TrainingOptions(optimizer="sgd", momentum=0.0, weight_decay=0.5, decay_norm_and_bias=everything)
    keras_model, torch_model = keras_zoo.build_model(name, 10, 32), torch_zoo.build_model(name, 10, 32)
    for variable in keras_model.trainable_variables:
        variable.assign(tf.ones_like(variable))
    optimizer = optimizer_of(keras_model, options)
    optimizer.learning_rate.assign(1.0)
    optimizer.apply([tf.zeros_like(v) for v in keras_model.trainable_variables], keras_model.trainable_variables)
    moved = {key for key, array in to_torch(arrays_of(keras_model)).items() if array.flat[0] == 0.5}
    assert moved == decayed_in_torch(torch_model, options)
    assert len(moved) > 3
    assert any("bias" in key for key in moved) == everything


def arrays_of(model: keras.Model) -> dict[str, Array]:
    return {variable.path: variable.numpy() for variable in model.variables}


def decayed_in_torch(model: torch.nn.Module, options: TrainingOptions) -> set[str]:
    groups = torch_optimizers.build_optimizer(model, 0.1, options).param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    return {name for name, parameter in model.named_parameters() if id(parameter) in decayed}


def test_attention_and_other_layers_with_biases_of_many_dimensions() -> None:
    inner = keras.Sequential([keras.Input((4, 6)), keras.layers.LayerNormalization(axis=(1, 2))])
    rows = keras.Input((4, 6))
    x = inner(rows)
    x = keras.layers.MultiHeadAttention(2, 3)(x, x)
    x = keras.layers.RMSNormalization()(keras.layers.GRU(5)(x))
    model = keras.Model(rows, keras.layers.Dense(2)(x))
    optimizer = build_optimizer(model, 0.1, TrainingOptions(optimizer="adamw"))
    exempt = {v.path for v in model.trainable_variables if optimizer._var_key(v) in optimizer._exempt}
    decayed = {v.path for v in model.trainable_variables} - exempt
    assert all(path.endswith("kernel") for path in decayed)
    assert len(decayed) == 4 + 2 + 1  # attention, recurrent layer, dense layer
    assert sum("layer_normalization" in path for path in exempt) == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_optimizer_goes_on_as_the_first_would(name: Any) -> None:
    options = TrainingOptions(optimizer=name, weight_decay=0.1)
    given_ = [drawn(place + 1, 6, shape) for place, shape in enumerate(SHAPES.values())]
    model = loose_model()
    optimizer = optimizer_of(model, options)
    step = traced(model, optimizer)
    for number in range(3):
        step([tf.constant(g) for g in gradients_at(number, given_)], tf.constant(0.01))
    state = {key: array.copy() for key, array in read_state(model, optimizer).items()}
    finals = []
    for _ in range(2):
        load_state(model, optimizer, state)
        for number in range(3, 6):
            step([tf.constant(g) for g in gradients_at(number, given_)], tf.constant(0.01))
        finals.append(read_state(model, optimizer))
    for key, array in finals[0].items():
        np.testing.assert_array_equal(finals[1][key], array)
        assert "model" not in key or not np.array_equal(array, state[key])


def test_sparse_gradients_train_as_dense_ones() -> None:
    rows = tf.IndexedSlices(tf.ones((3, 4)), tf.constant([0, 0, 2]), tf.constant([3, 4]))
    others = [tf.ones(shape) for shape in list(SHAPES.values())[1:]]
    trained = []
    for gradient in (rows, tf.constant([[2.0] * 4, [0.0] * 4, [1.0] * 4])):
        model = loose_model()
        model.trainable_variables[0].assign(tf.ones((3, 4)))
        optimizer = optimizer_of(model, TrainingOptions(optimizer="lars", weight_decay=0.1))
        for _ in range(2):
            optimizer.apply([gradient, *others], model.trainable_variables)
        trained.append(model.trainable_variables[0].numpy())
    np.testing.assert_allclose(trained[0], trained[1], rtol=1e-6)


def averaged_pair(decay: float) -> tuple[keras.Model, KerasWeightAverage, torch_update.TorchWeightAverage, list[Array]]:
    """A Keras model moved five times, its average by a traced step, and torch's average of the same weights."""
    model = loose_model()
    average = KerasWeightAverage(model, decay)
    torch_model = torch.nn.ParameterList([torch.zeros(shape) for shape in SHAPES.values()])
    in_torch = torch_update.TorchWeightAverage(torch_model, decay)

    @tf.function  # type: ignore[untyped-decorator]
    def step(weights: list[Any], number: Any) -> None:
        for variable, weight in zip(model.trainable_variables, weights, strict=True):
            variable.assign(weight)
        average.update(number)

    weights: list[Array] = []
    for number in range(5):
        weights = [np.random.default_rng(number).normal(size=shape).astype(np.float32) for shape in SHAPES.values()]
        step([tf.constant(weight) for weight in weights], tf.constant(number))
        for parameter, weight in zip(torch_model, weights, strict=True):
            parameter.data.copy_(torch.from_numpy(weight))
        in_torch.update(number)
    assert step.experimental_get_tracing_count() == 1
    return model, average, in_torch, weights


@pytest.mark.parametrize("decay", [0.0, 0.2, 0.999])
def test_the_average_is_torch_s(decay: float) -> None:
    _, average, in_torch, _ = averaged_pair(decay)
    for ours, theirs in zip(average.state().values(), in_torch.state().values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_swapped_is_the_average_inside_and_the_weights_after() -> None:
    model, average, _, weights = averaged_pair(0.9)
    kept = average.state()

    def validate() -> None:
        for variable in model.trainable_variables:
            np.testing.assert_array_equal(variable.numpy(), kept[f"ema/{variable.path}"])
        raise KeyError("validation failed")

    with pytest.raises(KeyError), average.swapped():
        validate()
    for variable, weight in zip(model.trainable_variables, weights, strict=True):
        np.testing.assert_array_equal(variable.numpy(), weight)
    for name, array in average.state().items():
        np.testing.assert_array_equal(array, kept[name])


def test_an_average_is_saved_and_restored() -> None:
    model, average, _, weights = averaged_pair(0.9)
    state = average.state()
    other = KerasWeightAverage(model, 0.9)
    other.load_state({**state, "model/x": np.zeros(1)})
    for one in (average, other):
        one.update(5)
    for name, array in other.state().items():
        np.testing.assert_array_equal(array, average.state()[name])
    other.load_state({"model/x": np.zeros(1)})
    for array, weight in zip(other.state().values(), weights, strict=True):
        np.testing.assert_array_equal(array, weight)
    with pytest.raises(UsageError, match="saved averages of the weights do not fit"):
        other.load_state({**state, "ema/x": np.zeros(1)})


def test_buffers_and_frozen_weights_are_not_averaged() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.BatchNormalization()])
    model.layers[0].trainable = False
    assert [name.rpartition("/")[2] for name in KerasWeightAverage(model, 0.9).state()] == ["gamma", "beta"]


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("max_norm", [1e-7, 1e-4, 1.0])
@pytest.mark.parametrize("norm", [0.0, 1e-8, 1e-6, 1e-3, 50.0])
@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_are_clipped_alike_at_tiny_norms_too(scaled: bool, norm: float, max_norm: float) -> None:
    """By torch's clip_grad_norm_, plain and scaled; Keras' dense and sparse gradients, and one that is missing."""
    direction = np.array([[0.6, 0.0], [0.0, 0.8]], np.float32)
    expected = torch.nn.Parameter(torch.zeros(2, 2))
    expected.grad = torch.from_numpy(norm * direction)
    torch.nn.utils.clip_grad_norm_([expected], max_norm)

    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    sgd, clipping = torch.optim.SGD([parameter], lr=1.0), Clipping(max_norm)
    in_torch = torch_update.Update(sgd, [parameter], clipping, _loss_scale(scaled))
    parameter.grad = torch.from_numpy(norm * direction * np.float32(in_torch.scale))
    in_torch.step()
    np.testing.assert_allclose(-parameter.detach().numpy(), expected.grad.numpy(), rtol=1e-5)

    dense, sparse, unused = (keras.Variable(np.zeros(shape, np.float32)) for shape in ((1, 2), (3, 2), (4,)))
    in_keras = keras_update.Update(keras.optimizers.SGD(1.0), clipping, _loss_scale(scaled))
    rows = tf.constant(norm * direction * np.float32(in_keras.scale))
    gradients = [rows[:1], tf.IndexedSlices(rows[1:], tf.constant([2]), tf.constant([3, 2])), None]
    in_keras.apply(gradients, [dense, sparse, unused], tf.constant(in_keras.scale))
    trained = -np.concatenate([dense.numpy(), sparse.numpy()[2:]])
    np.testing.assert_allclose(trained, expected.grad.numpy(), rtol=1e-5)


def _loss_scale(scaled: bool) -> LossScale | None:
    return LossScale() if scaled else None
