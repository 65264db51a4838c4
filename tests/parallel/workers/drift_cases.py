"""Ways of training whose ranks must stay equal to the last bit, and a picture model for each framework."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from data_sharding import LoadedBatch, RecordBatch
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Features, Task

STEPS, LARGE_STEPS = 20, 5
LR = 0.02
SAMPLES = 3  # of each rank in a step

TOGETHER = {"weight_decay": 0.1, "max_grad_norm": 0.5, "ema_decay": 0.9, "accumulate_steps": 2}

OPTIONS: dict[str, dict[str, Any]] = {
    "large-sgd": {"optimizer": "sgd", "weight_decay": 1e-4},
    "large-sgd-together": {"optimizer": "sgd", "nesterov": True, **TOGETHER},
    "sgd": {"optimizer": "sgd", "nesterov": True, "weight_decay": 1e-2, "max_grad_norm": 0.5},
    "adam": {"optimizer": "adam", "weight_decay": 1e-2},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "ema_decay": 0.9},
    "adamw-shard": {"optimizer": "adamw", "weight_decay": 0.1, "ema_decay": 0.9, "shard": "optimizer"},
    "lars": {"optimizer": "lars", "trust_coefficient": 0.02, "weight_decay": 1e-3},
    "lamb": {"optimizer": "lamb", "weight_decay": 0.1},
    "adamw-together": {"optimizer": "adamw", **TOGETHER},
    "lamb-together": {"optimizer": "lamb", **TOGETHER},
    "shard-together": {"optimizer": "sgd", "nesterov": True, "shard": "gradients", **TOGETHER},
    "bf16": {"optimizer": "sgd", "precision": "bf16", "compression": "bf16", "weight_decay": 1e-2},
    "fp16": {"optimizer": "sgd", "precision": "fp16", "compression": "fp16", **TOGETHER},
    "powersgd": {"optimizer": "sgd", "compression": "powersgd", "weight_decay": 1e-2},
    "horovod": {"optimizer": "sgd", "gradient_sync": "horovod", "weight_decay": 1e-2},
    "sync-batch-norm": {"optimizer": "sgd", "sync_batch_norm": True, "weight_decay": 1e-2},
    "task": {},
    "task-shard": {"shard": "optimizer"},
}
"""Of `TrainingOptions`. The options of one case together make sums of more terms than each of them alone."""

ONLY_TENSORFLOW: dict[str, dict[str, Any]] = {
    "steps-per-call": {"optimizer": "sgd", "nesterov": True, "weight_decay": 1e-2, "steps_per_call": 5},
    "deterministic": {"optimizer": "sgd", "weight_decay": 1e-2, "deterministic": True},
}

AT_THREE = ("adamw-together", "shard-together", "lamb-together", "bf16", "steps-per-call")
"""What three ranks sum otherwise than two; and TensorFlow's graph of the large model has other sums."""


class Pictures(Task):
    """32 × 32 pictures. Its batches are made by `batch_of`.

    Attributes:
        normalized: the model has BatchNorm.
        width: of two further layers; 0: there are none. 4096 makes a model of 66 MiB, whose graph TensorFlow takes for
            one that needs much memory.
    """

    normalized = False
    width = 0

    def open_data(self, data: DataAccess) -> Splits:
        raise NotImplementedError

    def decode(self, records: RecordBatch) -> Features:
        raise NotImplementedError


def cases_of(framework: str, size: int) -> dict[str, dict[str, Any]]:
    """The options of each case that so many ranks train."""
    cases = OPTIONS | (ONLY_TENSORFLOW if framework == "tensorflow" else {})
    at_three = {*AT_THREE, "large-sgd"} if framework == "tensorflow" else AT_THREE
    return {name: options for name, options in cases.items() if size == 2 or name in at_three}


def batch_of(step: int, rank: int, size: int) -> LoadedBatch:
    """A rank's part of a step's global batch."""
    features = dict(zip("xy", pictures(step, rank), strict=True))
    return LoadedBatch(step, np.arange(SAMPLES), np.ones(SAMPLES, np.float32), features, float(SAMPLES * size))


def pictures(step: int, rank: int) -> tuple[Any, Any]:
    """Pictures, float32 [SAMPLES, 32, 32, 3], and classes, int64 [SAMPLES]."""
    random = np.random.default_rng([step, rank])
    return random.normal(size=(SAMPLES, 32, 32, 3)).astype(np.float32), random.integers(0, 10, SAMPLES)


def task_of(framework: str, case: str) -> Task:
    """A picture model with gradients of 1.1 MiB and of less, perhaps one of 64 MiB, too. Each one has equal names."""
    kind = _torch_pictures() if framework == "torch" else _keras_pictures()
    width = 4096 if case.startswith("large") else 0
    return type("Pictures", (kind,), {"width": width, "normalized": case == "sync-batch-norm"})()


def _torch_pictures() -> type[Pictures]:
    import torch
    from torch import nn

    class TorchPictures(Pictures):
        framework = "torch"

        def build_model(self) -> nn.Module:
            normalization = [nn.BatchNorm2d(64)] if self.normalized else []
            sizes = [4096, 72, self.width, self.width] if self.width else [4096, 72]
            dense = [layer for sides in pairwise(sizes) for layer in (nn.Linear(*sides), nn.ReLU())]
            return nn.Sequential(
                *(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 64, 3, stride=2, padding=1)),
                *(*normalization, nn.ReLU(), nn.Flatten(), *dense, nn.Linear(sizes[-1], 10)),
            )

        def build_optimizer(self, model: Any, lr: float) -> Any:
            decayed = [p for p in model.parameters() if p.ndim > 1]
            others = {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0}
            return torch.optim.AdamW([{"params": decayed}, others], lr, weight_decay=0.1, amsgrad=True)

        def measure(self, model: Any, batch: Any) -> dict[str, Any]:
            logits = model(batch["x"].permute(0, 3, 1, 2))
            return {"loss": nn.functional.cross_entropy(logits, batch["y"], reduction="none")}

    return TorchPictures


def _keras_pictures() -> type[Pictures]:
    import keras

    keras.backend.clear_session()

    class KerasPictures(Pictures):
        framework = "tensorflow"

        def build_model(self) -> Any:
            return keras_model(self.width, self.normalized)

        def build_optimizer(self, model: Any, lr: float) -> Any:
            optimizer = keras.optimizers.AdamW(lr, weight_decay=0.1, amsgrad=True)
            some = [v for v in model.trainable_variables if len(v.shape) == 4]
            optimizer.exclude_from_weight_decay(var_list=some, var_names=["bias"])
            return optimizer

        def measure(self, model: Any, batch: Any) -> dict[str, Any]:
            logits = model(batch["x"])
            return {"loss": keras.losses.sparse_categorical_crossentropy(batch["y"], logits, from_logits=True)}

    return KerasPictures


def keras_model(width: int, normalized: bool) -> Any:
    """The picture model; arguments as the attributes of `Pictures`."""
    import keras

    layers = keras.layers
    normalization = [layers.BatchNormalization()] if normalized else []
    convolutions = [layers.Conv2D(n, 3, strides=2, padding="same", activation="relu") for n in (8, 64)]
    dense = [layers.Dense(n, activation="relu") for n in ([72, width, width] if width else [72])]
    parts = [*convolutions, *normalization, layers.Flatten(), *dense, layers.Dense(10)]
    return keras.Sequential([keras.Input((32, 32, 3)), *parts])
