"""What the less used arguments of hvdtrain.tensorflow and hvdtrain.keras compute on each rank, as JSON: `… FOLDER`."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvdtrain.keras as hvd_keras
import hvdtrain.tensorflow as hvd
from hvdtrain.comm.tensorflow_binding import TensorFlowBinding

FOLDER = Path(sys.argv[1])
GRADIENT = np.array([[1.0, 2.0], [3.0, 4.0]])


def of_tape(dtype: str = "float32", **options: Any) -> list[Any]:
    """The reduced gradient: rank r's is [1, 2] or [3, 4]."""
    weight = keras.Variable([0.0, 0.0], dtype=dtype)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight.value * tf.cast(GRADIENT[hvd.rank()], dtype))
    (gradient,) = hvd.DistributedGradientTape(tape, **options).gradient(loss, [weight])
    assert gradient.dtype == dtype
    return list(gradient.numpy().tolist())


def of_rows(sparse_as_dense: bool, op: Any) -> dict[str, Any]:
    """The gradient of a table of three rows, of which rank r reads r and r + 1."""
    table = keras.Variable(np.zeros((3, 1), np.float32))

    @tf.function
    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table.value, [hvd.rank(), hvd.rank() + 1]))
        return hvd.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense, op=op).gradient(loss, table)

    reduced = gradient()
    rows = tf.convert_to_tensor(reduced).numpy()[:, 0]
    return {"sparse": isinstance(reduced, tf.IndexedSlices), "rows": rows.tolist()}


def of_branches(kinds: str, **options: Any) -> list[Any]:
    """Eager gradients of three tables of one shape: rank r uses number r, with the gradient r + 1, and nobody number 2.

    Args: `kinds`: for each rank "d" if the loss reads the whole table, or "r" if it reads row r.
    """
    tables = [tf.Variable(tf.zeros((2, 1))) for _ in range(3)]
    own = tables[hvd.rank()]
    with tf.GradientTape() as tape:
        used = own if kinds[hvd.rank()] == "d" else tf.gather(own, [hvd.rank()])
        loss = tf.reduce_sum(used) * (hvd.rank() + 1.0)
    reduced = hvd.DistributedGradientTape(tape, **options).gradient(loss, tables)
    return [None if g is None else tf.convert_to_tensor(g).numpy()[:, 0].tolist() for g in reduced]


def of_two_kinds() -> list[Any]:
    """The gradient of a table that rank 0 reads as a whole and rank 1 by rows."""
    table = tf.Variable(tf.zeros((2, 1)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table if hvd.rank() == 0 else tf.gather(table, [0]))
    return list(hvd.DistributedGradientTape(tape).gradient(loss, [table]))


def branches_of_an_optimizer(passes: int) -> list[Any]:
    """Three weights after two eager calls, in which rank r has a gradient for number r in the first one only."""
    weights = [tf.Variable([0.0]) for _ in range(3)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=passes)
    optimizer.build(weights)
    for gradient in (tf.constant([hvd.rank() + 1.0]), None):
        optimizer.apply(
            [gradient if place == hvd.rank() else None for place in range(2)] + [tf.constant([1.0])], weights
        )
    return [weight.numpy().item() for weight in weights]


def of_optimizer(distributed: Any) -> list[Any]:
    """A weight after a step of SGD with the learning rate 1 in a graph."""
    weight = keras.Variable([0.0, 0.0])
    step = tf.function(lambda gradient: distributed.apply([gradient], [weight]))
    step(tf.constant(GRADIENT[hvd.rank()], tf.float32))
    return list(weight.numpy().tolist())


def partial_optimizer() -> list[Any]:
    """A local and a shared weight, after one step with the gradient r + 1 for both."""
    local, shared = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
    for layer in (local, shared):
        layer.build((1, 1))
        layer.set_weights([np.zeros((1, 1))])
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=[local])
    optimizer.apply([tf.fill([1, 1], hvd.rank() + 1.0)] * 2, [local.kernel, shared.kernel])
    return [local.kernel.numpy().item(), shared.kernel.numpy().item()]


class Halved(keras.optimizers.SGD):
    """An optimizer of the user's own."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient / 2, variable, learning_rate)


class Doubled(keras.layers.Layer):
    """A layer of the user's own."""

    def call(self, rows: Any) -> Any:
        return rows * 2


def loaded(passes: int, **options: Any) -> dict[str, Any]:
    """A model with an optimizer and a layer of the user's own, saved and loaded on each rank; its weights after each
    pass with this rank's gradient."""
    made = keras.Sequential([keras.Input((2,)), Doubled(), keras.layers.Dense(1, use_bias=False)])
    made.compile(Halved(1.0), "mse")
    path = FOLDER / f"own_{hvd.rank()}.keras"
    made.save(path)
    model = hvd_keras.load_model(
        path,
        custom_optimizers=[Halved],
        custom_objects={"Doubled": Doubled},
        compression=hvd.Compression.fp16,
        **options,
    )
    model.layers[-1].set_weights([np.zeros((2, 1))])
    kernels = []
    for _ in range(passes):
        model.optimizer.apply([tf.constant(GRADIENT[hvd.rank()], tf.float32, (2, 1))], model.trainable_variables)
        kernels.append(model.layers[-1].kernel.numpy()[:, 0].tolist())
    return {"optimizer": type(model.optimizer).__name__, "kernels": kernels}


def scheduled(**options: Any) -> dict[str, Any]:
    """Learning rates before each batch, and the weight, of a fit in which a callback sets the rate."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)), "mse")
    rates: list[float] = []
    seen = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: rates.append(float(model.optimizer.learning_rate))  # noqa: ARG005
    )
    schedule = hvd_keras.callbacks.LearningRateScheduleCallback(0.1, **options)
    start = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    history = model.fit(
        *(np.ones((4, 1)), np.zeros((4, 1))), batch_size=2, epochs=3, verbose=0, callbacks=[start, schedule, seen]
    )
    return {
        "rates": rates,
        "logged": history.history["lr"],
        "weight": model.get_weights()[0].item(),
        "momentum": float(model.optimizer.momentum),
    }


def warmed_up() -> str:
    """What a warm-up prints on this rank."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    start = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    warmup = hvd_keras.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1, verbose=1)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        model.fit(np.ones((4, 1)), np.zeros((4, 1)), batch_size=2, epochs=2, verbose=0, callbacks=[start, warmup])
    return printed.getvalue().strip()


def refused(call: Any) -> str:
    try:
        call()
    except Exception as error:  # in a graph, TensorFlow's own with the same text
        return str(error)
    return ""


def process_sets(odd: Any) -> dict[str, Any]:
    """Rank 1 alone forms `odd`: rank 0 keeps its gradients there."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=odd)
    return {
        "tape": of_tape(process_set=odd, op=hvd.Sum),
        "optimizer": of_optimizer(optimizer),
        "included": odd.included(),
    }


def in_another_order() -> dict[str, float]:
    """Sums of numbers of two names, which each rank starts in its own order."""
    binding, names = TensorFlowBinding(), ["one", "ten"][:: 1 - 2 * hvd.rank()]
    numbers = {"one": np.array([1.0]), "ten": np.array([10.0])}
    waits = {name: binding.start_allreduce(numbers[name], name, "sum") for name in names}
    return {name: float(waits[name]()[0]) for name in names}


def large_part() -> list[float]:
    """Least and greatest number of this rank's half of 4 MiB, prescaled: more than the fusion threshold here."""
    whole = tf.fill([2, 2**19], hvd.rank() + 1.0)
    part = hvd.reducescatter(whole, op=hvd.Sum, prescale_factor=0.5).numpy()
    assert part.shape == (1, 2**19)
    return [part.min().item(), part.max().item()]


def eager_names() -> list[str]:
    """Under which names Horovod has summed gradients of the shapes (4, 3), (3, 4), and (4, 3) again, in eager mode."""
    file = FOLDER / f"timeline_{hvd.rank()}.json"
    hvd.start_timeline(str(file))
    for shape in ((4, 3), (3, 4), (4, 3)):
        weight = tf.Variable(tf.zeros(shape))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * (hvd.rank() + 1.0))
        (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
        assert gradient.numpy().tolist() == np.full(shape, 1.5).tolist()
    hvd.stop_timeline()
    return re.findall(r"hvdtrain_reduction_0_0_\d\w+", file.read_text()) if hvd.rank() == 0 else []


def report(odd: Any) -> dict[str, Any]:
    distributed = hvd.DistributedOptimizer
    return {
        "average": of_tape(),
        "Sum": of_tape(op=hvd.Sum),
        "Min": of_tape(op=hvd.Min),
        "Max": of_tape(op=hvd.Max),
        "Product": of_tape(op=hvd.Product),
        "Adasum": of_tape(op=hvd.Adasum),
        "bfloat16, groups": of_tape("bfloat16", num_groups=1, gradient_predivide_factor=2.0),
        "bfloat16, Max": of_tape("bfloat16", op=hvd.Max),
        "optimizer Max": of_optimizer(distributed(keras.optimizers.SGD(1.0), op=hvd.Max)),
        "optimizer Adasum": of_optimizer(distributed(keras.optimizers.SGD(1.0), op=hvd.Adasum)),
        "rows": of_rows(False, hvd.Average),
        "rows, summed": of_rows(False, hvd.Sum),
        "rows, dense": of_rows(True, hvd.Average),
        "rows, Max": refused(lambda: of_rows(False, hvd.Max)),
        "rows, dense, Max": of_rows(True, hvd.Max),
        "branches": of_branches("dd"),
        "branches, Max": of_branches("dd", op=hvd.Max),
        "branches, groups": of_branches("dd", groups=1),
        "branches, rows": of_branches("rr"),
        "branches, rows and a whole": of_branches("dr"),
        "branches, dense rows": of_branches("dr", sparse_as_dense=True),
        "branches of an optimizer": branches_of_an_optimizer(1),
        "branches of an optimizer, two passes": branches_of_an_optimizer(2),
        "branches, two kinds": refused(of_two_kinds),
        "partial": partial_optimizer(),
        "loaded": loaded(1),
        "loaded, two passes": loaded(2, backward_passes_per_step=2, gradient_predivide_factor=2.0, safe_mode=True),
        "loaded, process set": loaded(1, process_set=odd),
        "staircase": scheduled(multiplier=lambda epoch: epoch + 1, start_epoch=1),
        "smooth": scheduled(multiplier=lambda epoch: epoch + 1, staircase=False),
        "smooth, uncorrected": scheduled(
            multiplier=lambda epoch: epoch + 1, staircase=False, momentum_correction=False
        ),
        "warm-up": warmed_up(),
        "momentum": refused(lambda: hvd_keras.callbacks.LearningRateWarmupCallback(0.1, 5, 100)),
        "process sets": process_sets(odd),
        "set of others": refused(lambda: hvd_keras.add_process_set([0, hvd.size()])),
        "later set": refused(lambda: hvd_keras.add_process_set([0])),
        "by name": in_another_order(),
        "large part": large_part(),
        "eager names": eager_names(),
    }


if __name__ == "__main__":
    odd = hvd.ProcessSet([1])
    hvd.init(process_sets=[odd])
    hvd.init()  # again, as programs of several files do
    result = report(odd)
    hvd.barrier()
    Path(FOLDER, f"rank_{hvd.rank()}.json").write_text(json.dumps(result))
