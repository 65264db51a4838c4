"""Synchronized BatchNormalization in Keras: workers with parts of a batch compute what one process does on all of it.

Workers are threads here, in eager mode; tests/parallel runs the same in graphs, through Horovod.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

from hvdtrain.adapters.forward_pass import batch_mask
from hvdtrain.adapters.keras.sync_batch_norm import convert_sync_batch_norm
from hvdtrain.errors import UsageError

pytestmark = pytest.mark.timeout(90)


def keras_sum(ranks: Any) -> Callable[[Any, str], Any]:
    return lambda flat, name: tf.constant(ranks.sum(flat.numpy(), name))


def one_layer(shape: tuple[int, ...], axis: int = -1, **options: Any) -> keras.Model:
    """In float64, with weights that tell channels apart."""
    layer = layers.BatchNormalization(axis=axis, momentum=0.8, dtype="float64", **options)
    model = keras.Sequential([keras.Input(shape[1:], dtype="float64"), layer])
    for variable, bounds in zip(layer.trainable_variables, [(0.5, 1.5), (-1, 1)], strict=False):
        variable.assign(np.linspace(*bounds, variable.shape[0]))
    return model


def run(model: Any, x: Any, weights: Any, rows: Any = None, **options: Any) -> dict[str, Any]:
    """Output and gradients of a loss that weighs each value of the output."""
    x = tf.constant(x)
    with tf.GradientTape() as tape, batch_mask(None if rows is None else tf.constant(rows)):
        tape.watch(x)
        y = model(x, training=True, **options)
        loss = tf.reduce_sum((y * y + y) * weights)
    dx, *gradients = tape.gradient(loss, [x, *(v.value for v in model.trainable_variables)])
    moving = [v.numpy() for v in model.non_trainable_variables if "moving" in v.path]
    return {"y": y.numpy(), "dx": dx.numpy(), "gradients": [g.numpy() for g in gradients], "moving": moving}


@settings(max_examples=10)
@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) > 1),
    dims=st.integers(0, 2),
    first=st.booleans(),
    masked=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_parts_on_ranks_are_the_whole_on_one(
    on_ranks: Any, sizes: list[int], dims: int, first: bool, masked: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    n, axis = sum(sizes), 1 if first else -1
    shape = (n, 3, *[2] * dims) if first else (n, *[2] * dims, 3)
    x = 3 + 2 * random.normal(size=shape)
    real = np.arange(n) >= min(masked, n - 2)
    weights = random.normal(size=shape) * real.reshape(-1, *[1] * (x.ndim - 1))
    expected = run(one_layer(shape, axis), x[real], weights[real])
    starts = np.cumsum(sizes)[:-1]

    def work(rank: int, ranks: Any) -> dict[str, Any]:
        model = one_layer(shape, axis)
        assert convert_sync_batch_norm(model, keras_sum(ranks)) == 1
        own = [np.split(array, starts)[rank] for array in (x, weights, real)]
        return run(model, *own)

    found, names = on_ranks(len(sizes), work)
    assert names == ["hvdtrain_sync_batch_norm_0_0_forward", "hvdtrain_sync_batch_norm_0_0_backward"]
    assert_close(np.concatenate([f["y"] for f in found])[real], expected["y"])
    gradient = np.concatenate([f["dx"] for f in found])
    assert_close(gradient[real], expected["dx"])
    assert not gradient[~real].any()
    assert_close([sum(parts) for parts in zip(*(f["gradients"] for f in found), strict=True)], expected["gradients"])
    for each in found:
        assert_close(each["moving"], expected["moving"])


def assert_close(one: Any, other: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_masks_of_places_and_of_rows_add_up() -> None:
    """Keras masks the padding of sequences; the batch's mask leaves out whole rows."""
    x, weights = np.random.default_rng(0).normal(size=(2, 4, 5, 3))
    places, rows = np.arange(20).reshape(4, 5) % 3 > 0, np.array([True, False, True, True])
    both = places & rows[:, None]
    weights = weights * both[..., None]
    plain, synchronized = one_layer(x.shape).layers[-1], one_layer(x.shape)
    convert_sync_batch_norm(synchronized, None)
    expected = run(plain, x, weights, mask=tf.constant(both))
    found = run(synchronized.layers[-1], x, weights, rows, mask=tf.constant(places))
    assert_close(found["y"][both], expected["y"][both], 1e-6)  # Keras adds its epsilon of 1e-7 to the count
    assert_close(found["dx"], expected["dx"], 1e-6)
    for name in ("gradients", "moving"):
        assert_close(found[name], expected[name], 1e-6)


@pytest.mark.parametrize("real", [0, 1])
def test_without_a_variance_the_running_statistics_stand_in(real: int) -> None:
    model = one_layer((3, 2), scale=False, center=False)
    convert_sync_batch_norm(model, None)
    layer = model.layers[-1]
    layer.moving_mean.assign([3.0, 3.0])
    layer.moving_variance.assign([4.0, 4.0])
    x = np.random.default_rng(0).normal(size=(3, 2))
    found = run(model, x, np.ones((3, 2)), np.arange(3) < real)
    assert_close(found["y"], (x - 3) / (4 + layer.epsilon) ** 0.5)
    assert_close(found["dx"], (2 * found["y"] + 1) / (4 + layer.epsilon) ** 0.5)
    assert_close(found["moving"], [[3.0, 3.0], [4.0, 4.0]])


def test_far_from_zero_the_variance_survives(on_ranks: Any) -> None:
    x = (10_000 + np.random.default_rng(0).normal(size=(64, 2))).astype(np.float32)

    def work(rank: int, ranks: Any) -> Any:
        model = keras.Sequential([keras.Input((2,)), layers.BatchNormalization(momentum=0.0)])
        convert_sync_batch_norm(model, keras_sum(ranks))
        model(np.split(x, [40])[rank], training=True)
        return model.layers[-1].moving_variance.numpy()

    assert_close(on_ranks(2, work)[0][0], x.astype(np.float64).var(0), 1e-3)


def test_rows_that_are_not_known_when_the_step_is_traced() -> None:
    """The mask is meant where the number of rows turns out to be the batch's."""
    model = one_layer((4, 2))
    convert_sync_batch_norm(model, None)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float64), tf.TensorSpec([None], tf.bool)])
    def step(x: Any, rows: Any) -> Any:
        with batch_mask(rows):
            return model(x, training=True)

    x, rows = np.random.default_rng(0).normal(size=(4, 2)), np.array([True, False, True, True])
    assert_close(step(x, rows)[0], run(one_layer((3, 2)), x[rows], 0)["y"][0])
    assert_close(step(x, rows[:3])[0], run(one_layer((4, 2)), x, 0)["y"][0])


class Subclassed(keras.Model):  # type: ignore[misc]  # Keras has no types
    """Layers at all depths, one used twice, one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([layers.Dense(3), layers.BatchNormalization()])
        self.rows = [layers.BatchNormalization(), layers.BatchNormalization(trainable=False)]
        inputs = keras.Input((3,))
        self.functional = keras.Model(inputs, layers.BatchNormalization()(layers.Dense(3)(inputs)))

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.functional(self.inner(x, training=training), training=training)
        for layer in (*self.rows, self.rows[0]):
            x = layer(x, training=training)
        return x


def test_every_kind_of_model_and_every_call() -> None:
    """The names of collectives in one graph differ, and are those of any other graph."""
    model = Subclassed()
    model(np.zeros((2, 3), np.float32))
    names: list[str] = []

    def record(flat: Any, name: str) -> Any:
        names.append(name)
        return flat

    assert convert_sync_batch_norm(model, record) == 4
    paths = [v.path for v in model.variables]

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(y, [v.value for v in model.trainable_variables])

    first = tf.function(step).get_concrete_function(tf.TensorSpec([4, 3], tf.float32))
    traced = list(names)
    tf.function(step).get_concrete_function(tf.TensorSpec([2, 3], tf.float32))
    assert len(set(traced)) == len(traced) == 2 * 4  # the frozen one uses its running statistics
    assert names == 2 * traced
    first(tf.random.normal((4, 3)))
    assert [v.path for v in model.variables] == paths
    names.clear()
    model(np.zeros((2, 3), np.float32), training=False)
    assert not names


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras with numpy 2
def test_a_saved_model_is_keras_own(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), layers.BatchNormalization(momentum=0.5)])
    assert convert_sync_batch_norm(model, None) == 1
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    model(x, training=True)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[-1]) is layers.BatchNormalization
    assert_close(loaded(x).numpy(), model(x).numpy(), 1e-6)


def test_a_layer_of_another_class_is_refused() -> None:
    class Own(layers.BatchNormalization):  # type: ignore[misc]  # Keras has no types
        def call(self, inputs: Any, training: bool = False) -> Any:
            return super().call(inputs, training=training)

    with pytest.raises(UsageError, match="is a Own"):
        convert_sync_batch_norm(keras.Sequential([keras.Input((2,)), Own()]), None)
