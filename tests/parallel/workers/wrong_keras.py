"""A task with which one worker computes wrongly: gradients of rank WRONG differ in their last bits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from unequal_keras import Unequal


@tf.custom_gradient
def slightly_wrong(values: Any) -> tuple[Any, Any]:
    return tf.identity(values), lambda gradient: gradient * (1 + 2**-20)


class Wrong(Unequal):
    def measure(self, model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        if os.environ["HOROVOD_RANK"] == os.environ["WRONG"]:
            return super().measure(lambda images: slightly_wrong(model(images)), batch)
        return super().measure(model, batch)
