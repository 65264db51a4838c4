"""A task on a torch Dataset object: its records are the numbers 0, 1, 2, … of the Dataset's samples.

python torch_dataset.py numbers
horovodrun -np 2 python -m hvdtrain --task torch_dataset:OnDataset --data.dir numbers
"""

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

import hvdtrain


class Digits(torch.utils.data.Dataset):  # instead of your own
    def __init__(self, train):
        digits = load_digits()
        part = (np.arange(len(digits.target)) % 5 == 0) != train  # every fifth for validation
        self.images, self.labels = digits.images[part], digits.target[part]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return torch.tensor(self.images[index], dtype=torch.float32) / 16, int(self.labels[index])


class OnDataset(hvdtrain.Task):
    framework = "torch"
    defaults = hvdtrain.TaskDefaults(epochs=10, global_batch_size=48, lr=0.01)
    needs_data_dir = True

    def open_data(self, data):
        self.samples = torch.utils.data.ConcatDataset([Digits(train=True), Digits(train=False)])
        return hvdtrain.Splits(data.catalog("train.npy"), data.catalog("validation.npy"))

    def decode(self, records):
        rows = [self.samples[number] for number in np.frombuffer(b"".join(records), np.int64)]
        images, labels = zip(*rows, strict=True)
        return {"image": torch.stack(images).numpy(), "label": np.array(labels, np.int64)}

    def build_model(self):
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )

    def build_optimizer(self, model, lr):
        return torch.optim.Adam(model.parameters(), lr=lr)

    def measure(self, model, batch):
        logits = model(batch["image"])
        return {
            "loss": torch.nn.functional.cross_entropy(logits, batch["label"], reduction="none"),
            "accuracy": (logits.argmax(1) == batch["label"]).float(),
        }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    train, validation = len(Digits(train=True)), len(Digits(train=False))
    np.save(folder / "train.npy", np.arange(train))
    np.save(folder / "validation.npy", np.arange(train, train + validation))
