"""The model of migrate_from_lightning.py as a task; its records are the numbers of the samples:

python migrate_from_lightning_task.py numbers
horovodrun -np 2 python -m hvdtrain --task migrate_from_lightning_task:Classification --data.dir numbers
"""

import sys
from pathlib import Path

import numpy as np
import torch
from migrate_from_lightning import Classifier, samples

import hvdtrain


class Classification(hvdtrain.Task):
    framework = "torch"
    defaults = hvdtrain.TaskDefaults(epochs=4, global_batch_size=32, lr=0.01)  # was: 16 on each of 2 devices
    needs_data_dir = True

    def open_data(self, data):  # was: train_loader, val_loader
        self.samples = torch.utils.data.ConcatDataset([samples(2048, 1), samples(500, 2)])
        return hvdtrain.Splits(data.catalog("train.npy"), data.catalog("validation.npy"))

    def decode(self, records):
        rows = [self.samples[number] for number in np.frombuffer(b"".join(records), np.int64)]
        return {"x": torch.stack([x for x, _ in rows]).numpy(), "y": torch.stack([y for _, y in rows]).numpy()}

    def build_model(self):
        return Classifier().net

    def build_optimizer(self, model, lr):  # was: configure_optimizers
        return torch.optim.AdamW(model.parameters(), lr)

    def measure(self, model, batch):  # was: training_step and validation_step
        logits = model(batch["x"])
        return {
            "loss": torch.nn.functional.cross_entropy(logits, batch["y"], reduction="none"),
            "accuracy": (logits.argmax(1) == batch["y"]).float(),
        }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    np.save(folder / "train.npy", np.arange(2048))
    np.save(folder / "validation.npy", np.arange(2048, 2548))
