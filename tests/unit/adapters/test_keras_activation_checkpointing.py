"""Activation checkpointing in Keras: the same training with less memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from keras import layers

from hvdtrain.adapters.forward_pass import batch_mask
from hvdtrain.adapters.keras.activation_checkpointing import Cut, best_cuts, checkpoint_activations
from hvdtrain.adapters.keras.sync_batch_norm import convert_sync_batch_norm
from hvdtrain.errors import UsageError
from hvdtrain.models.keras.zoo import resnet, transformer

pytestmark = pytest.mark.timeout(90)

PICTURES = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype(np.float32)
ROWS = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
SYMBOLS = np.arange(4 * 6, dtype=np.int32).reshape(4, 6) % 11


class AddsToLoss(layers.Layer):  # type: ignore[misc]  # Keras has no types
    def call(self, x: Any) -> Any:
        self.add_loss(tf.reduce_mean(x))
        return x


def everything() -> keras.Model:
    """State that a repetition might change: statistics, seeds, losses; a layer in two places; a model inside."""
    shared = layers.BatchNormalization(momentum=0.5)
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(6, activation="relu"), layers.Dropout(0.4)])
    features = inputs = keras.Input((6,))
    for _ in range(3):
        branch = layers.Dropout(0.5)(layers.Dense(6, "tanh", activity_regularizer="l2")(shared(features)))
        features = AddsToLoss()(layers.Add()([features, layers.BatchNormalization()(branch)]))
    features = inner(layers.GaussianNoise(0.1)(features))
    return keras.Model(inputs, {"logits": layers.Dense(2, kernel_regularizer="l2")(features)})


def sequential() -> keras.Model:
    parts = [part for _ in range(4) for part in (layers.Dense(6, "relu"), layers.BatchNormalization())]
    return keras.Sequential([keras.Input((6,)), *parts, layers.Dropout(0.5)])


MODELS: dict[str, tuple[Callable[[], keras.Model], Any]] = {
    "everything": (everything, ROWS),
    "sequential": (sequential, ROWS),
    "resnet18": (lambda: resnet("resnet18", 3, 8), PICTURES),
    "transformer": (lambda: transformer(11, 6, 8, 2, blocks=3), SYMBOLS),
}


def trained(model: keras.Model, x: Any, in_graph: bool = True) -> list[Any]:
    """Losses of some steps, and all variables after them."""

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model(x, training=True))[0]
            losses = [tf.reduce_mean(tf.square(outputs)), *model.losses]
            loss = tf.add_n([tf.cast(part, tf.float32) for part in losses])
        variables = model.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, [v.value for v in variables]), strict=True):
            variable.assign_sub(0.01 * tf.convert_to_tensor(gradient))
        return loss

    run = tf.function(step, autograph=False) if in_graph else step
    losses = [run(tf.constant(x)).numpy() for _ in range(2)]
    return [losses, *(v.value.numpy() for v in model.variables)]


def pair(make: Callable[[], keras.Model]) -> tuple[keras.Model, keras.Model]:
    """The same model twice."""
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        models.append(make())
    return models[0], models[1]


def assert_close(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same(name: str) -> None:
    make, x = MODELS[name]
    plain, saving = pair(make)
    paths = [v.path for v in saving.variables]
    assert checkpoint_activations(saving) >= 2
    assert [v.path.split("/")[1:] for v in saving.variables] == [path.split("/")[1:] for path in paths]
    assert_close(trained(saving, x), trained(plain, x))
    evaluated = [tf.nest.flatten(model(x, training=False))[0].numpy() for model in (saving, plain)]
    np.testing.assert_allclose(*evaluated, rtol=1e-5, atol=1e-5)


def test_eagerly() -> None:
    plain, saving = pair(everything)
    checkpoint_activations(saving)
    assert_close(trained(saving, ROWS, in_graph=False), trained(plain, ROWS, in_graph=False))


def test_synchronized_layers_run_their_collectives_once() -> None:
    """The repetition takes the statistics of the forward pass; the mask is gone by then."""
    found = []
    for saving in (False, True):
        keras.utils.set_random_seed(3)
        model = sequential()
        names: list[str] = []

        def double(flat: Any, name: str, names: list[str] = names) -> Any:
            names.append(name)
            return 2 * flat

        convert_sync_batch_norm(model, double)
        if saving:
            checkpoint_activations(model)
        found.append((names, masked_gradients(model)))
    (plainly, expected), (savingly, gradients) = found
    assert sorted(savingly) == sorted(plainly)
    assert len(set(plainly)) == len(plainly) == 2 * 4
    assert_close(gradients, expected)


def masked_gradients(model: keras.Model) -> list[Any]:
    @tf.function(autograph=False)
    def step(x: Any, real: Any) -> Any:
        with tf.GradientTape() as tape:
            with batch_mask(real):
                outputs = model(x, training=True)
            loss = tf.reduce_sum(tf.square(outputs) * tf.cast(real, tf.float32)[:, None])
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    gradients = step(tf.constant(ROWS), tf.constant(np.arange(8) < 6))
    return [g.numpy() for g in gradients] + [v.value.numpy() for v in model.non_trainable_variables]


@pytest.mark.parametrize("name", ["resnet18", "transformer"])
def test_less_is_kept_for_the_backward_pass(name: str) -> None:
    make, x = MODELS[name]
    plain, saving = pair(make)
    checkpoint_activations(saving)
    assert kept_bytes(saving, x) < 0.5 * kept_bytes(plain, x)


def kept_bytes(model: keras.Model, x: Any) -> int:
    """Of tensors with a row for each record that are made before the backward pass and used in it."""
    forward: set[str] = set()

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        forward.update(op.name for op in tf.compat.v1.get_default_graph().get_operations())
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    graph = tf.function(step, autograph=False).get_concrete_function(tf.constant(x)).graph
    backward = [op for op in graph.get_operations() if op.name not in forward]
    used = {original(t).name: original(t) for op in backward for t in op.inputs if original(t).op.name in forward}
    return sum(t.shape.num_elements() * t.dtype.size for t in used.values() if t.shape.rank and t.shape[0] == len(x))


def original(tensor: Any) -> Any:
    """What it is the same memory as."""
    while tensor.op.type in ("Identity", "IdentityN", "Reshape") and tensor.op.inputs:
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    return tensor


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50)), min_size=1, max_size=7))
def test_the_cuts_are_as_good_as_any(parts: list[tuple[int, int]]) -> None:
    """Up to the steps in which the largest segment is tried."""
    cuts, before = [], 0
    for place, (nbytes, inside) in enumerate(parts):
        before += nbytes + inside
        cuts.append(Cut(place, nbytes, before, place + 1))
    cuts.append(Cut("outputs", 0, before + 1, len(cuts) + 1))
    every = [[*chosen, cuts[-1]] for count in range(len(cuts)) for chosen in combinations(cuts[:-1], count)]
    assert kept(best_cuts(cuts)) <= min(kept(plan) for plan in every) + math.ceil((before + 1) / 32)


def kept(plan: list[Cut]) -> int:
    starts = [0, *(cut.before for cut in plan[:-1])]
    return sum(c.nbytes for c in plan) + max(c.before - start for c, start in zip(plan, starts, strict=True))


class Own(keras.Model):  # type: ignore[misc]  # Keras has no types
    def call(self, x: Any) -> Any:
        return x


def chain(*parts: Any) -> keras.Model:
    inputs = features = keras.Input((6,))
    for part in parts:
        features = part(features)
    return keras.Model(inputs, features)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Own, "It is a class of its own"),
        (lambda: chain(layers.Dense(2)), "At no place does a single tensor lead"),
        (lambda: chain(layers.Masking(), layers.Dense(3), layers.Dense(2)), "masks steps"),
    ],
)
def test_models_that_a_repetition_would_not_suit_are_refused(make: Callable[[], keras.Model], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        checkpoint_activations(make())
