"""State of a Keras model that no step of training sets: what a look at its measures must leave as it was, numbers that
TensorFlow draws by counters of its own, and what no checkpoint has."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from hvdtrain.adapters.keras.calling import own_seed_state
from hvdtrain.algorithms.micro_batches import ALL_RANKS, mix
from hvdtrain.config.training_options import Precision

_log = logging.getLogger("hvdtrain.run")


@contextmanager
def unchanged(model: keras.Model) -> Iterator[None]:
    """What the model's layers count or average in each call is afterwards as it was.

    Nothing is copied but what changes: TensorFlow gives a variable that is read here new memory when it is written.
    """
    kept = [(v, tf.convert_to_tensor(v)) for v in (*model.non_trainable_variables, *model.metrics_variables)]
    yield
    for variable, value in kept:
        variable.assign(value)


def seed_stateful_draws(seed: int, rank: int, step: int) -> None:
    """Let `tf.random.*` draw other numbers on each worker, and after each start, which begins at update `step`.

    Such operations count their draws themselves, and no checkpoint holds the counters. Called before the graph of a
    step is made: it keeps the seeds.
    """
    tf.random.set_seed(mix(seed, rank, step) & 0x7FFFFFFF)


class UpdateDraws:
    """Random numbers of an optimizer that draws in its step, such as noise for privacy: functions of (seed, step), and
    so the same on all ranks that make the same update, which has the number `part`. Keras' optimizers and ours draw
    nothing."""

    def __init__(self, optimizer: Any, seed: int, part: int) -> None:
        generators = [each for each in vars(optimizer).values() if isinstance(each, keras.random.SeedGenerator)]
        known = type(optimizer).__module__.startswith(("keras.", "hvdtrain.adapters."))
        self._states = [] if known else [own_seed_state(), *(generator.state for generator in generators)]
        self._seeds = [mix(seed, ALL_RANKS, part, place) & 0xFFFFFFFF for place in range(len(self._states))]

    def begin(self, step: Any) -> None:
        """In the graph: the update of this step follows. Args: `step`: int64 scalar."""
        for variable, seed in zip(self._states, self._seeds, strict=True):
            variable.assign([tf.constant(seed, tf.uint32), tf.cast(step, tf.uint32)])


def tell_what_is_not_kept(model: keras.Model, precision: Precision) -> None:
    """Warn of metrics inside the model, and of float16 without a loss scale."""
    metrics = [metric for layer in model._flatten_layers() for metric in layer._metrics]  # none of compile()'s
    if names := [variable.path for metric in metrics for variable in metric.variables]:
        _log.warning(
            "metrics inside the model are neither saved nor added up over workers: %s; return their values from "
            "measure()",
            ", ".join(names[:4]) + (", …" if len(names) > 4 else ""),
        )
    half = [layer.name for layer in model._flatten_layers() if layer.compute_dtype == "float16"]
    if half and precision != "fp16":
        _log.warning(
            "%s computes in float16 without a loss scale, so that small gradients become 0: add --precision fp16, or "
            "build the layer with another policy",
            half[0],
        )
