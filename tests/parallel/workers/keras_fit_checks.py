"""What each rank does for the tests of hvdtrain.keras; returns plain values that the test compares."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import keras_fit_cases as cases
import numpy as np
import tensorflow as tf

import hvdtrain.keras as hvd
from hvdtrain.adapters.keras import gradients
from hvdtrain.adapters.keras.comm_hooks import PlainReduction
from hvdtrain.errors import DivergenceError, HvdtrainError


def broadcast() -> list[Any]:
    return [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]


def compiled(case: cases.Case, seed: int = 0, distributed: bool = True) -> Any:
    keras.utils.set_random_seed(seed)
    model = case.model()
    optimizer = case.optimizer()
    if distributed:
        hvd.DistributedOptimizer(optimizer, **case.wrap)
    model.compile(optimizer=optimizer, loss="mse", **case.compile)
    return model


def fit(model: Any, words: bool = False, callbacks: Any = None, **options: Any) -> Any:
    x, y = (cases.own_part(a, hvd.rank(), hvd.size()) for a in cases.global_data(words))
    settings = {"epochs": cases.EPOCHS, "batch_size": cases.GLOBAL_BATCH // hvd.size(), "shuffle": False, "verbose": 0}
    return model.fit(x, y, callbacks=broadcast() if callbacks is None else callbacks, **{**settings, **options})


def train_case(case: cases.Case) -> list[Any]:
    """Weights after training from different weights on each rank."""
    model = compiled(case, seed=hvd.rank())
    fit(model, case.words)
    hvd.assert_in_sync(model)
    return [np.asarray(w) for w in model.get_weights()]


def gradients_of_all_kinds() -> dict[str, Any]:
    """`reduce_gradients` itself, with buckets of 100 bytes, on gradients of several dtypes and shapes."""
    full_size, gradients.BUCKET_BYTES = gradients.BUCKET_BYTES, 100
    found = {}
    for op in ("average", "sum"):
        eager = functools.partial(_reduced_gradients, op)
        for how, reduce in {"eager": eager, "graph": tf.function(eager, autograph=False)}.items():
            values = reduce()
            shown = [None if v is None else np.asarray(tf.cast(v, tf.float64)).reshape(-1).tolist() for v in values]
            factor = sum(range(1, hvd.size() + 1)) / (hvd.size() if op == "average" else 1)
            found[f"{how} {op}"] = {
                "dtypes": ["none" if v is None else v.dtype.name for v in values],
                "values": [v for v in shown if v is not None],
                "expected": [(np.asarray(v) * factor).tolist() for v in _UNIT_GRADIENTS],
                "buckets": len(gradients._buckets(_dense_gradients(), PlainReduction(None), 100)),
            }
    gradients.BUCKET_BYTES = full_size
    return found


# Flat: a matrix, a vector of doubles, three bfloat16, a scalar, a sparse 4x2 with row 2 named twice, three float16.
_UNIT_GRADIENTS = [[1.0] * 24, [0.5] * 30, [2.0] * 3, [3.0], [0, 0, 1, 1, 5, 5, 0, 0], [4.0] * 3]


# All that the reduction asks of a variable is its shape.
_VARIABLES = [tf.TensorSpec(shape) for shape in [(4, 6), (30,), (2,), (3,), (), (4, 2), (3,)]]


def _local_gradients() -> list[Any]:
    scale = hvd.rank() + 1.0
    sparse = tf.constant([[1.0] * 2, [2.0] * 2, [3.0] * 2]) * scale, tf.constant([1, 2, 2]), tf.constant([4, 2])
    return [
        tf.fill((4, 6), 1.0 * scale),
        tf.fill((30,), tf.constant(0.5 * scale, tf.float64)),
        None,
        tf.fill((3,), tf.constant(2.0 * scale, tf.bfloat16)),
        tf.constant(3.0 * scale),
        tf.IndexedSlices(*sparse),
        tf.fill((3,), tf.constant(4.0 * scale, tf.float16)),
    ]


def _reduced_gradients(op: Any) -> list[Any]:
    return gradients.reduce_gradients(_local_gradients(), _VARIABLES, op=op)


def _dense_gradients() -> list[Any]:
    both = enumerate(zip(_local_gradients(), _VARIABLES, strict=True))
    return [gradients.densified(place, g, v) for place, (g, v) in both if g is not None]


def control_without_wrapper() -> str:
    """Plain Keras on the same data: the ranks must drift apart, or the tests above prove nothing."""
    model = compiled(cases.Case(lambda: keras.optimizers.SGD(0.05)), distributed=False)
    fit(model, callbacks=[])
    return error_of(lambda: hvd.assert_in_sync(model), DivergenceError)


def normalization_statistics() -> list[Any]:
    model = compiled(cases.Case(lambda: keras.optimizers.SGD(0.05), cases.normalized_model))
    x, y = (cases.own_part(a, hvd.rank(), hvd.size()) for a in cases.global_data(False))
    fit(model, validation_data=(x[:8], y[:8]))
    hvd.assert_in_sync(model)
    return [np.asarray(w) for w in model.get_weights()]


def metrics_of_uneven_shards() -> dict[str, Any]:
    """Logs with fixed weights (learning rate 0), uneven batches, and validation parts with different batch counts."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((cases.FEATURES,)), keras.layers.Dense(1, activation="sigmoid")])
    wanted = ["accuracy", keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision"), "mse"]
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "binary_crossentropy", metrics=wanted)
    x, y = cases.global_data(False, 240)
    y = (y > 0.3).astype("float32")
    own_x, own_y = (cases.uneven_part(a, hvd.rank(), hvd.size()) for a in (x, y))
    seen: list[dict[str, float]] = []
    # The callback that reads the logs comes before the one that reduces them.
    reader = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs)))  # noqa: ARG005
    callbacks = [reader, *broadcast(), hvd.callbacks.MetricAverageCallback()]
    history = model.fit(
        *(own_x, own_y),
        batch_size=-(-len(own_x) // 10),
        epochs=2,
        verbose=0,
        callbacks=callbacks,
        validation_data=(own_x, own_y),
        validation_batch_size=7,
    )
    local = model.evaluate(own_x, own_y, verbose=0, return_dict=True)
    returned = model.evaluate(own_x, own_y, verbose=0, return_dict=True, callbacks=callbacks[-1:])
    return {
        "history": {name: [float(v) for v in values] for name, values in history.history.items()},
        "seen": seen,
        "local": local,
        "returned": returned,
        "samples": len(own_x),
    }


def losses_of_two_outputs(traced_before: bool) -> dict[str, Any]:
    """Logs of a model with two outputs and fixed weights; uneven parts, whose last batches are short."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((cases.FEATURES,))
    outputs = {name: keras.layers.Dense(units, name=name)(inputs) for name, units in (("a", 1), ("b", 2))}
    model = keras.Model(inputs, outputs)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), {"a": "mse", "b": "mae"}, metrics={"a": "mse"})
    x, y = cases.global_data(False, 60)
    scaled = y * np.arange(60, dtype="float32")[:, None]  # so that batches differ
    x, y = (cases.uneven_part(array, hvd.rank(), hvd.size()) for array in (x, scaled))
    targets = {"a": y, "b": np.hstack([y, -y])}
    evaluate = functools.partial(model.evaluate, x, targets, batch_size=7, verbose=0, return_dict=True)
    if traced_before:
        evaluate()
    averages = hvd.callbacks.MetricAverageCallback()
    fitted = model.fit(
        *(x, targets),
        batch_size=-(-len(x) // 4),
        verbose=0,
        callbacks=[*broadcast(), averages],
        validation_data=(x, targets),
        validation_batch_size=7,
    )
    predicted = model.predict(x, verbose=0)
    sums = [np.square(predicted["a"] - targets["a"]).sum(), np.abs(predicted["b"] - targets["b"]).sum() / 2, len(x)]
    return {
        "logged": {name: values[-1] for name, values in fitted.history.items()},
        "returned": evaluate(callbacks=[averages]),
        "own": evaluate(),
        "sums": [float(value) for value in sums],
    }


def early_stopping() -> dict[str, Any]:
    """Validation parts that tell each rank something else; the ranks must stop together."""
    model = compiled(cases.Case(lambda: keras.optimizers.SGD(0.05)))
    x, y = cases.global_data(False, 40)
    own = (x, y if hvd.rank() == 0 else np.roll(y, hvd.rank()) * 2)
    stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1, factor=0.5)
    callbacks = [stopping, plateau, *broadcast(), hvd.callbacks.MetricAverageCallback()]
    history = fit(model, callbacks=callbacks, epochs=25, validation_data=own)
    hvd.assert_in_sync(model)
    return {"epochs": len(history.epoch), "val_loss": history.history["val_loss"], "best": stopping.best_epoch}


def warmup_curve() -> dict[str, Any]:
    """The rate of every batch, once from epoch 0, once resumed in the middle, once resumed after it."""
    curves = {}
    model = compiled(cases.Case(lambda: keras.optimizers.SGD(0.123)))
    for name, first in {"whole": 0, "resumed": 1, "after": 3}.items():
        model.optimizer.learning_rate = 0.123
        rates: list[float] = []
        warmup = hvd.callbacks.LearningRateWarmupCallback(0.6, warmup_epochs=2)
        reader = RateReader(rates)
        fit(model, callbacks=[*broadcast(), warmup, reader], epochs=4, initial_epoch=first)
        curves[name] = rates
    return curves


class RateReader(keras.callbacks.Callback):
    def __init__(self, rates: list[float]) -> None:
        super().__init__()
        self.rates = rates

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.rates.append(float(self.model.optimizer.learning_rate))


def save_and_load(folder: Path) -> dict[str, Any]:
    """One epoch, a saved file, and one epoch more, of what was saved and of what is loaded."""
    model = compiled(cases.Case(lambda: keras.optimizers.Adam(0.01)))
    fit(model, epochs=1)
    path = folder / f"rank_{hvd.rank()}.keras"
    model.save(path)
    fit(model, epochs=2, initial_epoch=1)
    plain = keras.models.load_model(path)
    loaded = hvd.load_model(str(path))
    fit(loaded, epochs=2, initial_epoch=1)
    hvd.assert_in_sync(loaded)
    difference = max(float(np.abs(a - b).max()) for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True))
    return {
        "plain": [type(plain.optimizer).__module__, type(plain.optimizer).__name__],
        "iterations": int(loaded.optimizer.iterations),
        "difference": difference,
        "refused": error_of(lambda: fit(plain)),
    }


def loaded_on_one_rank(folder: Path) -> dict[str, Any]:
    """Rank 0 goes on with a saved model, where the rate falls; the others have one without weights, of another rate."""

    def without_weights(rate: Any) -> Any:
        keras.utils.set_random_seed(hvd.rank())
        outputs = cases.global_data(False)[1].shape[1]
        model = keras.Sequential([keras.layers.Dense(4, "relu"), keras.layers.Dense(outputs)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9)), "mse")
        return model

    model = without_weights(0.04)
    fit(model, epochs=1)
    path = folder / f"begun_{hvd.rank()}.keras"
    model.save(path)
    model = hvd.load_model(str(path)) if hvd.rank() == 0 else without_weights(0.02)
    rates: list[float] = []
    falling = hvd.callbacks.LearningRateScheduleCallback(0.04, lambda epoch: 0.1**epoch)
    fit(model, callbacks=[*broadcast(), falling, RateReader(rates)], epochs=2, initial_epoch=1)
    return {
        "rates": rates,
        "in sync": error_of(lambda: hvd.assert_in_sync(model)),
        "computed rate": error_of(lambda: fit(without_weights(lambda: 0.02), epochs=1)),
    }


def adapted_on_one_rank() -> dict[str, Any]:
    """Ranks whose `Normalization` knows other data, or none, in a first fit and in a second one."""
    keras.utils.set_random_seed(3)
    rows, outputs = cases.global_data(False)
    layer = keras.layers.Normalization()
    model = keras.Sequential([keras.Input(rows.shape[1:]), layer, keras.layers.Dense(outputs.shape[1])])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    found: dict[str, Any] = {"apart": [], "in sync": [], "outputs": []}
    for offset in (2.0, 5.0):
        if hvd.rank() == 0:
            layer.adapt(rows * offset + offset)
        found["apart"].append(error_of(lambda: hvd.assert_in_sync(model)))
        fit(model, epochs=1)
        found["in sync"].append(error_of(lambda: hvd.assert_in_sync(model)))
        found["outputs"] += [model.predict(rows[:4], verbose=0).tolist(), model(rows[:4]).numpy().tolist()]
    batches = ((rows[:4], outputs[:4]) for _ in range(2 + hvd.rank()))
    found["uneven"] = error_of(lambda: model.fit(batches, callbacks=broadcast(), verbose=0))
    return found


class LowersAlone(keras.callbacks.Callback):
    """As ReduceLROnPlateau where metrics differ."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if hvd.rank() == 1:
            self.model.optimizer.learning_rate = 0.01


def metric_state_law() -> dict[str, float]:
    """For Keras' metrics: the sum of two parts' states gives the metric of the whole."""
    rng = np.random.default_rng(3)
    y, p = np.eye(3, dtype="float32")[rng.integers(0, 3, 40)], rng.random((40, 3)).astype("float32")
    worst = {}
    for name in sorted(dir(keras.metrics)):
        kind = getattr(keras.metrics, name)
        if not isinstance(kind, type) or not issubclass(kind, keras.metrics.Metric) or name in _NEED_ARGUMENTS:
            continue
        whole, first, second = kind(), kind(), kind()
        one_argument = name in ("Mean", "Sum")
        for metric, rows in ((whole, slice(None)), (first, slice(0, 13)), (second, slice(13, None))):
            metric.update_state(p[rows]) if one_argument else metric.update_state(y[rows], p[rows])
        for a, b in zip(first.variables, second.variables, strict=True):
            a.assign(np.asarray(a.numpy(), "float64") + b.numpy())
        worst[name] = float(np.abs(np.asarray(first.result()) - np.asarray(whole.result())).max())
    return worst


# Need thresholds or class numbers, or class indices for targets; their states are counts like the others'.
_NEED_ARGUMENTS = {
    *("Metric", "MeanMetricWrapper", "IoU", "MeanIoU", "BinaryIoU", "OneHotIoU", "OneHotMeanIoU"),
    *("PrecisionAtRecall", "RecallAtPrecision", "SensitivityAtSpecificity", "SpecificityAtSensitivity"),
    *("SparseCategoricalAccuracy", "SparseCategoricalCrossentropy", "SparseTopKCategoricalAccuracy"),
}


class Largest(keras.metrics.Metric):
    """A metric whose state is no sum."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # noqa: ARG002
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self) -> Any:
        return self.value


class LogsWithoutMetric(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return {**super().train_step(data), "batch_only": 1.0}


class NeverApplies(keras.Sequential):
    def train_step(self, data: Any) -> Any:  # noqa: ARG002
        return self.get_metrics_result()


def refusals() -> dict[str, str]:
    """The message of every refusal that all ranks make alike."""
    sgd = keras.optimizers.SGD
    wrap = hvd.DistributedOptimizer
    scaled = keras.optimizers.LossScaleOptimizer
    plain = cases.Case(lambda: sgd(0.1))
    averages = [*broadcast(), hvd.callbacks.MetricAverageCallback()]
    warmup = [hvd.callbacks.LearningRateWarmupCallback(0.1)]
    found = {
        "twice": error_of(lambda: wrap(wrap(sgd(0.1)))),
        "op": error_of(lambda: wrap(sgd(0.1), op="avrage")),
        "place_of_op": error_of(lambda: wrap(sgd(0.1), hvd.Sum)),
        "place_of_compression": error_of(lambda: wrap(sgd(0.1), "fp16")),
        "compression": error_of(lambda: wrap(sgd(0.1), compression="fp8")),
        "string": error_of(lambda: wrap("sgd")),
        "root": error_of(lambda: hvd.callbacks.BroadcastGlobalVariablesCallback(99)),
        "loss_scale_outside": error_of(lambda: fit(_with_optimizer(scaled(wrap(sgd(0.1)))))),
        "loss_scale_around": error_of(lambda: wrap(scaled(wrap(sgd(0.1))))),
        "mixed_policy": error_of(_wrap_under_mixed_policy),
        "plain_optimizer": error_of(lambda: fit(compiled(plain, distributed=False))),
        "jit_without_callback": error_of(
            lambda: fit(compiled(cases.Case(plain.optimizer, compile={"jit_compile": True})), callbacks=[])
        ),
        "other_rates": error_of(lambda: fit(compiled(plain), callbacks=[*broadcast(), LowersAlone()])),
        "uneven_steps": error_of(lambda: fit(compiled(plain), steps_per_epoch=3 + hvd.rank())),
        "schedule": error_of(lambda: fit(_scheduled(), callbacks=warmup)),
        "scaled_schedule": error_of(lambda: fit(_scheduled(scaled), callbacks=warmup)),
        "metric_class": error_of(lambda: fit(_with_metric(Largest()), callbacks=averages)),
        "logs_without_metric": error_of(lambda: fit(_custom(LogsWithoutMetric), callbacks=averages)),
        "never_applies": error_of(lambda: fit(_custom(NeverApplies))),
    }
    accepted = fit(_with_metric(Largest()), callbacks=[*broadcast(), hvd.callbacks.MetricAverageCallback([Largest])])
    return {**found, "declared": ",".join(sorted(accepted.history))}


def _with_optimizer(optimizer: Any) -> Any:
    return compiled(cases.Case(lambda: optimizer), distributed=False)


def _with_metric(metric: Any) -> Any:
    return compiled(cases.Case(lambda: keras.optimizers.SGD(0.1), compile={"metrics": [metric]}))


def _scheduled(around: Callable[[Any], Any] = lambda optimizer: optimizer) -> Any:
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9)
    return compiled(cases.Case(lambda: around(keras.optimizers.SGD(rate))))


def _custom(kind: type) -> Any:
    return compiled(
        cases.Case(lambda: keras.optimizers.SGD(0.1), lambda: kind([keras.Input((6,)), keras.layers.Dense(1)]))
    )


def _wrap_under_mixed_policy() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    finally:
        keras.config.set_dtype_policy("float32")


def error_of(action: Callable[[], Any], kind: type[HvdtrainError] = HvdtrainError) -> str:
    """The message of the error of ours that this raises, or what happened instead."""
    try:
        action()
    except kind as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"UNEXPECTED {type(error).__name__}: {error}"
    return "NO ERROR"
