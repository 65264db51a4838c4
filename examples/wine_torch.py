"""A task of your own in PyTorch: horovodrun -np 2 python -m hvdtrain --task wine_torch:Wine --data.dir DIR"""

import numpy as np
import torch

import hvdtrain
from data_sharding.example import decode


class Wine(hvdtrain.Task):
    framework = "torch"
    defaults = hvdtrain.TaskDefaults(epochs=20, global_batch_size=32, lr=0.01)
    needs_data_dir = True
    label_feature = "y"

    def __init__(self, width: int = 32):  # --task-args.width 64
        self.width = width

    def open_data(self, data):  # which records there are
        return hvdtrain.Splits(
            train=data.catalog("train-*.tfrecord"),
            validation=data.catalog("validation-*.tfrecord"),
        )

    def decode(self, records):  # n serialized records -> arrays of n rows
        rows = [decode(record) for record in records]
        return {"x": np.stack([row["x"] for row in rows]), "y": np.concatenate([row["y"] for row in rows])}

    def build_model(self):
        return torch.nn.Sequential(
            torch.nn.Linear(13, self.width),
            torch.nn.ReLU(),
            torch.nn.Linear(self.width, 3),
        )

    def build_optimizer(self, model, lr):
        return torch.optim.AdamW(model.parameters(), lr=lr)

    def measure(self, model, batch):  # one value per sample: hvdtrain averages them over the global batch
        logits = model(batch["x"])
        return {
            "loss": torch.nn.functional.cross_entropy(logits, batch["y"], reduction="none"),
            "accuracy": (logits.argmax(1) == batch["y"]).float(),
        }
