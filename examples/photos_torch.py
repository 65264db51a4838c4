"""JPEGs in tar shards: horovodrun -np 2 python -m hvdtrain --task photos_torch:Photos --data.dir DIR

A sample is two files of one name: 0001.jpg and 0001.cls, which holds the class as a number.
"""

import io

import numpy as np
import torch
from PIL import Image
from torch import nn

import hvdtrain
from data_sharding.formats import tar_members


class Photos(hvdtrain.Task):
    framework = "torch"
    defaults = hvdtrain.TaskDefaults(epochs=10, global_batch_size=32, lr=1e-3)
    needs_data_dir = True

    def __init__(self, side: int = 32, classes: int = 10):
        self.side, self.classes = side, classes

    def open_data(self, data):
        return hvdtrain.Splits(data.catalog("train-*.tar"), data.catalog("validation-*.tar"))

    def decode(self, records):
        samples = [tar_members(record) for record in records]
        images = np.stack([self._pixels(sample["jpg"]) for sample in samples])
        if records.random is not None:
            flipped = records.random.coin("flip")
            images[flipped] = images[flipped, :, :, ::-1]
        return {"image": images, "label": np.array([int(sample["cls"]) for sample in samples])}

    def build_model(self):
        side = self.side // 4
        return nn.Sequential(
            *[nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
            *[nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
            *[nn.Flatten(), nn.Linear(32 * side * side, self.classes)],
        )

    def build_optimizer(self, model, lr):
        return torch.optim.AdamW(model.parameters(), lr=lr)

    def measure(self, model, batch):
        logits = model(batch["image"])
        loss = nn.functional.cross_entropy(logits, batch["label"], reduction="none")
        return {"loss": loss, "accuracy": (logits.argmax(1) == batch["label"]).float()}

    def _pixels(self, jpeg):
        image = Image.open(io.BytesIO(jpeg)).convert("RGB").resize((self.side, self.side))
        return np.asarray(image, np.float32).transpose(2, 0, 1) / 255
