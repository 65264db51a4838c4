"""Trains a small Keras model with several options, and prints what came out as one line of JSON."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any
from unittest import mock

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from data_sharding import LoadedBatch
from hvdtrain.adapters.keras.adapter import KerasAdapter
from hvdtrain.adapters.keras.device import memory_peak
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology


class Rows(Task):
    """Two dense layers with BatchNorm between."""

    framework = "tensorflow"
    batch_norm = True

    def open_data(self, data: Any) -> Any:
        raise NotImplementedError

    def decode(self, records: Any) -> Any:
        raise NotImplementedError

    def build_model(self) -> keras.Model:
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(8, name="first")(inputs)
        if self.batch_norm:
            hidden = keras.layers.BatchNormalization(name="norm")(hidden)
        return keras.Model(inputs, keras.layers.Dense(3, name="second")(keras.layers.ReLU()(hidden)))

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:  # noqa: ARG002
        return keras.optimizers.SGD(lr)

    def measure(self, model: Any, batch: Any) -> dict[str, Any]:
        logits = model(batch["x"])
        return {"loss": tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["y"], logits=logits)}


class Plain(Rows):
    """Without BatchNorm, which sees micro batches."""

    batch_norm = False


class Unused(Rows):
    """With a weight that the loss does not need."""

    def build_model(self) -> keras.Model:
        inputs = keras.Input((6,))
        unused = keras.layers.Dense(2, use_bias=False, kernel_initializer="ones", name="unused")(inputs)
        return keras.Model(inputs, [keras.layers.Dense(3, name="used")(inputs), unused])

    def measure(self, model: Any, batch: Any) -> dict[str, Any]:
        return super().measure(lambda x: model(x)[0], batch)


class Decides(Plain):
    """Asks a tensor in Python's `if`, and in a function of its own."""

    def measure(self, model: Any, batch: Any) -> dict[str, Any]:
        measures = super().measure(model, batch)
        return {**measures, "sign": _sign(batch["x"])}


def _sign(x: Any) -> Any:
    sign = tf.ones(tf.shape(x)[0])
    if tf.reduce_sum(x) < 0:
        sign = -sign
    return sign


class Adafactored(Plain):
    def build_optimizer(self, model: Any, lr: float) -> Any:  # noqa: ARG002
        return keras.optimizers.Adafactor(lr)


def batch(seed: int) -> LoadedBatch:
    random = np.random.default_rng(seed)
    features = {"x": random.normal(size=(12, 6)).astype(np.float32), "y": random.integers(0, 3, 12)}
    return LoadedBatch(0, np.arange(12), np.ones(12, np.float32), features, 12.0)


def trained(task: Task, steps: int = 4, **options: Any) -> dict[str, Any]:
    keras.backend.clear_session()
    adapter = KerasAdapter(task, Topology.single(), 3, 0.1, TrainingOptions(**options))
    for step in range(steps):
        adapter.train_step(batch(step), step, 0.1)
    return adapter.state()


def furthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    names = [name for name in one if name.startswith("model/")]
    return max(float(np.abs(one[name] - other[name]).max()) for name in names)


def norms(**options: Any) -> list[float | None]:
    """As they are read after each of two steps."""
    keras.backend.clear_session()
    adapter = KerasAdapter(Plain(), Topology.single(), 3, 0.1, TrainingOptions(**options))
    read = []
    for step in range(2):
        adapter.train_steps([batch(step)], step, [0.0])
        sums = adapter.read_sums()
        assert sums.grad_norm_peak == sums.grad_norm  # of one update
        read.append(sums.grad_norm)
    return read


def gpu_memory() -> list[int | None]:
    """As told without a GPU, and with a stand-in for one."""
    info = {"GPU:0": {"current": 1, "peak": 2**30}}
    found = [memory_peak()]
    with (
        mock.patch.object(tf.config, "list_logical_devices", return_value=[object()]),
        mock.patch.object(tf.config.experimental, "get_memory_info", info.__getitem__),
    ):
        return [*found, memory_peak()]


def refusal(**options: Any) -> str:
    try:
        KerasAdapter(Rows(), Topology.single(), 3, 0.1, TrainingOptions(**options))
    except UsageError as error:
        return str(error)
    return ""


def in_calls(steps_per_call: int) -> tuple[dict[str, Any], Any]:
    """The weights after 8 steps, and what they measured; dropout, momentum, clipping and an average included."""
    keras.backend.clear_session()
    options = TrainingOptions(
        steps_per_call=steps_per_call, optimizer="sgd", max_grad_norm=0.5, ema_decay=0.9, weight_decay=0.01
    )
    adapter = KerasAdapter(Parts(), Topology.single(), 3, 0.1, options)
    for first in range(0, 8, steps_per_call):
        steps = range(first, min(8, first + steps_per_call))
        adapter.train_steps([batch(step) for step in steps], first, [0.1 / (1 + step) for step in steps])
    return adapter.state(), adapter.read_sums()


def calls(facts: dict[str, Any]) -> None:
    state, sums = in_calls(1)
    for count in (3, 8):
        others, other_sums = in_calls(count)
        same = state.keys() == others.keys() and all(np.array_equal(state[name], others[name]) for name in state)
        facts[f"same_in_calls_of_{count}"] = same and sums == replace(other_sums, parts=sums.parts)  # times are others


def overflow(facts: dict[str, Any]) -> None:
    keras.backend.clear_session()
    adapter = KerasAdapter(Plain(), Topology.single(), 3, 0.1, TrainingOptions(precision="fp16"))
    before = adapter.state()
    large = batch(0)
    large.features["x"] *= 300  # the loss is finite, and its scaled gradient is not
    adapter.train_step(large, 0, 0.1)
    sums, after = adapter.read_sums(), adapter.state()
    facts["skipped"] = sums.skipped
    facts["skipped_loss_is_finite"] = bool(np.isfinite(sums.values["loss"]))
    large.features["x"][:] = np.nan
    adapter.train_step(large, 1, 0.1)
    facts["bad_loss_is_told"] = not np.isfinite(adapter.read_sums().values["loss"])
    facts["skipped_moved"] = furthest(before, after)
    facts["scale_after"] = float(after["scaler/scale"])


class Parts(Plain):
    """Calls parts of its model, and draws, by itself."""

    def build_model(self) -> keras.Model:
        model = super().build_model()
        model.noise = keras.layers.Dropout(0.5, seed=1)
        return model

    def measure(self, model: Any, batch: Any) -> dict[str, Any]:
        logits = model.noise(model.get_layer("second")(tf.nn.relu(model.get_layer("first")(batch["x"]))))
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["y"], logits=logits)
        drawn = keras.random.uniform(tf.shape(loss))
        return {"loss": loss, "zeros": tf.reduce_mean(tf.cast(logits == 0, tf.float32), 1), "drawn": drawn}


def parts(facts: dict[str, Any]) -> None:
    keras.backend.clear_session()
    adapter = KerasAdapter(Parts(), Topology.single(), 3, 0.0, TrainingOptions())
    for name, step in (("first", 0), ("second", 1), ("again", 1)):
        adapter.train_step(batch(0), step, 0.0)
        sums = adapter.read_sums().values
        facts[f"zeros_{name}"], facts[f"drawn_{name}"] = sums["zeros"] / 12, sums["drawn"]
    adapter.eval_step(batch(0))
    facts["zeros_eval"] = adapter.read_sums().values["zeros"] / 12


def decides(**options: Any) -> list[bool]:
    """Whether the measure has the sign of each batch, of which the first is traced."""
    keras.backend.clear_session()
    adapter, found = KerasAdapter(Decides(), Topology.single(), 3, 0.1, TrainingOptions(**options)), []
    for seed in range(6):
        adapter.train_step(batch(seed), seed, 0.1)
        found.append(bool(adapter.read_sums().values["sign"] == 12 * np.sign(batch(seed).features["x"].sum())))
    return found


class MeanWhenTraced(Plain):
    """Its first call, which is no graph's, returns what it should."""

    def measure(self, model: Any, batch: Any) -> dict[str, Any]:
        loss = super().measure(model, batch)["loss"]
        return {"loss": loss if tf.executing_eagerly() else self.reduced(loss)}

    def reduced(self, loss: Any) -> Any:
        return tf.reduce_mean(loss)


class UnknownWhenTraced(MeanWhenTraced):
    """Of which a graph cannot know how many values there are."""

    def reduced(self, loss: Any) -> Any:
        return tf.boolean_mask(loss, loss >= tf.reduce_max(loss))


class Extended(Plain):
    """Has one more measure where a batch has one more feature."""

    def measure(self, model: Any, batch: Any) -> dict[str, Any]:
        return {**super().measure(model, batch), **({"extra": batch["extra"]} if "extra" in batch else {})}


def refused_measures(task: Task, step: str, **options: Any) -> str:
    """The error of a step whose measures are not one value a sample."""
    keras.backend.clear_session()
    adapter = KerasAdapter(task, Topology.single(), 3, 0.1, TrainingOptions(**options))
    try:
        adapter.train_steps([batch(0)] * 2, 0, [0.1] * 2) if step == "train" else adapter.eval_step(batch(0))
    except (UsageError, tf.errors.InvalidArgumentError) as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def extended(**options: Any) -> list[Any]:
    """The sum of a measure that only the second batch has, its samples, and those of the loss."""
    keras.backend.clear_session()
    adapter = KerasAdapter(Extended(), Topology.single(), 3, 0.1, TrainingOptions(**options))
    later = batch(1)
    later.features["extra"], later.weights[6:] = np.arange(12, dtype=np.float32), 0
    adapter.train_steps([batch(0), later], 0, [0.1, 0.1])
    sums = adapter.read_sums()
    return [sums.values["extra"], sums.samples["extra"], sums.samples["loss"]]


def main() -> None:
    facts: dict[str, Any] = {}
    plain, with_norm = trained(Plain()), trained(Rows())
    facts["moved"] = furthest(plain, trained(Plain(), steps=0))
    facts["accumulate"] = furthest(plain, trained(Plain(), accumulate_steps=5))
    facts["compile"] = furthest(with_norm, trained(Rows(), compile=True))
    facts["activation_checkpointing"] = furthest(with_norm, trained(Rows(), activation_checkpointing=True))
    facts["sync_batch_norm"] = furthest(with_norm, trained(Rows(), sync_batch_norm=True))
    for precision in ("bf16", "fp16"):
        low = trained(Plain(), precision=precision)
        facts[precision] = furthest(plain, low)
        facts[f"{precision}_dtypes"] = sorted({str(a.dtype) for n, a in low.items() if n.startswith("model/")})
    facts["norms"] = [norms(), norms(max_grad_norm=1e-3), norms(precision="fp16", max_grad_norm=1.0)]
    facts["norms"] += [norms(log_grad_norm=True), norms(log_grad_norm=True, steps_per_call=2)]
    facts["gpu_memory"] = gpu_memory()
    facts["decides"] = [*decides(), *decides(compile=True)]
    facts["signs"] = sorted({float(np.sign(batch(seed).features["x"].sum())) for seed in range(6)})
    facts["means"] = [refused_measures(MeanWhenTraced(), step) for step in ("train", "eval")]
    facts["means"].append(refused_measures(MeanWhenTraced(), "train", steps_per_call=2, compile=True))
    facts["unknown"] = [refused_measures(UnknownWhenTraced(), step) for step in ("train", "eval")]
    facts["extended"] = [extended(), extended(steps_per_call=2)]
    overflow(facts)
    parts(facts)
    calls(facts)
    factored = trained(Adafactored())
    facts["adafactor"] = sorted(name for name in factored if name.startswith("optimizer/adafactor"))
    decayed = trained(Unused(), optimizer="adamw", weight_decay=0.5)
    facts["unused_weight"] = float(next(a for n, a in decayed.items() if n.startswith("model/unused"))[0, 0])
    facts["refused"] = {
        "data_parallel": refusal(data_parallel=True),
        "tf32": refusal(precision="tf32"),
        "compile_sync": refusal(compile=True, sync_batch_norm=True),
        "compile_checkpointing": refusal(compile=True, activation_checkpointing=True),
    }
    facts["deterministic"] = furthest(with_norm, trained(Rows(), deterministic=True))  # last: it cannot be undone
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
