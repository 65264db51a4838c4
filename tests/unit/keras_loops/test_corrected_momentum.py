"""A changed learning rate corrects the momentum of one update, however `fit` groups its steps."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from hvdtrain.keras.corrected_momentum import CorrectedMomentum

RATES = (0.1, 0.2, 0.4, 0.4, 0.25, 0.3, 0.5, 0.5)
MOMENTUM = 0.9


class Rates(keras.callbacks.Callback):
    """Sets the rate of each batch at which Keras calls it."""

    def __init__(self) -> None:
        super().__init__()
        self._momentum = CorrectedMomentum(True)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._momentum.attach(model)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._momentum.set_rate(RATES[batch])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._momentum.restore()


def expected(per_execution: int, per_update: int) -> float:
    """The weight after a gradient of 1 in each step, by Goyal et al. 2017, equation 10."""
    weight = velocity = 0.0
    used = RATES[0]
    for step in range(len(RATES)):
        rate = RATES[step // per_execution * per_execution]
        if (step + 1) % per_update == 0:
            velocity = MOMENTUM * (rate / used) * velocity - rate
            weight, used = weight + velocity, rate
    return weight


@pytest.mark.parametrize(
    ("optimizer", "options", "per_execution", "per_update"),
    [
        ({}, {}, 1, 1),
        ({}, {"run_eagerly": True}, 1, 1),
        ({}, {"jit_compile": True}, 1, 1),
        ({}, {"steps_per_execution": 4}, 4, 1),
        ({"gradient_accumulation_steps": 2}, {}, 1, 2),
        ({"gradient_accumulation_steps": 2}, {"steps_per_execution": 2}, 2, 2),
    ],
)
def test_momentum_is_corrected_once(
    optimizer: dict[str, Any], options: dict[str, Any], per_execution: int, per_update: int
) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    sgd = keras.optimizers.SGD(RATES[0], momentum=MOMENTUM, **optimizer)
    model.compile(sgd, lambda _, output: keras.ops.mean(output, axis=-1), **options)
    ones = np.ones((len(RATES), 1), np.float32)
    model.fit(ones, ones, batch_size=1, verbose=0, callbacks=[Rates()])
    assert model.get_weights()[0].item() == pytest.approx(expected(per_execution, per_update), rel=1e-5)


class InTwoCalls(keras.Model):
    """Its step updates each of two weights by a call of its own."""

    def build(self, _shape: Any) -> None:
        self.both = [self.add_weight(shape=(), initializer="zeros", name=name) for name in ("first", "second")]

    def call(self, rows: Any) -> Any:
        return rows

    def train_step(self, data: Any) -> dict[str, Any]:  # noqa: ARG002
        for weight in self.both:
            self.optimizer.apply([keras.ops.ones(())], [weight])
        return {"loss": self.both[0].value}


def test_all_calls_of_a_step_are_corrected_alike() -> None:
    model = InTwoCalls()
    model.build((1, 1))
    sgd = keras.optimizers.SGD(RATES[0], momentum=MOMENTUM)
    sgd.build(model.both)
    model.compile(sgd, "mse")
    ones = np.ones((len(RATES), 1), np.float32)
    model.fit(ones, ones, batch_size=1, verbose=0, callbacks=[Rates()])
    assert [float(weight) for weight in model.both] == pytest.approx([expected(1, 1)] * 2, rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}])
def test_a_fit_that_failed_leaves_no_correction(options: dict[str, Any]) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=MOMENTUM), "mse", **options)
    for _ in range(2):
        model.optimizer.learning_rate = 0.1
        momentum = CorrectedMomentum(True)
        momentum.attach(model)
        momentum.set_rate(0.2)
        assert float(model.optimizer.momentum.factor) == 2.0


class Scaled(Rates):
    """Lets the gradient of the third step overflow."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_begin(batch, logs)
        self.model.optimizer.dynamic_scale.assign(np.inf if batch == 2 else 1.0)


def test_a_step_that_loss_scaling_leaves_out_keeps_the_correction() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    sgd = keras.optimizers.SGD(RATES[0], momentum=MOMENTUM)
    model.compile(keras.optimizers.LossScaleOptimizer(sgd), lambda _, output: keras.ops.mean(output, axis=-1))
    model.optimizer.build(model.trainable_variables)
    ones = np.ones((len(RATES), 1), np.float32)
    model.fit(ones, ones, batch_size=1, verbose=0, callbacks=[Scaled()])
    weight = velocity = 0.0
    used = RATES[0]
    for rate in (*RATES[:2], *RATES[3:]):
        velocity = MOMENTUM * (rate / used) * velocity - rate
        weight, used = weight + velocity, rate
    assert model.get_weights()[0].item() == pytest.approx(weight, rel=1e-5)


def test_an_optimizer_of_the_same_configuration_has_a_momentum_of_its_own() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    first = keras.optimizers.SGD(0.1, momentum=MOMENTUM)
    for optimizer in (first, None):
        model.compile(optimizer or keras.optimizers.SGD.from_config(first.get_config()), "mse")
        CorrectedMomentum(True).attach(model)
    assert model.optimizer.momentum.factor is not first.momentum.factor
    assert "_backend_update_step" in vars(model.optimizer)


def test_a_momentum_that_was_set_after_a_fit_is_corrected() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=MOMENTUM), "mse")
    CorrectedMomentum(True).attach(model)
    model.optimizer.momentum = 0.5
    CorrectedMomentum(True).attach(model)
    assert float(model.optimizer.momentum) == 0.5
    assert float(model.optimizer.momentum.factor) == 1.0
