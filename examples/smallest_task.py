"""horovodrun -np 2 python -m hvdtrain --task smallest_task:Wine --data.dir DIR"""

import numpy as np
import torch

import hvdtrain
from data_sharding.example import decode


class Wine(hvdtrain.Task):
    framework = "torch"

    def open_data(self, data):  # which records there are
        return hvdtrain.Splits(data.catalog("train-*.tfrecord"), data.catalog("validation-*.tfrecord"))

    def decode(self, records):  # n records -> arrays of n rows
        rows = [decode(record) for record in records]
        return {name: np.stack([row[name] for row in rows]) for name in ("x", "y")}

    def build_model(self):
        return torch.nn.Sequential(torch.nn.Linear(13, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))

    def build_optimizer(self, model, lr):
        return torch.optim.AdamW(model.parameters(), lr=lr)

    def measure(self, model, batch):  # one value per sample: hvdtrain averages over all workers
        scores, y = model(batch["x"]), batch["y"].flatten()
        loss = torch.nn.functional.cross_entropy(scores, y, reduction="none")
        return {"loss": loss, "accuracy": (scores.argmax(1) == y).float()}
