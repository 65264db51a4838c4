"""CIFAR-10 from its own files: horovodrun -np 2 python -m hvdtrain --task cifar10_torch:Cifar10 --data.dir DIR"""

import numpy as np
import torch
from torch import nn

import hvdtrain
from data_sharding.augment import horizontal_flip, random_crop

MEAN, DEVIATION = np.array([0.491, 0.482, 0.447]), np.array([0.247, 0.243, 0.262])


class Cifar10(hvdtrain.Task):
    framework = "torch"
    defaults = hvdtrain.TaskDefaults(epochs=10, global_batch_size=128, lr=1e-3, warmup_epochs=1.0)
    needs_data_dir = True

    def open_data(self, data):  # data_batch_* and test_batch*, python or binary version
        return hvdtrain.Splits(train=data.catalog("data_batch_*", format="cifar10"), validation=self._test(data))

    def decode(self, records):
        images = np.frombuffer(b"".join(records), np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        if records.random is not None:  # training: the same crop and flip of a record at every number of workers
            images = horizontal_flip(random_crop(images, records.random, padding=4), records.random)
        pixels = ((images / 255 - MEAN) / DEVIATION).astype(np.float32)
        return {"image": pixels.transpose(0, 3, 1, 2), "label": records.labels}

    def build_model(self):
        def block(inputs, outputs):
            return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU(), nn.MaxPool2d(2)]

        layers = [*block(3, 32), *block(32, 64), *block(64, 128), nn.Flatten(), nn.Linear(128 * 16, 10)]
        return nn.Sequential(*layers)

    def build_optimizer(self, model, lr):
        return torch.optim.AdamW(model.parameters(), lr=lr)

    def measure(self, model, batch):
        logits = model(batch["image"])
        loss = nn.functional.cross_entropy(logits, batch["label"], reduction="none")
        return {"loss": loss, "accuracy": (logits.argmax(1) == batch["label"]).float()}

    def _test(self, data):
        return data.catalog("test_batch*", format="cifar10")
