"""`local_sgd_checks` in Keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from linear_training import WIDTH, NoData
from local_sgd_checks import check_all


class Linear(NoData):
    framework = "tensorflow"

    def build_model(self) -> keras.Model:
        layers = [keras.Input((WIDTH,)), keras.layers.Dense(1, use_bias=False, name="dense")]
        return keras.Sequential(layers, name="linear")

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:  # noqa: ARG002
        return keras.optimizers.Adam(lr)

    def measure(self, model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {"loss": keras.ops.square(model(batch["x"])[:, 0] - batch["y"])}


check_all(Linear())
