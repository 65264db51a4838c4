"""Keras' own `fit` with each of its optimizers, on one rank; see `drift_runs`."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
from drift_cases import LR, SAMPLES, STEPS, keras_model, pictures

import hvdtrain.keras as hvd

opt = keras.optimizers
ALL: dict[str, Any] = {
    "weight_decay": 0.1,
    "global_clipnorm": 0.5,
    "use_ema": True,
    "ema_momentum": 0.9,
    "ema_overwrite_frequency": 7,
    "gradient_accumulation_steps": 2,
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "fit-sgd-clipnorm": lambda lr: opt.SGD(lr, momentum=0.9, weight_decay=0.1, clipnorm=0.5),
    "fit-sgd": lambda lr: opt.SGD(lr, momentum=0.9, nesterov=True, **ALL),
    "fit-rmsprop": lambda lr: opt.RMSprop(lr, momentum=0.9, centered=True, **ALL),
    "fit-adam": lambda lr: opt.Adam(lr, amsgrad=True, **ALL),
    "fit-adamw": lambda lr: opt.AdamW(lr, **ALL),
    "fit-adamax": lambda lr: opt.Adamax(lr, **ALL),
    "fit-nadam": lambda lr: opt.Nadam(lr, **ALL),
    "fit-adadelta": lambda lr: opt.Adadelta(lr, **ALL),
    "fit-adagrad": lambda lr: opt.Adagrad(lr, **ALL),
    "fit-adafactor": lambda lr: opt.Adafactor(lr, **ALL),
    "fit-ftrl": lambda lr: opt.Ftrl(lr, l1_regularization_strength=0.01, l2_regularization_strength=0.01, **ALL),
    "fit-lion": lambda lr: opt.Lion(lr, **ALL),
    "fit-lamb": lambda lr: opt.Lamb(lr, **ALL),
    "fit-muon": lambda lr: opt.Muon(lr, **ALL),
    "fit-loss-scale": lambda lr: opt.LossScaleOptimizer(opt.SGD(lr, momentum=0.9, weight_decay=0.1), initial_scale=8.0),
}
AT_THREE = ("fit-sgd", "fit-adamw")


def runs(size: int, watched: Any) -> dict[str, Callable[[], dict[str, Any]]]:
    """What `size` ranks train. Args: `watched`: as in `drift_runs`."""
    names = [name for name in OPTIMIZERS if size == 2 or name in AT_THREE]
    return {name: partial(fit, name, watched) for name in names}


def fit(name: str, watched: Any) -> dict[str, Any]:
    """Hashes after each step of `fit` from different weights on each rank, with a schedule of the learning rate."""
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = keras_model(0, normalized=False)
    optimizer = OPTIMIZERS[name](opt.schedules.CosineDecay(LR, 2 * STEPS))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(optimizer), loss)
    batches = [pictures(step, hvd.rank()) for step in range(STEPS)]
    hashes: list[dict[str, int]] = []
    noting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: hashes.append(_hashes(model)))  # noqa: ARG005
    sums: list[str] = []
    with watched("tensorflow", sums):
        model.fit(
            *(np.concatenate(arrays) for arrays in zip(*batches, strict=True)),
            batch_size=SAMPLES,
            shuffle=False,
            verbose=0,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), noting],
        )
    return {"hashes": hashes, "sums": sums}


def _hashes(model: Any) -> dict[str, int]:
    named = {"model": model.weights, "optimizer": model.optimizer.variables}
    variables = [(f"{of}/{variable.path}", variable) for of, group in named.items() for variable in group]
    return {name: zlib.crc32(np.asarray(variable.value).tobytes()) for name, variable in variables}
