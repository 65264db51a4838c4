"""`hvd.callbacks`: what goes into `model.fit(..., callbacks=[...])`."""

from __future__ import annotations

from hvdtrain.keras.broadcast import BroadcastGlobalVariablesCallback
from hvdtrain.keras.metrics import MetricAverageCallback
from hvdtrain.keras.warmup import LearningRateWarmupCallback, warmup_learning_rate

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "warmup_learning_rate",
]
