"""`sparse_checks` in Keras."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from linear_training import NoData
from sparse_checks import LENGTH, LR, SPARSE, STEPS, WORDS, Ranks, batch_of, require_close

from hvdtrain.run.start import open_adapter

Build = Callable[[], keras.optimizers.Optimizer]


class Predict(NoData):
    framework = "tensorflow"

    def __init__(self, build: Build, with_words: bool = True) -> None:
        self.build, self.with_words = build, with_words

    def build_model(self) -> keras.Model:
        words = keras.Input((LENGTH,), dtype="int64")
        table = keras.layers.Embedding(WORDS, 4, name="table")
        hidden = keras.ops.mean(table(words), axis=1) if self.with_words else keras.ops.cast(words, "float32")
        return keras.Model(words, keras.layers.Dense(1, name="out")(hidden), name="words")

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:  # noqa: ARG002
        return self.build()

    def measure(self, model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {"loss": keras.ops.square(model(batch["w"])[:, 0] - batch["y"])}


class Watched(keras.optimizers.SGD):  # type: ignore[misc]  # Keras has no types
    """Counts the sparse gradients of the table that are traced; each must have a row once."""

    sparse = 0

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if isinstance(gradient, tf.IndexedSlices):
            assert tuple(variable.shape) == (WORDS, 4)
            once = tf.equal(tf.size(tf.unique(gradient.indices)[0]), tf.size(gradient.indices))
            tf.debugging.Assert(once, [gradient.indices])
            Watched.sparse += 1
        super().update_step(gradient, variable, learning_rate)


sgd = partial(Watched, LR, name="rule")


def check_sgd(ranks: Ranks) -> None:
    """Clipped, so that norms of rows count too."""
    ranks.check_as_dense(Predict(sgd), replace(SPARSE, max_grad_norm=0.5))
    assert Watched.sparse >= 2  # with many ranks, and alone


def check_scaled(ranks: Ranks) -> None:
    """Not as alone: one process overflows in other steps, because its batches are larger."""
    scaled = replace(SPARSE, precision="fp16")
    dense = replace(scaled, sparse_gradients="dense")
    require_close(*(ranks.train(Predict(sgd), options).state() for options in (scaled, dense)), rtol=1e-2)


def check_others(ranks: Ranks) -> None:
    ranks.check_as_alone(Predict(partial(keras.optimizers.Adam, LR, name="rule")))
    ranks.check_as_dense(Predict(sgd), replace(SPARSE, optimizer="adamw", compile=True))


def check_steps_in_one_call(ranks: Ranks) -> None:
    """As single steps, also beside a rank that makes single steps of them: three collectives a step, in any order."""
    several = replace(SPARSE, steps_per_call=3)
    adapter = open_adapter(Predict(sgd), ranks.comm.topology, 1, LR, several)
    batches = [batch_of(ranks.size, step, [ranks.rank]) for step in range(STEPS)]
    adapter.train_steps(batches[:3], 0, [LR] * 3)
    own = [batches[3:]] if ranks.rank == 0 else [[batch] for batch in batches[3:]]
    for together in own:
        adapter.train_steps(together, together[0].step, [LR] * len(together))
    require_close(adapter.state(), ranks.train(Predict(sgd), SPARSE).state(), rtol=0)


def check_refusals(ranks: Ranks) -> None:
    without = Predict(sgd, with_words=False)

    def first_step() -> None:
        adapter = open_adapter(without, ranks.comm.topology, 1, LR, SPARSE)
        adapter.train_step(batch_of(ranks.size, 0, [ranks.rank]), 0, LR)

    ranks.require_refused_everywhere(first_step, "has no sparse gradients", "leave --sparse-gradients out")
    several = replace(SPARSE, accumulate_steps=2)
    ranks.require_refused_everywhere(
        lambda: open_adapter(without, ranks.comm.topology, 1, LR, several), "--accumulate-steps 2", "dense variables"
    )


ranks = Ranks("tensorflow")
for check in (check_sgd, check_scaled, check_others, check_steps_in_one_call, check_refusals):
    check(ranks)
ranks.leave()
